//! Corrects single keys in the store of a layer.

use http::request::Parts;
use throttle_core::backend::{self, Call, ExceptedKey, Exception, KeyStep};
use throttle_core::{Backend, BackendError, Key};

use super::layer::ThrottleLayer;
use super::shared_layer::SharedLayer;

impl<B: Backend> ThrottleLayer<B> {
    /// Returns the call of a request with this head in a limit: its key, tier, cost and class. A
    /// request without a key that [shares one budget](crate::OnMissing::Share) has the key of that
    /// budget. `None` if the limit or the layer does not apply to the request, if the request has
    /// no key, or if no limit on a rate has the name.
    ///
    /// The call is a [peek](Call::peeking): a backend decides it with its cost, and charges nothing
    /// for it. A call that charges one unit is `Call::from(key.clone())`, in the first tier.
    ///
    /// The head must have what the limits read, such as a peer address. A key by a future and the
    /// tier of a [plan](crate::plans()) are looked up.
    ///
    /// ```
    /// use http::{Request, Response};
    /// use throttle_tower::throttle_core::Timestamp;
    /// use throttle_tower::throttle_core::backend::{Exception, Treatment};
    /// use throttle_tower::{FixedWindow, Header, Rate, ThrottleLayer, limit};
    /// use tower::{Layer, ServiceExt, service_fn};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let per_user =
    ///     limit("per-user", FixedWindow::new(Rate::per_day(1))).by(Header::new("x-user"));
    /// let throttle = ThrottleLayer::new(per_user)?;
    /// let service = throttle.layer(service_fn(async |_: Request<()>| {
    ///     Ok::<_, std::convert::Infallible>(Response::new(()))
    /// }));
    /// let request = || Request::get("/").header("x-user", "ada").body(()).unwrap();
    /// let status = async || service.clone().oneshot(request()).await.unwrap().status().as_u16();
    /// assert_eq!([status().await, status().await], [200, 429]);
    ///
    /// let (head, ()) = request().into_parts();
    /// let call = throttle.call_of("per-user", &head).await.expect("it has a key");
    /// let ada = call.key().expect("it has a key");
    /// throttle.reset("per-user", ada).await?;
    /// assert_eq!(status().await, 200);
    ///
    /// let until = Timestamp::MAX;
    /// let exempt = Exception { treatment: Treatment::Exempt, until };
    /// throttle.except("per-user", ada, Some(exempt)).await?;
    /// assert_eq!([status().await, status().await], [200, 200]);
    /// assert_eq!(throttle.exceptions("per-user", 100).await?.len(), 1);
    ///
    /// throttle.drain("per-user", &call).await?; // It lifts the exception, too.
    /// assert_eq!(status().await, 429);
    /// assert!(!throttle.reset("per-team", ada).await?, "there is no such limit");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// The future may be dropped at any point: it changes nothing.
    pub async fn call_of(&self, limit: &str, parts: &Parts) -> Option<Call> {
        let shared = self.current.now();
        let index = index_of(&shared, limit)?;
        let when = shared.options.settings.when.as_ref();
        if when.is_some_and(|when| !when(parts)) {
            return None;
        }
        shared.call_of(index, parts).await.map(Call::peeking)
    }

    /// Makes a key unused in a limit, for all processes of the store. `Ok(false)` if no limit on a
    /// rate has the name. See [`call_of`](Self::call_of) for the key of a request.
    ///
    /// # Errors
    ///
    /// If the store fails. The key may then be unused, or not.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it is ready, the key is unused, or not.
    pub async fn reset(&self, limit: &str, key: &Key) -> Result<bool, BackendError> {
        let ran = self.run(limit, KeyStep::Reset(key.clone())).await?;
        Ok(ran.is_some())
    }

    /// Treats a key differently in a limit until an instant or, with `None`, as before: for all
    /// processes of the store, from the key's next decision on. `Ok(false)` if no limit on a rate
    /// has the name.
    ///
    /// # Errors
    ///
    /// If the store fails, or [cannot](Exception::check) hold the exception.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it is ready, the exception is set, or not.
    pub async fn except(
        &self,
        limit: &str,
        key: &Key,
        exception: Option<Exception>,
    ) -> Result<bool, BackendError> {
        let step = KeyStep::Except(key.clone(), exception);
        let ran = self.run(limit, step).await?;
        Ok(ran.is_some())
    }

    /// Uses up the units that the key of a call has left in a limit, and lifts an exception of the
    /// key. It then [recovers](backend::drain()) by the parameters of the call's tier. For a limit
    /// without tiers, `&Call::from(key)` is such a call. `Ok(false)` if no limit on a rate has the
    /// name.
    ///
    /// # Errors
    ///
    /// If the store fails, if the key is banned, if an exception is set for it meanwhile, or if it
    /// shares the overflow bucket of a full store. Some of its units may be used up then.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it is ready, the key has what it had left, less, or nothing.
    pub async fn drain(&self, limit: &str, call: &Call) -> Result<bool, BackendError> {
        let shared = self.current.now();
        let Some(index) = index_of(&shared, limit) else {
            return Ok(false);
        };
        backend::drain(&shared.backend, &shared.prepared, index, call).await?;
        Ok(true)
    }

    /// Returns the keys of a limit that are treated differently, at most `most` of them. Empty if
    /// no limit on a rate has the name.
    ///
    /// # Errors
    ///
    /// If the store fails.
    ///
    /// # Cancel safety
    ///
    /// The future may be dropped at any point: it changes nothing.
    pub async fn exceptions(
        &self,
        limit: &str,
        most: usize,
    ) -> Result<Vec<ExceptedKey>, BackendError> {
        let listed = self.run(limit, KeyStep::Exceptions { most }).await?;
        Ok(listed.unwrap_or_default())
    }

    /// Runs a step; `None` if no limit on a rate has the name.
    async fn run(
        &self,
        limit: &str,
        step: KeyStep,
    ) -> Result<Option<Vec<ExceptedKey>>, BackendError> {
        let shared = self.current.now();
        let Some(index) = index_of(&shared, limit) else {
            return Ok(None);
        };
        shared
            .backend
            .run(&shared.prepared, index, step)
            .await
            .map(Some)
    }
}

/// The index of the limit on a rate that has the name.
fn index_of<B: Backend>(shared: &SharedLayer<B>, name: &str) -> Option<usize> {
    let policies = B::set(&shared.prepared).policies();
    policies.iter().position(|policy| policy.name() == name)
}

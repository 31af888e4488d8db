use std::time::Duration;

use http::request::Parts;
use throttle_core::BackendError;
use throttle_core::backend::{ExceptedKey, Exception};

use super::any_layer::KeyChange;
use super::explanation::Explanation;
use super::handle::Handle;

impl Handle {
    /// Tells what would happen to a request with this head, and charges nothing: which limits apply
    /// and why the others do not, what is left for its keys, and when a request that is refused
    /// would be admitted. The decision that follows is the same, if no other request comes between.
    ///
    /// Keys and costs of the program are called as for a request, lookups of plans too. A store is
    /// asked once, within its deadline. Of several layers with these rules, the one that was made
    /// last is asked, of those that are left.
    ///
    /// The head must have what the limits read: a route as axum's `MatchedPath`, a peer address as
    /// [`PeerAddr`](throttle_tower::extract::PeerAddr) or axum's `ConnectInfo`.
    ///
    /// ```
    /// use http::Request;
    /// use throttle_tower::MemoryBackend;
    /// use throttle_rules::{Registry, Rules, Verdict};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let text = r#"
    /// version = 1
    /// [[limit]]
    /// name = "all"
    /// by = "constant"
    /// fixed-window = { rate = "60/minute" }
    /// [[limit]]
    /// name = "login"
    /// by = "constant"
    /// sliding-log = { rate = "5/15m" }
    /// match = { methods = ["POST"], paths = ["/login"] }
    /// "#;
    /// let (throttle, handle) =
    ///     Rules::from_str("throttle.toml", text, Registry::new())?.layer(MemoryBackend::new())?;
    /// let (head, ()) = Request::get("/login").body(())?.into_parts();
    /// let explained = handle.explain(&head).await?;
    /// assert!(explained.is_admitted);
    /// assert_eq!(explained.limits[0].left.unwrap().units, 60);
    /// assert_eq!(
    ///     explained.limits[1].verdict,
    ///     Verdict::Skips("its method is not among match.methods".to_owned())
    /// );
    /// # let _ = throttle;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// If the store fails and a limit is closed then. Else the explanation is what this process
    /// would decide, and a limit that is open does not apply.
    ///
    /// # Cancel safety
    ///
    /// The future may be dropped at any point: it changes nothing.
    pub async fn explain(&self, parts: &Parts) -> Result<Explanation, BackendError> {
        let Some(layer) = self.layer() else {
            let why = "there is no layer of these rules any more";
            let (retry_after, layer_skips) = (Some(Duration::ZERO), Some(why.to_owned()));
            let limits = Vec::new();
            return Ok(Explanation {
                is_admitted: true,
                is_held: false,
                retry_after,
                layer_skips,
                limits,
            });
        };
        layer.explain(&self.rules(), parts).await
    }

    /// Makes the key that a request with this head has in a limit unused. `Ok(false)` if the file
    /// has no limit on a rate of that name, if the limit or the whole layer does not apply to the
    /// request, or if no layer is left.
    ///
    /// # Errors
    ///
    /// If the store fails. The key may then be unused, or not.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it is ready, the key is unused, or not.
    pub async fn reset(&self, limit: &str, parts: &Parts) -> Result<bool, BackendError> {
        self.change(limit, parts, KeyChange::Reset).await
    }

    /// Treats the key that a request with this head has in a limit differently until an instant,
    /// or, with `None`, as before: for all processes of the store, from the key's next decision on.
    /// `Ok(false)` as for [`reset`](Self::reset).
    ///
    /// ```
    /// use http::Request;
    /// use throttle_rules::{Exception, Registry, Rules, Treatment};
    /// use throttle_tower::{MemoryBackend, throttle_core};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let text = "version = 1\n[[limit]]\nname = \"all\"\nby = \"constant\"\nfixed-window = { rate = \"60/minute\" }";
    /// let (throttle, handle) =
    ///     Rules::from_str("throttle.toml", text, Registry::new())?.layer(MemoryBackend::new())?;
    /// let (head, ()) = Request::get("/").body(())?.into_parts();
    /// let until = throttle_core::Timestamp::MAX;
    /// assert!(
    ///     handle
    ///         .except(
    ///             "all",
    ///             &head,
    ///             Some(Exception {
    ///                 treatment: Treatment::Blocked,
    ///                 until
    ///             })
    ///         )
    ///         .await?
    /// );
    /// assert!(!handle.explain(&head).await?.is_admitted);
    /// assert_eq!(handle.exceptions("all", 100).await?.len(), 1);
    /// # let _ = throttle;
    /// # Ok(())
    /// # }
    /// ```
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
        parts: &Parts,
        exception: Option<Exception>,
    ) -> Result<bool, BackendError> {
        self.change(limit, parts, KeyChange::Except(exception))
            .await
    }

    /// Uses up what the key of a request with this head has left in a limit, and lifts an exception
    /// of the key. From then on it [recovers](throttle_core::backend::drain()) by its own
    /// parameters. `Ok(false)` as for [`reset`](Self::reset).
    ///
    /// # Errors
    ///
    /// If the store fails, if the key is banned, if an exception is set for it meanwhile, or if it
    /// shares the overflow bucket of a full store. Some of its units may be used up then.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it is ready, the key has what it had left, less, or nothing.
    pub async fn drain(&self, limit: &str, parts: &Parts) -> Result<bool, BackendError> {
        self.change(limit, parts, KeyChange::Drain).await
    }

    /// Lists the keys of a limit that are treated differently, at most `most` of them.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub async fn exceptions(
        &self,
        limit: &str,
        most: usize,
    ) -> Result<Vec<ExceptedKey>, BackendError> {
        let Some(layer) = self.layer() else {
            return Ok(Vec::new());
        };
        layer.exceptions(limit, most).await
    }

    async fn change(
        &self,
        limit: &str,
        parts: &Parts,
        change: KeyChange,
    ) -> Result<bool, BackendError> {
        let Some(layer) = self.layer() else {
            return Ok(false);
        };
        layer.change(limit, parts, change).await
    }
}

use std::fmt;
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::permits::HeldPermits;

/// The permits of one request in flight: see [`InFlight`](crate::InFlight).
///
/// The layer inserts it into the extensions of a request that holds permits, and holds them itself
/// until the response body ends or is dropped. The permits are released when the last clone is
/// dropped. A handler whose work continues after the response, or on a connection that has switched
/// protocols, keeps a clone. With the feature `axum` it is an extractor.
///
/// If several layers hold permits for the request, it represents all of them.
///
/// ```
/// use http::{Request, Response};
/// use throttle_tower::{Constant, InFlight, Permit, ThrottleLayer, limit};
/// use tower::{Layer, ServiceExt, service_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let throttle = ThrottleLayer::new(limit("exports", InFlight::new(20)).by(Constant))?;
/// let export = throttle.layer(service_fn(async |request: Request<()>| {
///     let permit: Permit = request
///         .extensions()
///         .get()
///         .cloned()
///         .expect("the layer limits requests in flight");
///     assert_eq!(permit.permits().collect::<Vec<_>>(), [("exports", 1)]);
///     // The work goes on after the response, so it keeps the permit.
///     tokio::spawn(async move {
///         work().await;
///         drop(permit)
///     });
///     Ok::<_, std::convert::Infallible>(Response::new(()))
/// }));
/// drop(export.oneshot(Request::new(())).await?);
/// assert_eq!(throttle.in_flight("exports"), Some(1));
/// # async fn work() { tokio::time::sleep(std::time::Duration::from_secs(1)).await }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "dropping it may return the permits"]
pub struct Permit(SmallVec<[Arc<HeldPermits>; 1]>);

impl Permit {
    /// The permits held, by the name of their limit, those of the outermost layer first.
    pub fn permits(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().flat_map(|permits| permits.by_name())
    }

    pub(super) fn new(permits: Arc<HeldPermits>) -> Self {
        Self(smallvec![permits])
    }

    /// These permits and those of the layers around this one.
    pub(super) fn inside(self, outer: Option<&Self>) -> Self {
        let outer = outer.into_iter().flat_map(|outer| outer.0.iter().cloned());
        Self(outer.chain(self.0).collect())
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.permits()).finish()
    }
}

#[cfg(feature = "axum")]
crate::axum_extractor::extractor! {
    Permit,
    "the request holds no permit; add a limit on requests in flight to the route's \
        ThrottleLayer, or take an Option<Permit>";
    /// The rejection of a handler that takes a [`Permit`] where the request holds no permit:
    /// status 500.
    ///
    /// ```
    /// use throttle_tower::{MissingPermit, Permit};
    ///
    /// async fn export(permit: Result<Permit, MissingPermit>) -> Result<(), MissingPermit> {
    ///     drop(permit?);
    ///     Ok(())
    /// }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// # use axum::extract::FromRequestParts;
    /// # let (mut parts, ()) = http::Request::new(()).into_parts();
    /// # let permit = Permit::from_request_parts(&mut parts, &()).await;
    /// assert!(export(permit).await.is_err(), "there is no layer");
    /// # }
    /// ```
    MissingPermit
}

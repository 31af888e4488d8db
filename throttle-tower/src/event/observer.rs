use std::sync::Arc;

use super::activity::Activity;
use super::layer_info::LayerInfo;
use super::outcome::Event;

/// Observes what a layer does: see [`ThrottleBuilder::observe`](crate::ThrottleBuilder::observe).
///
/// A closure that takes an [`Event`] is an observer, and so is an [`Arc`] of one, which the program
/// keeps a clone of to read what was observed.
///
/// The methods run on the tasks of requests, so they **must not block**: a request waits for them.
/// An observer changes no decision. A panic in one is a panic of the request.
///
/// # Indices
///
/// Each version of a layer's limits has indices, which are those in [`LayerInfo::limits`]. If the
/// limits are replaced, their indices may change, and requests under way report by the former ones.
/// So an observer that counts by index returns another observer from [`built`](Self::built). An
/// observer that counts by name need not.
///
/// ```
/// use std::collections::BTreeMap;
/// use std::sync::{Arc, Mutex};
///
/// use http::{Request, Response};
/// use throttle_tower::{
///     Constant, Event, Gcra, LayerInfo, Observer, Rate, ThrottleLayer, all,
///     limit,
/// };
/// use tower::{Layer, ServiceExt, service_fn};
///
/// /// Counts refusals by limit.
/// #[derive(Default)]
/// struct RefusalCounts(Mutex<BTreeMap<String, u64>>);
///
/// impl Observer for RefusalCounts {
///     fn built(&self, layer: &LayerInfo, _: Option<&LayerInfo>) -> Option<Arc<dyn Observer>> {
///         let mut counts = self.0.lock().expect("no panic while it is locked");
///         for limit in layer.limits() {
///             counts.entry(limit.name.as_str().to_owned()).or_default();
///         }
///         None // This observer counts by name.
///     }
///
///     fn decided(&self, event: &Event<'_>) {
///         for limit in event.limits() {
///             if limit.units().is_some_and(|units| units.status.is_violated()) {
///                 // The lock is held for an addition alone.
///                 let mut counts = self.0.lock().expect("no panic while it is locked");
///                 *counts.entry(limit.info.name.as_str().to_owned()).or_default() += 1;
///             }
///         }
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let per_hour = |name: &str, burst| {
///     limit(name, Gcra::new(Rate::per_hour(1)).burst(burst)).by(Constant)
/// };
/// let refusals = Arc::new(RefusalCounts::default());
/// let throttle = ThrottleLayer::builder(all([per_hour("few", 2), per_hour("many", 9)]))
///     .observe(Arc::clone(&refusals))
///     .build()?;
/// let service = throttle.layer(service_fn(async |_: Request<()>| {
///     Ok::<_, std::convert::Infallible>(Response::new(()))
/// }));
/// for _ in 0..5 {
///     service.clone().oneshot(Request::new(())).await?;
/// }
/// let refusals = refusals.0.lock().expect("no panic while it is locked");
/// assert_eq!((refusals["few"], refusals["many"]), (3, 0));
/// # Ok(())
/// # }
/// ```
pub trait Observer: Send + Sync + 'static {
    /// Called when a layer of this observer is built, and when the layer's limits are
    /// [replaced](crate::ThrottleLayer::replace). Then `former` is the version that is replaced.
    /// The call comes when nothing else can fail, and before the first request meets the limits. It
    /// must not replace the limits of the same layer: replacements follow each other, so it would
    /// wait for itself.
    ///
    /// Returns the observer of these limits, or `None` if it is this one. Defaults to `None`.
    fn built(&self, layer: &LayerInfo, former: Option<&LayerInfo>) -> Option<Arc<dyn Observer>> {
        let _ = (layer, former);
        None
    }

    /// Called when a request was passed on or refused. Defaults to nothing.
    fn decided(&self, event: &Event<'_>) {
        let _ = event;
    }

    /// Called when something else has happened, on the task of the request that it is about or of
    /// its settlement. Defaults to nothing.
    fn happened(&self, activity: &Activity) {
        let _ = activity;
    }
}

impl<F: Fn(&Event<'_>) + Send + Sync + 'static> Observer for F {
    fn decided(&self, event: &Event<'_>) {
        self(event);
    }
}

impl<T: Observer + ?Sized> Observer for Arc<T> {
    fn built(&self, layer: &LayerInfo, former: Option<&LayerInfo>) -> Option<Arc<dyn Observer>> {
        (**self).built(layer, former)
    }

    fn decided(&self, event: &Event<'_>) {
        (**self).decided(event);
    }

    fn happened(&self, activity: &Activity) {
        (**self).happened(activity);
    }
}

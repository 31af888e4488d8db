use std::any::Any;
use std::sync::Arc;

use tokio::time::Instant;

use super::activity::Activity;
use super::backends::BuiltOn;
use super::layer_info::LayerInfo;
#[cfg(any(feature = "metrics", feature = "offenders", feature = "tracing"))]
use super::observed::Observed;
use super::observer::Observer;
use super::outcome::Event;

/// An [`Observer`] that a method of the layer adds, which knows more of the layer than is public.
pub(crate) trait BuiltInObserver: Any + Send + Sync {
    /// A layer was built on a backend, and reports to this observer for as long as the backend is
    /// there.
    fn built(&self, on: &Arc<BuiltOn>) {
        let _ = on;
    }

    /// The observer of the limits that replace those of this one, beside these observers. `None` if
    /// this one serves for them, too.
    #[cfg(any(feature = "metrics", feature = "offenders", feature = "tracing"))]
    fn renewed(
        &self,
        former: &Observed,
        of: &Observed,
        beside: &Observers,
    ) -> Option<Box<dyn BuiltInObserver>> {
        let _ = (former, of, beside);
        None
    }

    /// Another observer that this one reports all requests to, to be found by its type.
    fn part(&self) -> Option<&dyn Any> {
        None
    }

    /// As of an [`Observer`]. In a layer of many limits, the event lists those that may apply.
    fn decided(&self, event: &Event<'_>);

    /// As of an [`Observer`].
    fn happened(&self, activity: &Activity) {
        let _ = activity;
    }
}

/// The observers of a layer. Clones are the same observers.
#[derive(Clone, Default)]
pub(crate) struct Observers {
    built_in: Option<Arc<[AnyObserver]>>,
    given: Option<Arc<[Subscription]>>,
}

/// Boxed once more, so that no step depends on an observer's size.
type AnyObserver = Arc<Box<dyn BuiltInObserver>>;

/// An observer that the program gave.
#[derive(Clone)]
struct Subscription {
    given: Arc<dyn Observer>,
    /// What it returned for the present limits.
    of_version: Arc<dyn Observer>,
}

impl Subscription {
    fn new(given: &Arc<dyn Observer>, layer: &LayerInfo, former: Option<&LayerInfo>) -> Self {
        let of_version = given.built(layer, former);
        Self {
            of_version: of_version.unwrap_or_else(|| Arc::clone(given)),
            given: Arc::clone(given),
        }
    }
}

impl Observers {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.built_in.is_none() && self.given.is_none()
    }

    pub(crate) fn happened(&self, activity: Activity) {
        self.built_in()
            .for_each(|observer| observer.happened(&activity));
        self.given()
            .for_each(|own| own.of_version.happened(&activity));
    }

    /// Reports a request to the observers that a method of the layer has added.
    pub(crate) fn decided(&self, event: &Event<'_>) {
        self.built_in().for_each(|observer| observer.decided(event));
    }

    /// Whether the program gave an observer.
    pub(crate) fn has_given(&self) -> bool {
        self.given.is_some()
    }

    /// Reports a request to the observers that the program gave.
    pub(crate) fn decided_given(&self, event: &Event<'_>) {
        self.given().for_each(|own| own.of_version.decided(event));
    }

    /// The present instant, if an observer wants to know how long something takes.
    #[inline]
    pub(crate) fn start(&self) -> Option<Instant> {
        if self.is_empty() {
            None
        } else {
            Some(Instant::now())
        }
    }

    /// These observers and `given` by the program, for a version of a layer's limits.
    pub(crate) fn and(
        &self,
        given: &[Arc<dyn Observer>],
        layer: &LayerInfo,
        former: Option<&LayerInfo>,
    ) -> Self {
        let subscribe = |observer| Subscription::new(observer, layer, former);
        let given: Arc<[Subscription]> = given.iter().map(subscribe).collect();
        Self {
            built_in: self.built_in.clone(),
            given: Some(given).filter(|given| !given.is_empty()),
        }
    }

    /// The observers that the program gave.
    pub(crate) fn to_given(&self) -> Vec<Arc<dyn Observer>> {
        self.given().map(|own| Arc::clone(&own.given)).collect()
    }

    /// These observers and one more, which replaces one of the same type.
    pub(crate) fn with<T: BuiltInObserver>(&self, observer: T) -> Self {
        let others = self.built_in().filter(|own| !is::<T>(own)).cloned();
        let one: AnyObserver = Arc::new(Box::new(observer));
        self.with_built_in(std::iter::once(one).chain(others))
    }

    /// The observers of the limits that replace theirs.
    #[cfg(any(feature = "metrics", feature = "offenders", feature = "tracing"))]
    pub(crate) fn renewed(&self, former: &Observed, of: &Observed) -> Self {
        self.with_built_in(self.built_in().map(|own| {
            own.renewed(former, of, self)
                .map_or_else(|| Arc::clone(own), Arc::new)
        }))
    }

    /// Those of other types.
    #[cfg(any(feature = "dashboard", feature = "rules"))]
    pub(crate) fn without<T: BuiltInObserver>(&self) -> Self {
        self.with_built_in(self.built_in().filter(|own| !is::<T>(own)).cloned())
    }

    /// The observer of a type, if there is one, or the one that is a part of another.
    pub(crate) fn find<T: BuiltInObserver>(&self) -> Option<&T> {
        let alone = self
            .built_in()
            .find_map(|own| (&***own as &dyn Any).downcast_ref());
        alone.or_else(|| self.built_in().find_map(|own| own.part()?.downcast_ref()))
    }

    pub(crate) fn built_on(&self, on: &Arc<BuiltOn>) {
        self.built_in().for_each(|observer| observer.built(on));
    }

    /// Calls `read` with each observer that a method of the layer has added.
    #[cfg(all(test, feature = "metrics"))]
    pub(crate) fn each(&self, read: impl Fn(&dyn BuiltInObserver)) {
        self.built_in().for_each(|observer| read(&***observer));
    }

    fn with_built_in(&self, observers: impl Iterator<Item = AnyObserver>) -> Self {
        let all: Arc<[AnyObserver]> = observers.collect();
        Self {
            built_in: Some(all).filter(|all| !all.is_empty()),
            given: self.given.clone(),
        }
    }

    #[inline]
    fn built_in(&self) -> impl Iterator<Item = &AnyObserver> {
        self.built_in.iter().flat_map(|all| all.iter())
    }

    #[inline]
    fn given(&self) -> impl Iterator<Item = &Subscription> {
        self.given.iter().flat_map(|all| all.iter())
    }
}

fn is<T: BuiltInObserver>(observer: &AnyObserver) -> bool {
    (&***observer as &dyn Any).is::<T>()
}

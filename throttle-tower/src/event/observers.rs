use std::sync::Arc;

use tokio::time::Instant;

use super::activity::Activity;
use super::layer_info::LayerInfo;
use super::observer::Observer;
use super::outcome::Event;

/// The observers of a layer. Clones are the same observers.
#[derive(Clone, Default)]
pub(crate) struct Observers(Option<Arc<[Subscription]>>);

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
        self.0.is_none()
    }

    pub(crate) fn decided(&self, event: &Event<'_>) {
        self.all().for_each(|own| own.of_version.decided(event));
    }

    pub(crate) fn happened(&self, activity: Activity) {
        self.all()
            .for_each(|own| own.of_version.happened(&activity));
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

    /// Those that the program gave, for a version of a layer's limits.
    pub(crate) fn of_version(
        given: &[Arc<dyn Observer>],
        layer: &LayerInfo,
        former: Option<&LayerInfo>,
    ) -> Self {
        let subscribe = |observer| Subscription::new(observer, layer, former);
        let all: Arc<[Subscription]> = given.iter().map(subscribe).collect();
        Self(Some(all).filter(|all| !all.is_empty()))
    }

    /// The observers as the program gave them.
    pub(crate) fn to_given(&self) -> Vec<Arc<dyn Observer>> {
        self.all().map(|own| Arc::clone(&own.given)).collect()
    }

    #[inline]
    fn all(&self) -> impl Iterator<Item = &Subscription> {
        self.0.iter().flat_map(|all| all.iter())
    }
}

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use throttle_core::BackendErrorKind;
use throttle_core::backend::Call;
use tokio::time::Instant;

use super::backends::BuiltOn;
#[cfg(all(
    feature = "rules",
    any(feature = "metrics", feature = "offenders", feature = "tracing")
))]
use super::observed::Observed;
use super::outcome::Event;
#[cfg(feature = "metrics")]
use crate::limit::LookupResult;

/// Observes a layer. Each method runs on the task of the request that it is about.
pub(crate) trait Observer: Any + Send + Sync {
    /// A layer was built on a backend, and reports to this observer for as long as the backend is
    /// there.
    fn built(&self, on: &Arc<BuiltOn>) {
        let _ = on;
    }

    /// The observer of the limits that replace those of this one, beside these observers. `None` if
    /// this one serves for them, too.
    #[cfg(all(
        feature = "rules",
        any(feature = "metrics", feature = "offenders", feature = "tracing")
    ))]
    fn renewed(
        &self,
        former: &Observed,
        of: &Observed,
        beside: &Observers,
    ) -> Option<Box<dyn Observer>> {
        let _ = (former, of, beside);
        None
    }

    /// Another observer that this one tells of all requests, to be found by its type.
    fn part(&self) -> Option<&dyn Any> {
        None
    }

    /// A request was passed on or refused. `calls` stand in the order of the policies; there are
    /// none if a key was missing, or if there were too few permits.
    fn passed_or_refused(&self, event: &Event<'_>, calls: &[Call]);

    /// A decision that had to be waited for was made after so long, or failed.
    fn answered(&self, after: Duration, result: Result<(), BackendErrorKind>) {
        let _ = (after, result);
    }

    /// A request has joined the queue of a policy.
    fn queued(&self, policy: usize) {
        let _ = policy;
    }

    /// A request has left the queue of a policy after so long.
    fn left_queue(&self, policy: usize, after: Duration) {
        let _ = (policy, after);
    }

    /// A request has taken permits of a `Concurrency` limit, by its place among those.
    fn took_permits(&self, limit: usize, permits: u64) {
        let _ = (limit, permits);
    }

    /// Permits have come back.
    fn returned_permits(&self, limit: usize, permits: u64) {
        let _ = (limit, permits);
    }

    /// A charge was corrected after its decision.
    fn corrected(&self, policy: usize, correction: Correction) {
        let _ = (policy, correction);
    }

    /// The plan of a request was found.
    #[cfg(feature = "metrics")]
    fn looked_up(&self, policy: usize, result: LookupResult) {
        let _ = (policy, result);
    }

    /// A strike has begun a ban.
    fn banned(&self, policy: usize) {
        let _ = policy;
    }
}

/// Units by which a charge was corrected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Correction {
    /// Given back.
    Refunded(u64),
    /// Charged beside what the decision took.
    Charged(u64),
    /// Used beyond what was charged. They are debited, as far as units are left.
    Short(u64),
}

/// The observers of a layer. Clones are the same observers.
///
/// Each request goes through them. Boxed once more, so that no step depends on an observer's size.
#[derive(Clone, Default)]
pub(crate) struct Observers(Option<Arc<[AnyObserver]>>);

type AnyObserver = Arc<Box<dyn Observer>>;

impl Observers {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Calls `tell` with each observer.
    #[inline]
    pub(crate) fn each(&self, tell: impl Fn(&dyn Observer)) {
        self.iter().for_each(|observer| tell(&***observer));
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

    /// These observers and one more, which replaces one of the same type.
    pub(crate) fn with<T: Observer>(&self, observer: T) -> Self {
        let others = self.iter().filter(|own| !is::<T>(own)).cloned();
        let one: AnyObserver = Arc::new(Box::new(observer));
        std::iter::once(one).chain(others).collect()
    }

    /// The observers of the limits that replace theirs.
    #[cfg(all(
        feature = "rules",
        any(feature = "metrics", feature = "offenders", feature = "tracing")
    ))]
    pub(crate) fn renewed(&self, former: &Observed, of: &Observed) -> Self {
        self.iter()
            .map(|own| {
                own.renewed(former, of, self)
                    .map_or_else(|| Arc::clone(own), Arc::new)
            })
            .collect()
    }

    /// Those of other types.
    #[cfg(any(feature = "dashboard", feature = "rules"))]
    pub(crate) fn without<T: Observer>(&self) -> Self {
        self.iter().filter(|own| !is::<T>(own)).cloned().collect()
    }

    /// The observer of a type, if there is one, or the one that is a part of another.
    pub(crate) fn find<T: Observer>(&self) -> Option<&T> {
        let alone = self
            .iter()
            .find_map(|own| (&***own as &dyn Any).downcast_ref());
        alone.or_else(|| self.iter().find_map(|own| own.part()?.downcast_ref()))
    }

    #[inline]
    fn iter(&self) -> impl Iterator<Item = &AnyObserver> {
        self.0.iter().flat_map(|all| all.iter())
    }
}

fn is<T: Observer>(observer: &AnyObserver) -> bool {
    (&***observer as &dyn Any).is::<T>()
}

impl FromIterator<AnyObserver> for Observers {
    fn from_iter<I: IntoIterator<Item = AnyObserver>>(observers: I) -> Self {
        Self(Some(observers.into_iter().collect::<Arc<[_]>>()).filter(|all| !all.is_empty()))
    }
}

//! Observers of a layer: metrics, events, the keys refused most, the page. Open this to add one. Each is a feature, and
//! a layer reports to those that it is given.
//!
//! An observer changes no decision, calls no store, and holds no lock that a request waits for. Without one, a request
//! pays for a single look at an empty list.

#![cfg_attr(not(feature = "metrics"), allow(dead_code, reason = "observers are features"))]

#[cfg(feature = "dashboard")]
mod dashboard;
#[cfg(feature = "metrics")]
pub mod metrics;
#[cfg(feature = "offenders")]
mod offenders;
#[cfg(feature = "tracing")]
mod trace;

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use throttle_core::BackendErrorKind;
use throttle_core::backend::Call;
use tokio::time::Instant;

use crate::throttle::Event;

#[cfg(feature = "offenders")]
pub use offenders::Offender;

/// Observes a layer. Each method runs on the task of the request that it is about.
pub(crate) trait Observer: Any + Send + Sync {
    /// The layer was built on a backend.
    fn built(&self, keys_held: KeysHeld) {
        let _ = keys_held;
    }

    /// A request was passed on or refused. `calls` stand in the order of the policies; there are none if a key was
    /// missing, or if there were too few permits.
    fn judged(&self, event: &Event<'_>, calls: &[Call]);

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
}

/// Reads how many keys a backend holds, if they are in this process.
pub(crate) type KeysHeld = Arc<dyn Fn() -> Option<usize> + Send + Sync>;

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
#[derive(Clone, Default)]
pub(crate) struct Observers(Option<Arc<[Arc<dyn Observer>]>>);

impl Observers {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Calls `tell` with each observer.
    #[inline]
    pub(crate) fn each(&self, tell: impl Fn(&dyn Observer)) {
        if let Some(observers) = &self.0 {
            observers.iter().for_each(|observer| tell(&**observer));
        }
    }

    /// The present instant, if an observer wants to know how long something takes.
    #[inline]
    pub(crate) fn start(&self) -> Option<Instant> {
        if self.is_empty() { None } else { Some(Instant::now()) }
    }

    /// These observers and one more, which replaces one of the same type.
    pub(crate) fn with(&self, observer: Arc<dyn Observer>) -> Self {
        let type_of = |observer: &Arc<dyn Observer>| (&**observer as &dyn Any).type_id();
        let replaced = type_of(&observer);
        let own = self.0.iter().flat_map(|own| own.iter().cloned());
        Self(Some(own.filter(|own| type_of(own) != replaced).chain([observer]).collect()))
    }

    /// Those of a type.
    #[cfg(feature = "dashboard")]
    pub(crate) fn only<T: Observer>(&self) -> Self {
        let own = self.0.iter().flat_map(|own| own.iter().cloned());
        Self(Some(own.filter(|own| (&**own as &dyn Any).is::<T>()).collect()))
    }

    /// The observer of a type, if there is one.
    #[cfg(feature = "offenders")]
    pub(crate) fn find<T: Observer>(&self) -> Option<&T> {
        self.0.iter().flat_map(|own| own.iter()).find_map(|own| (&**own as &dyn Any).downcast_ref())
    }
}

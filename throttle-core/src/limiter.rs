use std::fmt;
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use crate::backend::{Backend, BackendError, Call, KeyStep, Receipt};
use crate::cost::Cost;
use crate::decision::Decision;
use crate::error::ConfigError;
use crate::key::Key;
use crate::memory::MemoryBackend;
use crate::set::{PolicySet, PolicyTree};
use crate::time::Clock;

/// A set of limits on a backend, for queue workers, WebSockets, batch jobs and other code without a
/// layer.
///
/// It reports no metrics and calls no hook: count its [`Decision`]s where you call it.
///
/// ```
/// use throttle_core::{Gcra, Limiter, Policy, Rate};
///
/// let limiter = Limiter::in_memory(Policy::new(
///     "mails",
///     Gcra::new(Rate::per_hour(20)).burst(2),
/// )?)?;
/// assert!(limiter.check("ada", 1).is_admitted());
///
/// let (decision, charge) = limiter.charge("ada", 1);
/// assert_eq!(decision.remaining(), 0);
/// charge.expect("it was admitted").refund_now();
/// assert_eq!(limiter.peek("ada").remaining(), 1);
/// # Ok::<(), throttle_core::ConfigError>(())
/// ```
pub struct Limiter<B: Backend = MemoryBackend> {
    backend: B,
    prepared: Arc<B::Prepared>,
}

impl Limiter {
    /// A limiter in this process, on the system clock, of up to a million keys.
    ///
    /// # Errors
    ///
    /// As [`PolicySet::new`].
    pub fn in_memory(tree: impl Into<PolicyTree>) -> Result<Self, ConfigError> {
        Self::new(MemoryBackend::new(), PolicySet::new(tree)?)
    }
}

impl<B: Backend> Limiter<B> {
    /// A limiter on any backend.
    ///
    /// # Errors
    ///
    /// If the backend cannot hold such a set.
    pub fn new(backend: B, set: PolicySet) -> Result<Self, ConfigError> {
        let prepared = Arc::new(backend.prepare(set)?);
        Ok(Self { backend, prepared })
    }

    /// The set.
    #[must_use]
    pub fn set(&self) -> &PolicySet {
        B::set(&self.prepared)
    }

    /// The backend.
    #[must_use]
    pub const fn backend(&self) -> &B {
        &self.backend
    }

    /// Decides about the given calls, one per policy. A [`Call::peek`] uses nothing.
    ///
    /// The future may be ready when it is first polled, also with an error: a backend in memory
    /// never waits, and a remote one fails immediately while its store is not called. So a loop
    /// that retries sleeps after an error, or it leaves no time to other tasks of its thread, among
    /// them the one that reconnects.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it is ready, the request was charged once or not at all.
    pub fn decide(&self, calls: &[Call]) -> B::Decide {
        self.backend.decide(&self.prepared, calls)
    }

    /// Settles a receipt: gives back or debits the difference between the taken and the
    /// [used](Receipt::actual) units.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it is ready, the receipt was settled once or not at all.
    pub fn settle(&self, receipt: Receipt) -> B::Done {
        self.backend.settle(&self.prepared, receipt)
    }

    /// Forgets one key of a policy, named by its index in the set.
    ///
    /// # Errors
    ///
    /// If the store fails, or the set has [no policy](PolicySet::policy) of that index.
    pub async fn reset(&self, policy: usize, key: &Key) -> Result<(), BackendError> {
        let reset = KeyStep::Reset(key.clone());
        self.backend.run(&self.prepared, policy, reset).await?;
        Ok(())
    }

    /// The same call of each policy; one call of a policy that is there for several keys.
    pub(crate) fn calls(&self, call: &Call) -> SmallVec<[Call; 3]> {
        let policies = self.set().policies();
        let mut calls = smallvec![call.clone(); policies.len()];
        if self.set().repeats {
            for (index, policy) in policies.iter().enumerate() {
                let mut earlier = policies[..index].iter();
                if earlier.any(|earlier| earlier.name() == policy.name()) {
                    calls[index] = Call::SKIP;
                }
            }
        }
        calls
    }
}

impl<C: Clock> Limiter<MemoryBackend<C>> {
    /// Decides a request of `cost` units for one key, against every policy; 0 counts as 1.
    #[must_use]
    pub fn check(&self, key: impl Into<Key>, cost: u64) -> Decision {
        let call = Call::new(key.into(), Cost::at_least_one(cost));
        self.decide_now(&self.calls(&call))
    }

    /// Returns the status of a key, without charging it.
    #[must_use]
    pub fn peek(&self, key: impl Into<Key>) -> Decision {
        self.decide_now(&self.calls(&Call::peek(key.into())))
    }

    pub(crate) fn decide_now(&self, calls: &[Call]) -> Decision {
        self.backend.decide_now(&self.prepared, calls)
    }
}

impl<B: Backend> Clone for Limiter<B> {
    fn clone(&self) -> Self {
        Self {
            backend: self.backend.clone(),
            prepared: Arc::clone(&self.prepared),
        }
    }
}

impl<B: Backend> fmt::Debug for Limiter<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter")
            .field("set", self.set())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::FixedWindow;
    use crate::policy::Policy;
    use crate::rate::Rate;

    fn limiter() -> Limiter {
        let policy = |name, count| {
            Policy::new(name, FixedWindow::new(Rate::per_day(count)))
                .expect("a policy")
                .into()
        };
        Limiter::in_memory(PolicyTree::All(vec![policy("a", 9), policy("b", 5)])).expect("a set")
    }

    #[test]
    fn a_limiter_shows_its_set_and_no_key() {
        let limiter = limiter();
        let (_, charge) = limiter.charge("ada", 1);
        let shown = format!("{limiter:?}");
        assert!(
            shown.starts_with("Limiter { set: PolicySet {") && shown.ends_with(", .. }"),
            "{shown}"
        );
        let charge = format!("{:?}", charge.expect("it was admitted"));
        assert!(
            charge.starts_with("Charge { receipt: Receipt {") && charge.ends_with(", .. }"),
            "{charge}"
        );
        assert!(
            !shown.contains("ada") && !charge.contains("ada") && charge.contains("Key(text)"),
            "{charge}"
        );
    }

    #[test]
    fn clones_have_one_budget_and_every_policy_is_asked() {
        let (limiter, clone) = (limiter(), limiter().clone());
        assert_eq!(clone.check("ada", 1).remaining(), 4, "another limiter");
        let clone = limiter.clone();
        let left = |decision: Decision| {
            decision
                .statuses()
                .iter()
                .map(|status| status.remaining())
                .collect::<Vec<_>>()
        };
        assert_eq!(left(limiter.check("ada", 2)), [7, 3]);
        assert_eq!(
            left(clone.check("ada", 0)),
            [6, 2],
            "no cost is a cost of one"
        );
        assert_eq!(left(limiter.peek("ada")), [6, 2]);
        assert_eq!(left(limiter.peek("eve")), [9, 5]);
        assert_eq!(
            (limiter.set().policies().len(), limiter.backend().keys()),
            (2, 2)
        );
    }
}

use std::fmt;

use crate::backend::{Backend, BackendError, Call, Receipt};
use crate::cost::Cost;
use crate::decision::Decision;
use crate::key::Key;
use crate::limiter::Limiter;
use crate::memory::MemoryBackend;
use crate::time::Clock;

/// What an admitted request took: refund it, or settle it with the units that were actually used,
/// once.
///
/// Settling consumes the charge, and it cannot be cloned. A dropped charge settles nothing: the
/// units stay taken. Settling for less than was taken gives the difference back, but never to a
/// later window. Settling for more debits the difference, as far as units remain.
///
/// ```
/// use throttle_core::{Gcra, Limiter, Policy, Rate};
///
/// let tokens = Limiter::in_memory(Policy::new("tokens", Gcra::new(Rate::per_minute(1_000)))?)?;
/// let (decision, charge) = tokens.charge("ada", 400); // an estimate
/// assert_eq!(decision.remaining(), 600);
/// charge.expect("it was admitted").settle_now(150); // what it took in the end
/// assert!(tokens.peek("ada").remaining() >= 850);
/// # Ok::<(), throttle_core::ConfigError>(())
/// ```
///
/// ```compile_fail,E0382
/// # use throttle_core::{Gcra, Limiter, Policy, Rate};
/// # let tokens = Limiter::in_memory(Policy::new("tokens", Gcra::new(Rate::per_minute(9))).unwrap()).unwrap();
/// let charge = tokens.charge("ada", 1).1.unwrap();
/// charge.refund_now();
/// charge.refund_now(); // used a second time
/// ```
#[must_use = "dropping a charge keeps what was taken"]
pub struct Charge<B: Backend = MemoryBackend> {
    limiter: Limiter<B>,
    receipt: Receipt,
}

impl<B: Backend> Limiter<B> {
    /// Decides, and returns the charge if something was charged.
    ///
    /// # Errors
    ///
    /// If the store fails.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it is ready, the request was charged once or not at all, and
    /// cannot be refunded.
    pub async fn reserve(
        &self,
        calls: &[Call],
    ) -> Result<(Decision, Option<Charge<B>>), BackendError> {
        let decision = self.decide(calls).await?;
        let charge = self.charge_of(&decision, calls);
        Ok((decision, charge))
    }

    fn charge_of(&self, decision: &Decision, calls: &[Call]) -> Option<Charge<B>> {
        Receipt::of(decision, calls).map(|receipt| Charge::new(self.clone(), receipt))
    }
}

impl<C: Clock> Limiter<MemoryBackend<C>> {
    /// Decides a request of `cost` units like [`check`](Self::check), 0 counting as 1, and returns
    /// the charge if the request was admitted.
    #[must_use]
    pub fn charge(
        &self,
        key: impl Into<Key>,
        cost: u64,
    ) -> (Decision, Option<Charge<MemoryBackend<C>>>) {
        let calls = self.calls(&Call::new(key.into(), Cost::at_least_one(cost)));
        let decision = self.decide_now(&calls);
        let charge = self.charge_of(&decision, &calls);
        (decision, charge)
    }
}

impl<B: Backend> Charge<B> {
    pub(crate) fn new(limiter: Limiter<B>, receipt: Receipt) -> Self {
        Self { limiter, receipt }
    }

    /// The units taken from the policy of that name, of all its keys; 0 for an unknown name.
    #[must_use]
    pub fn taken(&self, policy: &str) -> u64 {
        let policies = self.limiter.set().policies().iter().enumerate();
        let named = policies.filter(|(_, own)| own.name() == policy);
        named.map(|(index, _)| self.receipt.taken(index)).sum()
    }

    /// Gives all units back.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it is ready, the charge was settled once or not at all.
    pub fn refund(self) -> B::Done {
        self.settle(0)
    }

    /// Settles the charge as if the request had cost `actual` units in every policy that was
    /// charged.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it is ready, the charge was settled once or not at all.
    pub fn settle(self, actual: u64) -> B::Done {
        self.limiter.settle(self.receipt.actual(actual))
    }
}

impl<C: Clock> Charge<MemoryBackend<C>> {
    /// Gives all units back, without a future.
    pub fn refund_now(self) {
        drop(self.refund());
    }

    /// Settles the charge as if the request had cost `actual` units in every policy that was
    /// charged, without a future.
    pub fn settle_now(self, actual: u64) {
        drop(self.settle(actual));
    }
}

impl<B: Backend> fmt::Debug for Charge<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Charge")
            .field("receipt", &self.receipt)
            .finish_non_exhaustive()
    }
}

//! A set of limits on the store of a harness, and what a caller can observe of it.

use std::time::Duration;

use super::Harness;
use crate::algorithm::Algorithm;
use crate::backend::{Call, Receipt};
use crate::cost::Cost;
use crate::decision::Decision;
use crate::key::Key;
use crate::limiter::Limiter;
use crate::policy::Policy;
use crate::set::{PolicySet, PolicyTree};
use crate::time::Timestamp;

/// An instant that no window starts at.
pub(super) const START: Timestamp = Timestamp::from_micros(1_790_000_123_456_789);

/// Starts an empty store and sets its clock to [`START`].
pub(super) fn start<H: Harness>() -> H {
    let harness = H::start();
    harness.set_time(START);
    harness
}

pub(super) fn policy(name: &str, algorithm: &Algorithm) -> Policy {
    Policy::new(name, *algorithm).expect("the kit's names are valid")
}

pub(super) fn call(key: &Key, cost: u64) -> Call {
    Cost::new(cost).map_or_else(
        |_| Call::peek(key.clone()),
        |cost| Call::new(key.clone(), cost),
    )
}

pub(super) fn micros(duration: Duration) -> u64 {
    duration.as_micros() as u64
}

/// The wait in µs of a request that is refused, but not for ever.
pub(super) fn wait(refused: &Decision) -> u64 {
    assert!(!refused.is_admitted(), "expected a refusal: {refused:?}");
    let wait = micros(
        refused
            .retry_after()
            .expect("the cost is within the capacity, so some wait helps"),
    );
    assert!(wait > 0, "a refusal without a wait: {refused:?}");
    wait
}

/// A set of limits on the store of a harness.
pub(super) struct Fixture<'h, H: Harness> {
    harness: &'h H,
    pub(super) limiter: Limiter<H::Backend>,
}

impl<'h, H: Harness> Fixture<'h, H> {
    pub(super) fn new(harness: &'h H, tree: impl Into<PolicyTree>) -> Self {
        let set = PolicySet::new(tree).expect("the kit's sets are valid");
        let limiter = Limiter::new(harness.backend(), set)
            .expect("the backend holds a set of a few policies");
        Self { harness, limiter }
    }

    /// A set of one policy named "policy".
    pub(super) fn of(harness: &'h H, algorithm: &Algorithm) -> Self {
        Self::new(harness, policy("policy", algorithm))
    }

    pub(super) fn decide(&self, calls: &[Call]) -> Decision {
        self.harness
            .block_on(self.limiter.decide(calls))
            .expect("the backend decides")
    }

    /// Decides about `cost` units of every policy.
    pub(super) fn take(&self, key: &Key, cost: u64) -> Decision {
        self.decide(&self.calls(key, cost))
    }

    pub(super) fn peek(&self, key: &Key) -> Decision {
        self.take(key, 0)
    }

    /// Decides about `cost` units and returns the receipt of what was charged.
    pub(super) fn charge(&self, key: &Key, cost: u64) -> (Decision, Option<Receipt>) {
        let calls = self.calls(key, cost);
        let decision = self.decide(&calls);
        let charge = Receipt::of(&decision, &calls);
        (decision, charge)
    }

    /// Takes `cost` units, and asserts that they are admitted.
    pub(super) fn charged(&self, key: &Key, cost: u64) -> Receipt {
        let (decision, charge) = self.charge(key, cost);
        assert!(
            decision.is_admitted(),
            "{cost} units of a key with as many left: {decision:?}"
        );
        charge.expect("an admitted cost is charged")
    }

    /// Takes single units until one is refused; returns how many were admitted.
    pub(super) fn drain(&self, key: &Key) -> u64 {
        let most = 10_000;
        (0..most)
            .take_while(|_| self.take(key, 1).is_admitted())
            .count() as u64
    }

    pub(super) fn settle(&self, charge: Receipt) {
        self.harness
            .block_on(self.limiter.settle(charge))
            .expect("the backend settles");
    }

    pub(super) fn reset(&self, policy: usize, key: &Key) {
        self.harness
            .block_on(self.limiter.reset(policy, key))
            .expect("the backend resets");
    }

    pub(super) fn remaining(&self, key: &Key) -> u64 {
        self.peek(key).remaining()
    }

    /// The units that remain of each policy.
    pub(super) fn left(&self, key: &Key) -> Vec<u64> {
        self.peek(key)
            .statuses()
            .iter()
            .map(|status| status.remaining())
            .collect()
    }

    pub(super) fn observed(&self, decision: &Decision) -> Observed {
        Observed::new(self.limiter.set(), decision)
    }

    fn calls(&self, key: &Key, cost: u64) -> Vec<Call> {
        vec![call(key, cost); self.limiter.set().policies().len()]
    }
}

/// Every field of a decision that a caller can see.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Observed {
    allowed: bool,
    remaining: u64,
    retry_after: Option<Duration>,
    reset_after: Duration,
    delay: Duration,
    binding: Option<usize>,
    statuses: Vec<ObservedStatus>,
}

#[derive(Debug, PartialEq, Eq)]
struct ObservedStatus {
    applies: bool,
    refuses: bool,
    charged: u64,
    remaining: u64,
    retry_after: Option<Duration>,
    reset_after: Duration,
    effective_window: Duration,
    overflow: bool,
    tier: u8,
}

impl Observed {
    pub(super) fn new(set: &PolicySet, decision: &Decision) -> Self {
        assert_eq!(
            decision.statuses().len(),
            set.policies().len(),
            "one status per policy"
        );
        let statuses = decision
            .statuses()
            .iter()
            .zip(set.policies())
            .map(|(status, policy)| ObservedStatus {
                applies: status.applies(),
                refuses: status.refuses(),
                charged: status.charged(),
                remaining: status.remaining(),
                retry_after: status.retry_after(),
                reset_after: status.reset_after(),
                effective_window: status.effective_window(policy),
                overflow: status.is_overflow(),
                tier: status.tier(),
            });
        Self {
            allowed: decision.is_admitted(),
            remaining: decision.remaining(),
            retry_after: decision.retry_after(),
            reset_after: decision.reset_after(),
            delay: decision.delay(),
            binding: decision.binding(),
            statuses: statuses.collect(),
        }
    }
}

//! The backend under test. This file alone calls the methods of [`Backend`].

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::Harness;
use crate::backend::{Backend, BackendError, Call, ExceptedKey, KeyStep, Receipt, drain};
use crate::decision::Decision;
use crate::key::Key;
use crate::set::{PolicySet, PolicyTree};
use crate::time::Timestamp;

/// How a decision is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manner {
    Awaited,
    /// By `decide_at_once`, and awaited only if that returns nothing.
    Immediate,
    /// By `decide_as_of`, so many µs before the present instant, or after it.
    AsOf(i64),
}

/// Whether a future that is dropped was polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DropPoint {
    Unpolled,
    AfterOnePoll,
}

/// A prepared set on the backend of a harness.
pub(super) struct Subject<'h, H: Harness> {
    harness: &'h H,
    backend: H::Backend,
    prepared: Arc<<H::Backend as Backend>::Prepared>,
}

impl<'h, H: Harness> Subject<'h, H> {
    pub(super) fn new(harness: &'h H, tree: impl Into<PolicyTree>) -> Self {
        let set = PolicySet::repeating(tree).expect("the kit's sets are valid");
        Self::of(harness, harness.backend(), set)
    }

    fn of(harness: &'h H, backend: H::Backend, set: PolicySet) -> Self {
        let prepared = backend
            .prepare(set)
            .expect("the backend holds a set of a few policies");
        Self {
            harness,
            backend,
            prepared: Arc::new(prepared),
        }
    }

    /// The same set, prepared again on a clone of the backend.
    pub(super) fn prepared_again(&self) -> Self {
        Self::of(self.harness, self.backend.clone(), self.set().clone())
    }

    pub(super) fn set(&self) -> &PolicySet {
        H::Backend::set(&self.prepared)
    }

    pub(super) fn has_exceptions(&self) -> bool {
        self.backend.has_exceptions()
    }

    pub(super) fn now(&self, calls: &[Call]) -> Option<Timestamp> {
        self.backend.now(&self.prepared, calls)
    }

    pub(super) fn try_decide(&self, calls: &[Call]) -> Result<Decision, BackendError> {
        self.wait_for(self.backend.decide(&self.prepared, calls))
    }

    pub(super) fn try_decide_at_once(&self, calls: &[Call]) -> Result<Decision, BackendError> {
        let decision = self.backend.decide_at_once(&self.prepared, calls);
        decision.map_or_else(|| self.try_decide(calls), Ok)
    }

    pub(super) fn try_decide_as_of(
        &self,
        calls: &[Call],
        at: Timestamp,
    ) -> Result<Decision, BackendError> {
        self.wait_for(self.backend.decide_as_of(&self.prepared, calls, at))
    }

    pub(super) fn try_settle(&self, receipt: Receipt) -> Result<(), BackendError> {
        self.wait_for(self.backend.settle(&self.prepared, receipt))
    }

    pub(super) fn try_reset_all(&self, prefix: &str) -> Result<(), BackendError> {
        self.wait_for(self.backend.reset_all(prefix))
    }

    pub(super) fn try_run(
        &self,
        policy: usize,
        step: KeyStep,
    ) -> Result<Vec<ExceptedKey>, BackendError> {
        self.wait_for(self.backend.run(&self.prepared, policy, step))
    }

    pub(super) fn try_drain(&self, policy: usize, call: &Call) -> Result<(), BackendError> {
        self.wait_for(drain(&self.backend, &self.prepared, policy, call))
    }

    /// Makes the future of a decision and drops it.
    pub(super) fn drop_decision(&self, calls: &[Call], dropped: DropPoint) {
        self.wait_for(async {
            give_up(self.backend.decide(&self.prepared, calls), dropped);
        });
    }

    /// Makes the future of a settlement and drops it.
    pub(super) fn drop_settlement(&self, receipt: Receipt, dropped: DropPoint) {
        self.wait_for(async {
            give_up(self.backend.settle(&self.prepared, receipt), dropped);
        });
    }

    fn wait_for<F: Future>(&self, step: F) -> F::Output {
        self.harness.block_on(step)
    }
}

fn give_up<F: Future>(future: F, dropped: DropPoint) {
    let mut future = pin!(future);
    if dropped == DropPoint::AfterOnePoll {
        let _: Poll<F::Output> = future
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()));
    }
}

/// What the cases ask of a backend that does not fail.
impl<H: Harness> Subject<'_, H> {
    pub(super) fn decide(&self, calls: &[Call]) -> Decision {
        self.try_decide(calls).expect("the backend decides")
    }

    /// Decides about `cost` units of every policy.
    pub(super) fn take(&self, key: &Key, cost: u64) -> Decision {
        let call = Call::from(key.clone()).costing(cost);
        self.decide(&vec![call; self.set().policies().len()])
    }

    /// Takes single units until one is refused. Returns how many were admitted.
    pub(super) fn exhaust(&self, key: &Key) -> u64 {
        let most = 10_000;
        (0..most)
            .take_while(|_| self.take(key, 1).is_admitted())
            .count() as u64
    }

    pub(super) fn remaining(&self, key: &Key) -> u64 {
        self.take(key, 0).remaining()
    }
}

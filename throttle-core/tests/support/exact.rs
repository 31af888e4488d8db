//! `PolicySet` and the exact model, side by side, as one backend. A difference between them is an
//! error, so that the kit shortens the trace that shows it.

use std::cell::RefCell;
use std::future::ready;
use std::sync::{Arc, Mutex};

use throttle_core::backend::{Answer, Call, ExceptedKey, KeyStep, Receipt};
use throttle_core::conformance::{Harness, TraceOptions, law_08_trace_equals_the_reference};
use throttle_core::{
    Backend, BackendError, BackendErrorKind, Clock, ConfigError, Decision, Key, PolicySet,
    Timestamp,
};

use super::naive::Naive;
use super::plans::Plan;
use super::reference::{Paid, Reference, reported};
use super::spec::Tree;

thread_local! {
    /// The limits of the trace that this thread replays.
    static LIMITS: RefCell<Option<Tree<Plan>>> = const { RefCell::new(None) };
}

fn key() -> Key {
    Key::from("key")
}

/// Replays a trace of one key.
pub(crate) fn check(limits: &Tree<Plan>, options: &TraceOptions) {
    LIMITS.set(Some(limits.clone()));
    let options = TraceOptions {
        length: 60,
        has_exceptions: false,
        keys: vec![key()],
        ..options.clone()
    };
    law_08_trace_equals_the_reference::<OnBoth>(&[limits.policies()], &options);
}

struct OnBoth(Both);

impl Harness for OnBoth {
    type Backend = Both;

    fn start() -> Self {
        let limits = LIMITS.take().expect("the limits of a trace");
        let exact = Exact {
            model: Reference::new(&limits),
            set: limits.set(),
            open: Vec::new(),
        };
        LIMITS.set(Some(limits));
        Self(Both {
            naive: Naive::default(),
            exact: Arc::new(Mutex::new(exact)),
        })
    }

    fn backend(&self) -> Both {
        self.0.clone()
    }

    fn set_time(&self, now: Timestamp) {
        self.0.naive.clock.set(now);
    }

    fn forget(&self, now: Timestamp) {
        if now == Timestamp::MAX {
            // No later instant can say that a key counts for longer.
            return;
        }
        self.0.naive.expire(now);
        for model in &mut self.0.exact.lock().unwrap().model.models {
            model.forget(Some(now.as_micros().into()));
        }
    }
}

/// What a charge is known by: for each policy the units, the mark and the parameters.
type Charge = Vec<(usize, u64, (i64, u64), Vec<u8>)>;

struct Exact {
    model: Reference,
    set: PolicySet,
    /// The charges that are not settled.
    open: Vec<(Charge, Vec<(usize, Paid)>)>,
}

impl Exact {
    fn charge(&self, receipt: &Receipt) -> Charge {
        let known = |item: &throttle_core::backend::ReceiptItem| {
            let by = item.parameters(&self.set.policies()[item.policy()]);
            (item.policy(), item.taken(), item.mark(), by.tag())
        };
        receipt.items().iter().map(known).collect()
    }

    fn settle(&mut self, receipt: &Receipt, now: Timestamp) {
        let charge = self.charge(receipt);
        let Some(index) = self.open.iter().position(|(open, _)| *open == charge) else {
            return;
        };
        for (leaf, paid) in self.open.remove(index).1 {
            let item = receipt.items().iter().find(|item| item.policy() == leaf);
            let actual = item.expect("what the model has charged").actual();
            self.model.settle(now.as_micros(), leaf, paid, actual);
        }
    }
}

#[derive(Clone)]
pub(crate) struct Both {
    naive: Naive,
    exact: Arc<Mutex<Exact>>,
}

impl Both {
    fn decide_at(&self, calls: &[Call], now: Timestamp) -> Answer<Decision> {
        let mut exact = self.exact.lock().unwrap();
        let decision = self.naive.decide_at(&exact.set, calls, now);
        if calls
            .iter()
            .filter_map(Call::key)
            .any(|other| *other != key())
        {
            return Box::pin(ready(Ok(decision)));
        }
        let (expected, paid) = exact.model.decide_calls(now.as_micros(), calls);
        let found = reported(&decision);
        if found != expected {
            let why = format!("{found:?}, and the exact model's {expected:?}");
            let error = BackendError::new(BackendErrorKind::Protocol).with_source(why);
            return Box::pin(ready(Err(error)));
        }
        if let Some(receipt) = Receipt::of(&decision, calls) {
            let charge = exact.charge(&receipt);
            exact.open.push((charge, paid));
        }
        Box::pin(ready(Ok(decision)))
    }
}

impl Backend for Both {
    type Prepared = PolicySet;
    type Decide = Answer<Decision>;
    type Done = Answer<()>;

    fn prepare(&self, set: PolicySet) -> Result<PolicySet, ConfigError> {
        Ok(set)
    }

    fn set(prepared: &PolicySet) -> &PolicySet {
        prepared
    }

    fn decide(&self, _: &Arc<PolicySet>, calls: &[Call]) -> Answer<Decision> {
        self.decide_at(calls, self.naive.clock.now())
    }

    fn now(&self, _: &Arc<PolicySet>, _: &[Call]) -> Option<Timestamp> {
        Some(self.naive.clock.now())
    }

    fn decide_as_of(&self, _: &Arc<PolicySet>, calls: &[Call], at: Timestamp) -> Answer<Decision> {
        self.decide_at(calls, at.min(self.naive.clock.now()))
    }

    fn settle(&self, set: &Arc<PolicySet>, receipt: Receipt) -> Answer<()> {
        let now = self.naive.clock.now();
        let is_known = receipt.items().iter().all(|item| *item.key() == key());
        if is_known {
            self.exact.lock().unwrap().settle(&receipt, now);
        }
        self.naive.settle_at(set, &receipt, now);
        Box::pin(ready(Ok(())))
    }

    fn run(&self, set: &Arc<PolicySet>, policy: usize, step: KeyStep) -> Answer<Vec<ExceptedKey>> {
        let is_reset = matches!(step, KeyStep::Reset(_));
        if policy < set.policies().len() && is_reset {
            self.exact.lock().unwrap().model.models[policy].forget(None);
        }
        if is_reset {
            return self.naive.run(set, policy, step);
        }
        let error = BackendError::new(BackendErrorKind::Unsupported);
        Box::pin(ready(Err(error)))
    }

    fn reset_all(&self, prefix: &str) -> Answer<()> {
        let mut exact = self.exact.lock().unwrap();
        let Exact { model, set, .. } = &mut *exact;
        for (model, policy) in model.models.iter_mut().zip(set.policies()) {
            if policy.name().starts_with(prefix) {
                model.forget(None);
            }
        }
        self.naive.reset_all(prefix)
    }
}

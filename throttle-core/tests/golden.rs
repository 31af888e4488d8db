//! Law 8, one answer: the golden vectors, bit for bit.

mod support;

use std::collections::HashMap;

use support::golden::{Expect, Op, Suite, load};
use throttle_core::algorithm::State;
use throttle_core::backend::{Call, Receipt};
use throttle_core::{
    Backend, Cost, Decision, Key, Limiter, ManualClock, MemoryBackend, PolicySet, Timestamp,
};

/// Replays a suite: decides at an instant, and gives back.
trait Replay {
    fn decide(&mut self, now: Timestamp, calls: &[Call]) -> Decision;
    fn settle(&mut self, now: Timestamp, receipt: Receipt);
}

/// The algorithms alone, on states in hand.
struct Pure {
    set: PolicySet,
    states: Vec<State>,
}

impl Replay for Pure {
    fn decide(&mut self, now: Timestamp, calls: &[Call]) -> Decision {
        self.set.decide(&mut self.states, now, calls)
    }

    fn settle(&mut self, now: Timestamp, receipt: Receipt) {
        for item in receipt.items() {
            item.apply_to(
                &self.set.policies()[item.policy()],
                &mut self.states[item.policy()],
                now,
            );
        }
    }
}

struct InMemory {
    clock: ManualClock,
    limiter: Limiter<MemoryBackend<ManualClock>>,
}

impl Replay for InMemory {
    fn decide(&mut self, now: Timestamp, calls: &[Call]) -> Decision {
        self.clock.set(now);
        let backend = self.limiter.backend();
        let prepared = backend
            .prepare(self.limiter.set().clone())
            .expect("prepared before");
        backend.decide_now(&prepared, calls)
    }

    fn settle(&mut self, now: Timestamp, receipt: Receipt) {
        self.clock.set(now);
        drop(self.limiter.settle(receipt));
    }
}

fn call(cost: u64) -> Call {
    let key = Key::from("golden");
    Cost::new(cost).map_or_else(
        |_| Call::peek(key.clone()),
        |cost| Call::new(key.clone(), cost),
    )
}

fn replay(suite: &Suite, machine: &mut impl Replay, policies: usize) -> usize {
    let mut receipts = HashMap::new();
    for (index, op) in suite.ops.iter().enumerate() {
        let (got, expect) = match op {
            Op::Take { t, cost, expect } => {
                let calls = vec![call(*cost); policies];
                let decision = machine.decide(Timestamp::from_micros(*t), &calls);
                receipts.insert(index, Receipt::of(&decision, &calls));
                (Expect::reported(&suite.spec, &decision, *cost), expect)
            }
            Op::Refund { t, of, expect } => {
                let receipt = receipts
                    .remove(of)
                    .flatten()
                    .expect("a refund names an admitted take, once");
                let now = Timestamp::from_micros(*t);
                machine.settle(now, receipt.actual(0));
                let peeked = machine.decide(now, &vec![call(0); policies]);
                (
                    Expect {
                        binding: None,
                        ..Expect::reported(&suite.spec, &peeked, 0)
                    },
                    expect,
                )
            }
        };
        assert_eq!(&got, expect, "{} op {index}", suite.name);
    }
    suite.ops.len()
}

#[test]
fn law_08_golden_through_the_algorithms() {
    let file = load();
    let mut ops = 0;
    for suite in &file.suites {
        let set = suite.spec.set();
        let states = set
            .policies()
            .iter()
            .map(|policy| policy.algorithm().fresh())
            .collect();
        let policies = set.policies().len();
        ops += replay(suite, &mut Pure { set, states }, policies);
    }
    assert!(ops >= file.suites.len());
}

#[test]
fn law_08_golden_through_the_memory_backend() {
    let file = load();
    for suite in &file.suites {
        let clock = ManualClock::default();
        let backend = MemoryBackend::builder().clock(clock.clone()).build();
        let set = suite.spec.set();
        let policies = set.policies().len();
        let limiter = Limiter::new(backend, set).expect("the backend holds it");
        replay(suite, &mut InMemory { clock, limiter }, policies);
    }
}

/// The single-algorithm entry point, `(state, now, cost) -> (state, verdict)`.
#[test]
fn law_08_golden_through_single_transitions() {
    let file = load();
    let single = |suite: &&Suite| {
        !suite.spec.is_composite() && suite.ops.iter().all(|op| matches!(op, Op::Take { .. }))
    };
    for suite in file.suites.iter().filter(single) {
        let algorithm = suite.spec.algorithm();
        let mut state = algorithm.fresh();
        for (index, op) in suite.ops.iter().enumerate() {
            let Op::Take { t, cost, expect } = op else {
                continue;
            };
            let (next, verdict) = algorithm.decide(state, Timestamp::from_micros(*t), *cost);
            state = next;
            let got = (
                verdict.is_admitted(),
                verdict.remaining(),
                verdict.retry_after_micros(),
                verdict.reset_after_micros(),
            );
            let want = (
                expect.allowed,
                expect.remaining,
                expect.retry_after_us,
                expect.reset_after_us,
            );
            assert_eq!(got, want, "{} op {index}", suite.name);
            if let Some(delay) = expect.delay_us {
                assert_eq!(verdict.delay_micros(), delay, "{} op {index}", suite.name);
            }
        }
    }
}

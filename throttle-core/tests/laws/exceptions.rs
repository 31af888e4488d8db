//! Keys with exceptions: exempt, blocked, banned or under another limit until an instant, and as
//! before from then on.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use throttle_core::algorithm::State;
use throttle_core::backend::{Answer, Ban, Call, Exception, KeyStep, Receipt, Treatment, drain};
use throttle_core::{
    Algorithm, Backend, BoxBackend, Decision, FixedWindow, Gcra, IntoAlgorithm, Key,
    LocalShareBackend, ManualClock, MemoryBackend, MemorySet, Policy, PolicySet, Rate, Timestamp,
};

use crate::support::spec::TODAY;
use crate::support::strategies::for_every_kind;

const T0: Timestamp = Timestamp::from_micros(TODAY);

fn now<T>(mut answer: Answer<T>) -> Result<T, String> {
    let Poll::Ready(answer) = answer
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
    else {
        panic!("memory does not wait")
    };
    answer.map_err(|error| {
        std::error::Error::source(&error)
            .expect("a reason")
            .to_string()
    })
}

fn key() -> Key {
    Key::from("ada")
}

/// One key in memory, and its state in hand.
struct Twins {
    clock: ManualClock,
    memory: MemoryBackend<ManualClock>,
    prepared: Arc<MemorySet>,
    set: PolicySet,
    state: State,
}

impl Twins {
    fn new(algorithm: Algorithm) -> Self {
        let clock = ManualClock::new(T0);
        let set = PolicySet::new(Policy::new("p", algorithm).unwrap()).unwrap();
        let memory = MemoryBackend::builder().clock(clock.clone()).build();
        let prepared = Arc::new(memory.prepare(set.clone()).unwrap());
        Self {
            clock,
            memory,
            prepared,
            set,
            state: algorithm.fresh().written_under(&algorithm),
        }
    }

    fn algorithm(&self) -> &Algorithm {
        self.set.policies()[0].algorithm()
    }

    fn now(&self) -> Timestamp {
        throttle_core::Clock::now(&self.clock)
    }

    /// The decision on a copy of the state, at an instant.
    fn would(&self, at: Timestamp, cost: u64) -> (Decision, State) {
        let mut states = [self.state.clone()];
        let decision = self
            .set
            .decide(&mut states, at, &[Call::from(key()).costing(cost)]);
        let [state] = states;
        (decision, state)
    }

    fn except(&mut self, exception: Option<Exception>) {
        if now(self
            .memory
            .run(&self.prepared, 0, KeyStep::Except(key(), exception.clone())))
        .is_ok()
        {
            self.state = self.state.clone().excepted(exception);
        }
    }

    fn drain(&self) -> Result<(), String> {
        let (memory, prepared) = (self.memory.clone(), Arc::clone(&self.prepared));
        now(Box::pin(async move {
            drain(&memory, &prepared, 0, &Call::peek(key()).reserving(1)).await
        }))
    }

    fn over(&self) -> Option<Exception> {
        Exception::from_wire(&self.state.to_wire(self.algorithm()).unwrap()).map(|(over, _)| over)
    }

    fn strike(&mut self, ban: &Ban) -> TestCaseResult {
        let struck = ban.strike(self.over().as_ref(), self.now());
        let begun = now(self
            .memory
            .run(&self.prepared, 0, KeyStep::Strike(key(), *ban)))
        .unwrap();
        prop_assert_eq!(
            begun.into_iter().next().map(|begun| begun.exception),
            struck
                .clone()
                .filter(|struck| struck.is_ban)
                .map(|struck| struck.exception)
        );
        if let Some(struck) = struck {
            self.state = self.state.clone().excepted(Some(struck.exception));
        }
        Ok(())
    }

    /// Goes on with the store's snapshot.
    fn restart(&mut self) {
        let mut bytes = Vec::new();
        self.memory.snapshot(&mut bytes).unwrap();
        self.memory = MemoryBackend::builder()
            .clock(self.clock.clone())
            .restore(&mut &*bytes)
            .unwrap();
        self.prepared = Arc::new(self.memory.prepare(self.set.clone()).unwrap());
    }

    fn decide(&mut self, cost: u64) -> Result<Option<Receipt>, TestCaseError> {
        let (at, calls) = (self.now(), [Call::from(key()).costing(cost)]);
        let (decision, state) = self.would(at, cost);
        prop_assert_eq!(
            &self.memory.decide_now(&self.prepared, &calls),
            &decision,
            "law 8"
        );
        if decision.statuses()[0].charged() == 0 {
            prop_assert_eq!(&state, &self.state, "law 1");
        }
        self.state = state;
        self.check(at, cost, &decision)?;
        Ok(Receipt::of(&decision, &calls))
    }

    fn check(&self, at: Timestamp, cost: u64, decision: &Decision) -> TestCaseResult {
        match decision.retry_after().map(|wait| wait.as_micros() as u64) {
            Some(0) => {}
            Some(wait) => {
                prop_assert!(
                    self.would(at.after_micros(wait), cost).0.is_admitted(),
                    "law 2"
                );
                prop_assert!(
                    !self.would(at.after_micros(wait - 1), cost).0.is_admitted(),
                    "law 2: too early"
                );
            }
            None => prop_assert!(cost > self.algorithm().capacity()),
        }
        let remaining = decision.remaining();
        prop_assert!(
            remaining == 0 || self.would(at, remaining).0.is_admitted(),
            "law 3"
        );
        prop_assert!(
            !self.would(at, remaining + 1).0.is_admitted(),
            "law 3: more"
        );
        let reset = at.after_micros(decision.reset_after().as_micros() as u64);
        // Strikes outlive what they change in decisions.
        let struck = self
            .over()
            .filter(|over| matches!(over.treatment, Treatment::Struck(_)));
        let fresh_at = match struck {
            Some(over) => over.ends().max(
                self.algorithm()
                    .fresh_at(&self.state.clone().excepted(None)),
            ),
            None => self.algorithm().fresh_at(&self.state),
        };
        prop_assert_eq!(reset, fresh_at.max(at), "law 4");
        let unused = PolicySet::decide(
            &self.set,
            &mut [self.algorithm().fresh()],
            reset,
            &[Call::peek(key())],
        );
        prop_assert_eq!(self.would(reset, 0).0, unused, "law 4: not as unused");
        Ok(())
    }
}

/// What is done, by how much, and how far the clock moves first, in parts of the limit's period.
type Step = (u8, u32, u32);

fn part(whole: u64, part: u32) -> u64 {
    ((u128::from(whole) * u128::from(part)) >> 32) as u64
}

fn play(algorithm: Algorithm, other: Algorithm, steps: &[Step]) -> TestCaseResult {
    let mut twins = Twins::new(algorithm);
    let (period, capacity) = (algorithm.rate().period_micros(), algorithm.capacity());
    let mut receipts: Vec<Receipt> = Vec::new();
    for (what, dice, ahead) in steps {
        let ahead = if what % 3 == 0 {
            0
        } else {
            part(period, *ahead)
        };
        twins.clock.set(twins.now().after_micros(ahead));
        let at = twins.now();
        match what {
            0..=2 => {
                let treatments = [
                    Treatment::Exempt,
                    Treatment::Blocked,
                    Treatment::Limit(Arc::new(other)),
                ];
                let treatment = treatments[*what as usize].clone();
                twins.except(Some(Exception {
                    treatment,
                    until: at.after_micros(1 + part(2 * period, *dice)),
                }));
            }
            3 => twins.except(None),
            4 => twins.restart(),
            8..=10 => {
                let time = |of: u64| Duration::from_micros(1 + part(of, *dice));
                let ban = Ban::after(1 + dice % 3)
                    .growing(1 + dice % 3)
                    .within(time(2 * period))
                    .lasting(time(period));
                twins.strike(
                    &ban.up_to(time(4 * period))
                        .forgotten_after(time(2 * period)),
                )?;
            }
            // Law 9: a state that may be forgotten is.
            5 if algorithm.fresh_at(&twins.state) <= at => {
                twins.state = algorithm.fresh().written_under(&algorithm);
            }
            6..=7 if !receipts.is_empty() => {
                let receipt = receipts.swap_remove(*dice as usize % receipts.len());
                let taken = receipt.items()[0].taken();
                let receipt = receipt.actual(part(2 * taken, *dice));
                receipt.items()[0].apply_to(&twins.set.policies()[0], &mut twins.state, at);
                twins.memory.settle_now(&twins.prepared, receipt);
            }
            _ => {
                let costs = [
                    0,
                    1,
                    1,
                    1,
                    2,
                    capacity,
                    capacity + 1,
                    1 + part(capacity, *dice),
                ];
                receipts.extend(twins.decide(costs[*dice as usize % costs.len()])?);
            }
        }
        twins.decide(0)?;
    }
    Ok(())
}

#[test]
fn law_01_02_03_04_08_09_hold_for_keys_with_exceptions() {
    for_every_kind(
        |specs| {
            (
                specs.clone(),
                specs,
                prop::collection::vec((0..20_u8, any::<u32>(), any::<u32>()), 1..40),
            )
        },
        |(spec, other, steps)| play(spec.algorithm(), other.algorithm(), steps),
    );
}

fn limit(algorithm: impl IntoAlgorithm) -> Treatment {
    Treatment::Limit(Arc::new(algorithm.into_algorithm().unwrap()))
}

/// Six of nine units are used, on a limit of nine a day.
#[test]
fn each_treatment_is_over_at_its_instant_and_what_was_used_stays_used() {
    let policy = || FixedWindow::new(Rate::per_day(9)).into_algorithm().unwrap();
    for (treatment, during, after) in [
        (Treatment::Exempt, [Some(9), Some(9)], Some(2)),
        (Treatment::Blocked, [None, None], Some(2)),
        (
            limit(FixedWindow::new(Rate::per_day(20))),
            [Some(13), Some(12)],
            Some(0),
        ),
        (
            limit(FixedWindow::new(Rate::per_day(7))),
            [Some(0), None],
            Some(1),
        ),
    ] {
        let mut twins = Twins::new(policy());
        let mut left = |at: u64, cost| {
            twins.clock.set(T0.after_micros(at));
            if at == 1 {
                let until = T0.after_micros(1_000);
                twins.except(Some(Exception {
                    treatment: treatment.clone(),
                    until,
                }));
            }
            let decision = twins
                .memory
                .decide_now(&twins.prepared, &[Call::from(key()).costing(cost)]);
            assert_eq!(
                decision.statuses()[0].is_excepted(),
                (1..1_000).contains(&at)
            );
            decision.is_admitted().then(|| decision.remaining())
        };
        assert_eq!(left(0, 6), Some(3));
        assert_eq!([left(1, 1), left(999, 1)], during, "{treatment:?}");
        assert_eq!(left(1_000, 1), after, "{treatment:?}");
    }
}

/// A request is admitted by the limit of the exception in the instant in which the exception is
/// over: a tenth of an hour.
#[test]
fn law_02_wait_that_ends_with_the_exception_goes_on_under_the_limit() {
    let [few, many] = [1, 10].map(|burst| {
        Gcra::new(Rate::per_hour(10))
            .burst(burst)
            .into_algorithm()
            .unwrap()
    });
    for (seconds, wait) in [(361, 360), (360, 3_600), (359, 3_600)] {
        let until = T0 + Duration::from_secs(seconds);
        let over = Exception {
            treatment: Treatment::Limit(Arc::new(many)),
            until,
        };
        let mut states = [few.fresh().excepted(Some(over))];
        let set = PolicySet::new(Policy::new("p", few).unwrap()).unwrap();
        let mut decide = |cost| {
            set.decide(&mut states, T0, &[Call::from(key()).costing(cost)])
                .retry_after()
        };
        assert_eq!(
            [decide(10), decide(1)],
            [0, wait].map(|wait| Some(Duration::from_secs(wait))),
            "{seconds} s"
        );
    }
}

/// Whatever it had used, and whether it had an exception. Law 8 is checked by each look.
#[test]
fn law_08_drained_key_is_as_after_one_charge_of_all_that_it_had_left() {
    for_every_kind(
        |specs| {
            (
                specs,
                prop::collection::vec((any::<u32>(), any::<u32>()), 1..9),
                any::<bool>(),
            )
        },
        |(spec, steps, is_blocked)| {
            let mut twins = Twins::new(spec.algorithm());
            let (period, capacity) = (
                twins.algorithm().rate().period_micros(),
                twins.algorithm().capacity(),
            );
            for (dice, ahead) in steps {
                twins
                    .clock
                    .set(twins.now().after_micros(part(period, *ahead)));
                twins.decide(part(capacity, *dice))?;
            }
            let left = twins.would(twins.now(), 0).0.remaining();
            twins.state = twins.would(twins.now(), left).1;
            if *is_blocked {
                let exception = Exception {
                    treatment: Treatment::Blocked,
                    until: Timestamp::MAX,
                };
                now(twins
                    .memory
                    .run(&twins.prepared, 0, KeyStep::Except(key(), Some(exception))))
                .unwrap();
            }
            twins.drain().unwrap();
            prop_assert_eq!(twins.would(twins.now(), 0).0.remaining(), 0);
            for (_, ahead) in steps {
                twins.decide(0)?;
                twins
                    .clock
                    .set(twins.now().after_micros(part(period, *ahead)));
                twins.decide(1)?;
            }
            Ok(())
        },
    );
}

#[test]
fn key_that_shares_the_overflow_bucket_of_a_full_store_is_not_drained() {
    let (_, memory, prepared) = store(1);
    let take =
        |key: u64, cost| memory.decide_now(&prepared, &[Call::from(Key::from(key)).costing(cost)]);
    let kept = (0..)
        .take_while(|key| !take(*key, 1).statuses()[0].is_overflow())
        .count() as u64;
    let drained = now(Box::pin({
        let (memory, prepared) = (memory.clone(), Arc::clone(&prepared));
        async move { drain(&memory, &prepared, 0, &Call::from(Key::from(kept + 1))).await }
    }));
    assert_eq!(
        drained.unwrap_err(),
        "the store is full of live keys: raise max_keys"
    );
    assert!(
        take(kept + 2, 1).is_admitted(),
        "other keys have that bucket, too"
    );
}

/// A store of so many keys of a limit that is used up in a day.
fn store(max_keys: usize) -> (ManualClock, MemoryBackend<ManualClock>, Arc<MemorySet>) {
    let clock = ManualClock::new(T0);
    let memory = MemoryBackend::builder()
        .max_keys(max_keys)
        .clock(clock.clone())
        .build();
    let set = PolicySet::new(Policy::new("p", Gcra::new(Rate::per_day(9))).unwrap()).unwrap();
    let prepared = Arc::new(memory.prepare(set).unwrap());
    (clock, memory, prepared)
}

#[test]
fn law_09_ten_thousand_exceptions_stay_until_they_are_over() {
    let (clock, memory, set) = store(10_000);
    let blocked = || Exception {
        treatment: Treatment::Blocked,
        until: T0.after_micros(60_000_000),
    };
    for n in 0..10_000_u64 {
        now(memory.run(&set, 0, KeyStep::Except(Key::from(n), Some(blocked())))).unwrap();
    }
    let call = |n: u64| [Call::from(Key::from(n))];
    // The store is full of them, so other keys share buckets.
    assert!(
        (10_000..11_000).all(|n| memory.decide_now(&set, &call(n)).statuses()[0].is_overflow())
    );
    assert!((0..10_000).all(|n| !memory.decide_now(&set, &call(n)).is_admitted()));
    let listed = now(memory.run(&set, 0, KeyStep::Exceptions { most: usize::MAX })).unwrap();
    assert!(listed.len() == 10_000 && listed.iter().all(|listed| listed.exception == blocked()));
    assert_eq!(
        now(memory.run(&set, 0, KeyStep::Exceptions { most: 7 }))
            .unwrap()
            .len(),
        7
    );
    clock.set(T0.after_micros(60_000_000));
    assert!(
        now(memory.run(&set, 0, KeyStep::Exceptions { most: usize::MAX }))
            .unwrap()
            .is_empty()
    );
    let fits = (20_000..29_000)
        .filter(|n| !memory.decide_now(&set, &call(*n)).statuses()[0].is_overflow())
        .count();
    assert!(fits > 8_000, "they have made room: {fits}");
}

#[test]
fn exception_that_cannot_be_is_an_error_and_changes_nothing() {
    let (_, memory, set) = store(1);
    assert!(
        memory
            .decide_now(&set, &[Call::from(Key::from("eve")).costing(9)])
            .is_admitted()
    );
    let exempt = |at| {
        Some(Exception {
            treatment: Treatment::Exempt,
            until: T0.after_micros(at),
        })
    };
    let other = Some(Exception {
        treatment: limit(Gcra::new(Rate::per_second(1))),
        until: T0.after_micros(9),
    });
    for (key, exception, why) in [
        ("ada", exempt(9), "the store is full of live keys"),
        (
            "eve",
            exempt(0),
            "it must be after the present time of the store",
        ),
        ("eve", other, "at most 100 times as long"),
    ] {
        let error =
            now(memory.run(&set, 0, KeyStep::Except(Key::from(key), exception))).unwrap_err();
        assert!(error.contains(why), "{error}");
    }
    assert!(
        now(memory.run(&set, 0, KeyStep::Exceptions { most: 9 }))
            .unwrap()
            .is_empty()
    );
    assert!(
        now(memory.run(&set, 0, KeyStep::Except(Key::from("eve"), exempt(9)))).is_ok(),
        "it has a place"
    );
    assert!(
        memory
            .decide_now(&set, &[Call::from(Key::from("eve"))])
            .is_admitted()
    );
    assert!(now(memory.run(&set, 0, KeyStep::Except(Key::from("eve"), None))).is_ok());
    assert!(
        !memory
            .decide_now(&set, &[Call::from(Key::from("eve"))])
            .is_admitted()
    );
}

/// An hour under one window or bucket, with an exception of another kind between the charge and its
/// settlement.
#[test]
fn law_10_an_exception_opens_no_later_window_to_a_settlement() {
    let minute = |n: u64| T0.after_micros(n * 60_000_000);
    let window = FixedWindow::new(Rate::per_hour(100))
        .into_algorithm()
        .unwrap();
    let bucket = |count| Gcra::new(Rate::per_hour(count)).into_algorithm().unwrap();
    let per_minute = FixedWindow::new(Rate::per_minute(1_000))
        .into_algorithm()
        .unwrap();
    let limit = |limit: Algorithm, until| {
        Some(Exception {
            treatment: Treatment::Limit(Arc::new(limit)),
            until,
        })
    };
    let at = |twins: &Twins, n| twins.clock.set(minute(n));
    let settle = |twins: &Twins, receipt: Option<Receipt>| {
        if let Some(receipt) = receipt {
            twins.memory.settle_now(&twins.prepared, receipt.actual(0));
        }
    };
    let take = |twins: &Twins| {
        let calls = [Call::from(key()).costing(100)];
        let decision = twins.memory.decide_now(&twins.prepared, &calls);
        (decision.is_admitted(), Receipt::of(&decision, &calls))
    };
    // Set after the charge: the charge's own window is over.
    let mut twins = Twins::new(window);
    let (_, old) = take(&twins);
    at(&twins, 61);
    assert!(take(&twins).0);
    twins.except(limit(bucket(200), minute(65)));
    settle(&twins, old);
    at(&twins, 66);
    assert!(!take(&twins).0, "the window of the charge was over");
    // Over before the settlement: what the exception's limit has charged is not given back.
    let mut twins = Twins::new(bucket(100));
    twins.except(limit(per_minute, minute(2)));
    let (admitted, old) = take(&twins);
    assert!(admitted && old.is_none());
    at(&twins, 3);
    assert!(take(&twins).0);
    settle(&twins, old);
    at(&twins, 4);
    assert!(!take(&twins).0);
    // A charge of the policy is given back while another limit decides.
    let mut twins = Twins::new(bucket(100));
    let (_, charged) = take(&twins);
    twins.except(limit(per_minute, minute(2)));
    settle(&twins, charged);
    at(&twins, 2);
    assert!(take(&twins).0);
}

/// A key that the store does not know may have been used and forgotten before the clock was set
/// back.
#[test]
fn law_07_an_exception_gives_no_budget_to_a_key_of_the_future() {
    let clock = ManualClock::new(T0);
    let memory = MemoryBackend::builder()
        .clock(clock.clone())
        .max_keys(1)
        .build();
    let set = PolicySet::new(Policy::new("p", Gcra::new(Rate::per_hour(10))).unwrap()).unwrap();
    let prepared = Arc::new(memory.prepare(set).unwrap());
    let take = |key: &'static str| {
        memory
            .decide_now(&prepared, &[Call::from(Key::from(key))])
            .is_admitted()
    };
    assert!((0..10).all(|_| take("ada")));
    clock.set(T0.after_micros(7_200_000_000));
    assert!(
        take("bob"),
        "in the place of ada, who counts as unused by now"
    );
    drop(memory.run(&prepared, 0, KeyStep::Reset(Key::from("bob"))));
    clock.set(T0);
    let blocked = Exception {
        treatment: Treatment::Blocked,
        until: T0.after_micros(1),
    };
    let refused = now(memory.run(&prepared, 0, KeyStep::Except(key(), Some(blocked)))).unwrap_err();
    assert!(refused.starts_with("the clock is behind"), "{refused}");
}

/// A request of an operator for a limit that is not there must not look as if it had worked.
#[test]
fn an_index_without_a_policy_is_an_error_of_every_step() {
    fn errors<B: Backend>(backend: &B) -> Vec<Result<(), String>> {
        let set = PolicySet::new(Policy::new("p", Gcra::new(Rate::per_day(9))).unwrap()).unwrap();
        let set = Arc::new(backend.prepare(set).unwrap());
        let steps = [
            KeyStep::Reset(key()),
            KeyStep::Except(key(), None),
            KeyStep::Strike(key(), Ban::after(1)),
            KeyStep::Exceptions { most: 9 },
        ];
        let mut answers = Vec::from(steps.map(|step| now(backend.run(&set, 7, step)).map(drop)));
        let backend = backend.clone();
        answers.push(now(Box::pin(async move {
            drain(&backend, &set, 7, &Call::from(key())).await
        })));
        answers
    }
    let memory = MemoryBackend::new();
    let share = LocalShareBackend::new(memory.clone(), std::num::NonZeroU32::MIN);
    let boxed = BoxBackend::new(memory.clone());
    let why = "policy is 7: an index must be below 1, the number of policies in the set";
    for answers in [errors(&memory), errors(&share), errors(&boxed)] {
        assert_eq!(answers, vec![Err(why.to_owned()); 5]);
    }
}

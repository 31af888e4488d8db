//! What no answer of the reference states: bounds on lying clocks, and stores that are full.

use std::num::NonZeroU32;

use super::Harness;
use super::races::{for_each_sample, start};
use super::replay::START;
use super::sample::span;
use super::subject::Subject;
use crate::algorithm::Gcra;
use crate::backend::{BackendErrorKind, Call, Receipt};
use crate::key::Key;
use crate::local_share::LocalShare;
use crate::memory::MemoryBackend;
use crate::policy::Policy;
use crate::rate::Rate;
use crate::time::{ManualClock, Timestamp};

/// Two clocks that take turns on one key admit at most one capacity each, however far they are
/// apart. On the earlier one an exhausted key stays exhausted.
pub fn law_07_two_clocks_buy_nothing_twice<H: Harness>() {
    for_each_sample::<H>(|sample, harness, subject| {
        let name = sample.name();
        let span = span(sample);
        for apart in [1, span / 4, span, 7 * span, 100 * span] {
            let key = Key::from(apart);
            let mut early = 0;
            let mut late = 0;
            for _ in 0..6 {
                harness.set_time(START);
                early += subject.exhaust(&key);
                harness.set_time(START.after_micros(apart));
                late += subject.exhaust(&key);
            }
            let capacity = sample.capacity();
            assert_eq!(
                early, capacity,
                "law 7, two clocks, {name}: units on the early one, {apart} µs behind"
            );
            assert!(
                late <= capacity,
                "law 7, two clocks, {name}: {late} units on the late one, {apart} µs ahead"
            );
            let before = Timestamp::from_micros(START.as_micros() - apart.cast_signed());
            harness.set_time(before);
            let refused = subject.take(&key, 1);
            let wait = refused.retry_after().unwrap_or_default();
            assert!(
                !refused.is_admitted() && wait.as_micros() > u128::from(apart),
                "law 7, a step back, {name}: `retry_after` ends before the clock has caught up: {refused:?}"
            );
        }
    });
}

/// A key that is forgotten on the later of two clocks and used on the earlier one gains no more
/// than the time between the clocks is worth, however often they take turns.
pub fn law_07_forgetting_and_stepping_back_is_bounded<H: Harness>() {
    for_each_sample::<H>(|sample, harness, subject| {
        let name = sample.name();
        let key = Key::from("forgotten");
        let mut bought = 0;
        for round in 0..24 {
            harness.set_time(START);
            bought += subject.exhaust(&key);
            harness.set_time(START.after_micros(3 * span(sample)));
            for other in 0..16 {
                let _ = subject.take(&Key::from(round * 16 + other), 1);
            }
        }
        // One to begin with, one for each span, one at either end of a window.
        let most = 6 * sample.capacity();
        assert!(
            bought <= most,
            "law 7, forgetting, {name}: {bought} units on two clocks that took turns, at most {most}"
        );
    });
}

/// Filling the store is no amnesty: while other keys arrive, refused keys stay refused and their
/// waits do not grow. Only a store that holds fewer than two thousand keys is really tested here.
pub fn law_09_denied_stay_denied<H: Harness>() {
    for_each_sample::<H>(|sample, harness, subject| {
        let name = sample.name();
        let denied = |number| Key::builder().text("denied").number(number).finish();
        let mut shortest = u64::MAX;
        for number in 0..10 {
            assert!(
                subject
                    .take(&denied(number), sample.capacity())
                    .is_admitted()
            );
            let wait = subject.take(&denied(number), 1).retry_after();
            shortest = shortest.min(wait.map_or(0, |wait| wait.as_micros() as u64));
        }
        for step in 0..=10 {
            // The step before the last stands one microsecond before the end of the wait.
            let since = match step {
                10 => shortest,
                9 => shortest - 1,
                _ => shortest / 10 * step,
            };
            harness.set_time(START.after_micros(since));
            for other in 0..200 * u64::from(step < 10) {
                let _ = subject.take(&Key::from(step * 200 + other), 1);
            }
            for number in 0..10 {
                assert_eq!(
                    subject.take(&denied(number), 1).is_admitted(),
                    step == 10,
                    "law 9, no amnesty, {name}: `is_admitted` after {since} of {shortest} µs"
                );
            }
        }
    });
}

/// A key's used units stay used when no call carries the parameters any more under which they were
/// charged, and a store holds states of more parameters than a byte counts.
pub fn law_09_keys_keep_what_they_used_under_gone_parameters<H: Harness>() {
    const KEYS: u64 = 60;
    let harness = start::<H>();
    let tiers = [100, 10_000].map(|count| (format!("of {count}"), Gcra::new(Rate::per_day(count))));
    let policy = Policy::tiered("policy", tiers).expect("two tiers");
    let own = |per_day| {
        policy
            .own(Gcra::new(Rate::per_day(per_day)))
            .expect("a rate")
    };
    let subject = Subject::new(&harness, policy.clone());
    let remaining = |key: u64, cost: u64, per_day: u64| {
        let call = Call::from(Key::from(key)).costing(cost).under(own(per_day));
        subject.decide(&[call]).remaining()
    };
    // Three hundred sets of parameters.
    for round in 0..5 {
        for key in 0..KEYS {
            let per_day = 200 + round * KEYS + key;
            let left = remaining(key, 30, per_day);
            assert_eq!(
                left,
                per_day - 30 * (round + 1),
                "law 9, gone parameters: round {round}"
            );
        }
    }
    for key in 0..KEYS {
        assert_eq!(
            remaining(key, 0, 200 + key),
            50 + key,
            "law 9, gone parameters: the first ones"
        );
        assert_eq!(
            remaining(key, 0, 1_000 + key),
            850 + key,
            "law 9, gone parameters: others"
        );
        assert_eq!(
            subject.remaining(&Key::from(key)),
            0,
            "law 9, gone parameters: a tier"
        );
    }
    harness.set_time(START.after_micros(86_400_000_000));
    for key in 0..KEYS {
        assert_eq!(
            subject.remaining(&Key::from(key)),
            100,
            "law 9, gone parameters: a day later"
        );
    }
}

/// A charge that a process made to its own share while the store was down changes nothing at the
/// store.
pub fn law_10_local_charges_are_left_alone<H: Harness>() {
    for_each_sample::<H>(|sample, _, subject| {
        let name = sample.name();
        let key = Key::from("charged here and there");
        assert!(subject.take(&key, 2).is_admitted());
        let memory = MemoryBackend::builder()
            .clock(ManualClock::new(START))
            .build();
        let share = LocalShare::new(&memory, subject.set(), NonZeroU32::MIN);
        let share = share.expect("memory holds one policy");
        for actual in [0, 3] {
            let calls = [Call::from(key.clone()).costing(2)];
            let decision = share.decide(&calls, BackendErrorKind::Unavailable);
            let receipt = Receipt::of(&decision, &calls).expect("the share has units left");
            let settled = subject.try_settle(receipt.actual(actual));
            settled.expect("the backend settles");
            assert_eq!(
                subject.remaining(&key),
                sample.capacity() - 2,
                "law 10, a charge of a share, {name}: `remaining` at the store"
            );
        }
    });
}

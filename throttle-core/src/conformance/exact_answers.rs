//! Laws 2, 3 and 4: `retry_after`, `remaining` and `reset_after` are exact, to the microsecond and
//! to the unit.

use super::fixture::{Fixture, START, call, micros, start, wait};
use super::random::Random;
use super::{Harness, Sample};
use crate::backend::Call;
use crate::key::Key;
use crate::time::Timestamp;

const ROUNDS: u64 = 12;

/// Sends a few requests of a key at a few instants. Returns the last instant.
fn disturb<H: Harness>(
    harness: &H,
    fixture: &Fixture<'_, H>,
    sample: &Sample,
    key: &Key,
    seed: u64,
) -> Timestamp {
    let mut random = Random::new(seed);
    let mut now = START;
    for _ in 0..random.between(2, 5) {
        now = now.after_micros(random.below(sample.span() / 8));
        harness.set_time(now);
        fixture.take(key, random.between(1, sample.capacity()));
    }
    now
}

/// A refused request is admitted after its wait, and refused one microsecond earlier.
pub fn law_02_retry_is_tight<H: Harness>(sample: &Sample) {
    let harness = start::<H>();
    let fixture = Fixture::<H>::of(&harness, sample.algorithm());
    let mut refused = 0;
    for round in 0..ROUNDS {
        let key = Key::from(round);
        let now = disturb(&harness, &fixture, sample, &key, round);
        let cost = 1 + round % sample.capacity();
        fixture.drain(&key);
        let denied = fixture.take(&key, cost);
        let wait = wait(&denied);
        refused += 1;
        harness.set_time(now.after_micros(wait - 1));
        let early = fixture.take(&key, cost);
        assert_eq!(
            early.retry_after().map(micros),
            Some(1),
            "cost {cost}, one µs before {wait}: {early:?}"
        );
        assert!(!early.is_admitted(), "cost {cost}, one µs before {wait}");
        harness.set_time(now.after_micros(wait));
        let later = fixture.take(&key, cost);
        assert!(
            later.is_admitted(),
            "cost {cost}, after its wait of {wait} µs: {later:?}"
        );
        assert_eq!(later.retry_after().map(micros), Some(0));
    }
    assert_eq!(refused, ROUNDS);
    let never = fixture.take(&Key::from("too large"), sample.capacity() + 1);
    assert!(
        !never.is_admitted() && never.retry_after().is_none(),
        "no wait helps: {never:?}"
    );
}

/// A class with a reserve is refused while one without is admitted, and waits until its cost and
/// the reserve are free.
pub fn law_02_waits_with_a_reserve_are_tight<H: Harness>(sample: &Sample) {
    let harness = start::<H>();
    let fixture = Fixture::<H>::of(&harness, sample.algorithm());
    for round in 0..ROUNDS {
        let key = Key::from(round);
        let now = disturb(&harness, &fixture, sample, &key, 300 + round);
        let reserve = 1 + round % (sample.capacity() - 1);
        let lower = |cost| fixture.decide(&[call(&key, cost).reserving(reserve)]);
        let cost = 1 + round % (sample.capacity() - reserve);
        while lower(1).is_admitted() {
            assert!(
                fixture.remaining(&key) >= reserve,
                "the reserve of {reserve} was spent"
            );
        }
        let wait = wait(&lower(cost));
        harness.set_time(now.after_micros(wait - 1));
        assert_eq!(
            lower(cost).retry_after().map(micros),
            Some(1),
            "cost {cost}, one µs before {wait}"
        );
        harness.set_time(now.after_micros(wait));
        let later = lower(cost);
        assert!(
            later.is_admitted(),
            "cost {cost}, {reserve} reserved, after its wait of {wait} µs: {later:?}"
        );
        let left = fixture.remaining(&key);
        assert!(
            left >= reserve && fixture.take(&key, left).is_admitted(),
            "{left} of {reserve} are left"
        );
    }
    let all = fixture.decide(&[Call::from(Key::from("unused")).reserving(sample.capacity())]);
    assert!(
        !all.is_admitted() && all.retry_after().is_none(),
        "no wait helps: {all:?}"
    );
}

/// A cost of what remains is admitted, and one more is not.
pub fn law_03_remaining_is_exact<H: Harness>(sample: &Sample) {
    let harness = start::<H>();
    let fixture = Fixture::<H>::of(&harness, sample.algorithm());
    for round in 0..ROUNDS {
        let key = Key::from(round);
        disturb(&harness, &fixture, sample, &key, 100 + round);
        let decision = fixture.take(&key, 1 + round % 3);
        let remaining = decision.remaining();
        assert_eq!(
            fixture.remaining(&key),
            remaining,
            "a peek at the same instant"
        );
        let more = fixture.take(&key, remaining + 1);
        assert!(
            !more.is_admitted(),
            "{remaining} remain, and one more was admitted"
        );
        assert_eq!(more.remaining(), remaining, "after a refusal");
        if remaining > 0 {
            let all = fixture.take(&key, remaining);
            assert!(all.is_admitted(), "{remaining} remain: {all:?}");
            assert_eq!(all.remaining(), 0);
        }
    }
    assert_eq!(fixture.remaining(&Key::from("unused")), sample.capacity());
}

/// What remains for a class is what can be taken with its reserve left free.
pub fn law_03_remaining_with_a_reserve_is_exact<H: Harness>(sample: &Sample) {
    let harness = start::<H>();
    let fixture = Fixture::<H>::of(&harness, sample.algorithm());
    for round in 0..ROUNDS {
        let key = Key::from(round);
        disturb(&harness, &fixture, sample, &key, 400 + round);
        let reserve = 1 + round % sample.capacity();
        let lower = |cost| fixture.decide(&[call(&key, cost).reserving(reserve)]);
        let remaining = lower(1).remaining();
        assert_eq!(
            remaining,
            fixture.remaining(&key).saturating_sub(reserve),
            "{reserve} reserved"
        );
        let more = lower(remaining + 1);
        assert!(
            !more.is_admitted(),
            "{remaining} remain, and one more was admitted"
        );
        assert_eq!(more.remaining(), remaining, "after a refusal");
        if remaining > 0 {
            let all = lower(remaining);
            assert_eq!(
                (all.is_admitted(), all.remaining()),
                (true, 0),
                "{remaining} remain: {all:?}"
            );
            assert_eq!(
                fixture.remaining(&key),
                reserve,
                "the cost alone is charged"
            );
        }
    }
}

/// After the reset, and not one microsecond earlier, a key cannot be distinguished from an unused
/// one.
pub fn law_04_reset_is_exact<H: Harness>(sample: &Sample) {
    let harness = start::<H>();
    let fixture = Fixture::<H>::of(&harness, sample.algorithm());
    for round in 0..ROUNDS {
        let (key, unused) = (
            Key::from(round),
            Key::builder().text("unused").number(round).finish(),
        );
        let now = disturb(&harness, &fixture, sample, &key, 200 + round);
        let reset = micros(fixture.peek(&key).reset_after());
        assert!(
            reset > 0,
            "a used key cannot be distinguished from an unused one"
        );
        harness.set_time(now.after_micros(reset - 1));
        assert_eq!(
            micros(fixture.peek(&key).reset_after()),
            1,
            "one µs before the reset, {reset} µs on"
        );
        harness.set_time(now.after_micros(reset));
        for (cost, pause) in [
            (0, 0),
            (2, 0),
            (sample.capacity() - 2, 1),
            (1, 0),
            (1, 70_000_000),
            (3, 0),
        ] {
            harness.set_time(now.after_micros(reset + pause));
            let (used, fresh) = (
                fixture.decide(&[call(&key, cost)]),
                fixture.decide(&[call(&unused, cost)]),
            );
            assert_eq!(
                fixture.observed(&used),
                fixture.observed(&fresh),
                "cost {cost}, {pause} µs after the reset"
            );
        }
    }
}

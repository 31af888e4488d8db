//! Laws 2, 3 and 4: what a decision says is true, to the microsecond and to the unit.

use super::random::Random;
use super::stand::{START, Stand, call, micros, start, wait};
use super::{Harness, Specimen};
use crate::key::Key;
use crate::time::Timestamp;

const ROUNDS: u64 = 12;

/// Brings a key into some state: a few requests at a few instants. Returns the instant reached.
fn disturb<H: Harness>(harness: &H, stand: &Stand<'_, H>, specimen: &Specimen, key: &Key, seed: u64) -> Timestamp {
    let mut random = Random::new(seed);
    let mut now = START;
    for _ in 0..random.between(2, 5) {
        now = now.after_micros(random.below(specimen.span() / 8));
        harness.set_time(now);
        stand.take(key, random.between(1, specimen.capacity()));
    }
    now
}

/// The same request is admitted after the wait it was told, and refused one microsecond earlier.
pub fn law_02_retry_is_tight<H: Harness>(specimen: &Specimen) {
    let harness = start::<H>();
    let stand = Stand::<H>::of(&harness, specimen.algorithm());
    let mut refused = 0;
    for round in 0..ROUNDS {
        let key = Key::from(round);
        let now = disturb(&harness, &stand, specimen, &key, round);
        let cost = 1 + round % specimen.capacity();
        stand.drain(&key);
        let denied = stand.take(&key, cost);
        let told = wait(&denied);
        refused += 1;
        harness.set_time(now.after_micros(told - 1));
        let early = stand.take(&key, cost);
        assert_eq!(early.retry_after().map(micros), Some(1), "cost {cost}, one µs before {told}: {early:?}");
        assert!(!early.is_admitted(), "cost {cost}, one µs before {told}");
        harness.set_time(now.after_micros(told));
        let later = stand.take(&key, cost);
        assert!(later.is_admitted(), "cost {cost}, after the {told} µs it was told: {later:?}");
        assert_eq!(later.retry_after().map(micros), Some(0));
    }
    assert_eq!(refused, ROUNDS);
    let never = stand.take(&Key::from("too large"), specimen.capacity() + 1);
    assert!(!never.is_admitted() && never.retry_after().is_none(), "no wait helps: {never:?}");
}

/// A cost of what remains is admitted, and one more is not.
pub fn law_03_remaining_is_exact<H: Harness>(specimen: &Specimen) {
    let harness = start::<H>();
    let stand = Stand::<H>::of(&harness, specimen.algorithm());
    for round in 0..ROUNDS {
        let key = Key::from(round);
        disturb(&harness, &stand, specimen, &key, 100 + round);
        let decision = stand.take(&key, 1 + round % 3);
        let remaining = decision.remaining();
        assert_eq!(stand.remaining(&key), remaining, "a peek at the same instant");
        let more = stand.take(&key, remaining + 1);
        assert!(!more.is_admitted(), "{remaining} remain, and one more was admitted");
        assert_eq!(more.remaining(), remaining, "after a refusal");
        if remaining > 0 {
            let all = stand.take(&key, remaining);
            assert!(all.is_admitted(), "{remaining} remain: {all:?}");
            assert_eq!(all.remaining(), 0);
        }
    }
    assert_eq!(stand.remaining(&Key::from("unused")), specimen.capacity());
}

/// After the reset, and not one microsecond earlier, a key cannot be told from an unused one.
pub fn law_04_reset_is_exact<H: Harness>(specimen: &Specimen) {
    let harness = start::<H>();
    let stand = Stand::<H>::of(&harness, specimen.algorithm());
    for round in 0..ROUNDS {
        let (key, unused) = (Key::from(round), Key::builder().text("unused").number(round).finish());
        let now = disturb(&harness, &stand, specimen, &key, 200 + round);
        let reset = micros(stand.peek(&key).reset_after());
        assert!(reset > 0, "a used key is not as good as unused");
        harness.set_time(now.after_micros(reset - 1));
        assert_eq!(micros(stand.peek(&key).reset_after()), 1, "one µs before the reset, {reset} µs on");
        harness.set_time(now.after_micros(reset));
        for (cost, pause) in [(0, 0), (2, 0), (specimen.capacity() - 2, 1), (1, 0), (1, 70_000_000), (3, 0)] {
            harness.set_time(now.after_micros(reset + pause));
            let (used, fresh) = (stand.decide(&[call(&key, cost)]), stand.decide(&[call(&unused, cost)]));
            assert_eq!(stand.seen(&used), stand.seen(&fresh), "cost {cost}, {pause} µs after the reset");
        }
    }
}

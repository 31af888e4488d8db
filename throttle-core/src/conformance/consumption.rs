//! Law 1: a refused request and a peek consume nothing.

use super::fixture::{Fixture, start, wait};
use super::{Harness, Sample};
use crate::key::Key;

/// Refusals of any number and cost leave a key as it was: it is admitted again after its wait, and
/// not later.
pub fn law_01_deny_never_consumes<H: Harness>(sample: &Sample) {
    let harness = start::<H>();
    let fixture = Fixture::<H>::of(&harness, sample.algorithm());
    let (asked, untouched) = (Key::from("asked"), Key::from("untouched"));
    let capacity = sample.capacity();
    for key in [&asked, &untouched] {
        assert!(fixture.take(key, capacity - 1).is_admitted());
    }
    for cost in [2, capacity, capacity + 1, u64::MAX, 2, 3] {
        let denied = fixture.take(&asked, cost);
        assert!(
            !denied.is_admitted(),
            "cost {cost} with one unit left: {denied:?}"
        );
        assert_eq!(denied.statuses()[0].charged(), 0, "cost {cost}: {denied:?}");
        assert_eq!(
            denied.retry_after().is_none(),
            cost > capacity,
            "cost {cost}: {denied:?}"
        );
        assert_eq!(
            fixture.peek(&asked),
            fixture.peek(&untouched),
            "after a refused cost of {cost}"
        );
    }
    assert!(
        fixture.take(&asked, 1).is_admitted(),
        "the last unit is still there"
    );
    assert!(fixture.take(&untouched, 1).is_admitted());
    let wait = wait(&fixture.take(&asked, 1));
    for early in [wait / 2, wait - 1] {
        harness.set_time(super::fixture::START.after_micros(early));
        assert!(
            !fixture.take(&asked, 1).is_admitted(),
            "{early} µs later of {wait}"
        );
    }
    harness.set_time(super::fixture::START.after_micros(wait));
    assert_eq!(
        fixture.take(&asked, 1),
        fixture.take(&untouched, 1),
        "{wait} µs later, when both are admitted again"
    );
}

/// A peek changes nothing and is always admitted.
pub fn law_01_peek_never_consumes<H: Harness>(sample: &Sample) {
    let harness = start::<H>();
    let fixture = Fixture::<H>::of(&harness, sample.algorithm());
    let key = Key::from("looked at");
    let capacity = sample.capacity();
    for used in 0..=capacity {
        let first = fixture.peek(&key);
        assert!(first.is_admitted(), "a peek after {used} units: {first:?}");
        assert_eq!(first.remaining(), capacity - used);
        assert_eq!(first.statuses()[0].charged(), 0);
        assert_eq!(
            fixture.peek(&key),
            first,
            "the second peek after {used} units"
        );
        assert_eq!(
            fixture.take(&key, 1).is_admitted(),
            used < capacity,
            "after {used} units"
        );
    }
}

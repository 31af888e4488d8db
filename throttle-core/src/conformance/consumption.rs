//! Law 1: deny never consumes.

use super::stand::{Stand, start, wait};
use super::{Harness, Specimen};
use crate::key::Key;

/// Refusals, however many and however large, leave a key as it was: it is admitted again when it was told to, and not
/// later.
pub fn law_01_deny_never_consumes<H: Harness>(specimen: &Specimen) {
    let harness = start::<H>();
    let stand = Stand::<H>::of(&harness, specimen.algorithm());
    let (asked, left_alone) = (Key::from("asked"), Key::from("left alone"));
    let capacity = specimen.capacity();
    for key in [&asked, &left_alone] {
        assert!(stand.take(key, capacity - 1).is_admitted());
    }
    for cost in [2, capacity, capacity + 1, u64::MAX, 2, 3] {
        let denied = stand.take(&asked, cost);
        assert!(!denied.is_admitted(), "cost {cost} with one unit left: {denied:?}");
        assert_eq!(denied.statuses()[0].charged(), 0, "cost {cost}: {denied:?}");
        assert_eq!(denied.retry_after().is_none(), cost > capacity, "cost {cost}: {denied:?}");
        assert_eq!(stand.peek(&asked), stand.peek(&left_alone), "after a refused cost of {cost}");
    }
    assert!(stand.take(&asked, 1).is_admitted(), "the last unit is still there");
    assert!(stand.take(&left_alone, 1).is_admitted());
    let told = wait(&stand.take(&asked, 1));
    for early in [told / 2, told - 1] {
        harness.set_time(super::stand::START.after_micros(early));
        assert!(!stand.take(&asked, 1).is_admitted(), "{early} µs later of {told}");
    }
    harness.set_time(super::stand::START.after_micros(told));
    assert_eq!(stand.take(&asked, 1), stand.take(&left_alone, 1), "{told} µs later, when both are admitted again");
}

/// Looking changes nothing, and is always allowed.
pub fn law_01_peek_never_consumes<H: Harness>(specimen: &Specimen) {
    let harness = start::<H>();
    let stand = Stand::<H>::of(&harness, specimen.algorithm());
    let key = Key::from("looked at");
    let capacity = specimen.capacity();
    for used in 0..=capacity {
        let first = stand.peek(&key);
        assert!(first.is_admitted(), "a peek after {used} units: {first:?}");
        assert_eq!(first.remaining(), capacity - used);
        assert_eq!(first.statuses()[0].charged(), 0);
        assert_eq!(stand.peek(&key), first, "the second peek after {used} units");
        assert_eq!(stand.take(&key, 1).is_admitted(), used < capacity, "after {used} units");
    }
}

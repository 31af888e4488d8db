//! Law 10: a charge is used once, never for more than was taken, never in a later window.

use std::num::NonZeroU32;

use super::stand::{START, Stand, call, micros, policy, start};
use super::{Harness, Specimen};
use crate::backend::BackendErrorKind;
use crate::backend::Receipt;
use crate::key::Key;
use crate::memory::MemoryBackend;
use crate::set::{AnyCharge, PolicyTree};
use crate::share::LocalShare;
use crate::time::ManualClock;

/// A refund gives back what its own charge took, and nothing else.
pub fn law_10_refund_gives_back_once<H: Harness>(specimen: &Specimen) {
    let harness = start::<H>();
    let stand = Stand::<H>::of(&harness, specimen.algorithm());
    let (key, capacity) = (Key::from("refunded"), specimen.capacity());
    let kept = stand.charged(&key, 2);
    let refunded = stand.charged(&key, 2);
    assert_eq!(refunded.taken(0), 2);
    stand.settle(refunded.actual(0));
    assert_eq!(stand.remaining(&key), capacity - 2, "two of four units given back");
    drop(kept);
    assert_eq!(stand.remaining(&key), capacity - 2, "a dropped charge settles nothing");
    assert_eq!(stand.drain(&key), capacity - 2);
    let (denied, charge) = stand.charge(&key, 1);
    assert!(!denied.is_admitted() && charge.is_none(), "a refusal is no charge");
    let (_, peeked) = stand.charge(&key, 0);
    assert_eq!(peeked, None, "a peek is no charge");
}

/// Settled for less, the difference returns; for more, it is debited; for the same, nothing happens.
pub fn law_10_settle_corrects<H: Harness>(specimen: &Specimen) {
    let harness = start::<H>();
    let stand = Stand::<H>::of(&harness, specimen.algorithm());
    for (taken, actual) in [(4, 1), (4, 0), (4, 4), (1, 3), (2, 4), (3, 2)] {
        let key = Key::builder().number(taken).number(actual).finish();
        let charge = stand.charged(&key, taken);
        stand.settle(charge.actual(actual));
        assert_eq!(stand.remaining(&key), specimen.capacity() - actual, "{taken} taken and {actual} used");
        let unused = Key::builder().text("unused").number(taken).number(actual).finish();
        assert_eq!(stand.remaining(&unused), specimen.capacity(), "another key");
    }
}

/// A debit takes what is left and no more: no key is locked out for longer than an exhausted one.
pub fn law_10_debit_is_bounded<H: Harness>(specimen: &Specimen) {
    let harness = start::<H>();
    let stand = Stand::<H>::of(&harness, specimen.algorithm());
    let exhausted = Key::from("exhausted");
    assert!(stand.take(&exhausted, specimen.capacity()).is_admitted());
    let longest = stand.peek(&exhausted).reset_after();
    for actual in [specimen.capacity(), specimen.capacity() + 1, 1 << 60, u64::MAX] {
        let key = Key::from(actual);
        let (first, second) = (stand.charged(&key, 1), stand.charged(&key, 2));
        stand.settle(second.actual(actual));
        let standing = stand.peek(&key);
        assert_eq!(standing.remaining(), 0, "{actual} used in truth: {standing:?}");
        assert!(standing.reset_after() <= longest, "{actual} used in truth: {standing:?}");
        stand.settle(first.actual(actual));
        assert!(stand.peek(&key).reset_after() <= longest, "{actual} used in truth, twice");
        assert!(!stand.take(&key, 1).is_admitted());
    }
    harness.set_time(START.after_micros(micros(longest)));
    for actual in [specimen.capacity(), u64::MAX] {
        assert_eq!(stand.remaining(&Key::from(actual)), specimen.capacity(), "when everything has expired");
    }
}

/// A charge whose time is over gives nothing back: not above the capacity, and not into a window that came after it.
pub fn law_10_never_into_a_later_window<H: Harness>(specimen: &Specimen) {
    let harness = start::<H>();
    let stand = Stand::<H>::of(&harness, specimen.algorithm());
    let capacity = specimen.capacity();
    let (used_again, left_alone) = (Key::from("used again"), Key::from("left alone"));
    let charges: [Receipt; 2] = [&used_again, &left_alone].map(|key| stand.charged(key, capacity));
    let later = START.after_micros(micros(stand.peek(&used_again).reset_after()));
    harness.set_time(later);
    assert_eq!(stand.drain(&used_again), capacity);
    for charge in charges {
        stand.settle(charge.actual(0));
    }
    assert_eq!(stand.remaining(&left_alone), capacity, "nothing to give back");
    assert_eq!(stand.drain(&left_alone), capacity, "nothing to give back");
    let given_back = stand.drain(&used_again);
    assert!(given_back <= capacity, "{given_back} given back of {capacity} taken");
    if specimen.is_windowed() {
        assert_eq!(given_back, 0, "given back into a later window");
    }
}

/// A composite settles the members that were charged, each by itself if it is told so.
pub fn law_10_composites_settle_whom_they_charged<H: Harness>(specimen: &Specimen) {
    let harness = start::<H>();
    let algorithm = specimen.algorithm();
    let capacity = specimen.capacity();
    let members = |names: [&str; 2]| names.map(|name| policy(name, algorithm).into()).to_vec();
    let left = |stand: &Stand<'_, H>, key: &Key| -> Vec<u64> {
        stand.peek(key).statuses().iter().map(|status| status.remaining()).collect()
    };

    let all = Stand::<H>::new(&harness, PolicyTree::All(members(["a", "b"])));
    let key = Key::from("both");
    let charge = all.charged(&key, 3);
    assert_eq!(charge.items().len(), 2);
    all.settle(charge.actual(0));
    assert_eq!(left(&all, &key), [capacity, capacity], "both given back");
    let charge = all.charged(&key, 3);
    all.settle(charge.actual_of(1, 1));
    assert_eq!(left(&all, &key), [capacity - 3, capacity - 1], "the second alone corrected");

    let any = Stand::<H>::new(&harness, PolicyTree::Any(members(["own", "pool"]), AnyCharge::First));
    let key = Key::from("payer");
    assert!(any.take(&key, capacity).is_admitted());
    let charge = any.charged(&key, 2);
    assert_eq!((charge.taken(0), charge.taken(1)), (0, 2), "own has nothing left, so the pool pays");
    any.settle(charge.actual(0));
    assert_eq!(left(&any, &key), [0, capacity], "given back to the pool alone");
}

/// What a process charged to its own share while the store was down is no business of the store's.
pub fn law_10_local_charges_are_left_alone<H: Harness>(specimen: &Specimen) {
    let harness = start::<H>();
    let stand = Stand::<H>::of(&harness, specimen.algorithm());
    let key = Key::from("charged here and there");
    assert!(stand.take(&key, 2).is_admitted());
    let memory = MemoryBackend::builder().clock(ManualClock::new(START)).build();
    let share = LocalShare::new(&memory, stand.limiter.set(), NonZeroU32::MIN).expect("memory holds one policy");
    for actual in [0, 3] {
        let calls = [call(&key, 2)];
        let decision = share.decide(&calls, BackendErrorKind::Unavailable);
        let charge = Receipt::of(&decision, &calls).expect("the share has two units left");
        stand.settle(charge.actual(actual));
        assert_eq!(stand.remaining(&key), specimen.capacity() - 2, "settled where it was not charged");
    }
}

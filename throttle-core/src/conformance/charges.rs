//! Law 10: a charge is settled once, never for more than was taken, never in a later window.

use std::num::NonZeroU32;

use super::fixture::{Fixture, START, call, micros, policy, start};
use super::{Harness, Sample};
use crate::backend::{BackendErrorKind, Receipt};
use crate::key::Key;
use crate::local_share::LocalShare;
use crate::memory::MemoryBackend;
use crate::set::{AnyCharge, PolicyTree};
use crate::time::ManualClock;

/// A refund gives back the units of its own charge, and nothing else.
pub fn law_10_refund_gives_back_once<H: Harness>(sample: &Sample) {
    let harness = start::<H>();
    let fixture = Fixture::<H>::of(&harness, sample.algorithm());
    let (key, capacity) = (Key::from("refunded"), sample.capacity());
    let kept = fixture.charged(&key, 2);
    let refunded = fixture.charged(&key, 2);
    assert_eq!(refunded.taken(0), 2);
    fixture.settle(refunded.actual(0));
    assert_eq!(
        fixture.remaining(&key),
        capacity - 2,
        "two of four units given back"
    );
    drop(kept);
    assert_eq!(
        fixture.remaining(&key),
        capacity - 2,
        "a dropped charge settles nothing"
    );
    assert_eq!(fixture.drain(&key), capacity - 2);
    let (denied, charge) = fixture.charge(&key, 1);
    assert!(
        !denied.is_admitted() && charge.is_none(),
        "a refusal is no charge"
    );
    let (_, peeked) = fixture.charge(&key, 0);
    assert_eq!(peeked, None, "a peek is no charge");
}

/// A settlement for less gives back the difference, one for more debits it, and one for the same
/// does nothing.
pub fn law_10_settle_corrects<H: Harness>(sample: &Sample) {
    let harness = start::<H>();
    let fixture = Fixture::<H>::of(&harness, sample.algorithm());
    for (taken, actual) in [(4, 1), (4, 0), (4, 4), (1, 3), (2, 4), (3, 2)] {
        let key = Key::builder().number(taken).number(actual).finish();
        let charge = fixture.charged(&key, taken);
        fixture.settle(charge.actual(actual));
        assert_eq!(
            fixture.remaining(&key),
            sample.capacity() - actual,
            "{taken} taken and {actual} used"
        );
        let unused = Key::builder()
            .text("unused")
            .number(taken)
            .number(actual)
            .finish();
        assert_eq!(fixture.remaining(&unused), sample.capacity(), "another key");
    }
}

/// A debit takes at most the units that remain: no key is refused for longer than an exhausted one.
pub fn law_10_debit_is_bounded<H: Harness>(sample: &Sample) {
    let harness = start::<H>();
    let fixture = Fixture::<H>::of(&harness, sample.algorithm());
    let exhausted = Key::from("exhausted");
    assert!(fixture.take(&exhausted, sample.capacity()).is_admitted());
    let longest = fixture.peek(&exhausted).reset_after();
    for actual in [sample.capacity(), sample.capacity() + 1, 1 << 60, u64::MAX] {
        let key = Key::from(actual);
        let (first, second) = (fixture.charged(&key, 1), fixture.charged(&key, 2));
        fixture.settle(second.actual(actual));
        let peeked = fixture.peek(&key);
        assert_eq!(peeked.remaining(), 0, "{actual} actually used: {peeked:?}");
        assert!(
            peeked.reset_after() <= longest,
            "{actual} actually used: {peeked:?}"
        );
        fixture.settle(first.actual(actual));
        assert!(
            fixture.peek(&key).reset_after() <= longest,
            "{actual} actually used, twice"
        );
        assert!(!fixture.take(&key, 1).is_admitted());
    }
    harness.set_time(START.after_micros(micros(longest)));
    for actual in [sample.capacity(), u64::MAX] {
        assert_eq!(
            fixture.remaining(&Key::from(actual)),
            sample.capacity(),
            "when everything has expired"
        );
    }
}

/// A charge whose window has ended gives nothing back: not above the capacity, and not into a later
/// window.
pub fn law_10_never_into_a_later_window<H: Harness>(sample: &Sample) {
    let harness = start::<H>();
    let fixture = Fixture::<H>::of(&harness, sample.algorithm());
    let capacity = sample.capacity();
    let (used_again, left_alone) = (Key::from("used again"), Key::from("left alone"));
    let charges: [Receipt; 2] =
        [&used_again, &left_alone].map(|key| fixture.charged(key, capacity));
    let later = START.after_micros(micros(fixture.peek(&used_again).reset_after()));
    harness.set_time(later);
    assert_eq!(fixture.drain(&used_again), capacity);
    for charge in charges {
        fixture.settle(charge.actual(0));
    }
    assert_eq!(
        fixture.remaining(&left_alone),
        capacity,
        "nothing to give back"
    );
    assert_eq!(fixture.drain(&left_alone), capacity, "nothing to give back");
    let given_back = fixture.drain(&used_again);
    assert!(
        given_back <= capacity,
        "{given_back} given back of {capacity} taken"
    );
    if sample.is_windowed() {
        assert_eq!(given_back, 0, "given back into a later window");
    }
}

/// A composite settles the members that were charged, together or one by one.
pub fn law_10_composites_settle_what_they_charged<H: Harness>(sample: &Sample) {
    let harness = start::<H>();
    let algorithm = sample.algorithm();
    let capacity = sample.capacity();
    let members = |names: [&str; 2]| names.map(|name| policy(name, algorithm).into()).to_vec();

    let all = Fixture::<H>::new(&harness, PolicyTree::All(members(["a", "b"])));
    let key = Key::from("both");
    let charge = all.charged(&key, 3);
    assert_eq!(charge.items().len(), 2);
    all.settle(charge.actual(0));
    assert_eq!(all.left(&key), [capacity, capacity], "both given back");
    let charge = all.charged(&key, 3);
    all.settle(charge.actual_of(1, 1));
    assert_eq!(
        all.left(&key),
        [capacity - 3, capacity - 1],
        "the second alone corrected"
    );

    let any = Fixture::<H>::new(
        &harness,
        PolicyTree::Any(members(["own", "pool"]), AnyCharge::First),
    );
    let key = Key::from("payer");
    assert!(any.take(&key, capacity).is_admitted());
    let charge = any.charged(&key, 2);
    assert_eq!(
        (charge.taken(0), charge.taken(1)),
        (0, 2),
        "own has nothing left, so the pool pays"
    );
    any.settle(charge.actual(0));
    assert_eq!(
        any.left(&key),
        [0, capacity],
        "given back to the pool alone"
    );
}

/// A charge that a process made to its own share while the store was down changes nothing at the
/// store.
pub fn law_10_local_charges_are_left_alone<H: Harness>(sample: &Sample) {
    let harness = start::<H>();
    let fixture = Fixture::<H>::of(&harness, sample.algorithm());
    let key = Key::from("charged here and there");
    assert!(fixture.take(&key, 2).is_admitted());
    let memory = MemoryBackend::builder()
        .clock(ManualClock::new(START))
        .build();
    let share = LocalShare::new(&memory, fixture.limiter.set(), NonZeroU32::MIN)
        .expect("memory holds one policy");
    for actual in [0, 3] {
        let calls = [call(&key, 2)];
        let decision = share.decide(&calls, BackendErrorKind::Unavailable);
        let charge = Receipt::of(&decision, &calls).expect("the share has two units left");
        fixture.settle(charge.actual(actual));
        assert_eq!(
            fixture.remaining(&key),
            sample.capacity() - 2,
            "settled where it was not charged"
        );
    }
}

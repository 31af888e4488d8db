//! Law 7: a clock that steps in either direction buys nothing.

use super::fixture::{Fixture, Observed, START, call, start, wait};
use super::model::Model;
use super::{Harness, Sample};
use crate::algorithm::{Algorithm, Gcra};
use crate::key::Key;
use crate::rate::Rate;
use crate::time::Timestamp;

fn before(now: Timestamp, micros: u64) -> Timestamp {
    Timestamp::from_micros(now.as_micros() - micros.cast_signed())
}

/// An exhausted key stays exhausted on every earlier clock, and a key with one unit left has no
/// more than that.
pub fn law_07_backward_clock_buys_nothing<H: Harness>(sample: &Sample) {
    let harness = start::<H>();
    let fixture = Fixture::<H>::of(&harness, sample.algorithm());
    let (empty, one_left) = (Key::from("empty"), Key::from("one left"));
    assert!(fixture.take(&empty, sample.capacity()).is_admitted());
    assert!(fixture.take(&one_left, sample.capacity() - 1).is_admitted());
    let mut bought = 0;
    let span = sample.span();
    for back in [1, span / 3, span, 2 * span + 1, 50 * span, 0] {
        harness.set_time(before(START, back));
        let denied = fixture.take(&empty, 1);
        assert!(!denied.is_admitted(), "{back} µs back: {denied:?}");
        assert!(
            wait(&denied) > back,
            "{back} µs back, a wait that ends before the clock has caught up: {denied:?}"
        );
        bought += fixture.drain(&one_left);
        assert!(
            bought <= 1,
            "{back} µs back: {bought} units of a key with one left"
        );
    }
    assert_eq!(bought, 1, "back where it was, the last unit is there");
}

/// A clock that jumps forward by any length gives an exhausted key one capacity, and nothing more
/// when it jumps back.
pub fn law_07_forward_jump_buys_one_burst<H: Harness>(sample: &Sample) {
    let harness = start::<H>();
    let fixture = Fixture::<H>::of(&harness, sample.algorithm());
    for (round, spans) in [1, 3, 100].into_iter().enumerate() {
        let key = Key::from(round as u64);
        harness.set_time(START);
        assert_eq!(fixture.drain(&key), sample.capacity());
        harness.set_time(START.after_micros(spans * sample.span()));
        assert_eq!(
            fixture.drain(&key),
            sample.capacity(),
            "after a jump of {spans} spans"
        );
        harness.set_time(START);
        assert_eq!(fixture.drain(&key), 0, "back from a jump of {spans} spans");
    }
}

/// Two clocks that take turns on one key admit at most one capacity each, however often they take
/// turns.
pub fn law_07_two_clocks_buy_nothing_twice<H: Harness>(sample: &Sample) {
    let harness = start::<H>();
    let fixture = Fixture::<H>::of(&harness, sample.algorithm());
    let span = sample.span();
    for (round, apart) in [1, span / 4, span, 7 * span].into_iter().enumerate() {
        let key = Key::from(round as u64);
        let (mut early, mut late) = (0, 0);
        for _ in 0..6 {
            harness.set_time(START);
            early += fixture.drain(&key);
            harness.set_time(START.after_micros(apart));
            late += fixture.drain(&key);
        }
        let capacity = sample.capacity();
        assert_eq!(early, capacity, "on the early clock, {apart} µs behind");
        assert!(
            late <= capacity,
            "{late} units on the late clock, {apart} µs ahead"
        );
    }
}

/// A key that is forgotten on the later of two clocks and used on the earlier one gains no more
/// than the time between the clocks is worth, however often they take turns.
pub fn law_07_forgetting_and_stepping_back_is_bounded<H: Harness>(sample: &Sample) {
    let harness = start::<H>();
    let fixture = Fixture::<H>::of(&harness, sample.algorithm());
    let key = Key::from("forgotten");
    let mut bought = 0;
    for round in 0..24 {
        harness.set_time(START);
        bought += fixture.drain(&key);
        harness.set_time(START.after_micros(3 * sample.span()));
        for other in 0..16 {
            let _ = fixture.take(&Key::from(round * 16 + other), 1);
        }
    }
    // One to begin with, one for each span, one at either end of a window.
    let most = 6 * sample.capacity();
    assert!(
        bought <= most,
        "{bought} units of a key with {} on two clocks that took turns",
        sample.capacity()
    );
}

/// A changed limit counts what the key has used, and refuses a key for no longer than the longer
/// window of the two. What is used under another limit stays used when the limit is changed back.
pub fn law_07_changed_limit_counts_former_use<H: Harness>(sample: &Sample) {
    let (high, low) = (*sample.algorithm(), *sample.lowered());
    let other = Gcra::new(Rate::per_hour(5))
        .burst(6)
        .build()
        .expect("a valid algorithm");
    let changes: [(Algorithm, Algorithm, u64); 6] = [
        (high, low, high.capacity()),
        (high, low, 2),
        (low, high, low.capacity()),
        (low, high, 1),
        (high, other, high.capacity()),
        (other, low, 3),
    ];
    for (round, (old, new, used)) in changes.into_iter().enumerate() {
        let harness = start::<H>();
        let key = Key::from(round as u64);
        let [before, after] = [&old, &new].map(|limit| Fixture::<H>::of(&harness, limit));
        assert!(before.take(&key, used).is_admitted());
        let expected = new.capacity().saturating_sub(used);
        assert_eq!(
            after.remaining(&key),
            expected,
            "{used} of {} used, then {}",
            old.capacity(),
            new.capacity()
        );
        assert_eq!(after.drain(&key), expected);
        let wait = wait(&after.take(&key, 1));
        let window = |limit: &Algorithm| {
            limit
                .decide(limit.fresh(), START, limit.capacity())
                .1
                .reset_after_micros()
        };
        let longest = window(&old).max(window(&new));
        assert!(
            wait <= longest,
            "refused for {wait} µs by limits that reset in {longest} µs"
        );
        harness.set_time(START.after_micros(wait));
        assert!(
            after.take(&key, 1).is_admitted(),
            "after its wait of {wait} µs"
        );
        limits_take_turns(&harness, [&before, &after], round as u64);
        let key = Key::builder().text("back").number(round as u64).finish();
        harness.set_time(LATER);
        assert!(before.take(&key, used).is_admitted());
        let more = u64::from(after.take(&key, 1).is_admitted());
        let _ = (after.take(&key, new.capacity()), after.remaining(&key));
        let expected = old.capacity().saturating_sub(used + more);
        assert_eq!(
            before.remaining(&key),
            expected,
            "{used} and {more} of {} used",
            old.capacity()
        );
    }
}

/// After all that happens before.
const LATER: Timestamp = START.after_micros(180_000_000_000_000);

/// Two programs that hold different limits of one name, or a change that is made, reverted and made
/// again.
fn limits_take_turns<H: Harness>(harness: &H, limits: [&Fixture<'_, H>; 2], seed: u64) {
    let key = Key::builder().text("both").number(seed).finish();
    let mut model = Model::new();
    let mut now = START.after_micros(90_000_000_000_000);
    for turn in 0..12 {
        now = now.after_micros(7_654_321 * (turn % 3));
        harness.set_time(now);
        let fixture = limits[usize::from(turn % 4 >= 2)];
        let calls = [call(&key, turn % 3)];
        let expected = model.decide(fixture.limiter.set(), now, &calls);
        let expected = Observed::new(fixture.limiter.set(), &expected);
        assert_eq!(
            fixture.observed(&fixture.decide(&calls)),
            expected,
            "turn {turn} of two limits"
        );
    }
}

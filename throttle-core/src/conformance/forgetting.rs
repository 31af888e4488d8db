//! Law 9: forgetting is invisible.

use super::fixture::{Fixture, Observed, START, call, micros, start, wait};
use super::model::Model;
use super::random::Random;
use super::{Harness, Sample};
use crate::key::Key;

/// Keys that arrive while denied keys wait. Only a store that holds fewer keys than this is really
/// tested here.
const OTHERS: u64 = 2_000;

/// A key that has expired is as a new one, whether it was forgotten or not.
pub fn law_09_expired_is_as_new<H: Harness>(sample: &Sample) {
    let harness = start::<H>();
    let fixture = Fixture::<H>::of(&harness, sample.algorithm());
    let mut now = START;
    for round in 0..6 {
        let key = Key::from("again and again");
        let new = Key::builder().text("new").number(round).finish();
        for cost in [1, sample.capacity() - 1, 1, 0] {
            let (old, new) = (fixture.take(&key, cost), fixture.take(&new, cost));
            assert_eq!(
                fixture.observed(&old),
                fixture.observed(&new),
                "cost {cost} in round {round}"
            );
        }
        now = now.after_micros(micros(fixture.peek(&key).reset_after()));
        harness.set_time(now);
        for other in 0..round * 20 {
            let _ = fixture.take(&Key::builder().number(round).number(other).finish(), 1);
        }
    }
}

/// Many keys come and go. Each decision is as if every key were remembered for ever.
pub fn law_09_forgetting_is_invisible<H: Harness>(sample: &Sample) {
    let harness = start::<H>();
    let fixture = Fixture::<H>::of(&harness, sample.algorithm());
    let (mut model, mut random, mut now) = (Model::new(), Random::new(9), START);
    for step in 0..600 {
        now = now.after_micros(random.below(sample.span() / 20));
        harness.set_time(now);
        let cost = random.between(0, sample.capacity());
        let calls = [call(&Key::from(random.below(60)), cost)];
        let expected = Observed::new(
            fixture.limiter.set(),
            &model.decide(fixture.limiter.set(), now, &calls),
        );
        assert_eq!(
            fixture.observed(&fixture.decide(&calls)),
            expected,
            "cost {cost} at step {step}"
        );
    }
}

/// Filling the store is no amnesty: while other keys arrive, refused keys stay refused and their
/// waits do not grow.
pub fn law_09_denied_stay_denied<H: Harness>(sample: &Sample) {
    let harness = start::<H>();
    let fixture = Fixture::<H>::of(&harness, sample.algorithm());
    let keys: Vec<Key> = (0..10)
        .map(|i| Key::builder().text("denied").number(i).finish())
        .collect();
    let mut shortest = u64::MAX;
    for key in &keys {
        assert!(fixture.take(key, sample.capacity()).is_admitted());
        shortest = shortest.min(wait(&fixture.take(key, 1)));
    }
    let chunk = OTHERS / 10;
    for step in 0..10 {
        // The last step stands one microsecond before the end of the wait.
        harness.set_time(
            START.after_micros(
                (shortest - 1) / 9 * step + (shortest - 1) % 9 * u64::from(step == 9),
            ),
        );
        for other in 0..chunk {
            let _ = fixture.take(&Key::from(step * chunk + other), 1);
        }
        for (place, key) in keys.iter().enumerate() {
            assert!(
                !fixture.take(key, 1).is_admitted(),
                "denied key {place} after {} others",
                (step + 1) * chunk
            );
        }
    }
    harness.set_time(START.after_micros(shortest));
    for key in &keys {
        assert!(fixture.take(key, 1).is_admitted(), "after {shortest} µs");
    }
}

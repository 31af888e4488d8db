//! Law 6: N threads that race for the last K units admit exactly K.

use std::sync::Barrier;

use super::fixture::{Fixture, start};
use super::{Harness, Sample};
use crate::key::Key;

const THREADS: usize = 8;
const ROUNDS: u64 = 8;

/// Runs `body` on all threads at once and sums what they return.
fn race(body: impl Fn(usize) -> u64 + Sync) -> u64 {
    let (ready, body) = (&Barrier::new(THREADS), &body);
    std::thread::scope(|scope| {
        let run = |thread| {
            move || {
                ready.wait();
                body(thread)
            }
        };
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| scope.spawn(run(thread)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("a thread panicked"))
            .sum()
    })
}

/// Threads race for the last K units of a key, with costs of one unit. Exactly K are admitted.
pub fn law_06_exactly_k<H: Harness>(sample: &Sample) {
    let harness = start::<H>();
    let fixture = Fixture::<H>::of(&harness, sample.algorithm());
    let capacity = sample.capacity();
    for round in 0..ROUNDS {
        let key = Key::from(round);
        let used = round % 4;
        if used > 0 {
            assert!(fixture.take(&key, used).is_admitted());
        }
        let tries = capacity;
        let admitted = race(|_| {
            (0..tries)
                .filter(|_| fixture.take(&key, 1).is_admitted())
                .count() as u64
        });
        assert_eq!(
            admitted,
            capacity - used,
            "{THREADS} threads with {tries} tries each, round {round}"
        );
        assert_eq!(fixture.remaining(&key), 0);
    }
}

/// Threads race for the units of an unused key, first with costs of one to three units, then with
/// costs of one. Exactly the capacity is admitted.
pub fn law_06_exactly_k_of_mixed_costs<H: Harness>(sample: &Sample) {
    let harness = start::<H>();
    let fixture = Fixture::<H>::of(&harness, sample.algorithm());
    let capacity = sample.capacity();
    for round in 0..ROUNDS {
        let key = Key::from(round);
        let admitted = race(|thread| {
            let costs = (0..4)
                .map(|i| 1 + (thread as u64 + i) % 3)
                .chain(std::iter::repeat_n(1, capacity as usize));
            costs
                .filter(|cost| fixture.take(&key, *cost).is_admitted())
                .sum()
        });
        assert_eq!(admitted, capacity, "units admitted in round {round}");
    }
}

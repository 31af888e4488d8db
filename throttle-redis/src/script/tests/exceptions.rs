//! Law 8 for keys with exceptions: every answer, every stored value and every time to live equals
//! the core's, bit for bit, while exceptions are set, lifted and over, strikes are counted, the
//! parameters change, charges are settled late, and the clock steps.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use throttle_core::backend::{Ban, Exception, Receipt, Treatment};
use throttle_core::{Algorithm, Key, LeakyBucket, Policy, PolicyTree, Rate, Timestamp};

use super::machine::{Machine, call};
use super::random::{Step, any_algorithm, starts, steps};

fn treatment(step: &Step, policy: &Policy) -> Treatment {
    match step.dice[1] % 4 {
        0 => Treatment::Exempt,
        1 => Treatment::Blocked,
        2 => Treatment::Limit(Arc::new(step.other)),
        _ => Treatment::Limit(Arc::new(*policy.algorithm())),
    }
}

fn play(algorithms: &[Algorithm], is_any: bool, expires: bool, start: i64, steps: &[Step]) {
    let policies = algorithms
        .iter()
        .enumerate()
        .map(|(n, by)| Policy::new(&n.to_string(), *by).unwrap().into());
    let tree = if is_any {
        PolicyTree::Any(policies.collect(), throttle_core::AnyCharge::First)
    } else {
        PolicyTree::All(policies.collect())
    };
    let mut machine = Machine::new(tree);
    machine.expires = expires;
    let key = Key::from("ada");
    let (mut now, mut receipts) = (start, Vec::<Receipt>::new());
    for step in steps {
        let place = step.dice[3] as usize % algorithms.len();
        let period = algorithms[place].rate().period_micros() as i64;
        now = (now + step.micros(period, !expires)).clamp(-(1 << 51), 1 << 51);
        machine.go_to(now);
        match step.what {
            2..=3 => {
                let part = |n: usize| {
                    let micros = (i128::from(period) * 2 * i128::from(step.dice[n])) >> 32;
                    Duration::from_micros(1 + micros as u64)
                };
                let ban = Ban::after(1 + step.dice[0] % 3)
                    .growing(1 + step.dice[1] % 3)
                    .within(part(1));
                let ban = ban
                    .lasting(part(2))
                    .up_to(part(2) + part(3))
                    .forgotten_after(part(0));
                machine.strike(place, &key, &ban);
            }
            0..=1 => {
                let policy = &machine.set().policies()[place];
                let ahead = (i128::from(period) * 3 * i128::from(step.dice[2])) >> 32;
                let until = Timestamp::from_micros(now + ahead as i64);
                let exception = Exception {
                    treatment: treatment(step, policy),
                    until,
                };
                machine.except(
                    place,
                    &key,
                    Some(exception).filter(|_| step.dice[0] % 5 > 0),
                );
            }
            4..=5 if !receipts.is_empty() => {
                let receipt = receipts.swap_remove(step.dice[1] as usize % receipts.len());
                let taken = receipt.items()[0].taken();
                let units = [0, 1, taken, taken + 1, taken / 2, 2 * taken];
                machine.settle(&receipt.actual(units[step.dice[2] as usize % units.len()]));
            }
            _ => {
                let requests: Vec<Vec<_>> = (0..1 + step.dice[2] as usize % 3)
                    .map(|request| {
                        let by = |place: usize| algorithms[place].capacity();
                        let calls = (0..algorithms.len()).map(|place| {
                            call(&key, step.cost(request, place, by(place), true))
                                .reserving(step.reserve(request, place, by(place)))
                        });
                        calls.collect()
                    })
                    .collect();
                let decisions = machine.decide(&requests);
                receipts.extend(
                    decisions
                        .iter()
                        .zip(&requests)
                        .filter_map(|(of, calls)| Receipt::of(of, calls)),
                );
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn law_08_keys_with_exceptions(
        algorithms in prop::collection::vec(any_algorithm(), 1..4),
        is_any in any::<bool>(),
        expires in any::<bool>(),
        start in starts(),
        steps in steps(40),
    ) {
        play(&algorithms, is_any, expires, start, &steps);
    }
}

/// A refunded charge has freed its slot, but the schedule begins no earlier than the charge.
#[test]
fn law_09_slot_before_which_the_clock_stepped_back_outlives_an_exception() {
    let start = 1_790_000_000_000_000;
    let bucket = LeakyBucket::new(Rate::per_second(10)).without_delay();
    let key = Key::from("ada");
    for treatment in [Treatment::Exempt, Treatment::Blocked] {
        let mut machine = Machine::new(Policy::new("p", bucket).unwrap());
        machine.go_to(start + 5_000_000);
        let calls = vec![call(&key, Some(1))];
        let decision = machine.decide(std::slice::from_ref(&calls)).remove(0);
        let receipt = Receipt::of(&decision, &calls).expect("admitted");
        machine.settle(&receipt.actual(0));
        machine.go_to(start);
        let until = Timestamp::from_micros(start + 1_000_000);
        machine.except(0, &key, Some(Exception { treatment, until }));
        machine.except(0, &key, None);
        machine.strike(0, &key, &Ban::after(9));
    }
}

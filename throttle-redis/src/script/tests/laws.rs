//! Law 8, one answer: the scripts answer and write what the core's algorithms do, bit for bit.

use std::panic::{AssertUnwindSafe, catch_unwind};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use throttle_core::backend::{Call, Receipt};
use throttle_core::{CalendarQuota, Key, Policy};

use super::machine::{Machine, call};
use super::random::{KINDS, Step, Tree, algorithm, alls, starts, steps, tree};

/// What a run may contain besides decisions on an honest clock.
#[derive(Clone, Copy)]
struct World {
    /// The clock steps back and forth.
    hostile: bool,
    /// Limits change.
    changes: bool,
    settles: bool,
    expires: bool,
}

const WORLDS: [World; 4] = [
    World {
        hostile: true,
        changes: false,
        settles: false,
        expires: false,
    },
    World {
        hostile: true,
        changes: true,
        settles: false,
        expires: false,
    },
    World {
        hostile: true,
        changes: true,
        settles: true,
        expires: false,
    },
    World {
        hostile: false,
        changes: false,
        settles: true,
        expires: true,
    },
];

fn run(what: &str, trees: &BoxedStrategy<Tree>, part: u32, world: World) {
    let cases = (Config::default().cases / part).max(1);
    let mut runner = TestRunner::new(Config {
        failure_persistence: None,
        cases,
        ..Config::default()
    });
    let result =
        runner.run(
            &(trees, starts(), steps(40), any::<bool>(), 0..3_i64),
            |(tree, start, steps, told, slack)| {
                let play = || play(&tree, start, &steps, world, told, slack);
                catch_unwind(AssertUnwindSafe(play)).map_err(|panic| {
                    let text = panic.downcast_ref::<String>().cloned();
                    TestCaseError::fail(text.unwrap_or_else(|| {
                        panic.downcast_ref::<&str>().unwrap_or(&"?").to_string()
                    }))
                })
            },
        );
    if let Err(error) = result {
        panic!("{what}: {error}");
    }
}

fn play(tree: &Tree, start: i64, steps: &[Step], world: World, told_time: bool, slack: i64) {
    let mut machine = Machine::new(tree.named());
    (machine.told_time, machine.expires) = (told_time, world.expires);
    machine.slack = if world.expires { 0 } else { slack * 1_000 };
    let keys = [Key::from("ada"), Key::from("bob")];
    let alone = machine.set().policies().len() == 1;
    let (mut now, mut receipts) = (start, Vec::<Receipt>::new());
    for step in steps {
        // A second clock, slightly behind, may decide the next request.
        let rate = machine.set().policies()[step.dice[3] as usize % machine.set().policies().len()]
            .algorithm()
            .rate();
        now = (now + step.micros(rate.period_micros() as i64, world.hostile))
            .clamp(-(1 << 51), 1 << 51);
        machine.go_to(now);
        match step.what {
            0..=2 if world.changes => {
                machine.change(
                    step.dice[0] as usize % machine.set().policies().len(),
                    step.other,
                );
            }
            3..=6 if world.settles && !receipts.is_empty() => {
                let receipt = receipts.swap_remove(step.dice[0] as usize % receipts.len());
                let taken = receipt.items()[0].taken();
                let units = [
                    0,
                    1,
                    taken,
                    taken + 1,
                    taken / 2,
                    taken.saturating_sub(1),
                    2 * taken,
                    taken + 3,
                ];
                machine.settle(&receipt.actual(units[step.dice[1] as usize % units.len()]));
            }
            _ => {
                let calls = (0..1 + step.dice[0] as usize % 4).map(|index| {
                    let member = |(policy, of): (usize, &throttle_core::Policy)| {
                        let key = &keys
                            [step.dice[3].rotate_right((index * 8 + policy) as u32) as usize % 2];
                        let capacity = of.algorithm().capacity();
                        let call =
                            call(key, step.cost(index, policy, capacity, alone && index > 0))
                                .reserving(step.reserve(index, policy, capacity));
                        match step.peeks(index, policy) {
                            true => call.peeking(),
                            false => call,
                        }
                    };
                    let mut call: Vec<_> = machine
                        .set()
                        .policies()
                        .iter()
                        .enumerate()
                        .map(member)
                        .collect();
                    if call.iter().all(|member: &Call| member.key().is_none()) {
                        // A request to which no policy applies sends nothing to the server.
                        call[0] = Call::peek(keys[0].clone());
                    }
                    call
                });
                let calls: Vec<Vec<_>> = calls.collect();
                let decisions = machine.decide(&calls);
                receipts.extend(
                    decisions
                        .iter()
                        .zip(&calls)
                        .filter_map(|(decision, call)| Receipt::of(decision, call)),
                );
            }
        }
    }
}

fn every_kind(world: World) {
    for kind in 0..KINDS {
        run(
            &format!("algorithm {kind}"),
            &algorithm(kind).prop_map(Tree::Leaf).boxed(),
            4,
            world,
        );
    }
}

#[test]
fn law_08_every_algorithm_on_a_hostile_clock() {
    every_kind(WORLDS[0]);
}

#[test]
fn law_08_compositions_on_a_hostile_clock() {
    run("compositions", &tree(), 1, WORLDS[0]);
}

#[test]
fn law_08_every_algorithm_with_changing_limits() {
    every_kind(WORLDS[1]);
}

#[test]
fn law_08_compositions_with_changing_limits() {
    run("compositions", &tree(), 1, WORLDS[1]);
}

#[test]
fn law_08_plain_alls() {
    run("alls", &alls(), 2, WORLDS[0]);
    run("alls", &alls(), 2, WORLDS[2]);
}

#[test]
fn law_08_every_algorithm_with_settles_and_changing_limits() {
    every_kind(WORLDS[2]);
}

#[test]
fn law_08_compositions_with_settles_and_changing_limits() {
    run("compositions", &tree(), 1, WORLDS[2]);
}

#[test]
fn law_08_expired_keys_are_as_good_as_unused() {
    every_kind(WORLDS[3]);
    run("compositions", &tree(), 1, WORLDS[3]);
}

/// The months around every kind of leap year that a clock can show, hour by hour around their ends.
#[test]
fn law_08_calendars_of_leap_years() {
    const HOUR: i64 = 3_600_000_000;
    let civil = [
        CalendarQuota::monthly(3),
        CalendarQuota::weekly(3),
        CalendarQuota::daily(3),
    ];
    let anchored = [
        CalendarQuota::monthly(3).anchor_day(28).anchor_hour(5),
        CalendarQuota::monthly(3).anchor_last_day(),
        CalendarQuota::weekly(3).anchor_day(7),
    ];
    for quota in civil.into_iter().chain(anchored) {
        let mut machine = Machine::new(Policy::new("p", quota).unwrap());
        // 1900-02-27, 1996, 1999, 2000 and 2026, in days since 1970.
        for day in [-25_510_i64, 9_553, 10_649, 11_014, 20_511] {
            for hours in 0..96 {
                machine.go_to((day * 24 + hours) * HOUR);
                machine.decide(&[vec![Call::from(Key::from("key"))]]);
            }
        }
    }
}

/// Settling a key that is gone writes nothing unless it owes more.
#[test]
fn law_08_settling_a_missing_key_does_not_restore_it() {
    for kind in 0..KINDS {
        run_settled(&algorithm(kind));
    }
}

fn run_settled(algorithms: &BoxedStrategy<throttle_core::Algorithm>) {
    let mut runner = TestRunner::new(Config {
        failure_persistence: None,
        cases: 64,
        ..Config::default()
    });
    let checked = runner.run(
        &(algorithms, starts(), 0..4_u64),
        |(algorithm, start, actual)| {
            let mut machine = Machine::new(Policy::new("p", algorithm).unwrap());
            machine.go_to(start);
            let calls = vec![Call::from(Key::from("key"))];
            let decision = machine.decide(std::slice::from_ref(&calls)).remove(0);
            machine.redis.store.borrow_mut().entries.clear();
            machine.model.clear();
            let writes = machine.redis.store.borrow().writes;
            machine.settle(&Receipt::of(&decision, &calls).unwrap().actual(actual));
            let wrote = machine.redis.store.borrow().writes - writes;
            prop_assert!(wrote == machine.model.len() && (actual > 1 || wrote == 0));
            Ok(())
        },
    );
    checked.unwrap();
}

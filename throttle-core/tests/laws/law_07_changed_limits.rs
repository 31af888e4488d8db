//! Law 7, limits that change, and limits of one name that are live at the same time: a key has one
//! state, used units stay used, and each limit decides by its own parameters.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::TestCaseResult;
use throttle_core::backend::Call;
use throttle_core::{
    Algorithm, Backend, Decision, Gcra, IntoAlgorithm, Key, Policy, PolicySet, Rate, Timestamp,
};

use crate::support::machines::InMemory;
use crate::support::spec::{Kind, Spec, TODAY};
use crate::support::strategies::{any_spec, run};

const T0: Timestamp = Timestamp::from_micros(TODAY);

/// One key in memory, and any limits of one name.
struct Store(InMemory);

impl Store {
    fn new() -> Self {
        Self(InMemory::of(PolicySet::none(), 1_000))
    }

    fn ask(&self, limit: &Algorithm, cost: u64) -> Decision {
        let set = PolicySet::new(Policy::new("limit", *limit).unwrap()).unwrap();
        let set = self.0.backend.prepare(set).unwrap();
        let call = Call::from(Key::from("ada")).costing(cost);
        self.0.backend.decide_now(&set, &[call])
    }
}

fn built(algorithm: impl IntoAlgorithm) -> Algorithm {
    algorithm.into_algorithm().unwrap()
}

/// µs until a key that has used all is as an unused one.
fn window(limit: &Algorithm, now: Timestamp) -> u64 {
    limit
        .decide(limit.fresh(), now, limit.capacity())
        .1
        .reset_after_micros()
}

/// What a limit that was changed and changed back gives up: what was charged meanwhile drains at
/// the other pace.
#[test]
fn law_07_a_change_and_back_gives_up_one_recovery_of_the_faster() {
    let (slow, fast) = (
        built(Gcra::new(Rate::per_hour(10))),
        built(Gcra::new(Rate::per_second(100)).burst(10)),
    );
    let store = Store::new();
    let admits = |at: u64, limit, cost| {
        store.0.clock.set(T0.after_micros(at));
        store.ask(limit, cost).is_admitted()
    };
    assert!(admits(0, &slow, 9) && admits(0, &fast, 1));
    assert!(
        admits(100_000, &slow, 10),
        "ten more a tenth of a second later"
    );
    assert!(
        !admits(100_000, &fast, 1),
        "and not again before an hour's unit has drained"
    );
    assert!(!admits(300_000_000, &fast, 1));
}

/// Changes between some limits of one name on a clock that stands still: no more is admitted than
/// the largest one admits.
fn to_and_fro((specs, dice, t): &(Vec<Spec>, u64, i64)) -> TestCaseResult {
    let store = Store::new();
    store.0.clock.set(Timestamp::from_micros(*t));
    let largest = specs
        .iter()
        .map(|spec| spec.algorithm().capacity())
        .max()
        .unwrap_or(0);
    let mut admitted = 0_u128;
    for step in 0..40 {
        let limit = specs[dice.rotate_left(7 * step) as usize % specs.len()].algorithm();
        // Take all that is left, then several units more, which may not be there.
        let left = store.ask(&limit, 0).remaining();
        for cost in [left, 1.max(limit.capacity() / 2)] {
            admitted += u128::from(cost) * u128::from(store.ask(&limit, cost).is_admitted());
        }
    }
    prop_assert!(
        admitted <= u128::from(largest),
        "{} admitted of {}",
        admitted,
        largest
    );
    Ok(())
}

#[test]
fn law_07_going_to_and_fro_between_limits_buys_nothing() {
    let spec = select(Kind::ALL.to_vec()).prop_flat_map(any_spec);
    run(
        "to and fro",
        &(vec(spec, 2..5), any::<u64>(), TODAY..TODAY + (1 << 40)),
        to_and_fro,
    );
}

/// Beyond this, a wait of years may end after the last instant that there is.
const FAR: Timestamp = Timestamp::from_micros(1 << 52);

/// Whatever was used under whatever limit: a wait is true, and no longer than the longest of their
/// windows.
#[test]
fn law_07_a_key_is_locked_out_at_most_for_the_longest_window() {
    let asked = vec(
        (
            0..4_usize,
            0..14_u64,
            prop_oneof![Just(0_u64), 0..40_u64, 0..900_u64],
        ),
        1..60,
    );
    let specs = vec(select(Kind::ALL.to_vec()).prop_flat_map(any_spec), 2..5);
    run("windows", &(specs, asked), |(specs, asked)| {
        let limits: Vec<Algorithm> = specs.iter().map(Spec::algorithm).collect();
        let (store, mut now) = (Store::new(), T0);
        for (limit, cost, ahead) in asked {
            now = now.after_micros(*ahead);
            if now > FAR {
                break;
            }
            store.0.clock.set(now);
            let limit = &limits[limit % limits.len()];
            let decision = store.ask(limit, *cost);
            if let Some(wait) = decision.retry_after().filter(|wait| !wait.is_zero()) {
                let longest = limits.iter().map(|limit| window(limit, now)).max().unwrap();
                prop_assert!(
                    wait.as_micros() <= u128::from(longest),
                    "{:?} of {:?}",
                    wait,
                    limits
                );
                store.0.clock.set((now + wait).after_micros(0));
                prop_assert!(
                    store.ask(limit, 0).remaining() >= *cost,
                    "after {:?} of {:?}",
                    wait,
                    limit
                );
            }
        }
        Ok(())
    });
}

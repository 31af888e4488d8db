//! The backend of a fleet without a store: each process admits its share, and the number of
//! processes changes.

use std::num::NonZeroU32;
use std::sync::Arc;

use proptest::prelude::*;
use throttle_core::backend::{Call, Receipt};
use throttle_core::{
    Algorithm, Backend, Decision, FixedWindow, Gcra, Key, LocalShareBackend, LocalShareSet,
    ManualClock, MemoryBackend, Policy, PolicySet, Rate, Timestamp,
};

use crate::support::spec::{Kind, TODAY, Tree};
use crate::support::strategies::{run, small};

fn processes(n: u32) -> NonZeroU32 {
    NonZeroU32::new(n).expect("it is not zero")
}

/// One process of a fleet.
struct Process {
    clock: ManualClock,
    backend: LocalShareBackend<ManualClock>,
    set: Arc<LocalShareSet>,
}

impl Process {
    fn new(set: PolicySet, n: u32) -> Self {
        let clock = ManualClock::new(Timestamp::from_micros(TODAY));
        let memory = MemoryBackend::builder().clock(clock.clone()).build();
        let backend = LocalShareBackend::new(memory, processes(n));
        let set = Arc::new(backend.prepare(set).expect("memory holds it"));
        Self {
            clock,
            backend,
            set,
        }
    }

    fn ask(&self, call: Call) -> (Decision, Option<Receipt>) {
        let decision = self
            .backend
            .decide_at_once(&self.set, std::slice::from_ref(&call))
            .expect("it is in memory");
        let receipt = Receipt::of(&decision, &[call]);
        (decision, receipt)
    }

    fn take(&self, cost: u64) -> (Decision, Option<Receipt>) {
        self.ask(Call::from(Key::from("ada")).costing(cost))
    }

    fn left(&self) -> u64 {
        self.take(0).0.remaining()
    }

    fn of_ten(n: u32) -> Self {
        Self::new(
            PolicySet::new(Policy::new("p", FixedWindow::new(Rate::per_hour(10))).unwrap())
                .unwrap(),
            n,
        )
    }
}

#[test]
fn share_follows_the_number_of_processes_and_used_units_stay_used() {
    let process = Process::of_ten(2);
    assert!(process.take(4).0.is_admitted());
    for (n, left) in [(2, 1), (1, 6), (3, 0), (100, 0), (1, 6), (2, 1)] {
        process.backend.clone().set_processes(processes(n));
        assert_eq!(
            (process.backend.processes().get(), process.left()),
            (n, left)
        );
    }
    let whole = LocalShareBackend::<ManualClock>::set(&process.set).policies()[0]
        .algorithm()
        .capacity();
    assert_eq!(whole, 10, "clients are told the whole limit");
}

#[test]
fn law_07_change_of_the_number_locks_no_key_out_for_longer_than_a_window() {
    let process = Process::new(
        PolicySet::new(Policy::new("p", Gcra::new(Rate::per_minute(60)).burst(12)).unwrap())
            .unwrap(),
        1,
    );
    assert!(process.take(12).0.is_admitted());
    process.backend.set_processes(processes(4));
    // One share holds 3, so ten of twelve have to drain, one a second.
    let wait = process.take(1).0.retry_after().unwrap();
    assert_eq!(wait.as_secs(), 10);
    process.clock.advance(wait);
    assert!(process.take(1).0.is_admitted());
    assert_eq!(
        process.take(1).0.retry_after().unwrap().as_secs(),
        4,
        "one in four seconds from now on"
    );
}

/// A share is one unit at least.
#[test]
fn limit_below_the_number_of_processes_admits_one_unit_in_each() {
    for set in [
        FixedWindow::new(Rate::per_hour(3)).build(),
        Gcra::new(Rate::per_hour(3)).burst(2).build(),
    ] {
        let set = PolicySet::new(Policy::new("p", set.unwrap()).unwrap()).unwrap();
        let admitted = (0..5)
            .map(|_| Process::new(set.clone(), 5))
            .map(|process| [1, 1].map(|cost| process.take(cost).0.is_admitted()));
        assert!(
            admitted
                .into_iter()
                .all(|admitted| admitted == [true, false]),
            "{set:?}"
        );
    }
}

#[test]
fn parameters_of_a_keys_own_are_shared_too() {
    let process = Process::of_ten(4);
    let own = Arc::new(FixedWindow::new(Rate::per_hour(20)).build().unwrap());
    let call = |cost| {
        Call::from(Key::from("ada"))
            .under(Arc::clone(&own))
            .costing(cost)
    };
    let (decision, receipt) = process.ask(call(3));
    assert_eq!(decision.remaining(), 2, "a quarter of twenty");
    drop(
        process
            .backend
            .settle(&process.set, receipt.unwrap().actual(1)),
    );
    assert_eq!(process.ask(call(0)).0.remaining(), 4);
}

#[test]
fn decision_as_of_an_instant_is_by_the_share() {
    let process = Process::of_ten(5);
    let at = process.backend.now(&process.set, &[]).unwrap();
    let decide = || {
        process
            .backend
            .decide_as_of(&process.set, &[Call::from(Key::from("ada"))], at)
            .into_inner()
    };
    assert_eq!(
        [(); 3].map(|()| decide().unwrap().is_admitted()),
        [true, true, false]
    );
}

#[test]
fn law_10_charge_gives_back_at_most_what_it_took_whatever_the_number() {
    let step = (0_u8..8, 1_u64..=6, 1_u32..=5, 0_i64..=3);
    for kind in Kind::ALL
        .into_iter()
        .filter(|kind| *kind != Kind::Undelayed)
    {
        run(
            &format!("{kind:?}"),
            &(small(kind), prop::collection::vec(step.clone(), 40)),
            |(spec, steps)| {
                let (process, mut open) = (Process::new(Tree::Leaf(*spec).set(), 1), Vec::new());
                let whole: Algorithm = spec.algorithm();
                let mut now = TODAY;
                for (what, cost, n, ahead) in steps {
                    now += ahead * spec.step() / 2;
                    process.clock.set(Timestamp::from_micros(now));
                    match what {
                        0 | 1 => process.backend.set_processes(processes(*n)),
                        2..=4 => open.extend(process.take(*cost).1),
                        _ if open.is_empty() => {}
                        _ => {
                            let receipt = open.swap_remove(*cost as usize % open.len());
                            let (before, taken) = (process.left(), receipt.taken(0));
                            let actual = taken.saturating_sub(u64::from(*n));
                            drop(process.backend.settle(&process.set, receipt.actual(actual)));
                            let after = process.left();
                            prop_assert!(
                                (before..=before + taken - actual).contains(&after),
                                "{} to {}",
                                before,
                                after
                            );
                        }
                    }
                    let share = whole.share(process.backend.processes());
                    prop_assert!(process.left() <= share.capacity());
                }
                Ok(())
            },
        );
    }
}

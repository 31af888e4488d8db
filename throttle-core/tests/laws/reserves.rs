//! Classes of requests that share one budget: a lower class leaves units free for those above it.

use std::num::NonZeroU32;
use std::thread;

use proptest::prelude::*;
use throttle_core::backend::{Call, Receipt};
use throttle_core::{
    Backend, BackendErrorKind, FixedWindow, Gcra, IntoAlgorithm, Key, LocalShare, ManualClock,
    MemoryBackend, Policy, PolicySet, PolicyTree, Rate, Timestamp,
};

use crate::support::machines::{InMemory, Machine, Pure};
use crate::support::spec::{Kind, TODAY, Tree};
use crate::support::strategies::{any_spec, run};

fn ada(cost: u64, reserve: u64) -> Call {
    Call::from(Key::from("ada"))
        .costing(cost)
        .reserving(reserve)
}

fn set(policies: impl IntoIterator<Item = Policy>) -> PolicySet {
    PolicySet::new(PolicyTree::All(
        policies.into_iter().map(PolicyTree::from).collect(),
    ))
    .unwrap()
}

fn policy(name: &str, algorithm: impl IntoAlgorithm) -> Policy {
    Policy::new(name, algorithm).unwrap()
}

/// A class that takes all it gets a unit at a time leaves its reserve, which the class above it
/// then gets. Waits for the lower one end when so much is free again.
#[test]
fn law_02_03_a_lower_class_is_refused_while_a_higher_one_is_admitted() {
    for kind in Kind::ALL
        .into_iter()
        .filter(|kind| *kind != Kind::Undelayed)
    {
        let few = any_spec(kind).prop_filter("has too many units", |spec| {
            (2..200).contains(&spec.algorithm().capacity())
        });
        run(
            &format!("{kind:?}"),
            &(few, any::<u32>()),
            |(spec, part)| {
                let tree = Tree::Leaf(*spec);
                let capacity = spec.algorithm().capacity();
                let reserve = 1 + u64::from(*part) % (capacity - 1);
                for mut machine in [
                    Box::new(Pure::new(&tree)) as Box<dyn Machine>,
                    Box::new(InMemory::new(&tree)),
                ] {
                    let mut decide =
                        |t, cost, reserve| machine.decide_calls(t, &[ada(cost, reserve)]);
                    prop_assert_eq!(decide(TODAY, 0, reserve).remaining(), capacity - reserve);
                    for left in (0..capacity - reserve).rev() {
                        let admitted = decide(TODAY, 1, reserve);
                        prop_assert_eq!(
                            (admitted.is_admitted(), admitted.remaining()),
                            (true, left)
                        );
                    }
                    let refused = decide(TODAY, 1, reserve);
                    prop_assert!(!refused.is_admitted() && refused.statuses()[0].charged() == 0);
                    prop_assert_eq!(decide(TODAY, 0, 0).remaining(), reserve);
                    prop_assert!(
                        decide(TODAY, reserve, 0).is_admitted(),
                        "the reserve is there for the class above"
                    );
                    let wait = decide(TODAY, 1, reserve).retry_after().unwrap().as_micros() as i64;
                    prop_assert!(!decide(TODAY + wait - 1, 1, reserve).is_admitted());
                    prop_assert!(decide(TODAY + wait, 1, reserve).is_admitted());
                }
                Ok(())
            },
        );
    }
}

/// Units that come back to the reserve are nothing more for the class.
#[test]
fn law_03_the_effective_window_of_a_class_ends_with_its_next_unit() {
    let per_second = policy("p", Gcra::new(Rate::per_second(1)).burst(10));
    for (spent, reserve, remaining, window) in [
        (8, 0, 2, 2),
        (8, 2, 0, 1),
        (8, 4, 0, 3),
        (10, 4, 0, 5),
        (4, 4, 2, 2),
    ] {
        let mut pure = Pure::of(set([per_second.clone()]));
        assert!(pure.decide_calls(TODAY, &[ada(spent, 0)]).is_admitted());
        let status = pure.decide_calls(TODAY, &[ada(0, reserve)]).statuses()[0];
        let told = (
            status.remaining(),
            status.effective_window(&per_second).as_secs(),
            status.reset_after().as_secs(),
        );
        assert_eq!(
            told,
            (remaining, window, spent),
            "{spent} spent, {reserve} reserved"
        );
    }
}

#[test]
fn law_02_a_reserve_of_the_capacity_or_more_never_admits() {
    for kind in Kind::ALL {
        let specs = any_spec(kind);
        run(&format!("{kind:?}"), &specs, |spec| {
            let capacity = spec.algorithm().capacity();
            for reserve in [capacity, capacity + 1, u64::MAX] {
                let mut memory = InMemory::new(&Tree::Leaf(*spec));
                let refused = memory.decide_calls(TODAY, &[ada(1, reserve)]);
                prop_assert_eq!(
                    (refused.is_admitted(), refused.retry_after()),
                    (false, None)
                );
                let peek = memory.decide_calls(TODAY, &[ada(0, reserve)]);
                prop_assert_eq!((peek.is_admitted(), peek.remaining()), (true, 0));
                prop_assert!(
                    memory
                        .decide_calls(TODAY, &[ada(capacity, 0)])
                        .is_admitted(),
                    "nothing was charged"
                );
            }
            Ok(())
        });
    }
}

/// Half of the threads ask in the lower class until they are refused. The others ask for fewer
/// units than there are.
#[test]
fn law_06_no_thread_of_a_lower_class_spends_the_reserve() {
    const UNITS: u64 = 4_000;
    const RESERVE: u64 = 1_500;
    for policies in [1, 2] {
        let backend = MemoryBackend::builder()
            .clock(ManualClock::new(Timestamp::from_micros(TODAY)))
            .build();
        let window = |place| policy(&format!("p{place}"), FixedWindow::new(Rate::per_day(UNITS)));
        let prepared = backend.prepare(set((0..policies).map(window))).unwrap();
        let ask = |reserve| {
            backend
                .decide_now(&prepared, &vec![ada(1, reserve); policies])
                .is_admitted()
        };
        let lower = || (0..).take_while(|_| ask(RESERVE)).count() as u64;
        let higher = || (0..300).filter(|_| ask(0)).count() as u64;
        let [lower, higher] = thread::scope(|scope| {
            let threads = [(); 4].map(|()| [scope.spawn(lower), scope.spawn(higher)]);
            let counts = threads.map(|pair| pair.map(|thread| thread.join().unwrap()));
            [0, 1].map(|class| counts.iter().map(|pair| pair[class]).sum::<u64>())
        });
        assert!(
            lower <= UNITS - RESERVE && lower + higher >= UNITS - RESERVE,
            "{lower} and {higher}"
        );
        assert!(!ask(RESERVE), "no more than the reserve is left");
        let rest = (0..UNITS).filter(|_| ask(0)).count() as u64;
        assert_eq!(lower + higher + rest, UNITS, "each unit once");
    }
}

/// A share of a third keeps a third of the reserve, rounded up, from decisions and from charges
/// that it notes.
#[test]
fn a_local_share_leaves_its_part_of_the_reserve_free() {
    let three = NonZeroU32::new(3).unwrap();
    let of_thirty = set([policy("p", Gcra::new(Rate::per_day(30)))]);
    let left = |share: &LocalShare, reserve| {
        share
            .decide(&[ada(0, reserve)], BackendErrorKind::Timeout)
            .statuses()[0]
            .remaining()
    };
    for (reserve, kept) in [(0, 0), (1, 1), (3, 1), (4, 2), (27, 9), (28, 10), (300, 10)] {
        let share = LocalShare::new(&MemoryBackend::new(), &of_thirty, three).unwrap();
        assert_eq!(
            (left(&share, 0), left(&share, reserve)),
            (10, 10 - kept),
            "{reserve}"
        );
        let decided = share.decide(&[ada(10 - kept, reserve)], BackendErrorKind::Timeout);
        assert!(decided.is_admitted(), "{reserve}");
        assert!(
            !share
                .decide(&[ada(1, reserve)], BackendErrorKind::Timeout)
                .is_admitted(),
            "{reserve}"
        );

        // The store has admitted more than the share has for the class.
        let share = LocalShare::new(&MemoryBackend::new(), &of_thirty, three).unwrap();
        let calls = [ada(12, reserve)];
        let of_store = Pure::of(of_thirty.clone()).decide_calls(TODAY, &calls);
        share.note(&of_store, &calls);
        assert_eq!(
            left(&share, 0),
            if of_store.is_admitted() { kept } else { 10 },
            "{reserve}"
        );
    }
}

/// A debit is for work that is done, so it may take from the reserve; what is given back is the
/// class's again.
#[test]
fn law_10_a_charge_of_a_lower_class_is_settled_like_any_other() {
    let daily = set([policy("p", FixedWindow::new(Rate::per_day(10)))]);
    for (actual, left, of_class) in [(0, 10, 6), (2, 8, 4), (4, 6, 2), (7, 3, 0), (12, 0, 0)] {
        let mut machine = InMemory::of(daily.clone(), 100);
        let calls = [ada(4, 4)];
        let decision = machine.decide_calls(TODAY, &calls);
        machine.settle(
            TODAY,
            Receipt::of(&decision, &calls).unwrap().actual(actual),
        );
        let remaining = |reserve| machine.decide_calls(TODAY, &[ada(0, reserve)]).remaining();
        assert_eq!(
            [0, 4].map(remaining),
            [left, of_class],
            "settled with {actual}"
        );
    }
}

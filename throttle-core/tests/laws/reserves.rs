//! Classes of requests that share one budget: a lower class leaves units free for those above it.
//! That waits and remaining units are exact for each class is checked by laws 2 and 3, and their
//! settlement by the traces.

use std::num::NonZeroU32;
use std::thread;

use throttle_core::backend::Call;
use throttle_core::{
    Backend, BackendErrorKind, FixedWindow, Gcra, IntoAlgorithm, Key, LocalShare, ManualClock,
    MemoryBackend, Policy, PolicySet, PolicyTree, Rate, Timestamp,
};

use super::law_07_lying_clocks::every_algorithm;
use crate::support::machines::{Machine, Pure};
use crate::support::spec::{TODAY, Tree};

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

/// A class that takes all it gets leaves its reserve, which the class above it then gets.
#[test]
fn law_02_03_a_lower_class_is_refused_while_a_higher_one_is_admitted() {
    for spec in every_algorithm() {
        let mut state = Pure::new(&Tree::Leaf(spec));
        let mut decide = |cost, reserve| state.decide_calls(TODAY, &[ada(cost, reserve)]);
        for left in [2, 1, 0] {
            assert_eq!(decide(1, 2).remaining(), left, "{spec:?}");
        }
        assert!(!decide(1, 2).is_admitted(), "{spec:?}");
        assert_eq!(decide(0, 0).remaining(), 2, "{spec:?}");
        assert!(decide(2, 0).is_admitted(), "{spec:?}");
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

//! The share of a limit by which a process decides when its store fails.

use std::num::NonZeroU32;
use std::sync::Arc;

use proptest::prelude::*;
use throttle_core::backend::{Call, Receipt};
use throttle_core::{
    Backend, BackendErrorKind, Cost, DecidedBy, Decision, Gcra, Key, LocalShare, ManualClock,
    MemoryBackend, MemorySet, Policy, PolicySet, PolicyTree, Rate, Timestamp,
};

use crate::support::spec::{Spec, TODAY};
use crate::support::strategies::for_every_tree;

const WHY: BackendErrorKind = BackendErrorKind::Timeout;

fn memory() -> MemoryBackend<ManualClock> {
    MemoryBackend::builder()
        .clock(ManualClock::new(Timestamp::from_micros(TODAY)))
        .build()
}

fn processes(n: u32) -> NonZeroU32 {
    NonZeroU32::new(n).expect("it is not zero")
}

fn share(set: &PolicySet, n: u32) -> LocalShare {
    LocalShare::new(&memory(), set, processes(n)).unwrap()
}

fn ada(cost: u64) -> Call {
    Call::new(Key::from("ada"), Cost::at_least_one(cost))
}

fn peek() -> Call {
    Call::peek(Key::from("ada"))
}

fn gcra(name: &str, burst: u64) -> Policy {
    Policy::new(name, Gcra::new(Rate::per_hour(1)).burst(burst)).unwrap()
}

fn both(a: u64, b: u64) -> PolicySet {
    PolicySet::new(PolicyTree::All(vec![
        gcra("a", a).into(),
        gcra("b", b).into(),
    ]))
    .unwrap()
}

/// A store, the set prepared on it, and this process's share.
struct Process {
    store: MemoryBackend<ManualClock>,
    set: Arc<MemorySet>,
    share: LocalShare,
}

impl Process {
    fn new(set: &PolicySet, n: u32) -> Self {
        let store = memory();
        let prepared = Arc::new(store.prepare(set.clone()).unwrap());
        Self {
            store,
            set: prepared,
            share: share(set, n),
        }
    }

    /// Decides at the store, and keeps the share warm.
    fn ask(&self, calls: &[Call]) -> Decision {
        let decision = self.store.decide_now(&self.set, calls);
        self.share.note(&decision, calls);
        decision
    }

    /// The remaining units of each policy, at the store and in the share.
    fn left(&self) -> (Vec<u64>, Vec<u64>) {
        let calls = vec![
            peek();
            MemoryBackend::<ManualClock>::set(&self.set)
                .policies()
                .len()
        ];
        let left = |decision: &Decision| {
            decision
                .statuses()
                .iter()
                .map(|status| status.remaining())
                .collect()
        };
        (
            left(&self.store.decide_now(&self.set, &calls)),
            left(&self.share.decide(&calls, WHY)),
        )
    }
}

/// Every charge at the store takes as much from the share, down to nothing, in any composition.
#[test]
fn a_share_is_kept_warm() {
    for_every_tree(
        |trees| {
            (
                trees,
                1_u32..=4,
                prop::collection::vec((1_u64..=6, 0_u32..8), 12),
            )
        },
        |(tree, n, requests)| {
            let process = Process::new(&tree.set(), *n);
            let count = tree.leaves().len();
            let mut charged = vec![0_u64; count];
            for (cost, skipped) in requests {
                // Now and then one policy does not apply.
                let call = |place: usize| {
                    if place as u32 == *skipped && count > 1 {
                        Call::SKIP
                    } else {
                        ada(*cost)
                    }
                };
                let calls: Vec<_> = (0..count).map(call).collect();
                let decision = process.ask(&calls);
                charged
                    .iter_mut()
                    .zip(decision.statuses())
                    .for_each(|(sum, status)| *sum += status.charged());
                if tree
                    .leaves()
                    .iter()
                    .any(|spec| matches!(spec, Spec::Undelayed { .. }))
                {
                    continue;
                }
                let shares = process
                    .share
                    .set()
                    .policies()
                    .iter()
                    .map(|policy| policy.algorithm().capacity());
                let expected: Vec<_> = shares
                    .zip(&charged)
                    .map(|(most, charged)| most.saturating_sub(*charged))
                    .collect();
                prop_assert_eq!(process.left().1, expected);
            }
            Ok(())
        },
    );
}

#[test]
fn only_what_the_store_charged_is_noted() {
    let process = Process::new(&both(2, 8), 1);
    process.ask(&[peek(), peek()]);
    assert_eq!(process.left().1, [2, 8]);
    assert!(!process.ask(&[ada(3), ada(3)]).is_admitted());
    assert_eq!(process.left().1, [2, 8]);
    let here = process.share.decide(&[ada(1), ada(1)], WHY);
    process.share.note(&here, &[ada(1), ada(1)]);
    assert_eq!(
        process.left(),
        (vec![2, 8], vec![1, 7]),
        "a decision made here is charged here once"
    );
    process
        .share
        .note(&Decision::open(&[ada(1), ada(1)], WHY), &[ada(1), ada(1)]);
    assert_eq!(process.left().1, [1, 7]);
    // More than remains, and more than the capacity.
    process.ask(&[ada(2), ada(2)]);
    assert_eq!(process.left().1, [0, 5]);
    // Decisions about other sets change nothing.
    process
        .share
        .note(&Decision::not_limited(7), &vec![ada(1); 7]);
    process.share.note(&here, &[]);
}

/// A full store of shares is no amnesty either: a key without room shares a bucket.
#[test]
fn a_share_in_a_full_store_is_still_charged() {
    let set = PolicySet::new(gcra("p", 4)).unwrap();
    let store = MemoryBackend::builder()
        .max_keys(1)
        .clock(ManualClock::default())
        .build();
    let share = LocalShare::new(&store, &set, processes(1)).unwrap();
    let remote = Process::new(&set, 1);
    for name in ["ada", "eve", "bob", "eve"] {
        let calls = [Call::from(Key::from(name))];
        let decision = remote.store.decide_now(&remote.set, &calls);
        share.note(&decision, &calls);
    }
    assert_eq!(store.keys(), 1);
    assert_eq!(share.decide(&[peek()], WHY).remaining(), 3);
    let shared = share.decide(&[Call::peek(Key::from("someone new"))], WHY);
    assert_eq!(
        (shared.remaining(), shared.statuses()[0].is_overflow()),
        (1, true)
    );
}

#[test]
fn a_decision_names_who_decided_it() {
    let set = both(8, 8);
    let some =
        LocalShare::of_each(&memory(), &set, |place| (place == 1).then(|| processes(2))).unwrap();
    let deciders = |decision: &Decision| {
        decision
            .statuses()
            .iter()
            .map(|status| status.decided_by())
            .collect::<Vec<_>>()
    };

    let mixed = some.decide(&[ada(1), ada(1)], WHY);
    assert_eq!(
        deciders(&mixed),
        [DecidedBy::Open(WHY), DecidedBy::Local(WHY)]
    );
    assert_eq!(
        (mixed.decided_by(), mixed.degraded(), mixed.remaining()),
        (DecidedBy::Local(WHY), Some(WHY), 3)
    );
    assert_eq!(
        mixed
            .statuses()
            .iter()
            .map(|status| status.applies())
            .collect::<Vec<_>>(),
        [false, true]
    );

    let first =
        LocalShare::of_each(&memory(), &set, |place| (place == 0).then(|| processes(2))).unwrap();
    let mixed = first.decide(&[ada(1), ada(1)], WHY);
    assert_eq!(
        deciders(&mixed),
        [DecidedBy::Local(WHY), DecidedBy::Open(WHY)]
    );
    assert_eq!(
        mixed.decided_by(),
        DecidedBy::Local(WHY),
        "whichever comes first"
    );

    let open = some.decide(&[ada(1), Call::SKIP], WHY);
    assert_eq!(
        (deciders(&open), open.decided_by()),
        (
            vec![DecidedBy::Open(WHY), DecidedBy::Store],
            DecidedBy::Open(WHY)
        )
    );
    assert!(open.is_admitted());
    assert_eq!(open, Decision::open(&[ada(1), Call::SKIP], WHY));

    let process = Process::new(&set, 1);
    let store = process.ask(&[ada(1), ada(1)]);
    assert_eq!(
        (store.decided_by(), store.degraded()),
        (DecidedBy::Store, None)
    );
    // The same numbers from another source are a different decision.
    let here = share(&set, 1).decide(&[ada(1), ada(1)], WHY);
    assert_ne!(here, store);
    assert_eq!(
        (here.remaining(), here.reset_after()),
        (store.remaining(), store.reset_after())
    );
    assert_ne!(
        here,
        share(&set, 1).decide(&[ada(1), ada(1)], BackendErrorKind::Suspended)
    );
    assert_eq!(
        [
            DecidedBy::Store,
            DecidedBy::Local(WHY),
            DecidedBy::Open(WHY)
        ]
        .map(DecidedBy::label),
        ["store", "local", "open"]
    );
}

#[test]
fn what_was_taken_here_is_settled_here() {
    let process = Process::new(&both(8, 8), 2);
    process.ask(&[ada(1), ada(1)]);
    let calls = [ada(2), ada(2)];
    let receipt = || Receipt::of(&process.share.decide(&calls, WHY), &calls).unwrap();
    let given_back = receipt();
    assert_eq!(given_back.items()[0].decided_by(), DecidedBy::Local(WHY));
    assert_eq!(process.left(), (vec![7, 7], vec![1, 1]));
    assert_eq!(process.share.settle(given_back.actual(0)), None);
    assert_eq!(process.left(), (vec![7, 7], vec![3, 3]));
    // At the store, settling it gives nothing back and takes nothing more.
    for actual in [0, 8] {
        process
            .store
            .settle_now(&process.set, receipt().actual(actual));
        assert_eq!(process.left().0, [7, 7], "it was not charged there");
        process.share.reset(0, &Key::from("ada")).unwrap();
        process.share.reset(1, &Key::from("ada")).unwrap();
    }
}

#[test]
fn what_was_taken_at_the_store_is_settled_there_and_here() {
    let process = Process::new(&both(40, 40), 2);
    let take = |cost| {
        let calls = [ada(cost), ada(cost)];
        Receipt::of(&process.ask(&calls), &calls).unwrap()
    };
    let less = process
        .share
        .settle(take(10).actual(4))
        .expect("the store took it");
    assert_eq!(process.left(), (vec![30, 30], vec![16, 16]));
    process.store.settle_now(&process.set, less);
    assert_eq!(process.left(), (vec![36, 36], vec![16, 16]));
    let more = process
        .share
        .settle(take(2).actual(5))
        .expect("the store took it");
    process.store.settle_now(&process.set, more);
    assert_eq!(process.left(), (vec![31, 31], vec![11, 11]));
    // Of 25 units only 11 had room. A share cannot give back more than it holds, and 22 of the 25
    // were used.
    let much = process
        .share
        .settle(take(25).actual(22))
        .expect("the store took it");
    process.store.settle_now(&process.set, much);
    assert_eq!(process.left(), (vec![9, 9], vec![0, 0]));
}

#[test]
fn forgetting_here_is_forgetting() {
    let process = Process::new(&both(4, 4), 1);
    process.ask(&[ada(3), ada(3)]);
    process.share.reset(0, &Key::from("ada")).unwrap();
    assert_eq!(process.left().1, [4, 1]);
    process.share.reset_all("b");
    assert_eq!(process.left().1, [4, 4]);
    process.ask(&[ada(1), ada(1)]);
    process.share.reset_all("b");
    assert_eq!(process.left().1, [3, 4], "only what is named");
}

/// A store without room charges a shared bucket. The share of the key is its own all the same.
#[test]
fn a_charge_of_an_overflow_bucket_is_settled_in_the_key_s_share() {
    let set = PolicySet::new(gcra("p", 9)).unwrap();
    let full = MemoryBackend::builder()
        .max_keys(1)
        .clock(ManualClock::default())
        .build();
    let prepared = full.prepare(set.clone()).unwrap();
    assert!(
        full.decide_now(&prepared, &[Call::from(Key::from("fills the store"))])
            .is_admitted()
    );
    let share = share(&set, 1);
    let decision = full.decide_now(&prepared, &[ada(5)]);
    assert!(decision.statuses()[0].is_overflow());
    share.note(&decision, &[ada(5)]);
    assert_eq!(share.decide(&[peek()], WHY).remaining(), 4);
    let receipt = Receipt::of(&decision, &[ada(5)]).unwrap().actual(2);
    assert!(share.settle(receipt).is_some());
    assert_eq!(share.decide(&[peek()], WHY).remaining(), 7);
}

#[test]
fn a_policy_without_a_share_is_neither_noted_nor_settled_here() {
    let (store, shares, set) = (memory(), memory(), both(9, 9));
    let share =
        LocalShare::of_each(&shares, &set, |place| (place == 0).then(|| processes(1))).unwrap();
    // Another set of the process has a share in the policy that is open here.
    let other = LocalShare::new(
        &shares,
        &PolicySet::new(gcra("b", 9)).unwrap(),
        processes(1),
    )
    .unwrap();
    let (prepared, calls) = (Arc::new(store.prepare(set).unwrap()), [ada(3), ada(3)]);
    let decision = store
        .decide_at_once(&prepared, &calls)
        .expect("memory decides at once");
    share.note(&decision, &calls);
    assert_eq!(
        (shares.keys(), other.decide(&[ada(4)], WHY).remaining()),
        (1, 5)
    );
    let receipt = Receipt::of(&decision, &calls).unwrap().actual(0);
    assert!(share.settle(receipt).is_some());
    assert_eq!(other.decide(&[peek()], WHY).remaining(), 5);
}

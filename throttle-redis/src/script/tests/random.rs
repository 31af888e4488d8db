//! Random limits, compositions and costs.

use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::Union;
use throttle_core::{
    Algorithm, AnyCharge, CalendarQuota, FixedWindow, Gcra, IntervalBucket, LeakyBucket,
    LeakyMeter, Policy, PolicyTree, Rate, SlidingLog, SlidingWindow, TokenBucket,
};

use crate::script::kind::ALL;

/// A new row of the table fails every test here until `build` has it.
pub(super) const KINDS: usize = ALL.len();
const DAY: u64 = 86_400_000_000;

/// An algorithm of one kind: mostly with a few units and microseconds, where every edge is near.
pub(super) fn algorithm(kind: usize) -> BoxedStrategy<Algorithm> {
    let units = || prop_oneof![3 => select(vec![1_u64, 2, 3, 5, 7, 10]), 1 => select(vec![100_u64, 99_991, 1_000_000])];
    let micros = || {
        prop_oneof![
            3 => select(vec![1_u64, 2, 3, 7, 10, 60, 97, 333]),
            1 => select(vec![1_000_u64, 1_000_000, 3_000_000, DAY, 30 * DAY]),
        ]
    };
    let numbers = (
        units(),
        micros(),
        units(),
        select(vec![-840, -60, 0, 0, 345, 840]),
        0..6_u64,
    );
    numbers
        .prop_filter_map("cannot be counted exactly", move |numbers| {
            build(kind, numbers)
        })
        .boxed()
}

fn build(
    kind: usize,
    (count, period, other, shift, variant): (u64, u64, u64, i32, u64),
) -> Option<Algorithm> {
    let rate = Rate::new(count, Duration::from_micros(period));
    let built = match kind {
        0 => Gcra::new(rate).burst(other).build(),
        1 => TokenBucket::new(rate).burst(other).build(),
        2 => LeakyMeter::new(rate).capacity(other).build(),
        3 => {
            let interval = Duration::from_micros(period);
            match variant {
                0 | 1 => IntervalBucket::new(other).refill(count, interval).build(),
                2 | 3 => IntervalBucket::new(other)
                    .refill(count, interval)
                    .aligned()
                    .build(),
                _ => CalendarQuota::rolling(count, interval).build(),
            }
        }
        4 => FixedWindow::new(rate)
            .offset_micros(i64::from(shift) * period as i64 / 100)
            .build(),
        5 => {
            let buckets = [1, 2, 3, 4, 10, 40][variant as usize];
            let rate = Rate::new(count, Duration::from_micros(period * buckets));
            SlidingWindow::new(rate).buckets(buckets).build()
        }
        6 => SlidingLog::new(rate).build(),
        7 => {
            let make = [
                CalendarQuota::daily,
                CalendarQuota::weekly,
                CalendarQuota::monthly,
            ][variant as usize % 3];
            let quota = make(count).utc_offset_minutes(shift);
            if variant % 3 == 0 {
                quota.build()
            } else {
                quota
                    .anchor_day(1 + (other % 7) as u8)
                    .anchor_hour(6)
                    .build()
            }
        }
        8 => {
            let bucket = LeakyBucket::new(rate).max_wait(Duration::from_micros(other * period / 2));
            if variant < 3 {
                bucket.build()
            } else {
                bucket.without_delay().build()
            }
        }
        _ => panic!("`build` makes no algorithm of the row {kind}"),
    };
    built.ok()
}

pub(super) fn any_algorithm() -> BoxedStrategy<Algorithm> {
    Union::new((0..KINDS).map(algorithm)).boxed()
}

/// A composition before its policies have names.
#[derive(Clone, Debug)]
pub(super) enum Tree {
    Leaf(Algorithm),
    Audited(Algorithm),
    All(Vec<Tree>),
    Any(Vec<Tree>, bool),
}

pub(super) fn tree() -> BoxedStrategy<Tree> {
    let nested = any_algorithm()
        .prop_map(Tree::Leaf)
        .prop_recursive(3, 8, 3, |inner| {
            let members = prop::collection::vec(inner, 1..=3);
            prop_oneof![
                members.clone().prop_map(Tree::All),
                (members, any::<bool>()).prop_map(|(members, every)| Tree::Any(members, every)),
            ]
        });
    let audited = prop::collection::vec(any_algorithm().prop_map(Tree::Audited), 0..=2);
    let beside =
        (nested, audited, any::<prop::sample::Index>()).prop_map(|(tree, audited, place)| {
            match audited.len() {
                0 => tree,
                count => {
                    let mut members = audited;
                    members.insert(place.index(count + 1), tree);
                    Tree::All(members)
                }
            }
        });
    beside.boxed()
}

/// Several members that must all admit, a few more than the scripts unroll.
pub(super) fn alls() -> BoxedStrategy<Tree> {
    let leaf = prop_oneof![5 => any_algorithm().prop_map(Tree::Leaf), 1 => any_algorithm().prop_map(Tree::Audited)];
    prop::collection::vec(leaf, 1..=10)
        .prop_map(Tree::All)
        .boxed()
}

impl Tree {
    /// The same composition of other limits.
    pub(super) fn changed(&self, others: &mut impl Iterator<Item = Algorithm>) -> Self {
        let mut other = || others.next().expect("a cycle");
        match self {
            Self::Leaf(_) => Self::Leaf(other()),
            Self::Audited(_) => Self::Audited(other()),
            Self::All(members) => Self::All(
                members
                    .iter()
                    .map(|member| member.changed(others))
                    .collect(),
            ),
            Self::Any(members, every) => {
                let changed = members.iter().map(|member| member.changed(others));
                Self::Any(changed.collect(), *every)
            }
        }
    }

    pub(super) fn named(&self) -> PolicyTree {
        self.rule(&mut 0)
    }

    fn rule(&self, names: &mut usize) -> PolicyTree {
        let mut rules =
            |members: &[Self]| members.iter().map(|member| member.rule(names)).collect();
        match self {
            Self::Leaf(algorithm) | Self::Audited(algorithm) => {
                *names += 1;
                let policy = Policy::new(&names.to_string(), *algorithm).unwrap();
                if matches!(self, Self::Audited(_)) {
                    policy.audit().into()
                } else {
                    policy.into()
                }
            }
            Self::All(members) => PolicyTree::All(rules(members)),
            Self::Any(members, true) => PolicyTree::Any(rules(members), AnyCharge::EveryAdmitting),
            Self::Any(members, false) => PolicyTree::Any(rules(members), AnyCharge::First),
        }
    }
}

pub(super) fn starts() -> impl Strategy<Value = i64> {
    prop_oneof![
        4 => 1_790_000_000_000_000_i64..1_795_000_000_000_000,
        1 => -1_000_i64..1_000,
        1 => -(1_i64 << 51)..1 << 51,
    ]
}

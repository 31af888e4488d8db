//! Random configurations: small ones, where every edge is near, and realistic ones, up to the edge
//! of what can be counted exactly.

use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::Union;
use proptest::test_runner::{Config, TestCaseResult, TestRunner};

use super::bounds::{most_burst, most_wait};
use super::spec::{Anchor, Cadence, DAY, HOUR, Kind, MINUTE, SECOND, Spec, Tree};

pub(crate) const EXACT_MAX: u64 = (1 << 53) - 1;

/// Runs a check on random cases of every algorithm, and of compositions.
pub(crate) fn for_every_tree<S: Strategy>(
    cases: impl Fn(BoxedStrategy<Tree>) -> S,
    check: impl Fn(&S::Value) -> TestCaseResult,
) {
    for_every_kind(|specs| cases(specs.prop_map(Tree::Leaf).boxed()), &check);
    run("compositions", &cases(composite()), &check);
}

/// Runs a check on random cases of every algorithm.
pub(crate) fn for_every_kind<S: Strategy>(
    cases: impl Fn(BoxedStrategy<Spec>) -> S,
    check: impl Fn(&S::Value) -> TestCaseResult,
) {
    for kind in Kind::ALL {
        run(&format!("{kind:?}"), &cases(any_spec(kind)), &check);
    }
}

pub(crate) fn run<S: Strategy>(what: &str, cases: &S, check: impl Fn(&S::Value) -> TestCaseResult) {
    run_times(Config::default().cases, what, cases, check);
}

/// Runs a check on so many random cases.
pub(crate) fn run_times<S: Strategy>(
    times: u32,
    what: &str,
    cases: &S,
    check: impl Fn(&S::Value) -> TestCaseResult,
) {
    let mut runner = TestRunner::new(Config {
        failure_persistence: None,
        cases: times,
        ..Config::default()
    });
    if let Err(error) = runner.run(cases, |case| check(&case)) {
        panic!("{what}: {error}");
    }
}

pub(crate) fn any_spec(kind: Kind) -> BoxedStrategy<Spec> {
    prop_oneof![2 => small(kind), 1 => realistic(kind)].boxed()
}

/// Tens of microseconds, a few units.
pub(crate) fn small(kind: Kind) -> BoxedStrategy<Spec> {
    let limit = || select(vec![1_u64, 2, 3, 5, 7, 10]);
    let period = || select(vec![1_u64, 2, 3, 7, 10, 60, 97, 100, 333]);
    let burst = || select(vec![1_u64, 2, 3, 5, 8]);
    match kind {
        Kind::Gcra => (limit(), period(), burst())
            .prop_map(|(limit, period, burst)| Spec::Gcra {
                limit,
                period,
                burst,
            })
            .boxed(),
        Kind::TokenBucket => (limit(), period(), burst())
            .prop_map(|(limit, period, burst)| Spec::TokenBucket {
                limit,
                period,
                burst,
            })
            .boxed(),
        Kind::LeakyMeter => (limit(), period(), burst())
            .prop_map(|(limit, period, burst)| Spec::LeakyMeter {
                limit,
                period,
                burst,
            })
            .boxed(),
        Kind::Interval => (
            burst(),
            select(vec![1_u64, 2, 3, 9]),
            select(vec![1_u64, 4, 10, 37]),
            any::<bool>(),
        )
            .prop_map(|(capacity, refill, interval, aligned)| Spec::Interval {
                capacity,
                refill,
                interval,
                aligned,
            })
            .boxed(),
        Kind::Fixed => (limit(), period(), select(vec![0_i64, 0, 1, -13, 25]))
            .prop_map(|(limit, window, offset)| Spec::Fixed {
                limit,
                window,
                offset,
            })
            .boxed(),
        Kind::Log => (limit(), period())
            .prop_map(|(limit, window)| Spec::Log { limit, window })
            .boxed(),
        Kind::Buckets => (
            limit(),
            select(vec![1_u64, 3, 10, 33]),
            select(vec![1_u64, 2, 3, 10]),
        )
            .prop_map(|(limit, width, buckets)| Spec::Buckets {
                limit,
                window: width * buckets,
                buckets,
            })
            .boxed(),
        Kind::Calendar => calendar(limit().boxed()),
        Kind::Shaper => (limit(), period(), select(vec![0_u64, 1, 10, 50, 200]))
            .prop_map(|(limit, period, max_wait)| Spec::Shaper {
                limit,
                period,
                max_wait,
            })
            .boxed(),
        Kind::Undelayed => small(Kind::Shaper).prop_map(undelayed).boxed(),
    }
}

fn calendar(limit: BoxedStrategy<u64>) -> BoxedStrategy<Spec> {
    let cadence = prop_oneof![
        Just((Cadence::Day, None)),
        (select(vec![Cadence::Week, Cadence::Month]), Just(None)),
        (Just(Cadence::Week), (1..=7_u8).prop_map(Some)),
        (Just(Cadence::Month), (0..=28_u8).prop_map(Some)),
    ];
    (
        limit,
        cadence,
        prop_oneof![Just(0), 0..=23_u8],
        select(vec![0, 60, -720, 840, 345, -1, -840]),
    )
        .prop_map(
            |(limit, (cadence, day), hour, offset_minutes)| Spec::Calendar {
                limit,
                cadence,
                offset_minutes,
                anchor: Anchor { day, hour },
            },
        )
        .boxed()
}

/// Seconds to months, up to a million units; primes, so that no factor is shared; now and then the
/// largest that fits.
pub(crate) fn realistic(kind: Kind) -> BoxedStrategy<Spec> {
    let limit = || {
        select(vec![
            1_u64, 3, 7, 60, 100, 5_000, 99_991, 999_983, 1_000_000,
        ])
    };
    let period = || {
        select(vec![
            1_u64,
            1_000,
            SECOND,
            3 * SECOND,
            MINUTE,
            HOUR,
            DAY,
            30 * DAY,
            365 * DAY,
        ])
    };
    let rates = move || (limit(), period(), 0_u8..8, any::<u32>());
    let bursty = move |make: fn(u64, u64, u64) -> Spec| {
        let built = move |(limit, period, how, part): (u64, u64, u8, u32)| {
            let most = most_burst(limit, period)?;
            Some(make(limit, period, within(how, part, limit, most)))
        };
        rates().prop_filter_map("fits no burst", built).boxed()
    };
    match kind {
        Kind::Gcra => bursty(|limit, period, burst| Spec::Gcra {
            limit,
            period,
            burst,
        }),
        Kind::TokenBucket => bursty(|limit, period, burst| Spec::TokenBucket {
            limit,
            period,
            burst,
        }),
        Kind::LeakyMeter => bursty(|limit, period, burst| Spec::LeakyMeter {
            limit,
            period,
            burst,
        }),
        Kind::Interval => (rates(), any::<bool>())
            .prop_filter_map(
                "takes too long to fill",
                |((refill, interval, how, part), aligned)| {
                    let capacity = within(how, part, refill, refill.saturating_mul(20));
                    let fits = capacity
                        .div_ceil(refill)
                        .checked_mul(interval)
                        .is_some_and(|micros| micros <= EXACT_MAX);
                    fits.then_some(Spec::Interval {
                        capacity,
                        refill,
                        interval,
                        aligned,
                    })
                },
            )
            .boxed(),
        Kind::Fixed => (limit(), period(), -DAY_I..DAY_I)
            .prop_map(|(limit, window, offset)| Spec::Fixed {
                limit,
                window,
                offset,
            })
            .boxed(),
        Kind::Log => (limit(), period())
            .prop_map(|(limit, window)| Spec::Log { limit, window })
            .boxed(),
        Kind::Buckets => (limit(), period(), select(vec![1_u64, 2, 5, 10, 100, 1_000]))
            .prop_filter_map("counts past what is exact", |(limit, period, buckets)| {
                let window = period.div_ceil(buckets) * buckets;
                let counted = limit.checked_mul(window / buckets)?;
                (counted <= EXACT_MAX).then_some(Spec::Buckets {
                    limit,
                    window,
                    buckets,
                })
            })
            .boxed(),
        Kind::Calendar => calendar(limit().boxed()),
        Kind::Shaper => rates()
            .prop_filter_map("fits no wait", |(limit, period, how, part)| {
                let most = most_wait(limit, period)?;
                Some(Spec::Shaper {
                    limit,
                    period,
                    max_wait: within(how, part, SECOND, most),
                })
            })
            .boxed(),
        Kind::Undelayed => realistic(Kind::Shaper).prop_map(undelayed).boxed(),
    }
}

fn undelayed(shaper: Spec) -> Spec {
    match shaper {
        Spec::Shaper {
            limit,
            period,
            max_wait,
        } => Spec::Undelayed {
            limit,
            period,
            max_wait,
        },
        other => other,
    }
}

const DAY_I: i64 = DAY as i64;

/// A value from 1 to `most`: often the usual value, often at the edge.
fn within(how: u8, part: u32, usual: u64, most: u64) -> u64 {
    let any = ((u128::from(most) * u128::from(part)) >> 32) as u64;
    [
        1,
        5,
        usual,
        usual.saturating_mul(3),
        most,
        most.saturating_sub(1),
        most / 2,
        any,
    ][usize::from(how)]
    .clamp(1, most)
}

/// Nested compositions of small limits, a quarter of them beside an audited one.
pub(crate) fn composite() -> BoxedStrategy<Tree> {
    prop_oneof![3 => all_enforced(), 1 => some_audited()].boxed()
}

fn all_enforced() -> BoxedStrategy<Tree> {
    let leaf = Union::new(Kind::ALL.map(small)).prop_map(Tree::Leaf);
    let nested = leaf.prop_recursive(3, 8, 3, |inner| {
        let members = prop::collection::vec(inner, 1..=3);
        prop_oneof![
            members.clone().prop_map(Tree::All),
            (members, any::<bool>()).prop_map(|(members, every)| Tree::Any(members, every)),
        ]
    });
    // A bare leaf is no composition.
    nested
        .prop_map(|tree| {
            if matches!(tree, Tree::Leaf(_)) {
                Tree::All(vec![tree])
            } else {
                tree
            }
        })
        .boxed()
}

/// A composition beside one or two audited limits.
pub(crate) fn some_audited() -> BoxedStrategy<Tree> {
    let audited = Union::new(Kind::ALL.map(small)).prop_map(Tree::Audited);
    (
        all_enforced(),
        prop::collection::vec(audited, 1..=2),
        0..3_usize,
    )
        .prop_map(|(tree, mut members, place)| {
            members.insert(place.min(members.len()), tree);
            Tree::All(members)
        })
        .boxed()
}

//! Shares of a limit: they can always be counted, are as large as possible, and together never
//! exceed the limit.

use std::num::NonZeroU32;

use num_bigint::BigUint;
use proptest::prelude::*;
use throttle_core::{Algorithm, IntervalBucket, IntoAlgorithm, Rate, Timestamp};

use crate::support::bounds::{fits, fits_wait, most_in};
use crate::support::spec::{Kind, Spec, TODAY};
use crate::support::strategies::{EXACT_MAX, any_spec, for_every_kind, run, small};

fn nonzero(n: u32) -> NonZeroU32 {
    NonZeroU32::new(n).expect("it is not zero")
}

fn processes() -> impl Strategy<Value = u32> {
    prop_oneof![4 => 1_u32..=6, 2 => 1_u32..=2_000, 1 => 1_u32..=u32::MAX, 1 => Just(u32::MAX)]
}

/// a/b <= c/d, with one of the rates multiplied by n.
fn no_faster(share: Rate, n: u32, whole: Rate) -> bool {
    let big = |a: u64, b: u64| BigUint::from(a) * BigUint::from(b);
    big(share.count(), whole.period_micros()) * n <= big(whole.count(), share.period_micros())
}

/// Whether a share can be counted, by formulas that are independent of how it is built.
fn counted(spec: &Spec, share: &Algorithm) -> bool {
    let (rate, capacity) = (share.rate(), share.capacity());
    let (count, period) = (rate.count(), rate.period_micros());
    let in_range = |value: u64| (1..=EXACT_MAX).contains(&value);
    in_range(count)
        && in_range(period)
        && in_range(capacity)
        && match spec {
            Spec::Gcra { .. } | Spec::TokenBucket { .. } | Spec::LeakyMeter { .. } => {
                fits(count, period, capacity)
            }
            // The wait is at least the time that the capacity less one unit takes.
            Spec::Shaper { .. } | Spec::Undelayed { .. } => {
                let wait = u128::from(capacity - 1) * u128::from(period) / u128::from(count);
                u64::try_from(wait).is_ok_and(|wait| fits_wait(count, period, wait))
            }
            Spec::Interval { .. } => capacity
                .div_ceil(count)
                .checked_mul(period)
                .is_some_and(|micros| micros <= EXACT_MAX),
            Spec::Buckets { buckets, .. } => {
                capacity == count
                    && period % buckets == 0
                    && capacity
                        .checked_mul(period / buckets)
                        .is_some_and(|n| n <= EXACT_MAX)
            }
            Spec::Fixed { .. } | Spec::Log { .. } | Spec::Calendar { .. } => capacity == count,
        }
}

/// Units that are refilled at once, if that differs from the capacity.
fn portion(spec: &Spec) -> u64 {
    if let Spec::Interval { refill, .. } = spec {
        *refill
    } else {
        u64::MAX
    }
}

#[test]
fn every_share_can_be_counted_and_is_no_faster() {
    for_every_kind(
        |specs| (specs, processes()),
        |(spec, n)| {
            let (whole, wide) = (spec.algorithm(), u64::from(*n));
            let share = whole.share(nonzero(*n));
            prop_assert_eq!(share.name(), whole.name());
            prop_assert!(counted(spec, &share), "{:?}", share);
            let windowed = matches!(
                spec,
                Spec::Fixed { .. }
                    | Spec::Log { .. }
                    | Spec::Buckets { .. }
                    | Spec::Calendar { .. }
            );
            if windowed {
                prop_assert_eq!(share.rate().period(), whole.rate().period());
            }
            // The longest time that is possible: 142 years.
            let once = share.rate().count() == 1 && share.rate().period_micros() >= EXACT_MAX / 2;
            if !once && (!windowed || whole.capacity() >= wide) {
                prop_assert!(
                    no_faster(share.rate(), *n, whole.rate()),
                    "{} of {}",
                    share.rate(),
                    whole.rate()
                );
            }
            Ok(())
        },
    );
}

#[test]
fn share_of_a_bucket_that_is_refilled_each_microsecond_is_exact() {
    let bucket = |capacity, refill| {
        IntervalBucket::new(capacity)
            .refill(refill, std::time::Duration::from_micros(1))
            .into_algorithm()
            .unwrap()
    };
    assert_eq!(bucket(10, 4).share(nonzero(2)), bucket(5, 2));
}

/// A share smaller than necessary would be safe, but useless.
#[test]
fn every_share_is_as_large_as_it_may_be() {
    for_every_kind(
        |specs| (specs, processes()),
        |(spec, n)| {
            let (whole, wide) = (spec.algorithm(), u64::from(*n));
            let share = whole.share(nonzero(*n));
            let part = (whole.capacity() / wide).max(1);
            match spec {
                // Reduced at most where an empty bucket would take 2^53 µs to fill.
                Spec::Interval { .. } => prop_assert!(
                    share.capacity() == part
                        || u128::from(share.capacity() + share.rate().count())
                            * u128::from(share.rate().period_micros())
                            > u128::from(EXACT_MAX) * u128::from(share.rate().count()),
                    "{:?}",
                    share
                ),
                Spec::Shaper { .. } | Spec::Undelayed { .. } => prop_assert!(share.capacity() >= 1),
                _ => prop_assert_eq!(share.capacity(), part),
            }
            let exact = matches!(
                spec,
                Spec::Gcra { .. } | Spec::TokenBucket { .. } | Spec::LeakyMeter { .. }
            );
            if exact && whole.capacity() >= wide {
                let product = |a: u64, b: u64| BigUint::from(a) * BigUint::from(b);
                let (mine, all) = (share.rate(), whole.rate());
                prop_assert_eq!(
                    product(mine.count(), all.period_micros()) * *n,
                    product(all.count(), mine.period_micros())
                );
            }
            Ok(())
        },
    );
}

#[test]
fn the_share_of_one_is_the_whole() {
    for_every_kind(
        |specs| specs,
        |spec| {
            prop_assert_eq!(spec.algorithm().share(nonzero(1)), spec.algorithm());
            Ok(())
        },
    );
}

/// What N shares may admit together beyond the limit's own bound; `None` if there is no bound.
fn beyond(spec: &Spec, n: u64) -> Option<u64> {
    let capacity = spec.algorithm().capacity();
    match spec {
        Spec::Gcra { .. } | Spec::TokenBucket { .. } | Spec::LeakyMeter { .. } => {
            Some(n.saturating_sub(capacity))
        }
        Spec::Interval { .. } => Some(n.saturating_sub(capacity) + n.saturating_sub(portion(spec))),
        Spec::Shaper { .. } | Spec::Undelayed { .. } => Some(n - 1),
        _ => (capacity >= n).then_some(0),
    }
}

/// N processes without a common store, each with its share, and what they admit together in any
/// stretch of time.
#[test]
fn shares_together_never_exceed_the_limit() {
    let events = || prop::collection::vec((any::<u8>(), 0_u8..8, 0_u32..1_000, 0_u8..4), 60);
    for kind in Kind::ALL {
        let cases = (
            prop_oneof![3 => small(kind), 1 => any_spec(kind)],
            1_u32..=5,
            events(),
        );
        run(&format!("{kind:?}"), &cases, |(spec, n, events)| {
            let Some(beyond) = beyond(spec, (*n).into()) else {
                return Ok(());
            };
            let share = spec.algorithm().share(nonzero(*n));
            let mut states = vec![share.fresh(); *n as usize];
            let (mut now, mut admitted) = (TODAY, Vec::new());
            for (who, pace, part, size) in events {
                // Often at the same instant, rarely far apart.
                now += [
                    0,
                    0,
                    0,
                    0,
                    1,
                    spec.step() * i64::from(*part) / 1_000,
                    spec.step(),
                    3 * spec.step(),
                ][usize::from(*pace)];
                if now > Timestamp::MAX.as_micros() {
                    break;
                }
                let who = usize::from(*who) % states.len();
                let cost = [1, 1, share.capacity(), share.capacity() / 2 + 1][usize::from(*size)];
                let state = std::mem::replace(&mut states[who], share.fresh());
                let (state, verdict) = share.decide(state, Timestamp::from_micros(now), cost);
                states[who] = state;
                if verdict.is_admitted() {
                    admitted.push((now, cost));
                }
            }
            for (first, begin) in admitted.iter().enumerate() {
                let mut sum = 0_i128;
                for (at, cost) in &admitted[first..] {
                    sum += i128::from(*cost);
                    let most = most_in(spec, at - begin.0);
                    prop_assert!(
                        most.is_none_or(|most| sum <= most + i128::from(beyond)),
                        "{} from {} to {}, bound {:?} + {}",
                        sum,
                        begin.0,
                        at,
                        most,
                        beyond
                    );
                }
            }
            Ok(())
        });
    }
}

#[test]
fn shares_are_what_one_would_write_by_hand() {
    use std::time::Duration;
    use throttle_core::{IntervalBucket, LeakyBucket};

    let (minutes, micros) = (|n: u64| Duration::from_secs(60 * n), Duration::from_micros);
    let rare = |wait| {
        LeakyBucket::new(Rate::new(3, micros(1 << 40)))
            .max_wait(wait)
            .build()
    };
    let spaced = |wait| {
        LeakyBucket::new(Rate::new(1, micros(3_665_038_759_253_334)))
            .max_wait(wait)
            .build()
    };
    for (whole, n, share) in [
        (
            IntervalBucket::new(100).refill(10, minutes(1)).build(),
            4,
            IntervalBucket::new(25).refill(2, minutes(1)).build(),
        ),
        // One a minute cannot be divided by five: each share gets one every five minutes.
        (
            IntervalBucket::new(100)
                .refill(1, minutes(1))
                .aligned()
                .build(),
            5,
            IntervalBucket::new(20)
                .refill(1, minutes(5))
                .aligned()
                .build(),
        ),
        // A burst of four fits ten a minute, and each of the two shares gets half of both.
        (
            IntervalBucket::new(4).refill(10, minutes(1)).build(),
            2,
            IntervalBucket::new(2).refill(2, minutes(1)).build(),
        ),
        (
            LeakyBucket::new(Rate::per_second(10))
                .max_wait(minutes(1))
                .build(),
            10,
            LeakyBucket::new(Rate::per_second(1))
                .max_wait(minutes(1))
                .build(),
        ),
        // Three in 2^40 µs by ten thousand is beyond what can be counted: one in so many whole
        // microseconds. The wait stays, and where both exceed 2^52 it is the rest.
        (rare(minutes(1)), 10_000, spaced(minutes(1))),
        (
            rare(micros(1 << 50)),
            10_000,
            spaced(micros((1 << 52) - 1 - 3_665_038_759_253_334)),
        ),
    ] {
        assert_eq!(whole.unwrap().share(nonzero(n)), share.unwrap());
    }
}

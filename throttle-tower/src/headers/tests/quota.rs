//! What a policy announces, against plain fractions.

use std::num::NonZeroU32;
use std::time::Duration;

use throttle_core::{
    Algorithm, CalendarQuota, FixedWindow, Gcra, IntervalBucket, LeakyBucket, LeakyMeter, Rate,
    SlidingLog, SlidingWindow, TokenBucket,
};

use super::*;

const MS: u64 = 1_000;
const DAY: u64 = 86_400_000_000;

fn rate(count: u64, period_us: u64) -> Rate {
    Rate::new(count, Duration::from_micros(period_us))
}

#[test]
fn rate_is_scaled_up_until_it_holds_the_burst() {
    for (count, period_us, burst, q, w) in [
        (10, 1_000 * MS, 10, 10, 1),
        (10, 1_000 * MS, 20, 20, 2),
        (10, 1_000 * MS, 25, 30, 3),
        (2, 1_000 * MS, 20, 20, 10),
        (60, 60_000 * MS, 60, 60, 60),
        (60, 60_000 * MS, 90, 90, 90),
        (1_000, DAY, 10, 1_000, 86_400),
        (7, 13_000 * MS, 7, 7, 13),
        (7, 13_000 * MS, 10, 14, 26),
        (1, 36 * DAY, 1, 1, 3_110_400),
        (1, 36 * DAY, 3, 3, 9_331_200),
        // Periods that are not whole seconds, but whose multiples are.
        (100, 100 * MS, 100, 1_000, 1),
        (3, 90 * MS, 3, 100, 3),
        (7, 1_500 * MS, 7, 14, 3),
        (1, 250 * MS, 1, 4, 1),
        (1, 7 * MS, 1, 1_000, 7),
        // The longest window that is tried.
        (1, 101 * MS, 415, 1_000, 101),
        // No window of a reasonable length expresses these exactly: a little less is announced.
        (1, 999 * MS, 1, 1, 1),
        (1, 1_001 * MS, 1, 47, 48),
        (3, 1_000_001, 3, 50, 17),
        (1, 3_600_700 * MS, 1, 1, 3_601),
    ] {
        assert_eq!(
            QuotaWindow::new(rate(count, period_us), burst),
            QuotaWindow { q, w, most: burst },
            "{count} in {period_us} µs, burst {burst}"
        );
    }
}

/// A structured field holds no larger number. The window shrinks with the quota.
#[test]
fn quota_above_the_largest_integer_has_a_shorter_window() {
    let most = (1 << 53) - 1;
    let quota = |q, w, most| QuotaWindow { q, w, most };
    assert_eq!(
        QuotaWindow::new(rate(most, 3_600_000 * MS), most),
        quota(MAX_INTEGER, 400, MAX_INTEGER)
    );
    assert_eq!(
        QuotaWindow::new(rate(most, 1), most),
        quota(MAX_INTEGER, 1, MAX_INTEGER)
    );
    // By little.
    assert_eq!(
        QuotaWindow::new(rate(MAX_INTEGER + 1, 3_600_000 * MS), 1),
        quota(MAX_INTEGER, 3_600, 1)
    );
    assert_eq!(
        QuotaWindow::new(rate(1_500_000_000_000_000, 3_600_000 * MS), 1),
        quota(MAX_INTEGER, 2_400, 1)
    );
    // A window, too, is cut to what a field holds.
    assert_eq!(
        QuotaWindow::new(rate(1, 1 << 62), 1_000),
        quota(1_000, MAX_INTEGER, 1_000)
    );
}

/// Every algorithm that accepts these numbers, even with a refill larger than the bucket.
fn algorithms(count: u64, period_us: u64, burst: u64, share: u32) -> Vec<Algorithm> {
    let (rate, period) = (rate(count, period_us), Duration::from_micros(period_us));
    let built = [
        Gcra::new(rate).burst(burst).build(),
        TokenBucket::new(rate).burst(burst).build(),
        LeakyMeter::new(rate).capacity(burst).build(),
        IntervalBucket::new(burst).refill(count, period).build(),
        IntervalBucket::new(burst)
            .refill(count, period)
            .aligned()
            .build(),
        FixedWindow::new(rate).build(),
        SlidingWindow::new(rate).build(),
        SlidingWindow::new(rate).buckets(1).build(),
        SlidingLog::new(rate).build(),
        CalendarQuota::daily(count).build(),
        CalendarQuota::weekly(count).build(),
        CalendarQuota::monthly(count).build(),
        CalendarQuota::fixed(count, period).build(),
        CalendarQuota::rolling(count, period).build(),
        LeakyBucket::new(rate)
            .max_wait(Duration::from_micros(burst))
            .build(),
    ];
    let shares = NonZeroU32::new(share).unwrap();
    let built = built.into_iter().flatten();
    built
        .flat_map(|algorithm| [algorithm, algorithm.share(shares)])
        .collect()
}

/// Counts and periods as users write them, and arbitrary ones.
fn any_count() -> impl Strategy<Value = u64> {
    prop_oneof![
        1_u64..20,
        1_u64..10_000,
        (0_u32..53, 0_u64..1 << 53).prop_map(|(bits, n)| (n >> bits).max(1))
    ]
}

fn any_period() -> impl Strategy<Value = u64> {
    let of = |unit: u64| (1_u64..200).prop_map(move |n| n * unit);
    prop_oneof![
        of(1),
        of(MS),
        of(1_000 * MS),
        of(60_000 * MS),
        of(DAY),
        any_count()
    ]
}

proptest! {
    #[test]
    fn quota_is_the_rate_and_holds_all_that_can_remain(
        count in any_count(), period_us in any_period(), burst in any_count(), share in 1_u32..9,
    ) {
        for algorithm in algorithms(count, period_us, burst, share) {
            let QuotaWindow { q, w, most } = QuotaWindow::of(&algorithm, 0);
            prop_assert_eq!(most, algorithm.capacity().min(MAX_INTEGER));
            let (rate, what) = (algorithm.rate(), format!("{algorithm:?}: q={q};w={w}"));
            prop_assert!(w >= 1 && q <= MAX_INTEGER && w <= MAX_INTEGER, "{what}");
            prop_assert!(q >= algorithm.capacity().min(MAX_INTEGER), "more can remain: {what}");
            // The announced rate is q / w, the true one n / p, both per microsecond and over one
            // denominator.
            let (n, p) = (u128::from(rate.count()), u128::from(rate.period_micros()));
            let announced = |q: u64| u128::from(q) * p;
            let truth = n * u128::from(w) * 1_000_000;
            prop_assert!(announced(q) <= truth, "promises too much: {what}");
            if q < MAX_INTEGER {
                prop_assert!(announced(q + 1) > truth, "one more would be true: {what}");
                prop_assert!((truth - announced(q)) * 50 <= truth, "promises over 2 % too little: \
                    {what}");
                if p % 1_000_000 == 0 {
                    prop_assert_eq!(announced(q), truth, "whole seconds say it exactly: {}", what);
                }
                // Every shorter window holds too little, or is further from the rate.
                let needed = u128::from(algorithm.capacity().max(rate.count()));
                for shorter in w.saturating_sub(60).max(1)..w {
                    let parts = n * u128::from(shorter) * 1_000_000;
                    prop_assert!(parts / p < needed || parts % p > 0, "{shorter} is exact: {what}");
                    prop_assert!(
                        parts / p < needed || parts % p * 50 > parts || announced(q) == truth,
                        "{shorter} would do: {what}"
                    );
                }
            }
        }
    }

    /// A process that decides by its share announces the whole limit.
    #[test]
    fn share_leaves_no_more_than_the_announced_quota(
        count in any_count(), period_us in any_period(), burst in any_count(), share in 1_u32..1_000,
    ) {
        for pair in algorithms(count, period_us, burst, share).chunks(2) {
            let [whole, share] = pair else { unreachable!() };
            prop_assert!(share.capacity().min(MAX_INTEGER) <= QuotaWindow::of(whole, 0).q, "{share:?} of {whole:?}");
        }
    }
}

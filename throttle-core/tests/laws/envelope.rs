//! A configuration that cannot be counted exactly is refused when it is built, with an error that
//! states the bound. Nothing panics.

use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::TestCaseResult;
use throttle_core::{Algorithm, CalendarQuota, ConfigError};

use crate::support::bounds::{fits, fits_wait, most_burst, most_wait};
use crate::support::machines::{Machine, Pure};
use crate::support::spec::{Anchor, Cadence, DAY, Kind, SECOND, Spec};
use crate::support::strategies::{EXACT_MAX, run};

/// The numbers in a message, without 2^53 and its own digits.
fn numbers(text: &str) -> Vec<u64> {
    text.split(|c: char| !c.is_ascii_digit())
        .filter_map(|digits| digits.parse().ok())
        .collect()
}

fn states(error: &ConfigError, bound: u64) -> TestCaseResult {
    prop_assert!(
        numbers(&error.to_string()).contains(&bound),
        "{} is not in: {}",
        bound,
        error
    );
    Ok(())
}

/// Any count and period in range: the largest burst that the formula allows builds, and one more
/// does not.
fn burst_bound_is_exact((limit, period): &(u64, u64)) -> TestCaseResult {
    let (limit, period) = (*limit, *period);
    let build = |burst| -> [Result<Algorithm, ConfigError>; 3] {
        [
            Spec::gcra(limit, period, burst).build(),
            Spec::token_bucket(limit, period, burst).build(),
            Spec::leaky_meter(limit, period, burst).build(),
        ]
    };
    let Some(most) = most_burst(limit, period) else {
        for error in build(1) {
            let error = error.expect_err("no burst fits");
            prop_assert!(error.to_string().contains("2^53"), "{}", error);
        }
        return Ok(());
    };
    prop_assert!(fits(limit, period, most) && !fits(limit, period, most + 1));
    prop_assert!(
        build(most).iter().all(Result::is_ok),
        "{} fits {}/{}",
        most,
        limit,
        period
    );
    for error in build(most + 1)
        .into_iter()
        .chain(build(u64::MAX))
        .chain(build(0))
    {
        let error = error.expect_err("past the bound");
        prop_assert_eq!(error.field(), "burst");
        states(&error, most)?;
    }
    Ok(())
}

fn wait_bound_is_exact((limit, period): &(u64, u64)) -> TestCaseResult {
    let build = |max_wait| Spec::shaper(*limit, *period, max_wait).build();
    let Some(most) = most_wait(*limit, *period) else {
        prop_assert!(build(0).is_err());
        return Ok(());
    };
    prop_assert!(fits_wait(*limit, *period, most) && build(most).is_ok());
    for wait in [most + 1, u64::MAX] {
        states(&build(wait).expect_err("past the bound"), most)?;
    }
    Ok(())
}

fn extreme() -> impl Strategy<Value = u64> {
    prop_oneof![
        select(vec![
            1,
            2,
            3,
            60,
            1_000,
            99_991,
            999_983,
            SECOND,
            60 * SECOND,
            DAY,
            30 * DAY,
            EXACT_MAX
        ]),
        1..EXACT_MAX,
        1_u64..1_000,
        // Every order of magnitude is equally likely.
        (0_u32..53, any::<u64>()).prop_map(|(bits, any)| (any >> (63 - bits)).clamp(1, EXACT_MAX)),
    ]
}

#[test]
fn attack_38_the_burst_bound_is_exact_and_stated() {
    run("rates", &(extreme(), extreme()), burst_bound_is_exact);
}

#[test]
fn attack_38_the_wait_bound_is_exact_and_stated() {
    run("rates", &(extreme(), extreme()), wait_bound_is_exact);
}

#[test]
fn attack_38_window_bounds_are_exact_and_stated() {
    run(
        "windows",
        &(extreme(), extreme(), extreme()),
        |(a, b, c)| {
            // Sub-windows: count × length of one.
            let (width, buckets) = (*a, 1 + b % 1_024);
            if let Some(window) = width
                .checked_mul(buckets)
                .filter(|window| *window <= EXACT_MAX)
            {
                let most = EXACT_MAX / width;
                let build = |limit| Spec::buckets(limit, window, buckets).build();
                prop_assert!(build(most).is_ok());
                if most < EXACT_MAX {
                    states(&build(most + 1).expect_err("past the bound"), most)?;
                }
            }
            // Refills: the time to fill from empty.
            let (capacity, refill) = (*b, *c);
            let most = EXACT_MAX / capacity.div_ceil(refill);
            let build = |interval| {
                Spec::Interval {
                    capacity,
                    refill,
                    interval,
                    aligned: false,
                }
                .build()
            };
            prop_assert!(build(most).is_ok());
            if most < EXACT_MAX {
                states(&build(most + 1).expect_err("past the bound"), most)?;
            }
            // Plain windows: every number that a double represents exactly.
            let plain = [
                Spec::Fixed {
                    limit: *a,
                    window: *b,
                    offset: i64::MIN,
                },
                Spec::log(*a, *b),
            ];
            prop_assert!(plain.iter().all(|spec| spec.build().is_ok()));
            Ok(())
        },
    );
}

/// The examples with which the envelope was measured.
#[test]
fn attack_38_known_edges() {
    let month = 30 * DAY;
    assert!(Spec::gcra(1_000_000, month, 1_000_000).build().is_ok());
    assert_eq!(most_burst(999_983, month), Some(1_737));
    assert!(Spec::gcra(999_983, month, 1_737).build().is_ok());
    let error = Spec::gcra(999_983, month, 1_738).build().unwrap_err();
    assert!(error.to_string().contains("between 1 and 1737"), "{error}");
    // The debt and the time in which it drains make exactly 2^53 - 1.
    assert!(Spec::gcra(2, 1, (1 << 52) - 1).build().is_ok());
}

const EXTREMES: [u64; 14] = [
    0,
    1,
    2,
    999_983,
    SECOND,
    DAY,
    146_097 * DAY,
    EXACT_MAX - 1,
    EXACT_MAX,
    EXACT_MAX + 1,
    i64::MAX as u64,
    i64::MAX as u64 + 1,
    u64::MAX - 1,
    u64::MAX,
];

fn every_spec(a: u64, b: u64, c: u64) -> [Spec; 12] {
    [
        Spec::gcra(a, b, c),
        Spec::token_bucket(a, b, c),
        Spec::leaky_meter(a, b, c),
        Spec::shaper(a, b, c),
        Spec::Interval {
            capacity: a,
            refill: b,
            interval: c,
            aligned: false,
        },
        Spec::Interval {
            capacity: a,
            refill: b,
            interval: c,
            aligned: true,
        },
        Spec::Fixed {
            limit: a,
            window: b,
            offset: c.cast_signed(),
        },
        Spec::log(a, b),
        Spec::buckets(a, b, c),
        Spec::calendar(a, Cadence::Month, c.cast_signed() as i32),
        Spec::calendar(a, Cadence::Week, 840),
        Spec::calendar(a, Cadence::Day, -840),
    ]
}

/// Every combination of extreme numbers is refused or works: every cost, at both ends of time and
/// in between.
#[test]
fn attack_39_extreme_configurations_are_refused_or_work() {
    let (mut built, mut refused) = (0, 0);
    let times = [
        i64::MIN,
        -EXTREMES[8].cast_signed(),
        -1,
        0,
        1_790_000_000_000_000,
        EXTREMES[8].cast_signed(),
        i64::MAX,
    ];
    for a in EXTREMES {
        for b in EXTREMES {
            for c in EXTREMES {
                for spec in every_spec(a, b, c) {
                    let Ok(algorithm) = spec.build() else {
                        refused += 1;
                        continue;
                    };
                    built += 1;
                    let mut state = algorithm.fresh();
                    for now in times.map(throttle_core::Timestamp::from_micros) {
                        for cost in [
                            1,
                            0,
                            algorithm.capacity() / 2,
                            algorithm.capacity(),
                            u64::MAX,
                        ] {
                            let (next, verdict) = algorithm.decide(state, now, cost);
                            assert!(verdict.remaining() <= algorithm.capacity(), "{spec:?}");
                            assert!(
                                cost <= algorithm.capacity()
                                    || verdict.retry_after_micros().is_none()
                            );
                            let _ = algorithm.fresh_at(&next);
                            state = next;
                        }
                    }
                }
            }
        }
    }
    assert!(
        built > 1_000 && refused > 1_000,
        "{built} built, {refused} refused"
    );
}

/// Zero and numbers that no double represents are refused everywhere, with the field and the value.
#[test]
fn attack_39_zero_and_too_large_are_named() {
    for bad in [0, EXACT_MAX + 1, u64::MAX] {
        for spec in [every_spec(bad, 1, 1), every_spec(1, bad, 1)].concat() {
            let takes_no_second = matches!(spec, Spec::Calendar { limit: 1, .. });
            match spec.build() {
                Ok(_) => assert!(takes_no_second, "{spec:?} was built"),
                Err(error) => assert_eq!(error.value(), bad.to_string(), "{spec:?}: {error}"),
            }
        }
    }
    for minutes in [841, -841, i32::MAX, i32::MIN + 1, i32::MIN] {
        let error = Spec::calendar(1, Cadence::Day, minutes)
            .build()
            .unwrap_err();
        assert!(error.to_string().contains("-840 and 840"), "{error}");
    }
}

#[test]
fn attack_39_anchors_that_some_period_lacks_are_named() {
    let error = |cadence, day, hour| {
        let anchor = Anchor { day, hour };
        Spec::Calendar {
            limit: 1,
            cadence,
            offset_minutes: 0,
            anchor,
        }
        .build()
        .unwrap_err()
        .to_string()
    };
    for day in [29, 30, 31, 255] {
        let error = error(Cadence::Month, Some(day), 0);
        assert!(
            error.contains(&format!(
                "anchor day is {day}: it must lie between 1 and 28"
            )),
            "{error}"
        );
        assert!(error.contains("anchor_last_day"), "{error}");
    }
    for (cadence, day, bound) in [
        (Cadence::Week, 8, "1 and 7"),
        (Cadence::Week, 0, "1 and 7"),
        (Cadence::Day, 2, "1 and 1"),
    ] {
        assert!(
            error(cadence, Some(day), 0).contains(bound),
            "{day} of {cadence:?}"
        );
    }
    assert!(
        error(Cadence::Month, None, 24).contains("anchor hour is 24: it must lie between 0 and 23")
    );
    let zero = CalendarQuota::monthly(1).anchor_day(0).build().unwrap_err();
    assert!(zero.to_string().contains("anchor day is 0"), "{zero}");
    let second = std::time::Duration::from_secs(1);
    for quota in [
        CalendarQuota::rolling(1, second).anchor_day(1),
        CalendarQuota::fixed(1, second).anchor_hour(5),
    ] {
        assert!(
            quota
                .build()
                .unwrap_err()
                .to_string()
                .contains("only days, weeks and months have an anchor")
        );
    }
}

/// Settling with any number, at any time, on any algorithm: no panic, and never more than the
/// capacity.
#[test]
fn attack_39_extreme_settles_work() {
    let cases = (
        select(Kind::ALL.to_vec()).prop_flat_map(crate::support::strategies::realistic),
        extreme(),
        extreme(),
    );
    run("settles", &cases, |(spec, at, units)| {
        let mut machine = Pure::new(&crate::support::spec::Tree::Leaf(*spec));
        let capacity = machine.capacities()[0];
        for t in [0, at.cast_signed(), -at.cast_signed(), i64::MAX, i64::MIN] {
            for actual in [0, *units, u64::MAX, 1] {
                let cost = 1 + units % capacity;
                if let Some(charge) = machine.take(t, cost).1 {
                    machine.settle(-t.max(-i64::MAX), charge.actual(actual));
                }
                prop_assert!(machine.peek(t).remaining() <= capacity);
            }
        }
        Ok(())
    });
}

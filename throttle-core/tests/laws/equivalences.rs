//! One mathematics, several vocabularies: GCRA, token bucket and meter decide alike, and the shaper
//! admits like GCRA.

use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use throttle_core::{Algorithm, CalendarQuota, Timestamp};

use crate::support::machines::{Machine, Pure};
use crate::support::reference::reported;
use crate::support::spec::{Kind, Spec, TODAY, Tree};
use crate::support::strategies::{any_spec, run};
use crate::support::trace::{Case, cases, clamp};

fn gcras() -> BoxedStrategy<Tree> {
    any_spec(Kind::Gcra).prop_map(Tree::Leaf).boxed()
}

/// Compares all fields, settlements included, on a clock that does not step back.
fn side_by_side(case: &Case) -> TestCaseResult {
    let Tree::Leaf(Spec::Gcra {
        limit,
        period,
        burst,
    }) = case.tree
    else {
        unreachable!("gcras")
    };
    let vocabularies = [
        case.tree.clone(),
        Tree::Leaf(Spec::token_bucket(limit, period, burst)),
        Tree::Leaf(Spec::leaky_meter(limit, period, burst)),
    ];
    let mut machines = vocabularies.map(|tree| Pure::new(&tree));
    let (step, mut t, mut open) = (case.tree.step(), case.start, Vec::new());
    for raw in &case.raws {
        t = clamp(t.saturating_add(raw.micros(step, false)));
        if raw.what >= 7 && !open.is_empty() {
            let charges: [Option<throttle_core::backend::Receipt>; 3] =
                open.swap_remove(usize::from(raw.pick) % open.len());
            let actual = u64::from(raw.pick % 4);
            for (machine, charge) in machines.iter_mut().zip(charges) {
                machine.settle(t, charge.expect("all three or none").actual(actual));
            }
        }
        let cost = raw.cost(burst);
        let [gcra, bucket, meter] = machines.each_mut().map(|machine| machine.take(t, cost));
        prop_assert_eq!(
            reported(&gcra.0),
            reported(&bucket.0),
            "GCRA and bucket on {} at {}",
            cost,
            t
        );
        prop_assert_eq!(
            reported(&bucket.0),
            reported(&meter.0),
            "bucket and meter on {} at {}",
            cost,
            t
        );
        if gcra.1.is_some() {
            open.push([gcra.1, bucket.1, meter.1]);
        }
    }
    Ok(())
}

#[test]
fn law_08_gcra_bucket_and_meter_are_one() {
    run("side by side", &cases(gcras(), 80), side_by_side);
}

/// With a longest wait of burst − 1 intervals, the shaper admits what GCRA admits, and reports the
/// same waits.
fn shaper_and_gcra(case: &Case) -> TestCaseResult {
    let Tree::Leaf(Spec::Gcra {
        limit,
        period,
        burst,
    }) = case.tree
    else {
        unreachable!("gcras")
    };
    let wait = u128::from(burst - 1) * u128::from(period);
    // Only if the longest wait is a whole number of microseconds.
    if wait % u128::from(limit) != 0 {
        return Ok(());
    }
    let Ok(max_wait) = u64::try_from(wait / u128::from(limit)) else {
        return Ok(());
    };
    let mut gcra = Pure::new(&case.tree);
    let mut shaper = Pure::new(&Tree::Leaf(Spec::shaper(limit, period, max_wait)));
    prop_assert_eq!(gcra.capacities(), shaper.capacities());
    let (step, mut t) = (case.tree.step(), case.start);
    for raw in &case.raws {
        t = clamp(t.saturating_add(raw.micros(step, false)));
        let cost = raw.cost(burst);
        let delay_told = gcra.peek(t).reset_after();
        let (gcra, shaper) = (gcra.take(t, cost).0, shaper.take(t, cost).0);
        prop_assert_eq!(gcra.is_admitted(), shaper.is_admitted());
        prop_assert_eq!(gcra.remaining(), shaper.remaining());
        prop_assert_eq!(gcra.retry_after(), shaper.retry_after());
        prop_assert_eq!(gcra.reset_after(), shaper.reset_after());
        if shaper.is_admitted() && cost > 0 {
            prop_assert_eq!(
                shaper.delay(),
                delay_told,
                "a unit leaves when all before it have"
            );
        }
    }
    Ok(())
}

#[test]
fn law_08_the_shaper_admits_like_gcra() {
    run("shaper and GCRA", &cases(gcras(), 80), shaper_and_gcra);
}

/// Periods of 24 hours are civil days: they begin at local midnight too.
#[test]
fn law_08_a_fixed_quota_of_a_day_is_the_daily_quota_at_every_offset() {
    let now = Timestamp::from_micros(TODAY + 3 * 3_600 * 1_000_000);
    for offset in [-840, -90, 0, 330, 840] {
        let fixed = CalendarQuota::fixed(5, Duration::from_secs(86_400))
            .utc_offset_minutes(offset)
            .build()
            .unwrap();
        let daily = CalendarQuota::daily(5)
            .utc_offset_minutes(offset)
            .build()
            .unwrap();
        let verdict = |quota: &Algorithm| quota.decide(quota.fresh(), now, 1).1;
        let (fixed, daily) = (verdict(&fixed), verdict(&daily));
        assert_eq!(
            (fixed.remaining(), fixed.reset_after_micros()),
            (4, daily.reset_after_micros()),
            "{offset} minutes"
        );
    }
}

//! Limits, calls and instants that a fuzzer chooses. The numbers are small, so that few requests
//! meet every bound.

use std::time::Duration;

use libfuzzer_sys::arbitrary::{Error, Result, Unstructured};
use throttle_core::backend::{Call, Exception, Treatment};
use throttle_core::{
    Algorithm, AnyCharge, CalendarQuota, FixedWindow, Gcra, IntervalBucket, Key, LeakyBucket,
    LeakyMeter, Policy, PolicySet, PolicyTree, Rate, SlidingLog, SlidingWindow, Timestamp,
    TokenBucket,
};

/// 2026-09-21, where windows of every small length begin.
pub const START: Timestamp = Timestamp::from_micros(1_790_000_000_000_000);

/// An algorithm of any kind.
pub fn algorithm(of: &mut Unstructured<'_>) -> Result<Algorithm> {
    let (kind, variant) = (of.int_in_range(0..=8_u8)?, of.arbitrary::<bool>()?);
    let (count, burst) = (of.int_in_range(1..=9_u64)?, of.int_in_range(1..=12_u64)?);
    let micros = Duration::from_micros(*of.choose(&[
        1,
        7,
        60,
        97,
        333,
        5_000,
        1_000_000,
        86_400_000_000,
    ])?);
    let rate = Rate::new(count, micros);
    let built = match kind {
        0 => Gcra::new(rate).burst(burst).build(),
        1 => TokenBucket::new(rate).burst(burst).build(),
        2 => LeakyMeter::new(rate).capacity(burst).build(),
        3 if variant => IntervalBucket::new(burst)
            .refill(count, micros)
            .aligned()
            .build(),
        3 => IntervalBucket::new(burst).refill(count, micros).build(),
        4 => FixedWindow::new(rate)
            .offset_micros(i64::try_from(burst).unwrap_or(0) - 6)
            .build(),
        5 => SlidingLog::new(rate).build(),
        6 => SlidingWindow::new(Rate::new(count, micros * 4))
            .buckets(if variant { 4 } else { 1 })
            .build(),
        7 => match burst % 4 {
            0 => CalendarQuota::daily(count).build(),
            1 => CalendarQuota::weekly(count).utc_offset_minutes(60).build(),
            2 => CalendarQuota::monthly(count).anchor_last_day().build(),
            _ => CalendarQuota::rolling(count, micros).build(),
        },
        _ if variant => LeakyBucket::new(rate)
            .max_wait(micros * 3)
            .without_delay()
            .build(),
        _ => LeakyBucket::new(rate).max_wait(micros * 3).build(),
    };
    built.map_err(|_| Error::IncorrectFormat)
}

/// A policy of up to three tiers.
fn policy(of: &mut Unstructured<'_>, name: &str) -> Result<Policy> {
    let tiers =
        (0..of.int_in_range(1..=3_u8)?).map(|tier| Ok((format!("t{tier}"), algorithm(of)?)));
    let tiers = tiers.collect::<Result<Vec<_>>>()?;
    let built = if tiers.len() == 1 {
        Policy::new(name, tiers[0].1)
    } else {
        Policy::tiered(name, tiers)
    };
    built.map_err(|_| Error::IncorrectFormat)
}

/// One to three policies in each composition.
pub fn set(of: &mut Unstructured<'_>) -> Result<PolicySet> {
    let policies =
        (0..of.int_in_range(1..=3_u8)?).map(|place| Ok(policy(of, &format!("p{place}"))?.into()));
    let policies: Vec<PolicyTree> = policies.collect::<Result<_>>()?;
    let tree = match of.int_in_range(0..=3_u8)? {
        0 | 1 => PolicyTree::All(policies),
        2 => PolicyTree::Any(policies, AnyCharge::First),
        _ => PolicyTree::Any(policies, AnyCharge::EveryAdmitting),
    };
    PolicySet::new(tree).map_err(|_| Error::IncorrectFormat)
}

/// A call for each policy of a set, about some of `keys` keys each, in tiers, under parameters of
/// the key's own, and with reserves.
pub fn calls(of: &mut Unstructured<'_>, set: &PolicySet, keys: u64) -> Result<Vec<Call>> {
    let call = |policy: &Policy| {
        let key = of.int_in_range(0..=keys - 1)?;
        let (flags, cost): (u8, u64) = (of.arbitrary()?, of.int_in_range(0..=13)?);
        if flags % 16 == 0 {
            return Ok(Call::SKIP);
        }
        let call = Call::from(Key::from(key))
            .costing(cost)
            .in_tier(flags >> 4 & 3);
        let call = if flags >> 6 == 0 {
            call.peeking()
        } else {
            call
        };
        let call = if flags & 4 == 0 {
            call.reserving(of.int_in_range(0..=4)?)
        } else {
            call
        };
        // Parameters that recover within another time are refused.
        let own = if flags & 8 == 0 {
            policy.own(algorithm(of)?).ok()
        } else {
            None
        };
        Ok(match own {
            Some(own) if flags & 1 == 0 => call.under(own),
            _ => call,
        })
    };
    set.policies().iter().map(call).collect()
}

/// An exception of any kind, or none.
pub fn exception(
    of: &mut Unstructured<'_>,
    policy: &Policy,
    now: Timestamp,
) -> Result<Option<Exception>> {
    let treatment = match of.int_in_range(0..=3_u8)? {
        0 => return Ok(None),
        1 => Treatment::Exempt,
        2 => Treatment::Blocked,
        _ => Treatment::Limit(
            policy
                .own(algorithm(of)?)
                .map_err(|_| Error::IncorrectFormat)?,
        ),
    };
    Ok(Some(Exception {
        treatment,
        until: now.after_micros(micros(of)?),
    }))
}

/// A length of time of any order.
pub fn micros(of: &mut Unstructured<'_>) -> Result<u64> {
    Ok(of.arbitrary::<u64>()? >> of.int_in_range(20..=63_u32)?)
}

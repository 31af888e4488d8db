//! The most that may be admitted, and what can be counted exactly, by formulas that use no state.

use super::reference::{Q, floor, q};
use super::spec::{Spec, Tree};

/// The envelope: with the rate p/q in lowest terms, `B·q + ceil(B·q/p)·p` must stay below 2^53.
pub(crate) fn fits(limit: u64, period: u64, burst: u64) -> bool {
    let rate = Q::new(limit.into(), period.into());
    let (p, q) = (*rate.numer(), *rate.denom());
    let Some(depth) = i128::from(burst).checked_mul(q) else {
        return false;
    };
    depth < 1 << 53 && depth + (depth + p - 1) / p * p < 1 << 53
}

/// The same for a queue, whose depth is the longest wait and one unit more.
pub(crate) fn fits_wait(limit: u64, period: u64, wait: u64) -> bool {
    let rate = Q::new(limit.into(), period.into());
    let (p, q) = (*rate.numer(), *rate.denom());
    let Some(depth) = i128::from(wait)
        .checked_mul(p)
        .and_then(|depth| depth.checked_add(q))
    else {
        return false;
    };
    depth < 1 << 53 && depth + (depth + p - 1) / p * p < 1 << 53
}

/// The largest burst that fits, by bisection.
pub(crate) fn most_burst(limit: u64, period: u64) -> Option<u64> {
    fits(limit, period, 1).then(|| bisect(1, |burst| fits(limit, period, burst)))
}

pub(crate) fn most_wait(limit: u64, period: u64) -> Option<u64> {
    fits_wait(limit, period, 0).then(|| bisect(0, |wait| fits_wait(limit, period, wait)))
}

/// The largest number for which `holds`, which is true at `low` and false from some number below
/// 2^54 on.
pub(crate) fn bisect(mut low: u64, holds: impl Fn(u64) -> bool) -> u64 {
    let mut high = 1 << 54;
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if holds(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

/// The most cost that may be admitted in any closed stretch of `length` µs; `None` if there is no
/// bound.
pub(crate) fn most_in(spec: &Spec, length: i64) -> Option<i128> {
    let length = i128::from(length);
    let of = |value: u64| i128::from(value);
    match *spec {
        Spec::Gcra {
            limit,
            period,
            burst,
        }
        | Spec::TokenBucket {
            limit,
            period,
            burst,
        }
        | Spec::LeakyMeter {
            limit,
            period,
            burst,
        } => Some(floor(q(of(burst)) + Q::new(length * of(limit), of(period)))),
        Spec::Shaper {
            limit,
            period,
            max_wait,
        }
        | Spec::Undelayed {
            limit,
            period,
            max_wait,
        } => Some(floor(
            q(1) + Q::new((length + of(max_wait)) * of(limit), of(period)),
        )),
        Spec::Interval {
            capacity,
            refill,
            interval,
            ..
        } => Some(of(capacity) + of(refill) * (length / of(interval) + 1)),
        Spec::Fixed { limit, window, .. } => {
            Some(of(limit) * ((length + of(window) - 1) / of(window) + 1))
        }
        Spec::Log { limit, window } => Some(of(limit) * (length / of(window) + 1)),
        Spec::Buckets {
            limit,
            window,
            buckets,
        } => {
            if length < of(window - window / buckets) {
                Some(of(limit))
            } else {
                (length < of(window)).then(|| 2 * of(limit) - 1)
            }
        }
        // In the stretch begin at most as many periods as days, weeks or shortest months fit, and
        // one more.
        Spec::Calendar { limit, .. } => {
            let shortest = of(spec.step() as u64) / 30
                * if spec.step() as u64 > 7 * super::spec::DAY {
                    28
                } else {
                    30
                };
            Some(of(limit) * (length / shortest + 2))
        }
    }
}

pub(crate) fn most_in_tree(tree: &Tree, length: i64) -> Option<i128> {
    match tree {
        Tree::Leaf(spec) => most_in(spec, length),
        Tree::Audited(_) => None,
        Tree::All(members) => members
            .iter()
            .filter_map(|member| most_in_tree(member, length))
            .min(),
        Tree::Any(members, _) => members
            .iter()
            .map(|member| most_in_tree(member, length))
            .sum(),
    }
}

/// Asserts the bound between every two of the events (when, admitted, given back), `slack` µs added
/// once.
pub(crate) fn check_every_stretch(
    tree: &Tree,
    slack: i64,
    events: &[(i64, u64, u64)],
) -> Result<(), String> {
    for (first, begin) in events.iter().enumerate() {
        let (mut admitted, mut back) = (0, 0);
        for end in &events[first..] {
            (admitted, back) = (admitted + i128::from(end.1), back + i128::from(end.2));
            let most = most_in_tree(tree, end.0 - begin.0 + slack);
            if most.is_some_and(|most| admitted > most + back) {
                return Err(format!(
                    "{admitted} admitted from {} to {}, bound {most:?} + {back}",
                    begin.0, end.0
                ));
            }
        }
    }
    Ok(())
}

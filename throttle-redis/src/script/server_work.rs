//! What a decision costs the server, so that calls are bounded by work and not by their number of
//! decisions.
//!
//! A server runs one script at a time: what is sent delays all that is sent behind it. Costs are
//! estimates of the server's time in microseconds, for the largest state that a policy can have. A
//! log that former parameters of a limit wrote can take longer, until the first charge replaces it.

use throttle_core::{Algorithm, ConfigError, Policy, PolicySet};

use super::kind::{Kind, Size};

/// Most work in one call that carries several decisions, in microseconds of the server's time: a
/// twenty-fifth of the default deadline. A decision that is more than this by itself travels alone.
pub(crate) const CALL: u32 = 1_000;

// Measured with redis-server 7 on a 2-core machine under load, in microseconds a call
// (`INFO commandstats`):
//
//   gcra                         14    sliding window,   10 sub-windows   17    sliding log,  1,000 entries    190
//                                                       100               45                 10,000          1,920
//                                                     1,000              360

/// Work of a policy with a small state.
const PLAIN: u32 = 15;

/// Counters of a sliding window that a script reads and writes in a microsecond. The largest window
/// takes 0.4 ms.
const COUNTERS: u64 = 3;

/// Entries of a sliding log that a script reads and writes in a microsecond.
const ENTRIES: u64 = 5;

/// Most entries of a sliding log: a decision about it takes 2 ms, a twelfth of the default
/// deadline.
const MOST_ENTRIES: u64 = 10_000;

/// The work of one decision about a policy, in the heaviest of its tiers.
pub(crate) fn of(policy: &Policy) -> u32 {
    algorithms(policy).map(of_one).max().unwrap_or(PLAIN)
}

/// The work of one decision by some parameters.
pub(crate) fn of_one(algorithm: &Algorithm) -> u32 {
    let more = match Kind::of(algorithm).size {
        Size::Log => algorithm.capacity() / ENTRIES,
        Size::Ring => counters(algorithm) / COUNTERS,
        Size::Bytes(_) => 0,
    };
    PLAIN.saturating_add(u32::try_from(more).unwrap_or(u32::MAX))
}

fn counters(window: &Algorithm) -> u64 {
    window
        .fresh()
        .to_wire(window)
        .map_or(0, |value| value.len() as u64 / 8)
}

fn algorithms(policy: &Policy) -> impl Iterator<Item = &Algorithm> {
    policy
        .tiers()
        .map(|(_, tier)| tier.algorithm())
        .chain([policy.algorithm()])
}

/// Refuses policies for which one decision would keep the server busy for too long.
pub(crate) fn check(set: &PolicySet) -> Result<(), ConfigError> {
    let all = |policy| algorithms(policy).map(move |algorithm| (policy, algorithm));
    set.policies()
        .iter()
        .flat_map(all)
        .try_for_each(|(policy, algorithm)| check_one(policy, algorithm))
}

/// Refuses such parameters of a policy or of a key's own.
pub(crate) fn check_one(policy: &Policy, algorithm: &Algorithm) -> Result<(), ConfigError> {
    let count = algorithm.rate().count();
    if Kind::of(algorithm).size != Size::Log || count <= MOST_ENTRIES {
        return Ok(());
    }
    let rule = format!(
        "a sliding log in Redis can be at most {MOST_ENTRIES}, because each decision reads and \
            writes as many entries; \
         take a SlidingWindow"
    );
    Err(ConfigError::new("rate count", count, rule).in_policy(policy.name()))
}

#[cfg(test)]
mod tests {
    use throttle_core::{Gcra, IntoAlgorithm, PolicyTree, Rate, SlidingLog, SlidingWindow};

    use super::*;

    fn policy(algorithm: impl IntoAlgorithm) -> Policy {
        Policy::new("p", algorithm).expect("a policy")
    }

    #[test]
    fn work_grows_with_the_largest_state() {
        let log = |units| SlidingLog::new(Rate::per_day(units));
        assert_eq!(of(&policy(Gcra::new(Rate::per_day(10_000)))), PLAIN);
        assert_eq!(of(&policy(log(10_000))), PLAIN + 2_000);
        let window = |buckets| {
            of(&policy(
                SlidingWindow::new(Rate::per_day(10)).buckets(buckets),
            ))
        };
        // Within a fifth of what was measured.
        for (buckets, measured) in [(10, 17), (100, 45), (1_000, 360)] {
            let work = window(buckets);
            assert!(
                work.abs_diff(measured) <= measured / 5,
                "{work} for {buckets} sub-windows"
            );
        }
        for tiers in [
            [("few", log(5)), ("many", log(5_000))],
            [("many", log(5_000)), ("few", log(5))],
        ] {
            assert_eq!(
                of(&Policy::tiered("p", tiers).expect("tiers")),
                PLAIN + 1_000
            );
        }
    }

    #[test]
    fn every_policy_of_a_set_and_every_tier_is_checked() {
        let log = |units| SlidingLog::new(Rate::per_day(units));
        let of = |name: &str, units| Policy::new(name, log(units)).expect("a policy").into();
        let refused = |tree: PolicyTree| check(&PolicySet::new(tree).expect("a set")).err();
        assert!(refused(PolicyTree::All(vec![of("a", 10_000), of("b", 10_000)])).is_none());
        let error = refused(PolicyTree::All(vec![of("a", 10_000), of("b", 10_001)]))
            .expect("one is too large");
        assert_eq!(error.policy(), Some("b"));
        let tiers = Policy::tiered("p", [("few", log(5)), ("many", log(10_001))]).expect("tiers");
        assert_eq!(
            refused(tiers.into()).expect("a tier is too large").policy(),
            Some("p")
        );
    }
}

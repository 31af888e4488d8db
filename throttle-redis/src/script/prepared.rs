//! A set of policies, prepared for the store: its scripts, the headers of its values, and what a decision costs.

use throttle_core::PolicySet;

use super::Scripts;
use super::server_work;

/// A set as it is in force at one time.
pub(crate) struct Prepared {
    /// Counts changes of parameters in the whole backend.
    pub(crate) epoch: u64,
    /// The set with all its tiers.
    pub(crate) set: PolicySet,
    pub(crate) scripts: Scripts,
    /// The first bytes of the values of each policy.
    pub(crate) headers: Vec<Vec<u8>>,
    /// What a decision about each policy costs the server.
    pub(crate) work: Vec<u32>,
}

impl Prepared {
    /// Prepares the set for requests in these tiers of its policies; missing numbers mean the first tier.
    pub(crate) fn new(epoch: u64, set: PolicySet, tiers: &[u8]) -> Self {
        let header = |policy: &throttle_core::Policy| {
            let mut header = policy.algorithm().tag();
            // No states of other parameters follow.
            header.push(b'0');
            header
        };
        let in_tiers = set.in_tiers(tiers);
        let headers = in_tiers.policies().iter().map(header).collect();
        let work = set.policies().iter().map(server_work::of).collect();
        Self { epoch, work, scripts: Scripts::assemble(&in_tiers), headers, set }
    }
}

#[cfg(test)]
mod tests {
    use throttle_core::{Carry, Policy, Rate, SlidingLog};

    use super::*;

    /// The value may be one of the heaviest tier, whichever tier the request is in.
    #[test]
    fn the_work_of_a_decision_is_that_of_the_heaviest_tier() {
        let log = |units| SlidingLog::new(Rate::per_day(units));
        let tiered = Policy::tiered("p", [("few", log(5)), ("many", log(5_000))], Carry::Keep).expect("tiers");
        let heaviest = server_work::of(&tiered);
        for tier in [0, 1] {
            let set = PolicySet::new(tiered.clone()).expect("a set");
            assert_eq!(Prepared::new(0, set, &[tier]).work, [heaviest], "tier {tier}");
        }
        let light = Policy::new("p", log(5)).expect("a policy");
        assert!(heaviest > server_work::of(&light));
    }
}

//! A set of policies, prepared for the store: its scripts, the headers of its values, and what a
//! decision costs.

use std::borrow::Cow;
use std::sync::Arc;

use throttle_core::backend::Call;
use throttle_core::{Policy, PolicySet};

use super::Scripts;
use super::server_work;

/// What the requests of a set have in common.
pub(crate) struct PreparedSet {
    pub(crate) set: PolicySet,
    pub(crate) scripts: Arc<Scripts>,
    /// The first bytes of the values of each policy, in each of its tiers.
    headers: Vec<Vec<Vec<u8>>>,
    /// What a decision about each policy costs the server.
    pub(crate) work: Vec<u32>,
}

impl PreparedSet {
    pub(crate) fn new(set: PolicySet) -> Self {
        // A policy without tiers counts as one with a single tier.
        let tiers = |policy: &Policy| (0..=u8::MAX).take(policy.tiers().count().max(1));
        let in_tiers = |policy: &Policy| {
            tiers(policy)
                .map(|tier| policy.tier(tier).algorithm().tag())
                .collect()
        };
        let headers = set.policies().iter().map(in_tiers).collect();
        let work = set.policies().iter().map(server_work::of).collect();
        Self {
            work,
            scripts: Scripts::of(&set),
            headers,
            set,
        }
    }

    /// The tier of a call of a policy, by its index. An unknown number stands for the first.
    pub(crate) fn tier(&self, index: usize, call: &Call) -> u8 {
        if usize::from(call.tier()) < self.headers[index].len() {
            call.tier()
        } else {
            0
        }
    }

    /// The first bytes of the values that a call of a policy writes, by its index.
    pub(crate) fn header(&self, index: usize, call: &Call) -> Cow<'_, [u8]> {
        match call.own() {
            Some(own) => Cow::Owned(own.tag()),
            None => Cow::Borrowed(&self.headers[index][usize::from(self.tier(index, call))]),
        }
    }
}

#[cfg(test)]
mod tests {
    use throttle_core::{Key, Rate, SlidingLog};

    use super::*;

    /// The value may be one of the heaviest tier, whichever tier the request is in.
    #[test]
    fn the_work_of_a_decision_is_that_of_the_heaviest_tier() {
        let log = |units| SlidingLog::new(Rate::per_day(units));
        let tiered = Policy::tiered("p", [("few", log(5)), ("many", log(5_000))]).expect("tiers");
        let heaviest = server_work::of(&tiered);
        assert_eq!(
            PreparedSet::new(PolicySet::new(tiered).expect("a set")).work,
            [heaviest]
        );
        let light = Policy::new("p", log(5)).expect("a policy");
        assert!(heaviest > server_work::of(&light));
    }

    #[test]
    fn a_request_names_the_parameters_that_decide_it() {
        let log = |units| SlidingLog::new(Rate::per_day(units));
        let tiered = Policy::tiered("p", [("few", log(5)), ("many", log(500))]).expect("tiers");
        let own = tiered.own(log(50)).expect("parameters");
        let tags = [0, 1].map(|tier| tiered.tier(tier).algorithm().tag());
        let prepared = PreparedSet::new(PolicySet::new(tiered).expect("a set"));
        let call = || Call::from(Key::from("ada"));
        for (call, header) in [
            (call(), &tags[0]),
            (call().in_tier(1), &tags[1]),
            (call().in_tier(2), &tags[0]),
            (call().under(own.clone()), &own.tag()),
        ] {
            assert_eq!(*prepared.header(0, &call), **header, "{call:?}");
        }
    }
}

//! The question that one request sends to the store.

use std::borrow::Cow;
use std::sync::Arc;

use smallvec::SmallVec;
use throttle_core::backend::Call;
use throttle_core::{ConfigError, Timestamp};

use super::prepared_set::PreparedSet;
use super::server_work;

/// The number of the tier for each policy.
pub(crate) type Tiers = SmallVec<[u8; 8]>;

/// One request's question about one set.
#[derive(Clone)]
pub(crate) struct Ask {
    pub(crate) prepared: Arc<PreparedSet>,
    /// One call per policy.
    pub(crate) calls: SmallVec<[Call; 3]>,
    /// The names of the keys of the policies that apply.
    pub(crate) names: SmallVec<[Vec<u8>; 3]>,
    pub(crate) slot: u16,
    /// An instant that has passed, by the server's clock, for a request that was due then.
    pub(crate) as_of: Option<Timestamp>,
}

impl Ask {
    /// Refuses parameters of a key's own by which one decision would keep the server busy for too
    /// long.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let mut policies = self.calls.iter().zip(self.prepared.set.policies());
        policies.try_for_each(|(call, policy)| {
            call.own()
                .map_or(Ok(()), |own| server_work::check_one(policy, own))
        })
    }

    /// The name of one of the keys.
    pub(crate) fn name(&self) -> &[u8] {
        self.names.first().map_or(&[], Vec::as_slice)
    }

    /// What the decision costs the server, in microseconds.
    pub(crate) fn work(&self) -> u32 {
        let asked = self
            .calls
            .iter()
            .zip(&self.prepared.work)
            .filter(|(call, _)| call.key().is_some());
        let work = |(call, work): (&Call, &u32)| {
            call.own()
                .map_or(0, |own| server_work::of_one(own))
                .max(*work)
        };
        asked.map(work).fold(0, u32::saturating_add)
    }

    /// The headers of the parameters to decide by.
    pub(crate) fn headers(&self) -> impl Iterator<Item = Cow<'_, [u8]>> {
        self.calls
            .iter()
            .enumerate()
            .map(|(index, call)| self.prepared.header(index, call))
    }

    /// The tiers, which requests in one call have in common; `None` for a request with parameters
    /// of a key's own, which has a call of its own.
    pub(crate) fn tiers(&self) -> Option<Tiers> {
        let tier = |(index, call): (usize, &Call)| {
            call.own()
                .is_none()
                .then(|| self.prepared.tier(index, call))
        };
        self.calls.iter().enumerate().map(tier).collect()
    }

    /// Whether no other parameters than the policies' only ones decide.
    pub(crate) fn is_plain(&self) -> bool {
        !self.prepared.set.is_tiered() && self.calls.iter().all(|call| call.own().is_none())
    }

    /// One word per policy: the cost, negative if it is not charged, or nothing where the policy
    /// does not apply.
    fn costs(&self) -> impl Iterator<Item = CostText> + '_ {
        self.calls.iter().map(|call| match call.key() {
            Some(_) if peeks_with_a_cost(call) => {
                let mut text = cost_text(call.cost());
                text.insert(0, b'-');
                text
            }
            Some(_) => cost_text(call.cost()),
            None => CostText::new(),
        })
    }
}

fn peeks_with_a_cost(call: &Call) -> bool {
    call.is_peek() && call.cost() > 0
}

/// The words that say what some requests cost. If one of them has a reserve or peeks with a cost,
/// they begin with [`RESERVES`], and each request's costs are followed by as many reserves.
pub(crate) fn words<'a>(
    asks: impl Iterator<Item = &'a Ask> + Clone,
) -> impl Iterator<Item = CostText> {
    let is_unusual = |call: &Call| call.reserve() > 0 || peeks_with_a_cost(call);
    let has_reserves = asks.clone().any(|ask| ask.calls.iter().any(is_unusual));
    let each = asks.flat_map(move |ask| {
        let reserves = || ask.calls.iter().map(|call| cost_text(call.reserve()));
        ask.costs()
            .chain(has_reserves.then(reserves).into_iter().flatten())
    });
    has_reserves
        .then(|| CostText::from_slice(RESERVES))
        .into_iter()
        .chain(each)
}

/// Not a cost, and so nothing that the texts for usual calls take.
const RESERVES: &[u8] = b"r";

pub(crate) type CostText = SmallVec<[u8; 20]>;

/// 2^53, more than any capacity: a greater cost is refused just the same, and would not be exact as
/// a double.
pub(crate) const MOST: u64 = 1 << 53;

pub(crate) fn cost_text(cost: u64) -> CostText {
    match cost {
        0..=9 => SmallVec::from_slice(&[b'0' + cost as u8]),
        _ => SmallVec::from_slice(cost.min(MOST).to_string().as_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use throttle_core::{Gcra, Key, Policy, PolicySet, PolicyTree, Rate, SlidingLog};

    use super::*;

    #[test]
    fn a_policy_that_does_not_apply_costs_the_server_nothing() {
        let light = Policy::new("light", Gcra::new(Rate::per_day(9))).expect("a policy");
        let heavy = Policy::new("heavy", SlidingLog::new(Rate::per_day(5_000))).expect("a policy");
        let (small, large) = (server_work::of(&light), server_work::of(&heavy));
        let set = PolicySet::new(PolicyTree::All(vec![light.into(), heavy.into()])).expect("a set");
        let prepared = Arc::new(PreparedSet::new(set));
        let work = |calls: [Call; 2]| {
            let (prepared, names) = (Arc::clone(&prepared), SmallVec::new());
            Ask {
                prepared,
                calls: calls.into_iter().collect(),
                names,
                slot: 0,
                as_of: None,
            }
            .work()
        };
        let call = || Call::from(Key::from("ada"));
        assert_eq!(work([call(), call()]), small + large);
        assert_eq!(work([call(), Call::SKIP]), small);
        assert_eq!(work([Call::SKIP, Call::peek(Key::from("ada"))]), large);
    }

    #[test]
    fn a_cost_beyond_what_a_script_counts_exactly_is_cut() {
        let texts = [0, 9, 10, MOST - 1, MOST, MOST + 1, u64::MAX].map(cost_text);
        let most = b"9007199254740992".as_slice();
        assert_eq!(
            texts.each_ref().map(|text| text.as_slice()),
            [
                b"0".as_slice(),
                b"9",
                b"10",
                b"9007199254740991",
                most,
                most,
                most
            ]
        );
    }
}

//! The ways in which a request may be let in, where an `any` has limits on rates beside limits on requests in flight.
//!
//! No store holds both, to choose between them in one step. So each way is tried as a whole, in the order given: what it
//! leaves out does not apply to that attempt, and what refuses it has charged nothing.

use std::ops::Range;

use smallvec::SmallVec;
use throttle_core::{AnyCharge, Call, ConfigError};

use crate::throttle::Needs;

#[derive(Clone, Debug)]
pub(crate) enum Ways {
    /// Decided in one step.
    One(Leaves),
    /// One of each.
    All(Vec<Ways>),
    /// One of them.
    Any(Vec<Ways>),
}

/// Limits of a part of the composition. They are numbered in the order in which they stand in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Leaves {
    pub(crate) policies: Range<usize>,
    pub(crate) gates: Range<usize>,
}

/// What one attempt asks.
type Way<'a> = Vec<&'a Leaves>;

/// Each is a question to the store.
const MOST: usize = 16;

impl Ways {
    /// Nothing if they can be decided in one step.
    pub(crate) fn all(members: Vec<Self>) -> Option<Self> {
        let in_one_step = members.iter().all(|member| matches!(member, Self::One(_)));
        (!in_one_step).then_some(Self::All(members))
    }

    /// # Errors
    ///
    /// If every member is to be charged: there is no step in which all of them are known to admit.
    pub(crate) fn any(members: Vec<Self>, charge: AnyCharge) -> Result<Self, ConfigError> {
        if charge != AnyCharge::First {
            let rule = "an any(...) of Concurrency and other limits charges the first that admits; leave \
                        charge_every_admitting() out, or put the Concurrency into an all(...) around it";
            return Err(ConfigError::new("any", "of Concurrency and other limits", rule));
        }
        let mut grouped: Vec<Self> = Vec::new();
        for member in members {
            match (grouped.last_mut(), member) {
                (Some(Self::One(before)), Self::One(next)) if before.is_of_one_kind_with(&next) => {
                    (before.policies.end, before.gates.end) = (next.policies.end, next.gates.end);
                }
                (_, member) => grouped.push(member),
            }
        }
        Ok(Self::Any(grouped))
    }

    /// Nothing if there is but one.
    ///
    /// # Errors
    ///
    /// If there are too many.
    pub(crate) fn check(self) -> Result<Option<Self>, ConfigError> {
        let count = self.count();
        if count > MOST {
            let rule = format!(
                "limits in which any(...) mixes Concurrency with others may admit a request in {MOST} ways at most, because \
                 they are tried one after the other; nest fewer of them"
            );
            return Err(ConfigError::new("any", format_args!("{count} ways"), rule));
        }
        Ok((count > 1).then_some(self))
    }

    fn count(&self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::All(members) => members.iter().map(Self::count).fold(1, usize::saturating_mul),
            Self::Any(members) => members.iter().map(Self::count).fold(0, usize::saturating_add),
        }
    }

    /// The questions that a request may be let in by, in order; none if nothing applies to it.
    pub(crate) fn questions<'a>(
        &'a self,
        calls: &'a [Call],
        needs: &'a Needs,
    ) -> impl Iterator<Item = (SmallVec<[Call; 3]>, Needs)> + 'a {
        let ways = self.of(calls, needs).unwrap_or_default();
        ways.into_iter().map(move |way| {
            let asks = |policy: usize| way.iter().any(|leaves| leaves.policies.contains(&policy));
            let needed = |gate: usize| way.iter().any(|leaves| leaves.gates.contains(&gate));
            let call = |(place, call): (usize, &Call)| if asks(place) { call.clone() } else { Call::SKIP };
            let need = |(place, need): (usize, &_)| Option::clone(need).filter(|_| needed(place));
            (calls.iter().enumerate().map(call).collect(), needs.iter().enumerate().map(need).collect())
        })
    }

    /// What does not apply to the request is no member: of an `any` of others, it would be a way in for nothing.
    fn of<'a>(&'a self, calls: &[Call], needs: &Needs) -> Option<Vec<Way<'a>>> {
        match self {
            Self::One(leaves) => leaves.applies(calls, needs).then(|| vec![vec![leaves]]),
            Self::Any(members) => {
                let ways: Vec<_> = members.iter().filter_map(|member| member.of(calls, needs)).flatten().collect();
                (!ways.is_empty()).then_some(ways)
            }
            Self::All(members) => members.iter().filter_map(|member| member.of(calls, needs)).reduce(|all, next| {
                let together = |way: &Way<'a>, more: &Way<'a>| way.iter().chain(more).copied().collect();
                all.iter().flat_map(|way| next.iter().map(move |more| together(way, more))).collect()
            }),
        }
    }
}

impl Leaves {
    fn applies(&self, calls: &[Call], needs: &Needs) -> bool {
        calls[self.policies.clone()].iter().any(|call| call.key().is_some())
            || needs[self.gates.clone()].iter().any(Option::is_some)
    }

    /// Whether both are limits on rates, or both are not.
    fn is_of_one_kind_with(&self, next: &Self) -> bool {
        (self.gates.is_empty() && next.gates.is_empty()) || (self.policies.is_empty() && next.policies.is_empty())
    }
}

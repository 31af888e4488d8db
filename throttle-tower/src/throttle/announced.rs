//! What responses say about the policies of a layer, as far as it can be written before the request.

use std::borrow::Cow;
use std::num::NonZeroU32;
use std::sync::Arc;

use bytes::Bytes;
use smallvec::{SmallVec, smallvec};
use throttle_core::backend::Call;
use throttle_core::{Algorithm, DecidedBy, Decision, Policy, PolicySet, Status};

use super::response_options::ResponseOptions;
use crate::headers::policy_header::PolicyHeader;
use crate::headers::policy_status::PolicyTerms;
use crate::headers::quota::Quota;
use crate::headers::structured;
use crate::headers::{Dialect, Problem};

#[derive(Clone)]
pub(crate) struct Announced {
    pub(super) policies: Arc<[Policy]>,
    /// What each policy announces: computing it takes longer than writing a header.
    terms: Arc<[Terms]>,
    /// What a request with parameters of its own is announced, by the places of their policies.
    own: SmallVec<[(usize, Quota); 1]>,
    /// The policies with the parameters of this process's share, if it has one.
    share: Option<Arc<[Policy]>>,
    policy_header: PolicyHeader,
    /// The same where the only policy with tiers is in another than the first, by its place and tier.
    tier_headers: Option<(usize, Arc<[PolicyHeader]>)>,
    problems: Arc<Problems>,
    pub(crate) options: ResponseOptions,
}

impl Announced {
    pub(super) fn new(policies: &[Policy], options: ResponseOptions) -> Self {
        Self {
            policies: policies.into(),
            terms: policies.iter().map(Terms::of).collect(),
            own: SmallVec::new(),
            share: None,
            policy_header: policy_header(options.dialect, policies.iter()),
            tier_headers: tier_headers(options.dialect, policies),
            problems: Arc::new(Problems::new(policies)),
            options,
        }
    }

    /// The problem document of a decision.
    pub(super) fn problem(&self, decision: &Decision) -> Bytes {
        let statuses = decision.statuses();
        let violated = statuses.iter().enumerate().filter(|(_, status)| status.is_violated()).map(|(policy, _)| policy);
        let written = match violated.clone().count() {
            1 => violated.clone().next().and_then(|policy| self.problems.alone.get(policy)),
            some if some == self.policies.len() => Some(&self.problems.all),
            _ => None,
        };
        match written {
            Some(body) => body.clone(),
            None => Problem::QuotaExceeded.body(violated.filter_map(|policy| Some(self.policies.get(policy)?.name()))),
        }
    }

    /// The policy whose rate a status goes by: the share's, where this process has decided.
    #[inline]
    pub(super) fn paced_by<'a>(&'a self, place: usize, policy: &'a Policy, status: &Status) -> &'a Policy {
        match (status.decided_by(), &self.share) {
            (DecidedBy::Local(_), Some(share)) => share.get(place).unwrap_or(policy),
            _ => policy,
        }
    }

    pub(super) fn set_share(&mut self, share: Option<&PolicySet>) {
        self.share = share.map(|share| share.policies().into());
    }

    /// The same for a request with parameters of its own. Where this process has decided it, a limit's share is that of
    /// one of its `processes`.
    #[cold]
    pub(super) fn under(
        &self,
        decision: &Decision,
        calls: &[Call],
        processes: impl Fn(usize) -> Option<NonZeroU32>,
    ) -> Self {
        let under = |policies: &[Policy], own: &dyn Fn(usize, &Algorithm) -> Algorithm| -> Arc<[Policy]> {
            let one = |(place, (policy, call)): (usize, (&Policy, &Call))| {
                call.own().map_or_else(|| policy.clone(), |parameters| policy.under(&own(place, parameters)))
            };
            policies.iter().zip(calls).enumerate().map(one).collect()
        };
        let share = |place, own: &Algorithm| processes(place).map_or(*own, |processes| own.share(processes));
        let local = self.share.as_ref().filter(|_| matches!(decision.decided_by(), DecidedBy::Local(_)));
        let quotas = calls.iter().enumerate().filter_map(|(place, call)| Some((place, Quota::of(call.own()?))));
        Self {
            policies: under(&self.policies, &|_, own| *own),
            own: quotas.collect(),
            share: local.map(|policies| under(policies, &share)),
            ..self.clone()
        }
    }

    /// What the policy at a place announces to a request of a tier.
    #[inline]
    pub(super) fn terms(&self, place: usize, tier: u8) -> PolicyTerms<'_> {
        let terms = &self.terms[place];
        let own = || self.own.iter().find(|(own, _)| *own == place).map(|(_, quota)| quota);
        let quota = terms.quotas.get(usize::from(tier)).or_else(own).unwrap_or(&terms.quotas[0]);
        terms.of_policy(&self.policies[place], quota)
    }

    pub(super) fn set_dialect(&mut self, dialect: Dialect) {
        self.options.dialect = dialect;
        self.policy_header = policy_header(dialect, self.policies.iter());
        self.tier_headers = tier_headers(dialect, &self.policies);
    }

    /// The policy list of a response where all policies apply, each in the tier of the request, if it was written
    /// before.
    #[inline]
    pub(super) fn policy_header(&self, decision: &Decision) -> Option<&PolicyHeader> {
        let statuses = decision.statuses();
        match &self.tier_headers {
            None => statuses.iter().all(|status| status.applies() && status.tier() == 0).then_some(&self.policy_header),
            Some((place, headers)) if statuses.iter().all(Status::applies) => {
                headers.get(usize::from(statuses.get(*place)?.tier()))
            }
            Some(_) => None,
        }
    }
}

/// A policy under the parameters of a call.
pub(crate) fn under<'a>(policy: &'a Policy, call: &Call) -> Cow<'a, Policy> {
    call.own().map_or_else(|| Cow::Borrowed(policy.tier(call.tier())), |own| Cow::Owned(policy.under(own)))
}

/// The bodies of nearly all refusals: where one policy refuses alone, and where all refuse together.
struct Problems {
    alone: Box<[Bytes]>,
    all: Bytes,
}

impl Problems {
    fn new(policies: &[Policy]) -> Self {
        let alone = policies.iter().map(|policy| shared(Problem::QuotaExceeded.body([policy.name()]))).collect();
        Self { alone, all: shared(Problem::QuotaExceeded.body(policies.iter().map(Policy::name))) }
    }
}

/// Clones them once: the first clone of bytes allocates their reference count.
fn shared(bytes: Bytes) -> Bytes {
    drop(bytes.clone());
    bytes
}

fn policy_header<'a>(dialect: Dialect, policies: impl Iterator<Item = &'a Policy>) -> PolicyHeader {
    let announced: Vec<(&Policy, Terms)> = policies.map(|policy| (policy, Terms::of(policy))).collect();
    PolicyHeader::new(dialect, announced.iter().map(|(policy, terms)| terms.of_policy(policy, &terms.quotas[0])))
}

/// The announced policies for each tier of the only policy that has any.
fn tier_headers(dialect: Dialect, policies: &[Policy]) -> Option<(usize, Arc<[PolicyHeader]>)> {
    let mut tiered = policies.iter().enumerate().filter(|(_, policy)| policy.is_tiered());
    let (Some((place, only)), None) = (tiered.next(), tiered.next()) else { return None };
    let in_tier = |tier: &Policy| {
        let each = policies
            .iter()
            .enumerate()
            .map(|(other, policy)| if other == place { tier.clone() } else { policy.clone() });
        policy_header(dialect, each.collect::<Vec<_>>().iter())
    };
    Some((place, only.tiers().map(|(_, tier)| in_tier(tier)).collect()))
}

/// What a policy announces, but for what the policy itself can be asked.
struct Terms {
    /// Quoted.
    name: Box<[u8]>,
    /// In each tier; one for a policy without tiers.
    quotas: SmallVec<[Quota; 1]>,
}

impl Terms {
    fn of(policy: &Policy) -> Self {
        let quotas = if policy.is_tiered() {
            policy.tiers().map(|(_, tier)| Quota::of(tier.algorithm())).collect()
        } else {
            smallvec![Quota::of(policy.algorithm())]
        };
        Self { name: structured::quoted(policy.name()), quotas }
    }

    #[inline]
    fn of_policy<'a>(&'a self, policy: &'a Policy, quota: &'a Quota) -> PolicyTerms<'a> {
        PolicyTerms { name: &self.name, quota, unit: policy.unit() }
    }
}

//! What responses say about the policies of a layer, as far as it can be written before the request.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use smallvec::{SmallVec, smallvec};
use throttle_core::{DecidedBy, Decision, Policy, PolicySet, Status};

use super::response_options::ResponseOptions;
use crate::headers::policy_header::PolicyHeader;
use crate::headers::policy_status::PolicyTerms;
use crate::headers::quota::Quota;
use crate::headers::structured;
use crate::headers::{Dialect, Problem};
use crate::lock::lock;

#[derive(Clone)]
pub(crate) struct Announced {
    pub(super) policies: Arc<[Policy]>,
    /// What each policy announces: computing it takes longer than writing a header.
    terms: Arc<[Terms]>,
    /// The policies with the numbers of this process's share, if it has one.
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

    /// What the policy at a place announces to a request of a tier.
    #[inline]
    pub(super) fn terms(&self, place: usize, tier: u8) -> PolicyTerms<'_> {
        self.terms[place].of_policy(&self.policies[place], tier)
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

/// What is announced once another layer has replaced limits of this one: by the parameters in force.
#[derive(Default)]
pub(crate) struct Replaced(Mutex<Option<Written>>);

struct Written {
    own: Arc<Announced>,
    in_force: Arc<PolicySet>,
    announced: Arc<Announced>,
}

impl Replaced {
    /// Written once for each set in force, and again when the layer's own options change.
    #[cold]
    pub(super) fn announced(&self, own: &Arc<Announced>, in_force: Arc<PolicySet>) -> Arc<Announced> {
        let mut written = lock(&self.0);
        if let Some(written) = &*written
            && Arc::ptr_eq(&written.own, own)
            && Arc::ptr_eq(&written.in_force, &in_force)
        {
            return Arc::clone(&written.announced);
        }
        let new = Announced::new(in_force.policies(), own.options.clone());
        let announced = Arc::new(Announced { share: own.share.clone(), ..new });
        *written = Some(Written { own: Arc::clone(own), in_force, announced: Arc::clone(&announced) });
        announced
    }
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
    PolicyHeader::new(dialect, announced.iter().map(|(policy, terms)| terms.of_policy(policy, 0)))
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
    fn of_policy<'a>(&'a self, policy: &'a Policy, tier: u8) -> PolicyTerms<'a> {
        let quota = self.quotas.get(usize::from(tier)).unwrap_or(&self.quotas[0]);
        PolicyTerms { name: &self.name, quota, unit: policy.unit() }
    }
}

#[cfg(all(test, feature = "rules"))]
mod tests {
    use throttle_core::{Gcra, Rate};

    use super::*;

    fn set(count: u64) -> Arc<PolicySet> {
        Arc::new(PolicySet::new(Policy::new("p", Gcra::new(Rate::per_minute(count))).unwrap()).unwrap())
    }

    fn own(count: u64) -> Arc<Announced> {
        Arc::new(Announced::new(set(count).policies(), ResponseOptions::default()))
    }

    #[test]
    fn numbers_in_force_are_written_once_for_each_set_and_again_for_other_options() {
        let (replaced, ours, in_force) = (Replaced::default(), own(1), set(2));
        let first = replaced.announced(&ours, Arc::clone(&in_force));
        assert_eq!(*first.policies, *in_force.policies());
        let is_first = |own, in_force| Arc::ptr_eq(&first, &replaced.announced(own, in_force));
        assert!(is_first(&ours, Arc::clone(&in_force)));
        assert!(!is_first(&own(1), Arc::clone(&in_force)), "other options");
        let third = set(3);
        assert_eq!(*replaced.announced(&ours, Arc::clone(&third)).policies, *third.policies());
    }
}

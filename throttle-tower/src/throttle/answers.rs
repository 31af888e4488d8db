use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};
use smallvec::{SmallVec, smallvec};
use throttle_core::{DecidedBy, Decision, Key, Policy, PolicySet, Status};

use super::local_shares::{LocalStore, Shares};
use super::steps::wait_queue::DEFAULT_MAX_HELD;
use super::warning::Watch;
use super::{Event, Refusal};
use crate::OnError;
use crate::headers::policy_header::PolicyHeader;
use crate::headers::policy_status::PolicyTerms;
use crate::headers::quota::Quota;
use crate::headers::{Dialect, Problem};
use crate::jitter;
use crate::lock::lock;
use crate::usage::Background;

/// What answers are made of, whichever backend decides.
#[derive(Clone)]
pub(crate) struct Answers {
    pub(crate) policies: Arc<[Policy]>,
    /// What each policy announces, in each of its tiers: computing it takes longer than to write a header.
    quotas: Arc<[Quotas]>,
    /// What this process decides by when the store does not, if a limit says so.
    pub(crate) share: Option<Shares>,
    pub(crate) options: Options,
    pub(crate) policy_field: PolicyHeader,
    /// The same where the only policy with tiers is in another than the first, by its place and tier.
    tier_fields: Option<(usize, Arc<[PolicyHeader]>)>,
    problems: Arc<Problems>,
}

impl Answers {
    pub(super) fn new(policies: &[Policy], options: Options) -> Self {
        let tier_fields = tier_fields(options.dialect, policies);
        let policy_field = policy_field(options.dialect, policies.iter());
        Self {
            policies: policies.into(),
            quotas: policies.iter().map(quotas).collect(),
            share: None,
            options,
            policy_field,
            tier_fields,
            problems: Arc::new(Problems::new(policies)),
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

    /// The policy whose rate a status goes by: of one that this process has decided about it is the share's.
    #[inline]
    pub(super) fn paced_by<'a>(&'a self, place: usize, policy: &'a Policy, status: &Status) -> &'a Policy {
        match (status.decided_by(), &self.share) {
            (DecidedBy::Local(_), Some(share)) => share.set().policies().get(place).unwrap_or(policy),
            _ => policy,
        }
    }

    /// What the policy at a place announces to a request of a tier.
    #[inline]
    pub(super) fn terms(&self, place: usize, tier: u8) -> PolicyTerms<'_> {
        let (policy, quotas) = (self.policies[place].tier(tier), &self.quotas[place]);
        let quota = *quotas.get(usize::from(tier)).unwrap_or(&quotas[0]);
        PolicyTerms { name: policy.name(), quota, unit: policy.unit() }
    }

    pub(super) fn set_dialect(&mut self, dialect: Dialect) {
        self.options.dialect = dialect;
        self.policy_field = policy_field(dialect, self.policies.iter());
        self.tier_fields = tier_fields(dialect, &self.policies);
    }

    /// The announced policies where all of them apply, if that was written before: each in the tier of the request.
    #[inline]
    pub(super) fn announced(&self, decision: &Decision) -> Option<&PolicyHeader> {
        match &self.tier_fields {
            None => decision.statuses().iter().all(|status| status.tier() == 0).then_some(&self.policy_field),
            Some((place, fields)) => fields.get(usize::from(decision.statuses().get(*place)?.tier())),
        }
    }
}

/// The answers of a layer whose limits another one has replaced: of the parameters in force.
#[derive(Default)]
pub(crate) struct Replaced(Mutex<Option<(Arc<PolicySet>, Arc<Answers>)>>);

impl Replaced {
    /// Made once for each set in force.
    #[cold]
    pub(super) fn answers(&self, own: &Answers, set: Arc<PolicySet>) -> Arc<Answers> {
        let mut made = lock(&self.0);
        if let Some((of, answers)) = &*made
            && Arc::ptr_eq(of, &set)
        {
            return Arc::clone(answers);
        }
        let answers = Answers { share: own.share.clone(), ..Answers::new(set.policies(), own.options.clone()) };
        let answers = Arc::new(answers);
        *made = Some((set, Arc::clone(&answers)));
        answers
    }
}

/// The bodies of nearly all refusals, written once: of a policy that refuses alone, and of all together.
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

/// The first clone of bytes allocates their reference count; make that ours rather than a request's.
fn shared(bytes: Bytes) -> Bytes {
    drop(bytes.clone());
    bytes
}

fn policy_field<'a>(dialect: Dialect, policies: impl Iterator<Item = &'a Policy>) -> PolicyHeader {
    PolicyHeader::new(dialect, policies.map(terms))
}

/// The announced policies for each tier of the only policy that has any.
fn tier_fields(dialect: Dialect, policies: &[Policy]) -> Option<(usize, Arc<[PolicyHeader]>)> {
    let mut tiered = policies.iter().enumerate().filter(|(_, policy)| policy.is_tiered());
    let (Some((place, only)), None) = (tiered.next(), tiered.next()) else { return None };
    let in_tier = |tier: &Policy| {
        let each = policies
            .iter()
            .enumerate()
            .map(|(other, policy)| if other == place { tier.clone() } else { policy.clone() });
        policy_field(dialect, each.collect::<Vec<_>>().iter())
    };
    Some((place, only.tiers().map(|(_, tier)| in_tier(tier)).collect()))
}

type Quotas = SmallVec<[Quota; 1]>;

/// One for a policy without tiers.
fn quotas(policy: &Policy) -> Quotas {
    if policy.is_tiered() {
        policy.tiers().map(|(_, tier)| Quota::of(tier.algorithm())).collect()
    } else {
        smallvec![Quota::of(policy.algorithm())]
    }
}

fn terms(policy: &Policy) -> PolicyTerms<'_> {
    PolicyTerms { name: policy.name(), quota: Quota::of(policy.algorithm()), unit: policy.unit() }
}

/// What a user can change once the layer is built.
#[derive(Clone)]
pub(crate) struct Options {
    pub(crate) dialect: Dialect,
    pub(crate) response: Option<BuildResponse>,
    pub(crate) on_decision: Option<Hook>,
    pub(crate) watch: Watch,
    pub(crate) hide_fields: Option<HideFields>,
    pub(crate) on_error: Option<OnError>,
    pub(crate) local_store: Option<LocalStore>,
    pub(crate) jitter: Option<Jitter>,
    pub(crate) report_in_response: bool,
    pub(crate) background: Background,
    /// Most requests that are held at once.
    pub(crate) max_held: usize,
}

type BuildResponse = Arc<dyn Fn(&Refusal<'_>) -> Response<Bytes> + Send + Sync>;
type Hook = Arc<dyn Fn(&Event<'_>) + Send + Sync>;
type HideFields = Arc<dyn Fn(StatusCode, &HeaderMap) -> bool + Send + Sync>;

impl Default for Options {
    fn default() -> Self {
        Self {
            dialect: Dialect::default(),
            response: None,
            on_decision: None,
            watch: Watch::default(),
            hide_fields: None,
            on_error: None,
            local_store: None,
            jitter: None,
            report_in_response: true,
            background: Background::default(),
            max_held: DEFAULT_MAX_HELD,
        }
    }
}

/// Lengthens waits by a share that depends on the key alone, so that those who were refused together do not come back
/// together.
#[derive(Clone)]
pub(crate) struct Jitter {
    pub(crate) percent: u8,
    pub(crate) secret: RandomState,
}

impl Jitter {
    pub(super) fn lengthen(&self, wait_us: u64, key: &Key) -> u64 {
        jitter::lengthen(wait_us, self.percent, self.secret.hash_one(key))
    }
}

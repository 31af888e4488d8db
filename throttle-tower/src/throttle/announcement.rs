//! What responses say about the policies of a layer, as far as it can be written before the
//! request.

use std::borrow::Cow;
use std::num::NonZeroU32;
use std::sync::Arc;

use bytes::Bytes;
use http::HeaderValue;
use smallvec::SmallVec;
use throttle_core::backend::Call;
use throttle_core::{Algorithm, DecidedBy, Decision, Policy, PolicySet, Status};

use super::peek_states::PeekStates;
use super::response_options::ResponseOptions;
use crate::event::LayerInfo;
use crate::headers::form::DialectForm;
use crate::headers::policy_lists::PolicyLists;
use crate::headers::policy_status::{PolicyStatus, PolicyTerms};
use crate::headers::{Dialect, Problem};
use crate::limit::{Audit, LimitSettings};

#[derive(Clone)]
pub(crate) struct Announcement {
    pub(super) policies: Arc<[Policy]>,
    /// What each policy announces in each tier; once for a policy without tiers.
    terms: Arc<[InTiers]>,
    /// The same for requests of classes that have a reserve.
    reserving: Arc<[ByReserve]>,
    /// What a request with parameters of its own is announced, by the indices of their policies.
    own: SmallVec<[(usize, PolicyTerms); 1]>,
    /// The policies with the parameters of this process's share, if it has one.
    share: Option<Arc<[Policy]>>,
    lists: Arc<PolicyLists>,
    problems: Arc<Problems>,
    /// What each limit says, by the index of its policy. Empty without a layer.
    pub(super) limits: Arc<[LimitSettings]>,
    pub(crate) options: ResponseOptions,
    /// That of the dialect.
    pub(super) form: &'static DialectForm,
    /// The index of each policy's limit in the layer. Empty if the limits are the policies.
    pub(super) limit_indices: Arc<[usize]>,
    /// The limits of the layer.
    pub(super) info: LayerInfo,
    /// What a peek has found.
    pub(super) peek: Option<Arc<PeekStates>>,
}

type InTiers = Arc<[PolicyTerms]>;
type ByReserve = Box<[(u64, InTiers)]>;

impl Announcement {
    pub(super) fn new(
        policies: &[Policy],
        limits: Arc<[LimitSettings]>,
        options: ResponseOptions,
    ) -> Self {
        let mut numbers = 0..;
        let mut in_tiers = |policy: &Policy, class| -> InTiers {
            let mut terms = |policy: &Policy| {
                PolicyTerms::of(policy, numbers.next().unwrap_or_default(), class)
            };
            match policy.is_tiered() {
                true => policy.tiers().map(|(_, tier)| terms(tier)).collect(),
                false => Arc::from([terms(policy)]),
            }
        };
        let (mut terms, mut reserving) = (Vec::new(), Vec::new());
        for (index, policy) in policies.iter().enumerate() {
            let priority = limits.get(index).and_then(|limit| limit.priority.as_ref());
            let all = priority
                .map_or(&[][..], |priority| priority.classes())
                .iter()
                .map(|(name, reserve)| (Some(&**name), *reserve));
            terms.push(in_tiers(
                policy,
                all.clone()
                    .find(|(_, reserve)| *reserve == 0)
                    .unwrap_or_default(),
            ));
            let lower = all.filter(|(_, reserve)| *reserve > 0);
            reserving.push(
                lower
                    .map(|class| (class.1, in_tiers(policy, class)))
                    .collect(),
            );
        }
        Self {
            terms: terms.into(),
            reserving: reserving.into(),
            policies: policies.into(),
            own: SmallVec::new(),
            share: None,
            lists: Arc::default(),
            problems: Arc::new(Problems::new(policies)),
            limits,
            form: options.dialect.form(),
            options,
            limit_indices: Arc::default(),
            info: LayerInfo::of_policies(&[]),
            peek: None,
        }
    }

    /// The problem document of a decision.
    pub(super) fn problem(&self, decision: &Decision) -> Bytes {
        let statuses = decision.statuses();
        let violated = statuses
            .iter()
            .enumerate()
            .filter(|(_, status)| status.is_violated())
            .map(|(policy, _)| policy);
        let written = match violated.clone().count() {
            1 => violated
                .clone()
                .next()
                .and_then(|policy| self.problems.alone.get(policy)),
            some if some == self.policies.len() => Some(&self.problems.all),
            _ => None,
        };
        match written {
            Some(body) => body.clone(),
            None => Problem::QuotaExceeded
                .body(violated.filter_map(|policy| Some(self.policies.get(policy)?.name()))),
        }
    }

    /// The policy whose rate a status goes by: the share's, where this process has decided.
    #[inline]
    pub(super) fn paced_by<'a>(
        &'a self,
        index: usize,
        policy: &'a Policy,
        status: &Status,
    ) -> &'a Policy {
        match (status.decided_by(), &self.share) {
            (DecidedBy::Local(_), Some(share)) => share.get(index).unwrap_or(policy),
            _ => policy,
        }
    }

    pub(super) fn set_share(&mut self, share: &PolicySet) {
        self.share = Some(share.policies().into());
    }

    /// The same for a request with parameters of its own or in classes with a reserve. Where this
    /// process has decided it, a limit's share is that of one of its `processes`.
    #[cold]
    pub(super) fn under(
        &self,
        decision: &Decision,
        calls: &[Call],
        processes: impl Fn(usize) -> Option<NonZeroU32>,
    ) -> Self {
        let in_class = |(index, (terms, call)): (usize, (&InTiers, &Call))| {
            let class = self.reserving[index]
                .iter()
                .find(|(reserve, _)| *reserve == call.reserve());
            Arc::clone(class.map_or(terms, |(_, terms)| terms))
        };
        let terms: Arc<[InTiers]> = self
            .terms
            .iter()
            .zip(calls)
            .enumerate()
            .map(in_class)
            .collect();
        if calls.iter().all(|call| call.own().is_none()) {
            return Self {
                terms,
                ..self.clone()
            };
        }
        let under =
            |policies: &[Policy], own: &dyn Fn(usize, &Algorithm) -> Algorithm| -> Arc<[Policy]> {
                let one = |(index, (policy, call)): (usize, (&Policy, &Call))| {
                    call.own().map_or_else(
                        || policy.clone(),
                        |parameters| policy.under(&own(index, parameters)),
                    )
                };
                policies.iter().zip(calls).enumerate().map(one).collect()
            };
        let share = |index, own: &Algorithm| {
            processes(index).map_or(*own, |processes| own.share(processes))
        };
        let local = self
            .share
            .as_ref()
            .filter(|_| matches!(decision.decided_by(), DecidedBy::Local(_)));
        let policies = under(&self.policies, &|_, own| *own);
        let own = policies
            .iter()
            .zip(calls)
            .enumerate()
            .filter(|(_, (_, call))| call.own().is_some());
        let own_terms = |(index, (policy, call)): (usize, (&Policy, &Call))| {
            (
                index,
                PolicyTerms::of(
                    policy,
                    0,
                    (terms[index][0].class.as_deref(), call.reserve()),
                ),
            )
        };
        Self {
            own: own.map(own_terms).collect(),
            share: local.map(|policies| under(policies, &share)),
            policies,
            terms,
            ..self.clone()
        }
    }

    /// What the policy at an index announces to a request of a tier.
    #[inline]
    pub(super) fn terms(&self, index: usize, tier: u8) -> &PolicyTerms {
        let tiers = &self.terms[index];
        let own = || {
            self.own
                .iter()
                .find(|(own, _)| *own == index)
                .map(|(_, terms)| terms)
        };
        tiers
            .get(usize::from(tier))
            .or_else(own)
            .unwrap_or(&tiers[0])
    }

    /// Whether responses list the policy at an index, by its status: if it applies, and is
    /// enforced or listed.
    #[inline(always)]
    pub(super) fn tells(&self, index: usize, status: &Status) -> bool {
        status.is_enforced()
            || status.is_audited()
                && self
                    .limits
                    .get(index)
                    .is_some_and(|limit| limit.audit == Some(Audit::Announced))
    }

    pub(super) fn set_dialect(&mut self, dialect: Dialect) {
        self.options.dialect = dialect;
        self.form = dialect.form();
        self.lists = Arc::default();
    }

    /// The list of the policies that apply, in the dialect of the layer.
    #[inline(always)]
    pub(super) fn list(&self, applying: &[PolicyStatus<'_>]) -> Option<HeaderValue> {
        let write = || (self.form.policies)(applying);
        // What a request announces with parameters of its own is no other request's.
        match self.own.is_empty() {
            true => self.lists.get(applying, write),
            false => write(),
        }
    }
}

/// A policy under the parameters of a call.
pub(super) fn under<'a>(policy: &'a Policy, call: &Call) -> Cow<'a, Policy> {
    call.own().map_or_else(
        || Cow::Borrowed(policy.tier(call.tier())),
        |own| Cow::Owned(policy.under(own)),
    )
}

/// The bodies of nearly all refusals: where one policy refuses alone, and where all refuse
/// together.
struct Problems {
    alone: Box<[Bytes]>,
    all: Bytes,
}

impl Problems {
    fn new(policies: &[Policy]) -> Self {
        let alone = policies
            .iter()
            .map(|policy| shared(Problem::QuotaExceeded.body([policy.name()])))
            .collect();
        Self {
            alone,
            all: shared(Problem::QuotaExceeded.body(policies.iter().map(Policy::name))),
        }
    }
}

/// Clones them once: the first clone of bytes allocates their reference count.
fn shared(bytes: Bytes) -> Bytes {
    drop(bytes.clone());
    bytes
}

use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{Response, StatusCode};
use smallvec::SmallVec;
use throttle_core::backend::Call;
use throttle_core::{
    Backend, BackendError, BackendErrorKind, ConfigError, Decision, Key, Policy, PolicyName, PolicySet,
};

use super::answers::{Answers, Options, Replaced};
use super::local_shares::Shares;
use super::permits::{Gates, InFlight, Needs, Places};
use super::refusal::{Reason, Refusal, forbid_storing};
use super::steps::decide::Answer;
use super::steps::settle::Wanted;
use super::steps::wait_queue::Lines;
use super::warning::missing_key;
use super::{Event, LimitReport, Outcome};
use crate::limit::{Applied, Found, Keying, LookedUp};
use crate::time::micros;
use crate::usage::{Open, Usage};
use crate::{OnError, OnMissing};

/// Everything that the clones of a layer and its services share.
pub(crate) struct Shared<B: Backend> {
    pub(crate) backend: B,
    pub(crate) prepared: Arc<B::Prepared>,
    pub(crate) applied: Arc<[Applied]>,
    /// Shared with every report, so that a request takes hold of one thing only.
    pub(crate) answers: Arc<Answers>,
    /// The same once a limit was replaced.
    pub(super) replaced: Arc<Replaced>,
    /// What is to be done after the decision.
    pub(super) wanted: Wanted,
    /// Requests in flight.
    pub(super) gates: Arc<Gates>,
    /// Requests that are held.
    pub(super) lines: Arc<Lines>,
}

impl<B: Backend> Clone for Shared<B> {
    fn clone(&self) -> Self {
        Self {
            backend: self.backend.clone(),
            prepared: Arc::clone(&self.prepared),
            applied: Arc::clone(&self.applied),
            answers: Arc::clone(&self.answers),
            // A clone is made to have other options.
            replaced: Arc::default(),
            wanted: self.wanted,
            gates: Arc::clone(&self.gates),
            lines: Arc::clone(&self.lines),
        }
    }
}

/// One call per policy.
pub(crate) type Calls = SmallVec<[Call; 3]>;

/// What a request asks, as far as that is known at once.
#[derive(Default)]
pub(crate) struct Asked {
    pub(crate) calls: Calls,
    /// Keys that have to be waited for, and the cost that goes with them.
    pub(crate) waiting: Vec<(usize, u64, LookedUp)>,
    /// Permits.
    pub(crate) needs: Needs,
}

/// What a request that is under way holds, until its response's body has ended: for most requests nothing, and that is
/// small to carry along.
#[derive(Debug, Default)]
pub(crate) struct Held(Option<Box<Holding>>);

#[derive(Debug)]
struct Holding {
    /// What may still be changed of the charge. Dropped first: whoever gets the permit finds it settled.
    open: Option<Open>,
    _permits: Option<InFlight>,
}

/// What becomes of a request.
pub(crate) enum Judged {
    Pass(Option<Admitted>),
    Refuse(Response<Bytes>),
}

/// A decision on its way to the response, to be pressed on it once.
pub(crate) struct Admitted {
    report: LimitReport,
    /// Whether there is something to warn of, should the request succeed.
    suspicious: bool,
    held: Held,
}

impl Admitted {
    /// Presses it on the response. What remains to be settled goes along with the body.
    pub(crate) fn press<Body>(mut self, response: &mut Response<Body>) -> Held {
        if let Some(holding) = &mut self.held.0 {
            // Refunds go by what the inner service said, before fields are added.
            let open = holding.open.take();
            holding.open = open.and_then(|open| open.answered(response.status(), response.headers()));
        }
        if self.suspicious {
            self.report.answers().options.watch.confirm(response.status());
        }
        self.report.press(response, 0);
        self.held
    }
}

impl<B: Backend> Shared<B> {
    /// # Errors
    ///
    /// If the limits cannot be enforced on this backend. Nothing is prepared on it then.
    pub(crate) fn new(
        backend: B,
        set: PolicySet,
        applied: Arc<[Applied]>,
        gates: Arc<Gates>,
        options: Options,
    ) -> Result<Self, ConfigError> {
        Self::check(&backend, set.policies(), &applied, &options)?;
        let prepared = backend.prepare(set)?;
        let answers = Arc::new(Answers::new(B::set(&prepared).policies(), options));
        let wanted = Wanted::of(&applied);
        let (prepared, lines) = (Arc::new(prepared), Arc::default());
        let replaced = Arc::default();
        let mut shared = Self { backend, prepared, applied, answers, replaced, wanted, gates, lines };
        shared.share()?;
        Ok(shared)
    }

    /// Makes the shares by which this process decides when the store does not, where a limit may need one.
    ///
    /// # Errors
    ///
    /// If the store for shares cannot hold it.
    pub(crate) fn share(&mut self) -> Result<(), ConfigError> {
        let rule = |place: usize| self.rule(self.applied.get(place)?);
        let made = self.backend.can_fail().then(|| {
            let store = self.answers.options.local_store.clone().unwrap_or_default();
            let set = B::set(&self.prepared).clone();
            // A share of its own is replaced, if the number of processes has changed.
            let set = if self.answers.share.is_some() { set.replace_existing() } else { set };
            Shares::new(&store, &set, &rule)
        });
        let (share, result) = match made.transpose() {
            Ok(share) => (share.flatten(), Ok(())),
            Err(error) => (None, Err(error)),
        };
        Arc::make_mut(&mut self.answers).share = share;
        self.replaced = Arc::default();
        result
    }

    /// What happens to a limit when the store fails.
    fn rule(&self, how: &Applied) -> Option<OnError> {
        how.on_error.or(self.answers.options.on_error)
    }

    /// Whether a backend can be asked about such limits.
    ///
    /// # Errors
    ///
    /// Names the policy that leaves something unsaid, or cannot be enforced by refusing.
    pub(crate) fn check(
        backend: &B,
        policies: &[Policy],
        applied: &[Applied],
        options: &Options,
    ) -> Result<(), ConfigError> {
        for (how, policy) in applied.iter().zip(policies) {
            match how.on_error.or(options.on_error) {
                None if backend.can_fail() => {
                    let rule = "the backend can fail, and there is no silent default; add .on_error(OnError::local(n)) to \
                                let this process decide then by a part of the limit, where n processes share it, \
                                .on_error(OnError::Open) to let requests through, or .on_error(OnError::Closed) to answer \
                                503, to the limit, or to the layer before .backend(…)";
                    return Err(ConfigError::new("on_error", "not set", rule).in_policy(policy.name()));
                }
                Some(OnError::Local { processes: 0 }) => {
                    let rule = "at least one process shares the limit: this one; give the number that you run";
                    return Err(ConfigError::new("processes of on_error", 0, rule).in_policy(policy.name()));
                }
                _ => {}
            }
        }
        let delays = |policy: &&Policy| {
            let each = policy.tiers().map(|(_, tier)| tier).chain([*policy]);
            each.into_iter().any(|policy| policy.algorithm().delays())
        };
        if let Some(policy) = policies.iter().find(delays) {
            let rule = "it delays, and a throttle refuses; use LeakyMeter or Gcra here";
            return Err(ConfigError::new("algorithm", "leaky_bucket", rule).in_policy(policy.name()));
        }
        Ok(())
    }

    /// What the request asks of every policy, in place: calls are large, and every request has some.
    ///
    /// # Errors
    ///
    /// The refusal, where a required key is missing.
    #[inline]
    pub(crate) fn ask(&self, parts: &Parts, asked: &mut Asked) -> Result<(), Box<Response<Bytes>>> {
        for (index, how) in self.applied.iter().enumerate() {
            let call = if how.when.as_ref().is_some_and(|applies| !applies(parts)) {
                Call::SKIP
            } else {
                let cost = how.cost.as_ref().map_or(1, |cost| cost(parts));
                match &how.keying {
                    Keying::Extracted(extractor) => match extractor.extract(parts) {
                        Some(key) => {
                            how.key_seen.found();
                            call(key, cost)
                        }
                        None => self.call_without_key(index, cost, parts)?,
                    },
                    Keying::Future(extractor) => {
                        asked.waiting.push((index, cost, extractor(parts, how.key_deadline)));
                        Call::SKIP
                    }
                    Keying::Tiered(lookup) => match lookup.find(parts) {
                        Found::Now(key, tier) => self.call(index, cost, key, parts)?.in_tier(tier),
                        Found::Later(key) => {
                            asked.waiting.push((index, cost, key));
                            Call::SKIP
                        }
                    },
                }
            };
            asked.calls.push(call);
        }
        if !self.gates.is_empty() {
            let missing = |(name, status)| self.refuse_missing(name, status, parts);
            asked.needs = self.gates.ask(parts).map_err(missing)?;
        }
        Ok(())
    }

    /// One policy's call, once its key is known or known to be missing.
    pub(crate) fn call(
        &self,
        index: usize,
        cost: u64,
        key: Option<Key>,
        parts: &Parts,
    ) -> Result<Call, Box<Response<Bytes>>> {
        match key {
            Some(key) => {
                self.applied[index].key_seen.found();
                Ok(call(key, cost))
            }
            None => self.call_without_key(index, cost, parts),
        }
    }

    #[cold]
    fn call_without_key(&self, index: usize, cost: u64, parts: &Parts) -> Result<Call, Box<Response<Bytes>>> {
        let how = &self.applied[index];
        if let Some(warning) = missing_key(how, self.answers.policies[index].policy_name(), parts) {
            self.answers.options.watch.warn(&warning);
        }
        match how.on_missing {
            OnMissing::Share => Ok(call(Key::missing(), cost)),
            OnMissing::Skip => Ok(Call::SKIP),
            OnMissing::Reject(status) => {
                Err(self.refuse_missing(self.answers.policies[index].policy_name(), status, parts))
            }
        }
    }

    fn refuse_missing(&self, name: &PolicyName, status: StatusCode, parts: &Parts) -> Box<Response<Bytes>> {
        self.tell(Outcome::MissingKey, None, parts);
        Box::new(self.refusal(&Refusal { reason: Reason::MissingKey(name), status, extra: 0 }))
    }

    /// What an answer means for the request.
    #[inline(always)]
    pub(crate) fn conclude(
        self: &Arc<Self>,
        answer: Answer,
        calls: &[Call],
        needs: &Needs,
        parts: &mut Parts,
    ) -> Judged {
        match answer {
            Answer::Decided(report) => self.judge(report, calls, needs, parts),
            Answer::Failed(error) => self.judge_failure(&error, calls, needs, parts),
            Answer::Saturated(full) => Judged::Refuse(self.refuse_saturated(&full, parts)),
        }
    }

    /// The permits of a request that the limits have admitted. They may have run out since it looked for them: then its
    /// charge is given back.
    #[inline]
    fn enter(&self, report: &LimitReport, calls: &[Call], needs: &Needs) -> Result<Option<InFlight>, Places> {
        if self.gates.is_empty() {
            return Ok(None);
        }
        self.gates.enter(needs).inspect_err(|_| self.give_back(report.decision(), calls))
    }

    #[cold]
    fn refuse_saturated(&self, full: &Places, parts: &Parts) -> Response<Bytes> {
        let names = self.gates.names_of(full);
        self.tell(Outcome::Saturated(&names), None, parts);
        let status = StatusCode::SERVICE_UNAVAILABLE;
        self.refusal(&Refusal { reason: Reason::Saturated(&names), status, extra: 0 })
    }

    /// What a decision means for the request.
    #[inline]
    fn judge(self: &Arc<Self>, report: LimitReport, calls: &[Call], needs: &Needs, parts: &mut Parts) -> Judged {
        if !report.decision().is_admitted() {
            if self.wanted.attempts {
                self.charge_attempt(report.decision(), calls);
            }
            return Judged::Refuse(self.refuse(report, calls, parts));
        }
        let permits = match self.enter(&report, calls, needs) {
            Ok(permits) => permits,
            Err(full) => return Judged::Refuse(self.refuse_saturated(&full, parts)),
        };
        self.tell(Outcome::Admitted, Some(report.decision()), parts);
        parts.extensions.insert(report.clone());
        let suspicious = self.wanted.by_route && self.answers.options.watch.suspects(&self.applied, calls, parts);
        let held = self.held(&report, calls, parts, permits);
        Judged::Pass(Some(Admitted { report, suspicious, held }))
    }

    /// What an admitted request is to hold.
    #[inline]
    fn held(
        self: &Arc<Self>,
        report: &LimitReport,
        calls: &[Call],
        parts: &mut Parts,
        permits: Option<InFlight>,
    ) -> Held {
        if permits.is_none() && !self.wanted.account {
            return Held::default();
        }
        self.hand_out(report, calls, parts, permits)
    }

    /// Opens an account where a limit wants one, and gives the handler the charge, and its permits.
    #[inline(never)]
    fn hand_out(
        self: &Arc<Self>,
        report: &LimitReport,
        calls: &[Call],
        parts: &mut Parts,
        permits: Option<InFlight>,
    ) -> Held {
        if let Some(permits) = &permits {
            let all = permits.clone().inside(parts.extensions.get());
            parts.extensions.insert(all);
        }
        let account = self.open(report, calls);
        if let (Some(account), true) = (&account, self.wanted.handle) {
            parts.extensions.insert(Usage::new(Arc::clone(account)));
        }
        Held(Some(Box::new(Holding { open: account.map(Open::new), _permits: permits })))
    }

    fn refuse(&self, report: LimitReport, calls: &[Call], parts: &Parts) -> Response<Bytes> {
        self.tell(Outcome::Refused, Some(report.decision()), parts);
        let reason = Reason::Quota(&report);
        let extra = self.extra_wait(report.decision(), calls);
        let mut response = self.refusal(&Refusal { reason, status: StatusCode::TOO_MANY_REQUESTS, extra });
        report.press(&mut response, extra);
        response
    }

    /// Judges a request that the store did not decide about: closed limits refuse it, this process decides by the limits that
    /// it has a share of, and where there is none of either, the request is passed on.
    #[cold]
    fn judge_failure(
        self: &Arc<Self>,
        error: &BackendError,
        calls: &[Call],
        needs: &Needs,
        parts: &mut Parts,
    ) -> Judged {
        let closed = self.closed(calls, error.kind());
        if !closed.is_empty() {
            self.tell(Outcome::FailedClosed(error), None, parts);
            let reason = Reason::Store(error.kind(), &closed);
            return Judged::Refuse(self.refusal(&Refusal {
                reason,
                status: StatusCode::SERVICE_UNAVAILABLE,
                extra: 0,
            }));
        }
        if let Some(report) = self.told_by_share(error, calls) {
            return self.judge(report, calls, needs, parts);
        }
        let report = self.report(Decision::open(calls, error.kind()));
        let permits = match self.enter(&report, calls, needs) {
            Ok(permits) => permits,
            Err(full) => return Judged::Refuse(self.refuse_saturated(&full, parts)),
        };
        self.tell(Outcome::FailedOpen(error), Some(report.decision()), parts);
        parts.extensions.insert(report.clone());
        let held = self.held(&report, calls, parts, permits);
        Judged::Pass(Some(Admitted { report, suspicious: false, held }))
    }

    /// The policies that apply to a request and refuse it when the store fails. One that should have a share and has none
    /// is among them: a local one, and while the store is busy an open one too.
    pub(super) fn closed(&self, calls: &[Call], why: BackendErrorKind) -> Vec<Policy> {
        let closes = |how: &Applied| match self.rule(how) {
            Some(OnError::Open) => why.is_busy() && self.answers.share.is_none(),
            Some(local @ OnError::Local { .. }) => self.answers.share.is_none() || local.processes().is_none(),
            Some(OnError::Closed) | None => true,
        };
        let applied = self.answers.policies.iter().zip(self.applied.iter()).zip(calls);
        let closed = applied.filter(|((_, how), call)| call.key().is_some() && closes(how));
        closed.map(|((policy, _), _)| policy.clone()).collect()
    }

    fn refusal(&self, refusal: &Refusal<'_>) -> Response<Bytes> {
        let mut response = match &self.answers.options.response {
            Some(build) => build(refusal),
            None => refusal.default_response(),
        };
        forbid_storing(&mut response);
        response
    }

    /// µs to add to the wait, so that not everybody comes back at once.
    fn extra_wait(&self, decision: &Decision, calls: &[Call]) -> u64 {
        let (Some(jitter), Some(wait)) = (&self.answers.options.jitter, decision.retry_after()) else { return 0 };
        let binding = decision.binding().and_then(|policy| calls.get(policy)?.key());
        let wait = micros(wait);
        binding.map_or(0, |key| jitter.lengthen(wait, key) - wait)
    }

    fn tell(&self, outcome: Outcome<'_>, decision: Option<&Decision>, parts: &Parts) {
        if let Some(hook) = &self.answers.options.on_decision {
            hook(&Event { outcome, policies: &self.answers.policies, decision, parts });
        }
    }
}

#[inline]
fn call(key: Key, cost: u64) -> Call {
    match throttle_core::Cost::new(cost) {
        Ok(cost) => Call::new(key, cost),
        Err(_) => Call::peek(key),
    }
}

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Response, StatusCode};
use smallvec::SmallVec;
use throttle_core::{Backend, BackendError, Call, ConfigError, Decision, Key, LimitSet, Policy};

use super::refusal::{Reason, Refusal, forbid_storing};
use super::stamp::Stamp;
use super::warning::Watch;
use super::{Event, LimitReport, Outcome};
use crate::headers::Dialect;
use crate::headers::policy_field::PolicyField;
use crate::limit::{Applied, FutureKey, Keying};
use crate::{OnError, OnMissing};

/// Everything that the clones of a layer and its services share.
pub(crate) struct Rules<B: Backend> {
    pub(crate) backend: B,
    pub(crate) prepared: Arc<B::Prepared>,
    pub(crate) policies: Arc<[Policy]>,
    pub(crate) applied: Arc<[Applied]>,
    pub(crate) options: Options,
    pub(crate) policy_field: PolicyField,
}

impl<B: Backend> Clone for Rules<B> {
    fn clone(&self) -> Self {
        Self {
            backend: self.backend.clone(),
            prepared: Arc::clone(&self.prepared),
            policies: Arc::clone(&self.policies),
            applied: Arc::clone(&self.applied),
            options: self.options.clone(),
            policy_field: self.policy_field.clone(),
        }
    }
}

/// What a user can change once the layer is built.
#[derive(Clone)]
pub(crate) struct Options {
    pub(crate) dialect: Dialect,
    pub(crate) response: Option<BuildResponse>,
    pub(crate) on_decision: Option<Hook>,
    pub(crate) watch: Option<Watch>,
    pub(crate) hide_fields: Option<HideFields>,
    pub(crate) on_error: Option<OnError>,
    pub(crate) jitter: Option<Jitter>,
    pub(crate) report_in_response: bool,
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
            watch: None,
            hide_fields: None,
            on_error: None,
            jitter: None,
            report_in_response: true,
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
    fn lengthen(&self, wait_us: u64, key: &Key) -> u64 {
        let most = u128::from(wait_us) * u128::from(self.percent) / 100;
        let share = u128::from(self.secret.hash_one(key));
        wait_us.saturating_add(((most * share) >> 64) as u64)
    }
}

/// One call per policy.
pub(crate) type Calls = SmallVec<[Call; 3]>;

/// What a request asks, as far as that is known at once.
pub(crate) struct Asked {
    pub(crate) calls: Calls,
    /// Keys that have to be waited for, and the cost that goes with them.
    pub(crate) waiting: Vec<(usize, u64, FutureKey)>,
}

/// What becomes of a request.
pub(crate) enum Judged<B: Backend> {
    Pass(Option<Stamp<B>>),
    Refuse(Response<Bytes>),
}

impl<B: Backend> Rules<B> {
    /// # Errors
    ///
    /// If the limits cannot be enforced on this backend. Nothing is prepared on it then.
    pub(crate) fn new(
        backend: B,
        set: LimitSet,
        applied: Arc<[Applied]>,
        options: Options,
    ) -> Result<Self, ConfigError> {
        Self::check(&backend, set.policies(), &applied, &options)?;
        let prepared = backend.prepare(set)?;
        let policies: Arc<[Policy]> = B::set(&prepared).policies().into();
        let policy_field = policy_field(options.dialect, policies.iter());
        Ok(Self { backend, prepared: Arc::new(prepared), policies, applied, options, policy_field })
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
        let unsaid = applied.iter().zip(policies.iter()).find(|(how, _)| how.on_error.or(options.on_error).is_none());
        if let (true, Some((_, policy))) = (backend.can_fail(), unsaid) {
            let rule = "the backend can fail, and there is no silent default; add .on_error(OnError::Open) to let requests \
                        through then, or .on_error(OnError::Closed) to answer 503, to the limit, or to the layer before \
                        .backend(…)";
            return Err(ConfigError::new("on_error", "not set", rule).in_policy(policy.name()));
        }
        if let Some(policy) = policies.iter().find(|policy| policy.algorithm().name() == "leaky_bucket") {
            let rule = "it delays, and a throttle refuses; use LeakyMeter or Gcra here";
            return Err(ConfigError::new("algorithm", "leaky_bucket", rule).in_policy(policy.name()));
        }
        Ok(())
    }

    pub(crate) fn set_dialect(&mut self, dialect: Dialect) {
        self.options.dialect = dialect;
        self.policy_field = policy_field(dialect, self.policies.iter());
    }

    /// What the request asks of every policy.
    ///
    /// # Errors
    ///
    /// The refusal, where a required key is missing.
    pub(crate) fn ask(&self, parts: &Parts) -> Result<Asked, Box<Response<Bytes>>> {
        let mut asked = Asked { calls: Calls::new(), waiting: Vec::new() };
        for (index, how) in self.applied.iter().enumerate() {
            let call = if how.when.as_ref().is_some_and(|applies| !applies(parts)) {
                Call::SKIP
            } else {
                let cost = how.cost.as_ref().map_or(1, |cost| cost(parts));
                match &how.keying {
                    Keying::Sync(extractor) => self.call(index, cost, extractor.extract(parts), parts)?,
                    Keying::Async(extractor) => {
                        asked.waiting.push((index, cost, extractor(parts)));
                        Call::SKIP
                    }
                }
            };
            asked.calls.push(call);
        }
        Ok(asked)
    }

    /// One policy's call, once its key is known or known to be missing.
    pub(crate) fn call(
        &self,
        index: usize,
        cost: u64,
        key: Option<Key>,
        parts: &Parts,
    ) -> Result<Call, Box<Response<Bytes>>> {
        let key = match (key, self.applied[index].on_missing) {
            (Some(key), _) => key,
            (None, OnMissing::Share) => Key::missing(),
            (None, OnMissing::Skip) => return Ok(Call::SKIP),
            (None, OnMissing::Reject(status)) => {
                self.tell(Outcome::MissingKey, None, parts);
                let reason = Reason::MissingKey(&self.policies[index]);
                return Err(Box::new(self.refusal(&Refusal { reason, status, extra: 0 })));
            }
        };
        Ok(match throttle_core::Cost::new(cost) {
            Ok(cost) => Call::new(key, cost),
            Err(_) => Call::peek(key),
        })
    }

    /// The decision, if it can be had without waiting: from the backend, or because no policy applies.
    pub(crate) fn decide_at_once(&self, calls: &[Call]) -> Option<Decision> {
        if calls.iter().all(|call| call.key().is_none()) {
            return Some(Decision::not_limited(calls.len()));
        }
        self.backend.decide_at_once(&self.prepared, calls)
    }

    /// What a decision means for the request.
    pub(crate) fn judge(
        self: &Arc<Self>,
        decision: Result<Decision, BackendError>,
        calls: &[Call],
        parts: &mut Parts,
    ) -> Judged<B> {
        let decision = match decision {
            Ok(decision) => decision,
            Err(error) => return self.judge_failure(&error, calls, parts),
        };
        let outcome = if decision.is_allowed() { Outcome::Admitted } else { Outcome::Refused };
        self.tell(outcome, Some(&decision), parts);
        let report = LimitReport::new(decision, Arc::clone(&self.policies));
        if report.decision().is_allowed() {
            parts.extensions.insert(report.clone());
            let watch = self.options.watch.as_ref();
            let suspicious = watch.is_some_and(|watch| watch.suspects(&self.applied, calls, parts));
            return Judged::Pass(Some(Stamp::admitted(Arc::clone(self), report, suspicious)));
        }
        let reason = Reason::Quota(&report);
        let extra = self.extra_wait(report.decision(), calls);
        let mut response = self.refusal(&Refusal { reason, status: StatusCode::TOO_MANY_REQUESTS, extra });
        Stamp::refused(Arc::clone(self), report, extra).press(&mut response);
        Judged::Refuse(response)
    }

    fn judge_failure(&self, error: &BackendError, calls: &[Call], parts: &Parts) -> Judged<B> {
        let rule = |how: &Applied| how.on_error.or(self.options.on_error);
        let applied = self.policies.iter().zip(self.applied.iter()).zip(calls);
        let closed: Vec<Policy> = applied
            .filter(|((_, how), call)| call.key().is_some() && rule(how) != Some(OnError::Open))
            .map(|((policy, _), _)| policy.clone())
            .collect();
        if closed.is_empty() {
            self.tell(Outcome::FailedOpen(error), None, parts);
            return Judged::Pass(None);
        }
        self.tell(Outcome::FailedClosed(error), None, parts);
        let reason = Reason::Store(error.kind(), &closed);
        Judged::Refuse(self.refusal(&Refusal { reason, status: StatusCode::SERVICE_UNAVAILABLE, extra: 0 }))
    }

    fn refusal(&self, refusal: &Refusal<'_>) -> Response<Bytes> {
        let mut response = match &self.options.response {
            Some(build) => build(refusal),
            None => refusal.default_response(),
        };
        forbid_storing(&mut response);
        response
    }

    /// µs to add to the wait, so that not everybody comes back at once.
    fn extra_wait(&self, decision: &Decision, calls: &[Call]) -> u64 {
        let (Some(jitter), Some(wait)) = (&self.options.jitter, decision.retry_after()) else { return 0 };
        let binding = decision.binding().and_then(|policy| calls.get(policy)?.key());
        let wait = u64::try_from(wait.as_micros()).unwrap_or(u64::MAX);
        binding.map_or(0, |key| jitter.lengthen(wait, key) - wait)
    }

    fn tell(&self, outcome: Outcome<'_>, decision: Option<&Decision>, parts: &Parts) {
        if let Some(hook) = &self.options.on_decision {
            hook(&Event { outcome, policies: &self.policies, decision, parts });
        }
    }
}

pub(super) fn policy_field<'a>(dialect: Dialect, policies: impl Iterator<Item = &'a Policy>) -> PolicyField {
    PolicyField::new(dialect, policies.map(super::stamp::terms))
}

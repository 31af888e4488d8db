//! What would happen to a request, charged nothing.

use http::request::Parts;
use throttle_core::backend::Call;
use throttle_core::{Backend, BackendError, Decision, Policy};

use super::layer::ThrottleLayer;
use super::limit_report::LimitReport;
use super::peek_states::{Absence, PeekStates, PermitState};
use super::shared_layer::{ErasedLayer, SharedLayer};
use super::steps::ask::{Calls, Inquiry, RequestCalls, ask};
use super::steps::decide::report;
use super::steps::look_up::look_up;
use super::steps::refuse::closed;
use super::steps::wait_queue::held_for;
use crate::limit::{LimitSettings, OnMissing, SelectedLimits, select};

impl<B: Backend> ThrottleLayer<B> {
    /// Returns what would happen to a request with this head, charged nothing. `None` if the layer
    /// does [not apply](crate::ThrottleBuilder::when) to it.
    ///
    /// The report has [each limit](LimitReport::limits) of the layer. Its
    /// [decision](LimitReport::decision) is the one that the limits on rates would give the request
    /// now. What it says is left is what is left without the charge.
    /// [`is_admitted`](LimitReport::is_admitted) also counts requests in flight and missing keys,
    /// and [`held_for`](LimitReport::held_for) says how long the request would be queued.
    ///
    /// ```
    /// use http::Request;
    /// use throttle_tower::{Constant, FixedWindow, Rate, ThrottleLayer, limit};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let tokens = limit("tokens", FixedWindow::new(Rate::per_day(1_000))).by(Constant).cost(400);
    /// let throttle = ThrottleLayer::new(tokens)?;
    /// let (head, ()) = Request::get("/").body(())?.into_parts();
    ///
    /// let report = throttle.peek(&head).await?.expect("it applies to every request");
    /// assert!(report.is_admitted());
    /// let limit = report.limits().next().expect("there is one");
    /// let units = limit.units().expect("it is a limit on a rate");
    /// assert_eq!((limit.info.name.as_str(), units.cost), ("tokens", 400));
    /// assert_eq!(units.status.remaining(), 1_000, "nothing is charged");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Keys, costs and classes are found as for a request. Lookups run even if the request would be
    /// refused without them. Observers see those lookups, and nothing else of a peek. The report
    /// does not count the requests that are queued already, which would be admitted before this one.
    ///
    /// # What it costs
    ///
    /// One call to the backend, as a decision does.
    ///
    /// # Errors
    ///
    /// If the store fails and a limit that applies is [closed](crate::OnError::Closed): the layer
    /// would answer such a request with 503. If all of them are local or open, the report states
    /// what this process would decide.
    ///
    /// # Cancel safety
    ///
    /// The future may be dropped at any point: it changes nothing.
    pub async fn peek(&self, parts: &Parts) -> Result<Option<LimitReport>, BackendError> {
        self.current.now().peek(parts).await
    }
}

impl<B: Backend> SharedLayer<B> {
    /// What would happen to a request; `None` if the layer does not apply to it.
    ///
    /// # Errors
    ///
    /// If the store has failed and a limit is closed then.
    pub(crate) async fn peek(&self, parts: &Parts) -> Result<Option<LimitReport>, BackendError> {
        let when = self.options.settings.when.as_ref();
        if when.is_some_and(|when| !when(parts)) {
            return Ok(None);
        }
        let report = look(self, Scope::Request, parts).await;
        report.map(Some).map_err(|failed| failed.error)
    }

    /// The call of a request in the limit on a rate at an index. `None` if it does not apply or
    /// there is no key.
    pub(super) async fn call_of(&self, index: usize, parts: &Parts) -> Option<Call> {
        let only = Scope::Only(self.applied[index].limit_index);
        let (mut request, _) = find(self, only, parts).await;
        Some(request.calls.swap_remove(index)).filter(|call| call.key().is_some())
    }
}

/// Which limits are peeked at.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    /// Those that apply to the request.
    Request,
    /// Those that have a key of its own for the client, whatever their conditions say: what one
    /// unit would get.
    #[cfg(feature = "axum")]
    Client,
    /// One limit, by its index in the layer, if it applies.
    Only(usize),
}

/// The store has failed, and some limits are closed then.
pub(super) struct ClosedLimits {
    pub(super) error: BackendError,
    #[cfg_attr(not(feature = "axum"), expect(dead_code, reason = "of the status"))]
    pub(super) policies: Vec<Policy>,
}

/// # Errors
///
/// If the store has failed and a limit is closed then.
pub(super) async fn look<B: Backend>(
    shared: &SharedLayer<B>,
    scope: Scope,
    parts: &Parts,
) -> Result<LimitReport, ClosedLimits> {
    let (request, absences) = find(shared, scope, parts).await;
    let calls: Calls = request.calls.into_iter().map(Call::peeking).collect();
    let decision = decide(shared, &calls).await?;
    let rejects = |absence: &Option<Absence>| matches!(absence, Some(Absence::NoKey(Some(_))));
    let may_pass = shared.permits.look(&request.needs).is_ok() && !absences.iter().any(rejects);
    let limits = shared
        .permits
        .limits()
        .iter()
        .zip(&request.needs)
        .enumerate();
    let permits = limits.map(|(number, (limit, call))| {
        let index = limit.applied.limit_index;
        let state = match (absences[index], call.key()) {
            (None, Some(key)) => PermitState::Counted {
                key: key.clone(),
                needed: call.cost(),
                free: shared.permits.free(number, call),
                most: limit.most.saturating_sub(call.reserve()),
            },
            (absence, _) => PermitState::Absent(absence.unwrap_or(Absence::DoesNotApply)),
        };
        (index, state)
    });
    let states = PeekStates {
        may_pass,
        held_for: held_for(shared, &decision).filter(|_| may_pass),
        permits: permits.collect(),
        absences,
        calls: calls.clone(),
    };
    Ok(report(shared, decision, &calls).of_peek(states))
}

async fn decide<B: Backend>(
    shared: &SharedLayer<B>,
    calls: &Calls,
) -> Result<Decision, ClosedLimits> {
    if calls.iter().all(|call| call.key().is_none()) {
        return Ok(Decision::not_limited(calls.len()));
    }
    let error = match shared.backend.decide(&shared.prepared, calls).await {
        Ok(decision) => return Ok(decision),
        Err(error) => error,
    };
    let (why, policies) = (error.kind(), closed(shared, calls, &error));
    if !policies.is_empty() {
        return Err(ClosedLimits { error, policies });
    }
    let local = shared.share().and_then(|share| share.decide(calls, why));
    Ok(local.unwrap_or_else(|| Decision::open(calls, why)))
}

/// Finds the calls of a request, and waits for the lookups that it needs.
async fn find<B: Backend>(
    shared: &SharedLayer<B>,
    scope: Scope,
    parts: &Parts,
) -> (RequestCalls, Vec<Option<Absence>>) {
    let limits = shared.applied.len() + shared.permits.limits().len();
    let mut finding = Finding {
        scope,
        selected: select(&shared.selections, parts),
        absences: vec![None; limits],
    };
    let mut request = RequestCalls::default();
    let mut lookups = Vec::new();
    let Ok(()) = ask(&mut finding, shared, parts, (&mut request, &mut lookups));
    let Ok(()) = look_up(&mut finding, shared, &mut request, lookups, parts).await;
    (request, finding.absences)
}

/// What a peek finds before it asks the backend.
struct Finding {
    scope: Scope,
    selected: SelectedLimits,
    /// By the index of the limit in the layer.
    absences: Vec<Option<Absence>>,
}

impl<B: Backend> Inquiry<B> for Finding {
    type Refusal = std::convert::Infallible;

    fn applies(&mut self, limit: &LimitSettings, parts: &Parts) -> bool {
        let holds = || limit.applies(&self.selected, parts);
        let applies = match self.scope {
            Scope::Request => holds(),
            #[cfg(feature = "axum")]
            Scope::Client => !limit.by_route,
            Scope::Only(only) => limit.limit_index == only && holds(),
        };
        if !applies {
            self.absences[limit.limit_index] = Some(Absence::DoesNotApply);
        }
        applies
    }

    fn cost(&self, limit: &LimitSettings, parts: &Parts) -> u64 {
        match self.scope {
            #[cfg(feature = "axum")]
            Scope::Client => 1,
            _ => limit.cost_of(parts),
        }
    }

    fn without_key(
        &mut self,
        _: &SharedLayer<B>,
        limit: &LimitSettings,
        shared_budget: Call,
        _: &Parts,
    ) -> Result<Call, Self::Refusal> {
        let status = match limit.on_missing {
            #[cfg(feature = "axum")]
            _ if self.scope == Scope::Client => None,
            OnMissing::Share => return Ok(shared_budget),
            OnMissing::Skip => None,
            OnMissing::Reject(status) => Some(status),
        };
        self.absences[limit.limit_index] = Some(Absence::NoKey(status));
        Ok(Call::SKIP)
    }
}

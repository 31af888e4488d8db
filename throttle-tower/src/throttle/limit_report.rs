use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use throttle_core::backend::Call;
use throttle_core::{Decision, Policy, Status};

use super::announcement::Announcement;
use super::peek_states::PeekStates;
use crate::event::{LimitState, LimitStatus, LimitUnits};
use crate::time::wall_micros;

/// The decision about a request, with its policies.
///
/// The layer inserts it into the extensions of each request that it admits, for handlers. Where
/// several throttles are stacked, a handler finds the report of the innermost one.
/// [`ThrottleLayer::peek`](crate::ThrottleLayer::peek) returns one for a request that is not
/// decided.
///
/// With [`ReportIn::Both`](crate::ReportIn::Both) every response has it in its extensions, too, for
/// outer layers. The response has the report of the throttle that refused the request; if none did,
/// that of the innermost one. The response to a request that was refused without a decision (a limit was
/// [closed](crate::OnError::Closed) when the store failed, or a required key was missing) has none.
///
/// When the store failed and this process decided instead, [`Decision::decided_by`] says so. If all
/// limits were [open](crate::OnError::Open), the decision is that of a request without limits:
/// `remaining` is `u64::MAX`.
///
/// A handler that decides by a [`Limiter`](throttle_core::Limiter) of its own makes a report with
/// [`of`](Self::of), and from it the response that a layer would give.
///
/// With the feature `axum` of this crate it is an extractor. Without that feature a handler that
/// takes one does not implement `Handler`, and the compiler does not say why.
///
/// ```
/// use http::{Request, Response};
/// use throttle_tower::{Constant, Gcra, LimitReport, Rate, ThrottleLayer, limit};
/// use tower::{Layer, ServiceExt, service_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limits = limit("all", Gcra::new(Rate::per_hour(5)).burst(5)).by(Constant);
/// let throttle = ThrottleLayer::builder(limits).report_in(throttle_tower::ReportIn::Both).build()?;
/// let service = throttle.layer(service_fn(async |request: Request<()>| {
///     let report: &LimitReport = request.extensions().get().expect("the layer inserts it");
///     Ok::<_, std::convert::Infallible>(Response::new(format!(
///         "{} left",
///         report.decision().remaining()
///     )))
/// }));
/// let response = service.oneshot(Request::new(())).await?;
/// let report: &LimitReport = response
///     .extensions()
///     .get()
///     .expect("outer layers find it too");
/// assert_eq!(report.decision().remaining(), 4);
/// assert_eq!(report.binding().map(|policy| policy.name()), Some("all"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct LimitReport {
    decision: Decision,
    announced: Arc<Announcement>,
    /// When it was decided, if a header states instants.
    now_unix_us: u64,
}

/// The user's closures in it may be of any kind, but no method of a report runs one.
impl UnwindSafe for LimitReport {}
impl RefUnwindSafe for LimitReport {}

impl LimitReport {
    #[inline(always)]
    pub(super) fn new(decision: Decision, announced: Arc<Announcement>) -> Self {
        // To read the clock takes longer than to write the headers.
        let now_unix_us = if announced.form.states_instants {
            wall_micros()
        } else {
            0
        };
        Self {
            decision,
            announced,
            now_unix_us,
        }
    }

    #[inline]
    pub(super) fn announced(&self) -> &Announcement {
        &self.announced
    }

    pub(super) fn now_unix_us(&self) -> u64 {
        self.now_unix_us
    }

    /// The decision. It has a status for each limit on a rate that was asked, also for those that do
    /// not apply to the request. Of many limits that are
    /// [selected](crate::LimitTree::select), only some are asked: [`limits`](Self::limits) says
    /// which limit has which status.
    #[inline]
    #[must_use]
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// The policies that apply to the request, each with its status. A policy with tiers has the
    /// parameters of the request's tier.
    pub fn statuses(&self) -> impl Iterator<Item = (&Policy, &Status)> {
        let applying = self.asked().filter(|(_, _, status)| status.applies());
        applying.map(|(_, policy, status)| (policy.tier(status.tier()), status))
    }

    /// All policies that were asked, each with its index and its status.
    #[inline]
    pub(super) fn asked(&self) -> impl Iterator<Item = (usize, &Policy, &Status)> + Clone {
        let policies = self.announced().policies.iter();
        let asked = policies.zip(self.decision().statuses()).enumerate();
        asked.map(|(index, (policy, status))| (index, policy, status))
    }

    /// The policy of that name, if it applies.
    fn applying(&self, name: &str) -> Option<(usize, &Policy, &Status)> {
        self.asked()
            .find(|(_, policy, status)| policy.name() == name && status.applies())
    }

    /// The policy of that index, with the parameters of the request's tier.
    fn in_tier(&self, index: usize) -> Option<&Policy> {
        let (_, policy, status) = self.asked().nth(index)?;
        Some(policy.tier(status.tier()))
    }

    /// Each limit and what it says about the request. The report of a request has the limits on
    /// rates that apply. The report of a [peek](crate::ThrottleLayer::peek) has all limits of the
    /// layer, in their order.
    ///
    /// ```
    /// use throttle_tower::throttle_core::{Gcra, Limiter, Policy, Rate};
    /// use throttle_tower::LimitReport;
    ///
    /// let logins = Limiter::in_memory(Policy::new("login", Gcra::new(Rate::per_hour(6)))?)?;
    /// let report = LimitReport::of(logins.set(), logins.check("ada", 2));
    /// let limit = report.limits().next().expect("there is one");
    /// assert_eq!((limit.index, limit.info.name.as_str()), (0, "login"));
    /// assert_eq!(limit.units().map(|units| (units.cost, units.capacity)), Some((2, 6)));
    /// # Ok::<(), throttle_tower::ConfigError>(())
    /// ```
    pub fn limits(&self) -> impl Iterator<Item = LimitStatus<'_>> {
        let announced = self.announced();
        let peek = announced.peek.as_deref();
        let of_rates = self.decision().statuses().iter().enumerate();
        let of_rates = of_rates.filter_map(|(index, status)| {
            let limit = announced.limit_indices.get(index).copied().unwrap_or(index);
            let state = match (
                peek.and_then(|peek| peek.absences[limit]),
                status.decided_by().error(),
            ) {
                (Some(absence), _) => absence.into(),
                (None, _) if status.applies() => self.units(index, status),
                (None, Some(why)) if peek.is_some() => LimitState::Open(why),
                (None, _) => return None,
            };
            Some((limit, state))
        });
        let permits = peek.into_iter().flat_map(|peek| &peek.permits);
        let of_permits = permits.map(|(index, permit)| (*index, permit.shown()));
        let mut states: SmallVec<[(usize, _); 4]> = SmallVec::new();
        for state in of_rates.chain(of_permits) {
            let position = states.partition_point(|(index, _)| *index < state.0);
            states.insert(position, state);
        }
        states.into_iter().filter_map(|(index, state)| {
            let info = announced.info.limits().get(index)?;
            Some(LimitStatus { index, info, state })
        })
    }

    /// The state of a policy that applies.
    fn units<'a>(&'a self, index: usize, status: &'a Status) -> LimitState<'a> {
        let announced = self.announced();
        let policy = announced.policies[index].tier(status.tier());
        let capacity = policy.algorithm().capacity();
        let call = announced.peek.as_deref().map(|peek| &peek.calls[index]);
        let terms = announced.terms(index, status.tier());
        let most = terms.class.as_ref().map_or(capacity, |_| terms.quota.most);
        LimitState::Units(LimitUnits {
            status,
            capacity,
            cost: call.map_or(status.charged(), Call::cost),
            reserve: call.map_or(capacity.saturating_sub(most), Call::reserve),
            key: call.and_then(Call::key),
        })
    }

    /// Returns whether the layer admits the request now, without a [wait](Self::retry_after).
    #[must_use]
    pub fn is_admitted(&self) -> bool {
        self.retry_after() == Some(Duration::ZERO)
    }

    /// Returns how long until the request is admitted, if nothing else happens: the wait of the
    /// [decision](Self::decision). Of a [peek](crate::ThrottleLayer::peek) it is `None` also if
    /// other requests must end first, because too few permits are free, or if a required key is
    /// missing.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        let may_pass = self
            .announced()
            .peek
            .as_ref()
            .is_none_or(|peek| peek.may_pass);
        self.decision().retry_after().filter(|_| may_pass)
    }

    /// Returns how long the layer would [queue](crate::Limit::wait_up_to) the request of a
    /// [peek](crate::ThrottleLayer::peek) before it is admitted, if no other request is queued.
    /// `None` if it would be admitted immediately or refused without a wait, and for the report of
    /// a request, which has waited already.
    #[must_use]
    pub fn held_for(&self) -> Option<Duration> {
        self.announced().peek.as_ref()?.held_for
    }

    /// The report of a peek, with what it has found of each limit.
    pub(super) fn of_peek(self, states: PeekStates) -> Self {
        let mut announced = self.announced().clone();
        announced.peek = Some(Arc::new(states));
        Self::new(self.decision().clone(), Arc::new(announced))
    }

    /// The binding policy: of a refusal, the refusing policy with the longest wait; otherwise the
    /// one with the least left.
    #[must_use]
    pub fn binding(&self) -> Option<&Policy> {
        self.in_tier(self.decision().binding()?)
    }

    /// The name of the request's tier in the policy named `policy`; `None` if that policy has no
    /// tiers or does not apply. It is `own` for an identity with [parameters of its
    /// own](crate::plans::Tier::own). Where a tier is called `own`, too, the
    /// [status](Self::statuses) tells them apart: its tier is
    /// [`Policy::OWN`](throttle_core::Policy::OWN), 255, for such parameters.
    #[must_use]
    pub fn tier(&self, policy: &str) -> Option<&str> {
        let (_, policy, status) = self.applying(policy)?;
        policy
            .tier_name(status.tier())
            .or_else(|| (status.tier() == Policy::OWN).then_some("own"))
    }

    /// The name of the request's class in the policy named `policy`; `None` if that policy has no
    /// [classes](crate::Limit::priority) or does not apply. Its [status](Self::statuses) is that of
    /// the class: what remains beyond the reserve.
    #[must_use]
    pub fn class(&self, policy: &str) -> Option<&str> {
        let (index, _, status) = self.applying(policy)?;
        let terms = self.announced().terms(index, status.tier());
        terms.class.as_deref()
    }

    /// The names of the policies that refused the request; none if it was admitted.
    pub fn violated(&self) -> impl Iterator<Item = &str> + Clone {
        self.violated_policies().map(|(_, policy)| policy.name())
    }

    /// The [audited](crate::Limit::audit) policies that would have refused the request, each with
    /// its status, which says how long the client would have had to [wait](Status::retry_after).
    pub fn would_refuse(&self) -> impl Iterator<Item = (&Policy, &Status)> {
        self.statuses().filter(|(_, status)| status.would_refuse())
    }

    /// The policies that the request has brought near their ends: its charge has reached the part
    /// that [`warn_at`](crate::Limit::warn_at) says. None if no limit has one.
    pub fn near(&self) -> impl Iterator<Item = &Policy> {
        let near = self.near_indices().into_iter();
        near.filter_map(|index| self.in_tier(index))
    }

    /// The indices of the [near](Self::near) policies.
    #[inline(never)]
    pub(super) fn near_indices(&self) -> SmallVec<[usize; 2]> {
        let announced = self.announced();
        let statuses = self.decision().statuses();
        let limits = announced.limits.iter().zip(statuses).enumerate();
        let near = limits.filter(|(index, (limit, status))| {
            limit.warn_at.is_some_and(|warn_at| {
                let most = announced.terms(*index, status.tier()).quota.most;
                warn_at.is_reached(most, status)
            })
        });
        near.map(|(index, _)| index).collect()
    }

    /// The policies that refused the request, with their indices.
    pub(super) fn violated_policies(&self) -> impl Iterator<Item = (usize, &Policy)> + Clone {
        let violated = self.asked().filter(|(_, _, status)| status.is_violated());
        violated.map(|(index, policy, _)| (index, policy))
    }
}

impl fmt::Debug for LimitReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let policies = &self.announced().policies;
        f.debug_struct("LimitReport")
            .field("decision", self.decision())
            .field("policies", policies)
            .finish()
    }
}

#[cfg(feature = "axum")]
crate::axum_extractor::extractor! {
    LimitReport,
    "no rate limit decided about this request; add a ThrottleLayer to the route, or take an \
        Option<LimitReport>";
    /// The rejection of a handler that takes a [`LimitReport`] where no throttle has decided about
    /// the request, or where it [reports nowhere](crate::ReportIn::Nowhere): status 500.
    ///
    /// ```
    /// use throttle_tower::{LimitReport, MissingLimitReport};
    ///
    /// async fn left(
    ///     report: Result<LimitReport, MissingLimitReport>,
    /// ) -> Result<String, MissingLimitReport> {
    ///     Ok(format!("{} left", report?.decision().remaining()))
    /// }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// # use axum::extract::FromRequestParts;
    /// # let (mut parts, ()) = http::Request::new(()).into_parts();
    /// # let report = LimitReport::from_request_parts(&mut parts, &()).await;
    /// assert!(left(report).await.is_err(), "there is no layer");
    /// # }
    /// ```
    MissingLimitReport
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::request::Parts;
    use http::{Request, Response, StatusCode};
    use throttle_core::backend::Call;
    use throttle_core::{
        Backend, Gcra, Key, ManualClock, MemoryBackend, PolicySet, PolicyTree, Rate,
    };
    use tower::{Layer, ServiceExt, service_fn};

    use super::super::response_options::ResponseOptions;
    use super::*;
    use crate::headers::ResetFormat;
    use crate::{Constant, Dialect, ThrottleLayer, all, limit};

    /// The reports of some requests of the tier `pro`, of which the plan admits two, and the last
    /// limit does not apply.
    fn reports(requests: usize) -> Vec<LimitReport> {
        let tiers = [("free", 1), ("pro", 2)]
            .map(|(tier, count)| (tier, Gcra::new(Rate::per_minute(count))));
        let of = |name, count| Policy::new(name, Gcra::new(Rate::per_minute(count))).unwrap();
        let policies = [
            of("wide", 9),
            Policy::tiered("plan", tiers).unwrap(),
            of("other", 1),
        ];
        let store = MemoryBackend::builder()
            .clock(ManualClock::default())
            .build();
        let prepared = Arc::new(
            store
                .prepare(
                    PolicySet::new(PolicyTree::All(policies.clone().map(Into::into).into()))
                        .unwrap(),
                )
                .unwrap(),
        );
        let announced = Arc::new(Announcement::new(
            &policies,
            Arc::default(),
            ResponseOptions::default(),
        ));
        let call = |tier| Call::from(Key::CONSTANT).in_tier(tier);
        let decide = || store.decide_now(&prepared, &[call(0), call(1), Call::SKIP]);
        (0..requests)
            .map(|_| LimitReport::new(decide(), Arc::clone(&announced)))
            .collect()
    }

    #[tokio::test]
    async fn instants_in_headers_are_those_of_the_wall_clock() {
        let layer = ThrottleLayer::builder(
            limit("p", Gcra::new(Rate::per_minute(1)).burst(1)).by(Constant),
        )
        .headers(Dialect::XRateLimit(ResetFormat::EpochSeconds))
        .build()
        .unwrap();
        let inner = service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(())));
        for status in [StatusCode::OK, StatusCode::TOO_MANY_REQUESTS] {
            let response = layer.layer(inner).oneshot(Request::new(())).await.unwrap();
            let reset: u64 = response.headers()["x-ratelimit-reset"]
                .to_str()
                .unwrap()
                .parse()
                .unwrap();
            let in_a_minute = wall_micros() / 1_000_000 + 60;
            assert_eq!(
                (response.status(), in_a_minute.abs_diff(reset) < 30),
                (status, true),
                "{reset}"
            );
        }
    }

    #[tokio::test]
    async fn class_is_that_of_the_policy_of_the_name() {
        let of = |name| limit(name, Gcra::new(Rate::per_minute(9))).by(Constant);
        let limits = all([of("p").priority([("low", 0)], |_: &Parts| "low"), of("q")]);
        let layer = ThrottleLayer::builder(limits)
            .report_in(crate::ReportIn::Both)
            .build()
            .unwrap();
        let inner = service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(())));
        let response = layer.layer(inner).oneshot(Request::new(())).await.unwrap();
        let report: &LimitReport = response.extensions().get().unwrap();
        assert_eq!(
            ["p", "q", "r"].map(|policy| report.class(policy)),
            [Some("low"), None, None]
        );
    }

    #[test]
    fn report_is_of_the_policies_that_apply_in_the_tier_of_the_request() {
        for report in reports(3) {
            let statuses = report
                .statuses()
                .map(|(policy, _)| (policy.name(), policy.algorithm().capacity()));
            assert_eq!(statuses.collect::<Vec<_>>(), [("wide", 9), ("plan", 2)]);
            let binding = report.binding().unwrap();
            assert_eq!(
                (binding.name(), binding.algorithm().capacity()),
                ("plan", 2)
            );
            let tiers = ["plan", "wide", "other", "none"].map(|policy| report.tier(policy));
            assert_eq!(tiers, [Some("pro"), None, None, None]);
        }
    }

    #[test]
    fn report_names_what_refused_the_request() {
        let violated = reports(3)
            .iter()
            .map(|report| report.violated().count())
            .collect::<Vec<_>>();
        assert_eq!(violated, [0, 0, 1]);
        assert!(reports(3)[2].violated().eq(["plan"]));
    }

    #[test]
    fn debug_output_has_the_decision_and_the_policies() {
        let shown = format!("{:?}", reports(1)[0]);
        assert!(
            shown.starts_with("LimitReport { decision: Decision")
                && shown.contains("policies: [Policy"),
            "{shown}"
        );
    }
}

//! What becomes of a limit's charge once it is known what happened to the request.

use std::sync::Arc;

use http::{HeaderMap, StatusCode};

use super::Limit;

/// What a limit says about charges whose requests have ended. Nothing, by default: what was taken stays taken.
#[derive(Clone, Default)]
pub(crate) struct Outcomes {
    pub(crate) refund_if: Option<RefundIf>,
    pub(crate) refund_aborted: bool,
    pub(crate) charge_refused: bool,
    pub(crate) settled_later: bool,
}

type RefundIf = Arc<dyn Fn(StatusCode, &HeaderMap) -> bool + Send + Sync>;

impl Outcomes {
    /// Whether an admitted request's charge may change.
    pub(crate) fn may_change(&self) -> bool {
        self.refund_if.is_some() || self.refund_aborted || self.settled_later
    }

    pub(crate) fn refunds(&self, status: StatusCode, headers: &HeaderMap) -> bool {
        self.refund_if.as_ref().is_some_and(|refunds| refunds(status, headers))
    }
}

/// # Charging by what happened
///
/// The head of the response decides; a body that breaks off later changes nothing. What is given back never delays the
/// response: in memory it is back before the response leaves, on a store that has to be waited for it travels behind, on the
/// tokio runtime. What the store then fails to do stays charged, and is [counted](crate::ThrottleLayer::settlements). The
/// rate-limit fields are those of the decision, so they tell at most less than is left. A request that never gets a response
/// stays charged, but for [`refund_aborted`](Self::refund_aborted).
impl Limit {
    /// Gives back what the request took if `refund` is true of the response's head. Where it is said several times, one
    /// that is true suffices. Defaults to never.
    ///
    /// ```
    /// use http::StatusCode;
    /// use throttle_tower::{FixedWindow, Rate, client_ip::ClientIp, limit};
    ///
    /// // What the cache answered was cheap.
    /// let renders = limit("renders", FixedWindow::new(Rate::per_hour(100)))
    ///     .by(ClientIp::peer())
    ///     .refund_if(|_, headers| headers.get("x-cache").is_some_and(|cache| cache == "HIT"));
    /// ```
    pub fn refund_if(mut self, refund: impl Fn(StatusCode, &HeaderMap) -> bool + Send + Sync + 'static) -> Self {
        let outcomes = &mut self.how.outcomes;
        outcomes.refund_if = Some(match outcomes.refund_if.take() {
            None => Arc::new(refund),
            Some(other) => Arc::new(move |status, headers| other(status, headers) || refund(status, headers)),
        });
        self
    }

    /// Requests that succeed (2xx, and 3xx) cost nothing: for limits on failed logins.
    ///
    /// They are charged while they run. So no more failures are let through at the same time than the limit has left.
    pub fn refund_successful(self) -> Self {
        self.refund_if(|status, _| status.is_success() || status.is_redirection())
    }

    /// Requests that fail (4xx and 5xx) cost nothing: for limits on what was delivered.
    pub fn refund_failed(self) -> Self {
        self.refund_if(|status, _| status.is_client_error() || status.is_server_error())
    }

    /// Requests that fail for reasons of ours (5xx) cost nothing.
    pub fn refund_server_errors(self) -> Self {
        self.refund_if(|status, _| status.is_server_error())
    }

    /// Requests that get no response cost nothing: the inner service returned an error, or the request was dropped (the
    /// client disconnected, an outer timeout) before there was a head. By default they stay charged, for the work may have
    /// been done.
    ///
    /// A request that is dropped while the store decides is refunded once the store has decided: the layer waits for that in
    /// the background, and [counts](crate::ThrottleLayer::settlements) it as one step. If the store fails, or does not answer
    /// in time, what it has charged stays charged.
    pub fn refund_aborted(mut self) -> Self {
        self.how.outcomes.refund_aborted = true;
        self
    }

    /// Attempts count: a request that is refused, by this or any other limit of the layer, is charged here too, as far as
    /// something is left. By default a refusal costs nothing.
    ///
    /// It is a second step behind the refusal, which does not wait for it. In between others may be admitted; more than the
    /// limit are not. The refusal's fields are those of the decision: while a client goes on trying, it will find that it has
    /// to wait longer than it was told. Requests that were refused without a decision (a required key was missing, a limit
    /// was closed because the store failed) are not charged. A key or a tier that has to be looked up is looked up also of a
    /// request that another limit refuses.
    pub fn charge_refused(mut self) -> Self {
        self.how.outcomes.charge_refused = true;
        self
    }

    /// The cost is an estimate: the handler says through a [`Usage`](crate::Usage) what it was, at once or bit by bit
    /// while the response streams. A handler that says nothing keeps the estimate.
    ///
    /// An estimate of 0 reserves nothing and is charged afterwards.
    ///
    /// ```
    /// use http::request::Parts;
    /// use throttle_tower::{Constant, Gcra, Rate, limit};
    ///
    /// fn estimate(parts: &Parts) -> u64 {
    ///     parts.headers.get("x-max-tokens").and_then(|most| most.to_str().ok()?.parse().ok()).unwrap_or(500)
    /// }
    ///
    /// let tokens = limit("tokens", Gcra::new(Rate::per_minute(90_000)))
    ///     .by(Constant)
    ///     .unit("tokens")
    ///     .cost(estimate)
    ///     .settled_later();
    /// ```
    pub fn settled_later(mut self) -> Self {
        self.how.outcomes.settled_later = true;
        self
    }
}

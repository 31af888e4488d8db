//! The options of a limit whose charge depends on how the request ends: refunds by the response,
//! refunds without one, charges of refused requests, estimates that a handler settles. What is set
//! is in `charge_rules`; `usage/refund_and_settle` does it.

use std::sync::Arc;

use http::{HeaderMap, StatusCode};

use super::single::Limit;

/// # Charging by outcome
///
/// The head of the response decides; a body that breaks off later changes nothing. A refund never
/// delays the response: in memory it is done before the response is sent; over a store it runs in
/// the background, on the tokio runtime. If the store fails, the charge stays, and the failure is
/// [counted](crate::ThrottleLayer::settlements). In memory the rate-limit headers state what is
/// left after the refund. Over a store they state the decision before it, so they may show less
/// than is left. A request that never gets a response stays charged, unless the limit has
/// [`refund_aborted`](Self::refund_aborted).
impl Limit {
    /// Refunds the request if `refund` returns true for the response's head. Called several times,
    /// it refunds if any of the rules returns true. Defaults to never.
    ///
    /// The usual rules are [`limit::successful`](crate::limit::successful),
    /// [`limit::failed`](crate::limit::failed) and
    /// [`limit::server_error`](crate::limit::server_error). A request stays charged until its
    /// response is there, so requests that run at the same time cannot exceed the limit either.
    ///
    /// ```
    /// use http::StatusCode;
    /// use throttle_tower::{FixedWindow, Rate, client_ip::ClientIp, limit};
    ///
    /// let logins = limit("failed-logins", FixedWindow::new(Rate::per_hour(5)))
    ///     .by(ClientIp::peer())
    ///     .refund_if(limit::successful);
    ///
    /// // A response from the cache was cheap.
    /// let renders = limit("renders", FixedWindow::new(Rate::per_hour(100)))
    ///     .by(ClientIp::peer())
    ///     .refund_if(|_, headers| headers.get("x-cache").is_some_and(|cache| cache == "HIT"));
    /// ```
    pub fn refund_if(
        mut self,
        refund: impl Fn(StatusCode, &HeaderMap) -> bool + Send + Sync + 'static,
    ) -> Self {
        let rules = self.applied.charge_rules.used();
        rules.refund_if = Some(match rules.refund_if.take() {
            None => Arc::new(refund),
            Some(other) => {
                Arc::new(move |status, headers| other(status, headers) || refund(status, headers))
            }
        });
        self
    }

    /// Refunds requests that get no response: the inner service returned an error, or the request
    /// was dropped (the client disconnected, an outer timeout) before there was a response head. By
    /// default they stay charged, because the work may have been done.
    ///
    /// A request that is dropped while the store decides is refunded after the decision. The layer
    /// awaits the decision and makes the refund in the background; the two together count as one of
    /// its [settlements](crate::ThrottleLayer::settlements). If the store fails, or does not answer
    /// in time, what it has charged stays charged.
    pub fn refund_aborted(mut self) -> Self {
        self.applied.charge_rules.used().refund_aborted = true;
        self
    }

    /// Charges refused requests to this limit too, whether this limit or another one of the layer
    /// refuses them. Such a charge takes no more than the limit has left. By default a refusal
    /// costs nothing.
    ///
    /// The charge is a second step, and the response does not wait for it. Between the two steps
    /// other requests may be admitted, within the limit. The refusal's headers state the decision
    /// before the charge, so the wait may become longer than they state; each early retry is
    /// charged again. Requests that were refused without a decision (a required key was missing, a
    /// limit was closed because the store failed) are not charged. A key or a tier that needs a
    /// lookup is looked up also for a request that another limit refuses.
    pub fn charge_refused(mut self) -> Self {
        self.applied.charge_rules.used().charge_refused = true;
        self
    }

    /// Makes the cost an estimate: the handler reports the actual usage through a
    /// [`Usage`](crate::Usage), at once or bit by bit while the response streams. Without a report
    /// the estimate stays charged.
    ///
    /// An estimate of 0 counts as 1, so a client that chooses its estimate is refused, too, once
    /// nothing is left. To charge the usage afterwards, set a cost of 0: a request then holds one
    /// unit, which the handler gives back by reporting 0.
    ///
    /// ```
    /// use http::request::Parts;
    /// use throttle_tower::{Constant, Gcra, Rate, limit};
    ///
    /// /// Whatever the client writes, between the shortest answer and the longest.
    /// fn estimate(parts: &Parts) -> u64 {
    ///     let most = parts.headers.get("x-max-tokens");
    ///     let most = most.and_then(|most| most.to_str().ok()?.parse::<u64>().ok());
    ///     most.unwrap_or(500).clamp(10, 4_000)
    /// }
    ///
    /// let tokens = limit("tokens", Gcra::new(Rate::per_minute(90_000)))
    ///     .by(Constant)
    ///     .unit("tokens")
    ///     .cost(estimate)
    ///     .settled_later();
    /// ```
    pub fn settled_later(mut self) -> Self {
        self.applied.charge_rules.used().settled_later = true;
        self
    }
}

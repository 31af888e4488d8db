use std::fmt;
use std::sync::Arc;

use super::error::UsageError;
use super::refund_and_settle::Account;

/// Reports the actual usage of a request to the limits that are [settled
/// later](crate::Limit::settled_later).
///
/// The layer inserts it into the extensions of every request that it admits, if one of its limits
/// is settled later; of several stacked layers, a handler finds the innermost one's. With the
/// feature `axum` of this crate it is an extractor. Clones share the running total; move one into a
/// stream.
///
/// ```
/// use http::{Request, Response};
/// use throttle_tower::{Constant, Gcra, LimitReport, Rate, ThrottleLayer, Usage, limit};
/// use tower::{Layer, ServiceExt, service_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let tokens = limit("tokens", Gcra::new(Rate::per_hour(100)).burst(100))
///     .by(Constant)
///     .cost(50)
///     .settled_later();
/// let throttle = ThrottleLayer::builder(tokens).report_in(throttle_tower::ReportIn::Both).build()?;
/// let service = throttle.layer(service_fn(async |request: Request<()>| {
///     let usage: &Usage = request
///         .extensions()
///         .get()
///         .expect("a limit is settled later");
///     assert_eq!(usage.taken("tokens"), 50, "the estimate");
///     usage
///         .settle("tokens", 20)
///         .expect("nothing has settled it before");
///     Ok::<_, std::convert::Infallible>(Response::new(()))
/// }));
/// service.clone().oneshot(Request::new(())).await?;
/// let second = service.oneshot(Request::new(())).await?;
/// let report: &LimitReport = second
///     .extensions()
///     .get()
///     .expect("the layer was asked for it");
/// assert_eq!(report.decision().remaining(), 30, "100 - 20 - 50");
/// # Ok(())
/// # }
/// ```
///
/// # When it is final
///
/// Each limit's charge is corrected once:
///
/// * when the handler [settles](Self::settle) it: at once, at that total;
/// * else when a [refund rule](crate::Limit::refund_if) applies to the response's head: nothing is
///   charged;
/// * else when the response's body has ended or is dropped, or the request is dropped before: at
///   the running total that was [added](Self::add) up, or at the estimate if nothing was added. The
///   body of a response that switches protocols ends at once. To settle when such a connection
///   ends, use a [`Limiter`](throttle_core::Limiter) of your own.
///
/// Later usage is not counted: see [`UsageError::Settled`].
///
/// # Running charges
///
/// When the running total exceeds what was charged, the layer charges as much as the estimate
/// again, or the whole excess if that is more, but no more than the limit has left. Other requests
/// thus see the usage while the response still streams. At most one such charge is under way for
/// each limit. Once the limit is exhausted, [`add`](Self::add) returns false, and the layer tries
/// again when the total has grown by another estimate. A running charge counts in the window in
/// which it is made. If it turns out too large, the difference is refunded to that window.
///
/// # Headers
///
/// The rate-limit headers of the response include what the handler reports before it returns the
/// response. In memory they state exactly what is left then. Over a store, units beyond the
/// estimate are subtracted, and units that are given back are not added, because that may still
/// fail. The [`LimitReport`](crate::LimitReport) states the decision.
///
/// # Failures
///
/// No method waits for the store or fails because of it. If the store fails, the charge stays, and
/// the failure is [counted](crate::ThrottleLayer::settlements). In memory each change is made at
/// once. Over an asynchronous store, changes are spawned on the current tokio runtime, or else on
/// the one that the request arrived on. If there is neither, a store that [can
/// fail](throttle_core::Backend::can_fail) is not called, and the change counts as failed. Any
/// other store is called, and the change counts as failed unless the store completes it at once.
///
/// # Cancel safety
///
/// No method is async. If a handler is dropped, its charge becomes final as above.
#[derive(Clone)]
pub struct Usage(Arc<Account>);

impl Usage {
    pub(crate) const fn new(account: Arc<Account>) -> Self {
        Self(account)
    }

    /// The names of the layer's limits that are settled later, in the order given. A limit that
    /// does not apply to the request is among them; settling it changes nothing.
    pub fn policies(&self) -> impl Iterator<Item = &str> {
        self.0.names()
    }

    /// Units charged to a policy so far: the estimate, and running charges. 0 if the policy did not
    /// apply, or is not among the [policies](Self::policies). Refunds do not reduce it.
    #[must_use]
    pub fn taken(&self, policy: &str) -> u64 {
        self.0.read(policy, |tally| tally.held).unwrap_or(0)
    }

    /// The running total that was [added](Self::add) up; `None` if nothing was added yet.
    #[must_use]
    pub fn used(&self, policy: &str) -> Option<u64> {
        self.0.read(policy, |tally| tally.used)?
    }

    /// Adds `units` to the running total. Once anything was added, even 0, the final charge is the
    /// total and not the estimate.
    ///
    /// Returns false if the limit has too little left to charge the total; the handler may stop.
    /// While a charge is pending at the store, and of an [audited](crate::Limit::audit) limit, it
    /// returns true.
    ///
    /// # Errors
    ///
    /// If there is no such policy, or its charge is final.
    pub fn add(&self, policy: &str, units: u64) -> Result<bool, UsageError> {
        self.0
            .update(policy, |tally, steps| tally.add(units, steps))?;
        // Read afterwards: in memory the charge is made already.
        Ok(self
            .0
            .read(policy, |tally| tally.is_covered())
            .unwrap_or(true)
            || self.0.is_audited(policy))
    }

    /// Makes `actual` units the final charge, whatever was added before. If that is more than was
    /// charged so far, the difference is charged to the window of the latest charge, if that window
    /// is still open, and only as far as units are left in it. The rest is not charged.
    ///
    /// # Errors
    ///
    /// If there is no such policy, or its charge is final.
    pub fn settle(&self, policy: &str, actual: u64) -> Result<(), UsageError> {
        self.0
            .update(policy, |tally, steps| tally.close(Some(actual), steps))
    }

    /// [Settles](Self::settle) all [policies](Self::policies) whose charge is not final yet:
    /// `actual` units each.
    ///
    /// # Errors
    ///
    /// If all are final already.
    pub fn settle_all(&self, actual: u64) -> Result<(), UsageError> {
        if self.0.settle_all(actual) {
            return Ok(());
        }
        let names: Vec<&str> = self.policies().collect();
        Err(UsageError::Settled {
            name: names.join(", "),
        })
    }

    /// Gives back the charges of all [policies](Self::policies) that are not final.
    ///
    /// # Errors
    ///
    /// If all are final already.
    pub fn refund(&self) -> Result<(), UsageError> {
        self.settle_all(0)
    }
}

impl fmt::Debug for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let taken = self.policies().map(|policy| (policy, self.taken(policy)));
        f.debug_map().entries(taken).finish()
    }
}

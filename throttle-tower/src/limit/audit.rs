//! A limit that is decided and refuses no request: to see what it would do before it is enforced.

use throttle_core::{ConfigError, Policy};

use super::on_missing::OnMissing;
use super::settings::LimitSettings;
use super::single::Limit;

/// # Before a limit is enforced
impl Limit {
    /// Audits the limit instead of enforcing it: the limit is decided with the others of the layer,
    /// in the same step, and refuses no request. Defaults to enforcing.
    ///
    /// What the limit would have done is in the [report](crate::LimitReport::would_refuse) that a
    /// handler finds, in the [event](crate::Event::would_refuse), in the log
    /// (`Traces`), and in metrics, the page and the explanation. With [`Audit::Announced`],
    /// responses also list the limit.
    ///
    /// ```
    /// use http::{Request, Response};
    /// use throttle_tower::{Audit, Constant, Gcra, LimitReport, Rate, ThrottleLayer, limit};
    /// use tower::{Layer, ServiceExt, service_fn};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let strict = limit("strict", Gcra::new(Rate::per_hour(1)).burst(1))
    ///     .by(Constant)
    ///     .audit(Audit::Silent);
    /// let service = ThrottleLayer::new(strict)?.layer(service_fn(async |request: Request<()>| {
    ///     let report: &LimitReport = request.extensions().get().expect("the layer inserts it");
    ///     Response::builder().header("x-would-refuse", report.would_refuse().count()).body(())
    /// }));
    /// for would_refuse in ["0", "1"] {
    ///     let response = service.clone().oneshot(Request::new(())).await?;
    ///     assert_eq!(response.status(), http::StatusCode::OK);
    ///     assert_eq!(response.headers()["x-would-refuse"], would_refuse);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # What it counts
    ///
    /// A request is charged to the limit if the request is admitted and the limit would have
    /// admitted it. So the limit's state is exactly what it would be if the limit was enforced, as
    /// long as it would refuse no request. After the first request that it would have refused, the
    /// traffic differs from that of an enforced limit: such a request was served, and the response
    /// stated no wait.
    ///
    /// # With other options
    ///
    /// * The limit has the tiers and [classes](Self::priority) that it would have.
    /// * Usage that a handler [settles](Self::settled_later), and [refunds](Self::refund_if),
    ///   concern requests that were charged to the limit. [`Usage::add`](crate::Usage::add) never
    ///   says that the limit is used up.
    /// * [`charge_refused`](Self::charge_refused) charges requests that other limits refuse.
    /// * While the store fails, a limit that is [closed](crate::OnError::Closed) is skipped. One
    ///   that is [local](crate::OnError::Local) or open is decided by this process's share, and
    ///   refuses no request there either.
    /// * One step decides all limits. So a key that is looked up is waited for (at most its
    ///   [deadline](Self::key_deadline)), and if the audited key makes the step fail, the enforced
    ///   limits go by their [`OnError`](crate::OnError): a senseless value, or a cluster's server
    ///   that is away, with keys in several slots.
    ///
    /// Building the layer fails if the limit is inside an [`any`](crate::any), queues requests
    /// ([`wait_up_to`](Self::wait_up_to)), [rejects](OnMissing::Reject) requests without a key, or
    /// [bans](Self::ban).
    pub fn audit(mut self, audit: Audit) -> Self {
        self.applied.audit = Some(audit);
        self
    }
}

impl Audit {
    /// # Errors
    ///
    /// If the limit would delay requests, refuse those without a key, or ban keys.
    pub(super) fn policy(
        self,
        policy: Policy,
        applied: &LimitSettings,
    ) -> Result<Policy, ConfigError> {
        let wrong = |field, value: &dyn std::fmt::Debug, rule: &str| {
            Err(
                ConfigError::new(field, format_args!("{value:?}"), rule.to_owned())
                    .in_policy(policy.name()),
            )
        };
        if let Some(longest) = applied.wait_up_to {
            let rule = "an audited limit delays no request, so that what it would do for those \
                that wait is not known; \
                        set it when the limit is enforced";
            return wrong("wait_up_to", &longest, rule);
        }
        if let OnMissing::Reject(status) = applied.on_missing {
            let rule = "an audited limit refuses no request; share or skip requests without a key \
                until it is enforced";
            return wrong("on_missing", &status, rule);
        }
        if applied.charge_rules.ban.is_some() {
            let rule = "an audited limit refuses no request, and a ban does; enforce the limit, \
                or audit it first \
                        without the ban";
            return wrong("ban", &format_args!("on an audited limit"), rule);
        }
        Ok(policy.audit())
    }
}

/// What responses say of a limit that is [audited](crate::Limit::audit).
///
/// ```
/// use http::{Request, Response};
/// use throttle_tower::{Audit, Constant, FixedWindow, Rate, ThrottleLayer, limit};
/// use tower::{Layer, ServiceExt, service_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// for (audit, is_listed) in [(Audit::Silent, false), (Audit::Announced, true)] {
///     let new = limit("new", FixedWindow::new(Rate::per_day(9))).by(Constant).audit(audit);
///     let service = ThrottleLayer::new(new)?.layer(service_fn(async |_: Request<()>| {
///         Ok::<_, std::convert::Infallible>(Response::new(()))
///     }));
///     let response = service.oneshot(Request::new(())).await?;
///     assert_eq!(response.headers().contains_key("ratelimit"), is_listed);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audit {
    /// Nothing.
    Silent,
    /// Their headers list it among the limits that are enforced. A client that obeys the headers
    /// keeps to the limit before it is enforced.
    Announced,
}

#[cfg(test)]
mod tests;

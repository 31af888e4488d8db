use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use throttle_core::{Decision, Policy, Status};

use super::announced::Announced;

/// The decision about a request, with the policies it speaks of.
///
/// The layer puts it into the extensions of the request, for handlers, and of the response, for outer layers. Where
/// several throttles are stacked, a handler finds the innermost one's, and the response carries the one that refused, or
/// else the innermost. A request that was refused without a decision (a limit was [closed](crate::OnError::Closed) when
/// the store failed, or a key was missing and required) has none.
///
/// When the store failed and this process decided instead, the decision tells so: [`Decision::decided_by`]. Where all limits
/// are [open](crate::OnError::Open) then, it is as if none applied: `remaining` is `u64::MAX`.
///
/// With the feature `axum` of this crate it is an extractor. Without that feature a handler that takes one is no
/// `Handler`, and the compiler says only so.
///
/// ```
/// # #[cfg(feature = "axum")]
/// async fn remaining(report: throttle_tower::LimitReport) -> String {
///     format!("{} left\n", report.decision().remaining())
/// }
/// ```
#[derive(Clone, Debug)]
pub struct LimitReport(Arc<Inner>);

struct Inner {
    decision: Decision,
    /// The user's closures in there may be of any kind, but nothing that a report can be asked runs one.
    announced: AssertUnwindSafe<Arc<Announced>>,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner").field("decision", &self.decision).field("policies", &self.announced.policies).finish()
    }
}

impl LimitReport {
    #[inline]
    pub(super) fn new(decision: Decision, announced: Arc<Announced>) -> Self {
        Self(Arc::new(Inner { decision, announced: AssertUnwindSafe(announced) }))
    }

    #[inline]
    pub(super) fn announced(&self) -> &Announced {
        &self.0.announced
    }

    /// The decision.
    #[must_use]
    pub fn decision(&self) -> &Decision {
        &self.0.decision
    }

    /// The policies that apply to the request, each with where it stands; one with tiers as it is in the request's.
    pub fn statuses(&self) -> impl Iterator<Item = (&Policy, &Status)> {
        let statuses = self.0.announced.policies.iter().zip(self.0.decision.statuses());
        let applying = statuses.filter(|(_, status)| status.applies());
        applying.map(|(policy, status)| (policy.tier(status.tier()), status))
    }

    /// The policy that decided: that refused with the longest wait, or has the least left.
    #[must_use]
    pub fn binding(&self) -> Option<&Policy> {
        let place = self.0.decision.binding()?;
        Some(self.0.announced.policies.get(place)?.tier(self.0.decision.statuses().get(place)?.tier()))
    }

    /// The name of the tier that the request was in, of the policy of that name. `None` if it has no tiers or does not
    /// apply.
    #[must_use]
    pub fn tier(&self, policy: &str) -> Option<&str> {
        let mut statuses = self.0.announced.policies.iter().zip(self.0.decision.statuses());
        let (policy, status) = statuses.find(|(one, status)| one.name() == policy && status.applies())?;
        policy.tier_name(status.tier())
    }

    /// The names of the policies that the refusal is due to; none when the request was admitted.
    pub fn violated(&self) -> impl Iterator<Item = &str> + Clone {
        let statuses = self.0.announced.policies.iter().zip(self.0.decision.statuses());
        statuses.filter(|(_, status)| status.is_violated()).map(|(policy, _)| policy.name())
    }
}

#[cfg(feature = "axum")]
pub use extract::MissingLimitReport;

#[cfg(feature = "axum")]
mod extract {
    use std::convert::Infallible;
    use std::fmt;

    use axum::extract::{FromRequestParts, OptionalFromRequestParts};
    use axum::response::{IntoResponse, Response};
    use http::StatusCode;
    use http::request::Parts;

    use super::LimitReport;

    /// A handler asked for a [`LimitReport`], but no throttle decided about the request: status 500.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[non_exhaustive]
    pub struct MissingLimitReport;

    impl fmt::Display for MissingLimitReport {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(
                "no rate limit decided about this request; add a ThrottleLayer to the route, or take an \
                 Option<LimitReport>",
            )
        }
    }

    impl std::error::Error for MissingLimitReport {}

    impl IntoResponse for MissingLimitReport {
        /// Status 500 without a body. What is missing goes into the log, for it is none of the client's business.
        fn into_response(self) -> Response {
            crate::log::error(&self);
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }

    impl<S: Sync> FromRequestParts<S> for LimitReport {
        type Rejection = MissingLimitReport;

        async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, MissingLimitReport> {
            parts.extensions.get().cloned().ok_or(MissingLimitReport)
        }
    }

    impl<S: Sync> OptionalFromRequestParts<S> for LimitReport {
        type Rejection = Infallible;

        async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, Infallible> {
            Ok(parts.extensions.get().cloned())
        }
    }
}

use std::fmt;

use http::request::Parts;
use throttle_core::{BackendError, BackendErrorKind, DecidedBy, Decision, Policy, PolicyName};

/// What happened to a request, as a hook learns it: see [`ThrottleLayer::on_decision`](crate::ThrottleLayer::on_decision).
///
/// It never holds a key. As metric labels, policy names and outcomes are bounded; paths and headers are not. `Debug` leaves
/// the request's head out.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct Event<'a> {
    /// What became of the request.
    pub outcome: Outcome<'a>,
    /// The policies, in the order given.
    pub policies: &'a [Policy],
    /// The decision, if there was one: by the store, or when that failed by this process, or none but to let the request
    /// through. Its statuses stand in the order of the policies.
    pub decision: Option<&'a Decision>,
    /// The request's head. It holds what the client sent: do not log it raw.
    pub parts: &'a Parts,
}

/// What became of a request.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Outcome<'a> {
    /// It was passed on.
    Admitted,
    /// A limit refused it.
    Refused,
    /// A key was missing that was required.
    MissingKey,
    /// A limit on requests in flight refused it: the names of those that had not enough left.
    Saturated(&'a [PolicyName]),
    /// The store failed and the limits that apply say to let it through.
    FailedOpen(&'a BackendError),
    /// The store failed and a limit says to refuse it.
    FailedClosed(&'a BackendError),
}

impl Outcome<'_> {
    /// A label for metrics: `admitted`, `refused`, `missing_key`, `saturated`, `failed_open` or `failed_closed`.
    #[must_use]
    pub const fn label(&self) -> &'static str {
        match self {
            Self::Admitted => "admitted",
            Self::Refused => "refused",
            Self::MissingKey => "missing_key",
            Self::Saturated(_) => "saturated",
            Self::FailedOpen(_) => "failed_open",
            Self::FailedClosed(_) => "failed_closed",
        }
    }
}

impl<'a> Event<'a> {
    /// Why the store did not decide about the request; `None` if it did, or was not asked. A count of the events that
    /// have one is the number of degraded decisions: admitted or refused by this process's
    /// [share](crate::OnError::Local), let through, or refused with 503.
    #[must_use]
    pub fn degraded(&self) -> Option<BackendErrorKind> {
        match self.outcome {
            Outcome::FailedOpen(error) | Outcome::FailedClosed(error) => Some(error.kind()),
            Outcome::Admitted | Outcome::Refused | Outcome::MissingKey | Outcome::Saturated(_) => {
                self.decision?.degraded()
            }
        }
    }

    /// Who decided: the store, this process, or nobody, for what is open. `None` where there is no decision: a required
    /// key was missing, or a limit is closed.
    #[must_use]
    pub fn decided_by(&self) -> Option<DecidedBy> {
        self.decision.map(Decision::decided_by)
    }

    /// The policy that decided, if one did.
    #[must_use]
    pub fn binding(&self) -> Option<&'a Policy> {
        let (decision, place) = (self.decision?, self.decision?.binding()?);
        Some(self.policies.get(place)?.tier(decision.statuses().get(place)?.tier()))
    }
}

impl fmt::Debug for Event<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Event");
        shown.field("outcome", &self.outcome).field("policies", &self.policies).field("decision", &self.decision);
        shown.finish_non_exhaustive()
    }
}

use throttle_core::{DecidedBy, Status};

use crate::event::{Event, Outcome};

/// What decided a request, in the order in which one hides another: a second in which a closed
/// limit refused one request is a closed one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Decider {
    Store,
    Local,
    Open,
    Closed,
}

impl Decider {
    #[cfg(any(feature = "metrics", feature = "dashboard"))]
    pub(super) const ALL: [Self; 4] = [Self::Store, Self::Local, Self::Open, Self::Closed];

    /// `None` if nothing had to be decided: a key was missing, there were too few permits, or no
    /// limit applies.
    pub(super) fn of(event: &Event<'_>) -> Option<Self> {
        match event.outcome {
            Outcome::FailedClosed(_) => Some(Self::Closed),
            Outcome::FailedOpen(_) => Some(Self::Open),
            Outcome::Admitted | Outcome::Refused => {
                let decision = event.decision?;
                let is_decided = decision.degraded().is_some()
                    || decision.statuses().iter().any(Status::applies);
                is_decided.then(|| decision.decided_by().into())
            }
            Outcome::MissingKey | Outcome::NoPermit(_) => None,
        }
    }

    /// `store`, `local`, `open` or `closed`.
    pub(super) const fn label(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::Local => "local",
            Self::Open => "open",
            Self::Closed => "closed",
        }
    }
}

impl From<DecidedBy> for Decider {
    fn from(decided_by: DecidedBy) -> Self {
        match decided_by {
            DecidedBy::Local(_) => Self::Local,
            DecidedBy::Open(_) => Self::Open,
            // The enum may grow by ways in which a store decides.
            _ => Self::Store,
        }
    }
}

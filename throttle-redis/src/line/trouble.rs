use throttle_core::{BackendError, BackendErrorKind};

use crate::connection::{Fault, FaultKind};

/// Why a command has no answer.
#[derive(Clone, Debug)]
pub(crate) enum Trouble {
    Fault(Fault),
    /// Sent, and not answered in time.
    Late,
    /// Not sent: when there was a connection and a script to call, it was too late.
    TooLate,
    /// Not sent: it waited in this process until its deadline.
    Expired,
    /// Not sent: the breaker is open after failures of which one at least was an error.
    Suspended,
    /// Not sent: the breaker is open, and all that failed were answers that came too late.
    Overdue,
    /// Not sent: too many wait already.
    Saturated,
    /// The answer makes no sense.
    Nonsense(&'static str),
    /// Something else went wrong, and part of the request stays charged.
    Partly(Box<Trouble>),
}

impl Trouble {
    /// Whether nothing was charged for sure.
    pub(crate) fn is_uncharged(&self) -> bool {
        match self {
            Self::Fault(fault) => fault.did_not_run(),
            Self::TooLate | Self::Expired | Self::Suspended | Self::Overdue | Self::Saturated => true,
            Self::Late | Self::Nonsense(_) | Self::Partly(_) => false,
        }
    }
}

impl From<Trouble> for BackendError {
    fn from(trouble: Trouble) -> Self {
        let kind = trouble.kind();
        let error = if trouble.is_uncharged() { Self::new(kind).uncharged() } else { Self::new(kind) };
        match trouble {
            Trouble::Fault(fault) => error.with_source(fault),
            Trouble::Nonsense(what) => error.with_source(what),
            Trouble::Overdue => {
                error.with_source("calls are suspended, because several answers in a row came too late")
            }
            Trouble::Partly(trouble) => error.with_source(Self::from(*trouble)),
            _ => error,
        }
    }
}

impl Trouble {
    fn kind(&self) -> BackendErrorKind {
        match self {
            Self::Late | Self::TooLate | Self::Overdue => BackendErrorKind::Timeout,
            Self::Suspended => BackendErrorKind::Suspended,
            Self::Saturated | Self::Expired => BackendErrorKind::Saturated,
            Self::Nonsense(_) => BackendErrorKind::Protocol,
            Self::Partly(trouble) => trouble.kind(),
            Self::Fault(fault) => match fault.kind() {
                // Redirections were followed as far as they led: to a server that is not there, say.
                FaultKind::NotSent
                | FaultKind::Lost
                | FaultKind::NotNow
                | FaultKind::ReadOnly
                | FaultKind::Moved(_)
                | FaultKind::Ask(_) => BackendErrorKind::Unavailable,
                _ => BackendErrorKind::Protocol,
            },
        }
    }
}

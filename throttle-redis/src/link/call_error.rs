use std::fmt;

use throttle_core::{BackendError, BackendErrorKind};

use super::connection::{Fault, FaultKind};
use crate::counters::CallResult;

/// Why a command has no answer.
#[derive(Clone, Debug)]
pub(crate) enum CallError {
    Fault(Fault),
    /// Sent, and not answered in time.
    Late,
    /// Not sent: by the time a connection and a script were ready, the deadline had passed.
    TooLate,
    /// Not sent: it waited in this process until its deadline.
    Expired,
    /// Not sent: the breaker is open, and at least one of the failures was an error.
    Suspended,
    /// Not sent: the breaker is open, and all failures were late answers.
    Overdue,
    /// Not sent: too many decisions wait already.
    Saturated,
    /// Did not run: it is about several decisions, and their slot is moving. Each can be asked
    /// about by itself.
    Divided,
    /// The answer makes no sense.
    Malformed(&'static str),
    /// Something else went wrong, and part of the request stays charged.
    PartlyCharged(Box<CallError>),
}

impl CallError {
    /// Whether the store answered, and the answer is no decision. It may answer the same for ever,
    /// about some keys only.
    pub(crate) fn is_an_answer(&self) -> bool {
        match self {
            Self::Fault(fault) => !matches!(fault.kind(), FaultKind::NotSent | FaultKind::Lost),
            Self::Malformed(_) => true,
            Self::PartlyCharged(error) => error.is_an_answer(),
            _ => false,
        }
    }

    pub(crate) fn fault_kind(&self) -> Option<&FaultKind> {
        match self {
            Self::Fault(fault) => Some(fault.kind()),
            _ => None,
        }
    }

    /// Whether it is certain that nothing was charged.
    pub(crate) fn is_uncharged(&self) -> bool {
        match self {
            Self::Fault(fault) => fault.did_not_run(),
            Self::TooLate
            | Self::Expired
            | Self::Suspended
            | Self::Overdue
            | Self::Saturated
            | Self::Divided => true,
            Self::Late | Self::Malformed(_) | Self::PartlyCharged(_) => false,
        }
    }
}

impl From<&CallError> for CallResult {
    fn from(error: &CallError) -> Self {
        match error {
            CallError::Late => Self::Late,
            CallError::Malformed(_) => Self::Malformed,
            CallError::PartlyCharged(first) => Self::from(&**first),
            CallError::Divided => Self::Fault,
            CallError::Fault(fault) if *fault.kind() != FaultKind::NotSent => Self::Fault,
            // It was not sent.
            _ => Self::Unsent,
        }
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fault(fault) => fault.fmt(f),
            Self::Malformed(what) => f.write_str(what),
            Self::PartlyCharged(error) => error.fmt(f),
            _ => f.write_str(self.kind().label()),
        }
    }
}

impl From<CallError> for BackendError {
    fn from(failed: CallError) -> Self {
        let kind = failed.kind();
        let error = if failed.is_uncharged() {
            Self::new(kind).uncharged()
        } else {
            Self::new(kind)
        };
        match failed {
            CallError::Fault(fault) => error.with_source(fault),
            CallError::Malformed(what) => error.with_source(what),
            CallError::Overdue => error
                .with_source("calls are suspended, because several answers in a row came too late"),
            CallError::PartlyCharged(first) => error.with_source(Self::from(*first)),
            _ => error,
        }
    }
}

impl CallError {
    pub(crate) fn kind(&self) -> BackendErrorKind {
        match self {
            Self::Late | Self::TooLate | Self::Overdue => BackendErrorKind::Timeout,
            Self::Suspended => BackendErrorKind::Suspended,
            Self::Saturated | Self::Expired => BackendErrorKind::Saturated,
            Self::Divided => BackendErrorKind::Unavailable,
            Self::Malformed(_) => BackendErrorKind::Protocol,
            Self::PartlyCharged(error) => error.kind(),
            Self::Fault(fault) => match fault.kind() {
                // The redirections led to a server that cannot be reached.
                FaultKind::NotSent
                | FaultKind::Lost
                | FaultKind::NotNow
                | FaultKind::SlotNotNow
                | FaultKind::ReadOnly
                | FaultKind::Moved(_)
                | FaultKind::Ask(_) => BackendErrorKind::Unavailable,
                _ => BackendErrorKind::Protocol,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use super::*;

    fn fault(kind: FaultKind) -> CallError {
        CallError::Fault(Fault::new(kind, "what the server said"))
    }

    #[test]
    fn each_error_says_what_failed_and_whether_something_was_charged() {
        use BackendErrorKind::{Protocol, Saturated, Suspended, Timeout, Unavailable};

        let address = || Some(("host".to_owned(), 1));
        let all = [
            (CallError::Late, Timeout, false, None),
            (CallError::TooLate, Timeout, true, None),
            (CallError::Expired, Saturated, true, None),
            (CallError::Suspended, Suspended, true, None),
            (
                CallError::Overdue,
                Timeout,
                true,
                Some("calls are suspended, because several answers in a row came too late"),
            ),
            (CallError::Saturated, Saturated, true, None),
            (CallError::Divided, Unavailable, true, None),
            (
                CallError::Malformed("makes no sense"),
                Protocol,
                false,
                Some("makes no sense"),
            ),
            (
                CallError::PartlyCharged(Box::new(CallError::Suspended)),
                Suspended,
                false,
                Some(
                    "calls to the rate-limit store are suspended after repeated failures; nothing \
                        was charged",
                ),
            ),
            (
                fault(FaultKind::NotSent),
                Unavailable,
                true,
                Some("what the server said"),
            ),
            (
                fault(FaultKind::Lost),
                Unavailable,
                false,
                Some("what the server said"),
            ),
            (
                fault(FaultKind::NotNow),
                Unavailable,
                true,
                Some("what the server said"),
            ),
            (
                fault(FaultKind::ReadOnly),
                Unavailable,
                true,
                Some("what the server said"),
            ),
            (
                fault(FaultKind::Moved(address())),
                Unavailable,
                true,
                Some("what the server said"),
            ),
            (
                fault(FaultKind::Ask(address())),
                Unavailable,
                true,
                Some("what the server said"),
            ),
            (
                fault(FaultKind::NoScript),
                Protocol,
                true,
                Some("what the server said"),
            ),
            (
                fault(FaultKind::OutOfMemory),
                Protocol,
                true,
                Some("what the server said"),
            ),
            (
                fault(FaultKind::Refused),
                Protocol,
                true,
                Some("what the server said"),
            ),
            (
                fault(FaultKind::Script),
                Protocol,
                false,
                Some("what the server said"),
            ),
            (
                fault(FaultKind::Other),
                Protocol,
                false,
                Some("what the server said"),
            ),
        ];
        for (call, kind, uncharged, source) in all {
            let error = BackendError::from(call.clone());
            assert_eq!(
                (error.kind(), error.is_uncharged()),
                (kind, uncharged),
                "{call:?}"
            );
            assert_eq!(
                error.source().map(ToString::to_string).as_deref(),
                source,
                "{call:?}"
            );
        }
    }
}

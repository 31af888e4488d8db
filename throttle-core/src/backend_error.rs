use std::error::Error;
use std::fmt;

/// An error of a backend that could not decide.
///
/// ```
/// use throttle_core::{BackendError, BackendErrorKind};
///
/// let error = BackendError::new(BackendErrorKind::Saturated).uncharged();
/// assert!(error.is_uncharged());
/// assert_eq!(
///     error.to_string(),
///     "too many decisions are waiting for the rate-limit store; nothing was charged"
/// );
/// ```
#[derive(Debug)]
pub struct BackendError {
    kind: BackendErrorKind,
    uncharged: bool,
    source: Option<Box<dyn Error + Send + Sync>>,
}

/// Why a backend could not decide.
///
/// ```
/// use throttle_core::{BackendError, BackendErrorKind};
///
/// let error = BackendError::new(BackendErrorKind::Unavailable).uncharged();
/// assert_eq!(error.kind(), BackendErrorKind::Unavailable);
/// assert!(!error.kind().is_busy());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BackendErrorKind {
    /// The store could not be reached: there is no connection, or it broke.
    Unavailable,
    /// The deadline passed while this process waited for the store's reply or for the first
    /// connection to it. A single timeout says nothing about the store, because the process may
    /// have been too busy to read a reply that had arrived. A backend that has suspended its calls
    /// to the store because of late replies alone returns this kind, too, and not
    /// [`Suspended`](Self::Suspended).
    Timeout,
    /// This process has more decisions to make than the store accepts: the queue was full, or the
    /// deadline passed in the queue. The store was not called and may be healthy; nothing was
    /// charged.
    Saturated,
    /// The store refused the step or sent an invalid reply.
    Protocol,
    /// Calls to the store are suspended after repeated failures, at least one of which was an error
    /// and not a late reply.
    Suspended,
    /// The backend does not have this optional step. The error's source says which. Nothing was
    /// done.
    Unsupported,
}

impl BackendErrorKind {
    /// Every kind, for one metric series each. The index of a kind is its number:
    /// `ALL[kind as usize]` is `kind`.
    ///
    /// ```
    /// use throttle_core::BackendErrorKind;
    ///
    /// assert_eq!(BackendErrorKind::ALL[BackendErrorKind::Timeout as usize].label(), "timeout");
    /// ```
    pub const ALL: &'static [Self] = &[
        Self::Unavailable,
        Self::Timeout,
        Self::Saturated,
        Self::Protocol,
        Self::Suspended,
        Self::Unsupported,
    ];

    /// Whether the store may be healthy: it is overloaded, or its reply is not known yet. Other
    /// errors say that the store is broken: it cannot be reached, replies with errors, or is
    /// suspended because it failed.
    ///
    /// ```
    /// use throttle_core::BackendErrorKind;
    ///
    /// assert!(BackendErrorKind::Saturated.is_busy());
    /// assert!(!BackendErrorKind::Suspended.is_busy());
    /// ```
    #[must_use]
    pub const fn is_busy(self) -> bool {
        matches!(self, Self::Saturated | Self::Timeout)
    }
}

impl BackendErrorKind {
    /// A label for metrics: `unavailable`, `timeout`, `saturated`, `protocol`, `suspended` or
    /// `unsupported`.
    ///
    /// ```
    /// assert_eq!(throttle_core::BackendErrorKind::Timeout.label(), "timeout");
    /// ```
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Unavailable => "unavailable",
            Self::Timeout => "timeout",
            Self::Saturated => "saturated",
            Self::Protocol => "protocol",
            Self::Suspended => "suspended",
            Self::Unsupported => "unsupported",
        }
    }
}

impl BackendError {
    /// Creates an error after which the request may have been charged.
    #[must_use]
    pub const fn new(kind: BackendErrorKind) -> Self {
        Self {
            kind,
            uncharged: false,
            source: None,
        }
    }

    /// Marks the request as known not to have been charged.
    #[must_use]
    pub fn uncharged(mut self) -> Self {
        self.uncharged = true;
        self
    }

    /// Sets the cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Why the backend could not decide.
    #[must_use]
    pub const fn kind(&self) -> BackendErrorKind {
        self.kind
    }

    /// Whether the request is known not to have been charged. If not, a retry might charge it
    /// twice.
    #[must_use]
    pub const fn is_uncharged(&self) -> bool {
        self.uncharged
    }
}

impl fmt::Display for BackendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            BackendErrorKind::Unavailable => "the rate-limit store could not be reached",
            BackendErrorKind::Timeout => "the rate-limit store did not answer in time",
            BackendErrorKind::Saturated => {
                "too many decisions are waiting for the rate-limit store"
            }
            BackendErrorKind::Protocol => "the rate-limit store gave an answer that makes no sense",
            BackendErrorKind::Suspended => {
                "calls to the rate-limit store are suspended after repeated failures"
            }
            BackendErrorKind::Unsupported => "the rate-limit backend does not support this step",
        };
        let charged = if self.uncharged {
            "nothing was charged"
        } else {
            "the request may have been charged"
        };
        write!(f, "{kind}; {charged}")
    }
}

impl Error for BackendError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_lists_each_kind_at_its_number() {
        // A new kind has to be added to this match, and is then missed in the list.
        let next = |kind| match kind {
            BackendErrorKind::Unavailable => Some(BackendErrorKind::Timeout),
            BackendErrorKind::Timeout => Some(BackendErrorKind::Saturated),
            BackendErrorKind::Saturated => Some(BackendErrorKind::Protocol),
            BackendErrorKind::Protocol => Some(BackendErrorKind::Suspended),
            BackendErrorKind::Suspended => Some(BackendErrorKind::Unsupported),
            BackendErrorKind::Unsupported => None,
        };
        let kinds: Vec<_> =
            std::iter::successors(Some(BackendErrorKind::Unavailable), |kind| next(*kind))
                .collect();
        assert_eq!(BackendErrorKind::ALL, kinds);
        assert!(
            kinds
                .iter()
                .enumerate()
                .all(|(index, kind)| *kind as usize == index)
        );
    }

    #[test]
    fn an_error_says_what_became_of_the_store_and_of_the_charge() {
        let unavailable = "the rate-limit store could not be reached";
        let timeout = "the rate-limit store did not answer in time";
        let saturated = "too many decisions are waiting for the rate-limit store";
        let protocol = "the rate-limit store gave an answer that makes no sense";
        let suspended = "calls to the rate-limit store are suspended after repeated failures";
        let unsupported = "the rate-limit backend does not support this step";
        for (kind, label, text) in [
            (BackendErrorKind::Unavailable, "unavailable", unavailable),
            (BackendErrorKind::Timeout, "timeout", timeout),
            (BackendErrorKind::Saturated, "saturated", saturated),
            (BackendErrorKind::Protocol, "protocol", protocol),
            (BackendErrorKind::Suspended, "suspended", suspended),
            (BackendErrorKind::Unsupported, "unsupported", unsupported),
        ] {
            assert_eq!(kind.label(), label);
            let error = BackendError::new(kind).with_source("the cable");
            assert_eq!(
                error.to_string(),
                format!("{text}; the request may have been charged"),
                "without its source"
            );
            assert_eq!(
                error.uncharged().to_string(),
                format!("{text}; nothing was charged")
            );
        }
    }
}

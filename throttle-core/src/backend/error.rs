use std::error::Error;
use std::fmt;

/// A decision that could not be made.
#[derive(Debug)]
pub struct BackendError {
    kind: BackendErrorKind,
    uncharged: bool,
    source: Option<Box<dyn Error + Send + Sync>>,
}

/// Why a decision could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BackendErrorKind {
    /// The store could not be reached: there is no connection, or it broke.
    Unavailable,
    /// The deadline ended while the store was waited for: for its answer, or for the first connection to it. One of these
    /// says nothing about the store, because the process may have been too busy to read an answer that is there. Or the
    /// store is not asked because it was too late several times in a row.
    Timeout,
    /// This process has more decisions to make than the store takes: the queue was full, or the deadline ended in it. The
    /// store was not asked, and may be well; nothing was charged.
    Saturated,
    /// The store refused the step or answered something that makes no sense.
    Protocol,
    /// Calls to the store are suspended after repeated failures, and not all of those were late answers.
    Suspended,
}

impl BackendErrorKind {
    /// Whether the store may be well all the same: it has more to do than it can, or its answer is not known yet. Other
    /// errors say that the store is broken: it cannot be reached, answers errors, or is suspended because it failed.
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

impl BackendError {
    /// An error after which the request may have been charged.
    #[must_use]
    pub const fn new(kind: BackendErrorKind) -> Self {
        Self { kind, uncharged: false, source: None }
    }

    /// Adds that the request is known not to have been charged.
    #[must_use]
    pub fn uncharged(mut self) -> Self {
        self.uncharged = true;
        self
    }

    /// Adds the cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Why.
    #[must_use]
    pub const fn kind(&self) -> BackendErrorKind {
        self.kind
    }

    /// Whether the request is known not to have been charged. If not, repeating it might charge it twice.
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
            BackendErrorKind::Saturated => "too many decisions are waiting for the rate-limit store",
            BackendErrorKind::Protocol => "the rate-limit store gave an answer that makes no sense",
            BackendErrorKind::Suspended => "calls to the rate-limit store are suspended after repeated failures",
        };
        let charged = if self.uncharged { "nothing was charged" } else { "the request may have been charged" };
        write!(f, "{kind}; {charged}")
    }
}

impl Error for BackendError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

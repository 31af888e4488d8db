use std::convert::Infallible;
use std::error::Error;
use std::fmt;
use std::time::Duration;

use throttle_core::BackendError;

/// A call was refused at once, because it would have had to wait too long for its turn.
///
/// Nothing was scheduled for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueFull {
    /// Which bound it would have broken.
    pub bound: Bound,
    /// How long until the same call is accepted if nothing else happens; `None` when no wait helps, or nobody knows.
    pub retry_after: Option<Duration>,
    /// The bound itself: how long the call may wait, until its last unit has left. For [`Bound::MaxWaiting`], zero.
    pub allowed: Duration,
}

/// What bounds a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Bound {
    /// The bucket's longest wait.
    MaxWait,
    /// The call's own deadline.
    Deadline,
    /// The number of calls that may wait at once, whatever their keys.
    MaxWaiting,
}

impl fmt::Display for QueueFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let allowed = self.allowed;
        match self.bound {
            Bound::MaxWait => write!(f, "the call would wait longer for its turn than max_wait, {allowed:?}")?,
            Bound::Deadline => write!(f, "the call would wait longer for its turn than its deadline, {allowed:?}")?,
            Bound::MaxWaiting => f.write_str("as many calls are waiting for their turn as max_waiting allows")?,
        }
        match (self.retry_after, self.bound) {
            (Some(wait), _) => write!(f, "; try again in {wait:?}"),
            (None, Bound::MaxWaiting) => f.write_str("; try again later"),
            (None, _) => f.write_str("; it costs more than ever fits"),
        }
    }
}

impl Error for QueueFull {}

/// Why a shaped call has no answer.
///
/// `E` is the error of the service that is shaped; where there is none, nothing can be in [`Inner`](Self::Inner).
#[derive(Debug)]
#[non_exhaustive]
pub enum ShapeError<E = Infallible> {
    /// It would have waited too long. The service was not called.
    QueueFull(QueueFull),
    /// The store that keeps the schedule failed, and nobody else was to decide. The service was not called.
    Store(BackendError),
    /// The service's own error, untouched.
    Inner(E),
}

impl<E> ShapeError<E> {
    /// The service's own error, if it is one.
    #[must_use]
    pub fn into_inner(self) -> Option<E> {
        match self {
            Self::Inner(error) => Some(error),
            Self::QueueFull(_) | Self::Store(_) => None,
        }
    }

    /// The refusal, if it is one.
    #[must_use]
    pub const fn queue_full(&self) -> Option<&QueueFull> {
        match self {
            Self::QueueFull(full) => Some(full),
            Self::Store(_) | Self::Inner(_) => None,
        }
    }
}

impl<E: Into<Box<dyn Error + Send + Sync>>> ShapeError<E> {
    /// As the error that `tower`'s own layers pass on. The service's own is passed on as it is.
    #[must_use]
    pub fn into_boxed(self) -> Box<dyn Error + Send + Sync> {
        match self {
            Self::QueueFull(full) => full.into(),
            Self::Store(error) => error.into(),
            Self::Inner(error) => error.into(),
        }
    }
}

impl<E> From<QueueFull> for ShapeError<E> {
    fn from(full: QueueFull) -> Self {
        Self::QueueFull(full)
    }
}

impl ShapeError {
    /// The same where a service has errors of its own.
    pub(crate) fn widen<E>(self) -> ShapeError<E> {
        match self {
            Self::QueueFull(full) => ShapeError::QueueFull(full),
            Self::Store(error) => ShapeError::Store(error),
            Self::Inner(never) => match never {},
        }
    }
}

impl<E: fmt::Display> fmt::Display for ShapeError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::QueueFull(full) => full.fmt(f),
            Self::Store(error) => error.fmt(f),
            Self::Inner(error) => error.fmt(f),
        }
    }
}

impl<E: Error + 'static> Error for ShapeError<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::QueueFull(full) => full.source(),
            Self::Store(error) => error.source(),
            Self::Inner(error) => error.source(),
        }
    }
}

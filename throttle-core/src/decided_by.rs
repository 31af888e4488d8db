use crate::backend_error::BackendErrorKind;

/// What decided a policy: the store, or what the process falls back to when the store cannot.
///
/// ```
/// use throttle_core::{BackendErrorKind, DecidedBy};
///
/// let decided_by = DecidedBy::Local(BackendErrorKind::Timeout);
/// assert_eq!(
///     (decided_by.label(), decided_by.error()),
///     ("local", Some(BackendErrorKind::Timeout))
/// );
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DecidedBy {
    /// The backend.
    #[default]
    Store,
    /// The backend could not decide, and this process decided by its [own share](crate::LocalShare)
    /// of the limit.
    Local(BackendErrorKind),
    /// The backend could not decide, and the policy admits every request in that case.
    Open(BackendErrorKind),
}

impl DecidedBy {
    /// Why the backend could not decide; `None` if it did.
    #[inline]
    #[must_use]
    pub const fn error(self) -> Option<BackendErrorKind> {
        match self {
            Self::Store => None,
            Self::Local(kind) | Self::Open(kind) => Some(kind),
        }
    }

    /// A label for metrics: `store`, `local` or `open`.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::Local(_) => "local",
            Self::Open(_) => "open",
        }
    }
}

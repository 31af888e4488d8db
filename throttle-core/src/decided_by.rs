use crate::backend::BackendErrorKind;

/// Who decided about a policy: the decided_by of the ladder on which a request that the store cannot decide about ends up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DecidedBy {
    /// The backend that was asked.
    #[default]
    Store,
    /// The backend could not, and this process decided by a share of the limit of its own: see
    /// [`LocalShare`](crate::LocalShare).
    Local(BackendErrorKind),
    /// The backend could not, and the policy lets requests through then.
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

use std::num::NonZeroU32;

/// What a limit does with a request that the store does not decide about.
///
/// | | the store is broken | the store is busy |
/// |---|---|---|
/// | `Open` | the request is admitted | this process decides by the whole limit |
/// | `Closed` | 503 | 503 |
/// | `Local` | this process decides by 1/n of the limit | the same |
///
/// * **Broken**: there is no connection ([`Unavailable`]), the store answers errors ([`Protocol`]), or it did so often
///   in a row that it is not asked for now ([`Suspended`]).
/// * **Busy**: too many decisions wait for the store ([`Saturated`]), or its answer has not come in time ([`Timeout`]),
///   also where it is not asked for now because of several late answers. A burst that is more than the connection
///   carries in time says nothing about the store, so it opens no limit. A store that hangs looks the same for as long
///   as its connection stands.
///
/// The decision names the error, and who decided instead:
/// [`Decision::decided_by`](throttle_core::Decision::decided_by).
///
/// ```
/// use throttle_tower::{Constant, Gcra, OnError, Rate, limit};
///
/// assert_eq!(OnError::local(4), OnError::Local { processes: 4 });
/// let api = limit("api", Gcra::new(Rate::per_second(100))).by(Constant).on_error(OnError::local(4));
/// let login = limit("login", Gcra::new(Rate::per_minute(5))).by(Constant).on_error(OnError::Closed);
/// ```
///
/// [`Unavailable`]: throttle_core::BackendErrorKind::Unavailable
/// [`Protocol`]: throttle_core::BackendErrorKind::Protocol
/// [`Suspended`]: throttle_core::BackendErrorKind::Suspended
/// [`Saturated`]: throttle_core::BackendErrorKind::Saturated
/// [`Timeout`]: throttle_core::BackendErrorKind::Timeout
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnError {
    /// While the store is broken, the request is admitted as if the limit did not apply, and responses carry no
    /// rate-limit headers.
    ///
    /// While the store is busy, this process decides by a [share](throttle_core::LocalShare) of its own that is the
    /// whole limit (1/1), and responses carry the share's numbers. Only these decisions charge the share. So each
    /// process admits at most one more limit in the same period, beside what the store admits. Layers whose limits have
    /// the same names have one such share together if they keep it in [one store](crate::ThrottleLayer::local_store).
    Open,
    /// The request is refused with 503, because the fault is the server's and not the client's. That is also so while
    /// the store is busy: such a limit admits only what the store has admitted.
    Closed,
    /// This process decides by a [share](throttle_core::LocalShare) of the limit that is kept in memory. Responses
    /// carry the usual headers, with the share's numbers.
    ///
    /// The share is charged for what the store admits as well. So a client that has just used up this process's part
    /// gets nothing more here when the store fails. Layers whose limits have the same names should keep their shares in
    /// [one store](crate::ThrottleLayer::local_store).
    Local {
        /// How many processes share the limit: each admits one of so many parts, and at least 1 unit. Where it is too
        /// small, they admit too much together.
        processes: u32,
    },
}

impl OnError {
    /// [`Local`](Self::Local), for a limit that so many processes share.
    #[must_use]
    pub const fn local(processes: u32) -> Self {
        Self::Local { processes }
    }

    /// How many processes share the limit, if this process is to decide.
    pub(crate) fn processes(self) -> Option<NonZeroU32> {
        match self {
            Self::Local { processes } => NonZeroU32::new(processes),
            Self::Open | Self::Closed => None,
        }
    }
}

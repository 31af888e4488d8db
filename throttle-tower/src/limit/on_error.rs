use std::num::NonZeroU32;

/// What a limit does with a request if the store returns no decision.
///
/// | | the store is broken | the store is busy |
/// |---|---|---|
/// | `Open` | the request is admitted | this process decides by the whole limit |
/// | `Closed` | 503 | 503 |
/// | `Local` | this process decides by 1/n of the limit | the same |
///
/// * **Broken**: there is no connection ([`Unavailable`]), the store answers errors ([`Protocol`]),
///   calls are suspended after several such failures in a row ([`Suspended`]), or the backend
///   lacks the step ([`Unsupported`]).
/// * **Busy**: too many decisions wait for the store ([`Saturated`]), or its answer is late
///   ([`Timeout`]). If calls are suspended only because answers were late, the store still counts
///   as busy, and the error is `Timeout`. A burst that exceeds what the connection can carry in
///   time does not mean that the store is broken, so it opens no limit. A store that hangs counts
///   as busy as long as its connection stays open.
///
/// Three processes with `OnError::local(3)`, and a store that is down for ten seconds:
///
#[doc = concat!(
    "<p><img alt=\"The processes admit 300 requests per second together, also while Redis is \
        down: 100 each\" \
     src='data:image/svg+xml,",
    include_str!("../guide/fleet.svg"),
    "'></p>"
)]
///
/// The decision states the error, and what decided instead:
/// [`Decision::decided_by`](throttle_core::Decision::decided_by).
///
/// ```
/// use throttle_tower::{Constant, Gcra, OnError, Rate, limit};
///
/// assert_eq!(OnError::local(4), OnError::Local { processes: 4 });
/// let api = limit("api", Gcra::new(Rate::per_second(100)))
///     .by(Constant)
///     .on_error(OnError::local(4));
/// let login = limit("login", Gcra::new(Rate::per_minute(5)))
///     .by(Constant)
///     .on_error(OnError::Closed);
/// ```
///
/// [`Unavailable`]: throttle_core::BackendErrorKind::Unavailable
/// [`Protocol`]: throttle_core::BackendErrorKind::Protocol
/// [`Unsupported`]: throttle_core::BackendErrorKind::Unsupported
/// [`Suspended`]: throttle_core::BackendErrorKind::Suspended
/// [`Saturated`]: throttle_core::BackendErrorKind::Saturated
/// [`Timeout`]: throttle_core::BackendErrorKind::Timeout
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnError {
    /// While the store is broken, the request is admitted as if the limit did not apply, and
    /// responses carry no rate-limit headers.
    ///
    /// While the store is busy, this process decides by a [share](throttle_core::LocalShare) of its
    /// own that is the whole limit (1/1), and responses carry the share's numbers. Only these
    /// decisions charge the share. So each process admits at most one whole limit per period in
    /// addition to what the store admits. Layers whose limits have the same names use one such
    /// share if they have the same [`local_store`](crate::ThrottleBuilder::local_store).
    Open,
    /// The request is refused with 503, because the failure is the server's and not the client's.
    /// This includes a busy store: the limit admits only what the store admits.
    Closed,
    /// This process decides by a [share](throttle_core::LocalShare) of the limit that is kept in
    /// memory. Responses carry the usual headers, with the share's numbers.
    ///
    /// While the store works, its admissions are charged to the share, too. So a client that has
    /// just used up this process's part is not admitted again when the store fails. Give layers
    /// whose limits have the same names the same
    /// [`local_store`](crate::ThrottleBuilder::local_store), so that they use one share.
    Local {
        /// How many processes share the limit. Each process admits 1/n of it, and at least 1 unit.
        /// If the number is too small, the processes together exceed the limit.
        processes: u32,
    },
}

impl OnError {
    /// Returns [`Local`](Self::Local), for a limit that `processes` processes share.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_local_rule_has_a_number_of_processes() {
        for (rule, processes) in [
            (OnError::Open, None),
            (OnError::Closed, None),
            (OnError::local(0), None),
            (OnError::local(1), Some(1)),
            (OnError::local(4), Some(4)),
        ] {
            assert_eq!(rule.processes().map(NonZeroU32::get), processes, "{rule:?}");
        }
    }
}

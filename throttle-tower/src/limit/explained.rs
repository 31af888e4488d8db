use std::time::Duration;

use http::StatusCode;
use throttle_core::PolicyName;

/// What would happen to a request.
pub(crate) struct Explained {
    /// Of the limits on rates, then of those on requests in flight, in the order given.
    pub(crate) limits: Vec<ExplainedLimit>,
    pub(crate) is_admitted: bool,
    /// Whether it would be held until it is admitted.
    pub(crate) is_held: bool,
    /// When it would be admitted at the latest, if no other request comes; zero if it is admitted, `None` if that is
    /// not known.
    pub(crate) retry_after: Option<Duration>,
    /// Why the layer does not apply to the request; `None` if it does.
    pub(crate) layer_skips: Option<String>,
}

pub(crate) struct ExplainedLimit {
    pub(crate) name: PolicyName,
    pub(crate) asks: Asks,
    /// What is left for the key; `None` if the limit does not apply.
    pub(crate) left: Option<Left>,
}

/// What a request asks of a limit.
pub(crate) enum Asks {
    /// The limit does not apply.
    Nothing,
    /// The request has no key, and the limit does not apply without one.
    SkippedWithoutKey,
    /// The request has no key, and is refused for it.
    RefusedWithoutKey(StatusCode),
    Units {
        cost: u64,
        /// Whether the request has a key of its own.
        has_key: bool,
        tier: u8,
    },
}

pub(crate) struct Left {
    pub(crate) units: u64,
    /// Units that an unused key has.
    pub(crate) of: u64,
    /// When the limit would admit the request at the latest, if no other comes; zero if it does, `None` if it never
    /// does or if that depends on requests in flight.
    pub(crate) retry_after: Option<Duration>,
    /// Whether the limit would hold the request so long, if no other limit refused it.
    pub(crate) is_held: bool,
    /// Until an unused key cannot be told from this one, if no request comes; zero for permits.
    pub(crate) resets_in: Duration,
}

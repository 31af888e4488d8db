//! What a user can set on a layer.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use throttle_core::Key;

use super::local_shares::LocalStore;
use super::response_builder::ResponseBuilder;
use crate::event::Observers;
use crate::jitter;
use crate::limit::{Applied, Condition, OnError};
use crate::log::OncePerMinute;
use crate::usage::Background;

/// What decides and refuses requests.
#[derive(Clone)]
pub(crate) struct Options {
    /// Which requests the layer applies to. Without it, all.
    pub(crate) when: Option<Arc<dyn Condition>>,
    pub(super) response: Option<ResponseBuilder>,
    /// Whether gRPC requests are refused in its words.
    pub(crate) grpc_refusals: bool,
    /// What a 503 asks its client to wait.
    pub(crate) unavailable_retry_after: Option<Duration>,
    pub(crate) observers: Observers,
    pub(crate) on_error: Option<OnError>,
    pub(crate) local_store: Option<LocalStore>,
    pub(crate) jitter: Option<Jitter>,
    pub(super) background: Background,
    /// What was logged of parameters of a key's own that the store does not enforce.
    pub(super) not_enforced: Arc<OncePerMinute>,
    /// Most requests that wait in queues at once.
    pub(crate) max_waiting: usize,
}

const DEFAULT_MAX_WAITING: usize = 10_000;

impl Options {
    /// What happens to requests of a limit when the store fails.
    pub(super) fn on_error_of(&self, limit: &Applied) -> Option<OnError> {
        limit.on_error.or(self.on_error)
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            when: None,
            response: None,
            grpc_refusals: true,
            unavailable_retry_after: None,
            observers: Observers::default(),
            on_error: None,
            local_store: None,
            jitter: None,
            background: Background::default(),
            not_enforced: Arc::default(),
            max_waiting: DEFAULT_MAX_WAITING,
        }
    }
}

/// Lengthens waits by a share that depends on the key alone, so that clients that were refused
/// together do not come back together.
#[derive(Clone)]
pub(crate) struct Jitter {
    percent: u8,
    secret: RandomState,
}

impl Jitter {
    /// At most 100 percent; `None` for 0.
    pub(crate) fn new(percent: u8) -> Option<Self> {
        (percent > 0).then(|| Self {
            percent: percent.min(100),
            secret: RandomState::new(),
        })
    }

    #[cfg(feature = "rules")]
    pub(crate) fn percent(&self) -> u8 {
        self.percent
    }

    /// µs to add to a wait.
    pub(super) fn extra(&self, wait_us: u64, key: &Key) -> u64 {
        jitter::lengthen(wait_us, self.percent, self.secret.hash_one(key)) - wait_us
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60_000_000;

    /// The most that so many secrets add to a minute.
    fn most(percent: u8) -> u64 {
        let extra =
            |_| Jitter::new(percent).map_or(0, |jitter| jitter.extra(MINUTE, &Key::CONSTANT));
        (0..100).map(extra).max().unwrap_or(0)
    }

    #[test]
    fn jitter_adds_at_most_its_percentage_and_at_most_the_wait() {
        assert!(Jitter::new(0).is_none());
        for (percent, least, longest) in
            [(1, MINUTE / 200, MINUTE / 100), (200, MINUTE / 2, MINUTE)]
        {
            assert!(
                (least..=longest).contains(&most(percent)),
                "{percent} %: {} µs",
                most(percent)
            );
        }
    }

    #[test]
    fn layer_holds_ten_thousand_requests_by_default() {
        assert_eq!(Options::default().max_waiting, 10_000);
    }
}

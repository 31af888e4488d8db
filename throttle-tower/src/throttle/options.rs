//! What a user can set on a layer.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use throttle_core::Key;

use super::builder_settings::BuilderSettings;
use super::local_shares::LocalStore;
use crate::event::Observers;
use crate::jitter;
use crate::limit::{LimitSettings, OnError};
use crate::log::OncePerMinute;
use crate::usage::Background;

/// What decides and refuses requests.
#[derive(Clone)]
pub(crate) struct Options {
    pub(crate) settings: BuilderSettings,
    pub(crate) observers: Observers,
    /// Where this process keeps its share of the store.
    pub(super) local_store: Option<LocalStore>,
    pub(super) jitter: Option<Jitter>,
    pub(super) background: Background,
    /// What was logged of parameters of a key's own that the store does not enforce.
    pub(super) not_enforced: Arc<OncePerMinute>,
}

const DEFAULT_MAX_WAITING: usize = 10_000;

impl Options {
    /// The options of a layer that nothing observes. They have the counters, the share and the
    /// jitter of a `template`.
    pub(super) fn new(settings: BuilderSettings, template: Option<&Self>) -> Self {
        let percent = settings.retry_jitter.unwrap_or_default();
        let jitter = template
            .and_then(|template| template.jitter.clone())
            .filter(|jitter| jitter.percent == percent);
        let of_template = template.and_then(|template| template.local_store.clone());
        let counters = template.map(|template| Arc::clone(&template.background.counters));
        Self {
            observers: Observers::default(),
            local_store: settings.local_store.clone().or(of_template),
            jitter: jitter.or_else(|| Jitter::new(percent)),
            background: Background {
                counters: counters.unwrap_or_default(),
                on_error: settings.on_settle_error.clone(),
            },
            not_enforced: template.map_or_else(Arc::default, |own| Arc::clone(&own.not_enforced)),
            settings,
        }
    }

    /// What happens to requests of a limit when the store fails.
    pub(super) fn on_error_of(&self, limit: &LimitSettings) -> Option<OnError> {
        limit.on_error.or(self.settings.on_error)
    }

    /// The most requests that wait in queues.
    pub(super) fn max_waiting(&self) -> usize {
        self.settings.max_waiting.unwrap_or(DEFAULT_MAX_WAITING)
    }
}

/// Lengthens waits by a share that depends on the key alone, so that clients that were refused
/// together do not come back together.
#[derive(Clone)]
pub(super) struct Jitter {
    percent: u8,
    secret: RandomState,
}

impl Jitter {
    /// `None` for 0 percent.
    fn new(percent: u8) -> Option<Self> {
        (percent > 0).then(|| Self {
            percent,
            secret: RandomState::new(),
        })
    }

    /// µs to add to a wait.
    pub(super) fn extra(&self, wait_us: u64, key: &Key) -> u64 {
        jitter::lengthen(wait_us, self.percent.min(100), self.secret.hash_one(key)) - wait_us
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
        assert_eq!(
            Options::new(BuilderSettings::default(), None).max_waiting(),
            10_000
        );
    }
}

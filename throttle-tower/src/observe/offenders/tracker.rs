use std::hash::{BuildHasher, RandomState};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use throttle_core::{Key, PolicyName};
use tokio::time::Instant;

use super::offender::Offender;
use super::recent::{Recent, Refused};
use crate::lock::{lock, try_lock};

/// Shows a key of a limit as text.
type Show = dyn Fn(&str, &Key) -> Option<String> + Send + Sync;

/// Bytes that are kept of a key's text.
const MAX_TEXT: usize = 64;

/// Counts refusals by key. It holds digests of keys and what the user's function shows.
pub(super) struct Tracker {
    show: Option<Box<Show>>,
    secret: RandomState,
    pub(super) recent: Mutex<Recent>,
    uncounted: AtomicU64,
}

impl Tracker {
    pub(super) fn new(show: Option<Box<Show>>) -> Self {
        let recent = Mutex::new(Recent::new(Instant::now(), show.is_some()));
        Self {
            show,
            secret: RandomState::new(),
            recent,
            uncounted: AtomicU64::new(0),
        }
    }

    pub(super) fn digest(&self, key: &Key) -> Option<u64> {
        (*key != Key::missing()).then(|| self.secret.hash_one(key))
    }

    /// Counts one refusal of a key, unless the counts are in use.
    pub(super) fn count(&self, limit: &PolicyName, key: &Key) {
        let refused = Refused {
            limit: limit.clone(),
            digest: self.digest(key),
        };
        let now = Instant::now();
        let Some(is_text_wanted) =
            try_lock(&self.recent).map(|mut recent| recent.add(&refused, now))
        else {
            self.uncounted.fetch_add(1, Ordering::Relaxed);
            return;
        };
        if is_text_wanted {
            // Not under the lock, because the function may read the list. If the lock is not free
            // afterwards, the key's next refusal asks again.
            let shown = self
                .show
                .as_ref()
                .and_then(|show| show(limit.as_str(), key));
            if let Some(mut recent) = try_lock(&self.recent) {
                recent.set_text(&refused, shown.map(cut));
            }
        }
    }

    pub(super) fn uncounted(&self) -> u64 {
        self.uncounted.load(Ordering::Relaxed)
    }

    /// The keys that were refused most.
    pub(super) fn list(&self, n: usize) -> Vec<Offender> {
        let counted = lock(&self.recent).list(n, Instant::now());
        let offender = |(Refused { limit, digest }, refused, shown)| Offender {
            policy: limit,
            digest,
            refused,
            shown,
        };
        counted.into_iter().map(offender).collect()
    }
}

/// The first bytes of a text, in whole characters.
fn cut(mut text: String) -> Box<str> {
    if text.len() > MAX_TEXT {
        text.truncate(
            (0..=MAX_TEXT)
                .rfind(|&end| text.is_char_boundary(end))
                .unwrap_or(0),
        );
    }
    text.into()
}

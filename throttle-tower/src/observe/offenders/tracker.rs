use std::hash::{BuildHasher, RandomState};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use throttle_core::backend::Call;
use throttle_core::{Key, Policy};
use tokio::time::Instant;

use super::offender::Offender;
use super::recent::{Recent, Refused};
use crate::lock::{lock, try_lock};
use crate::observe::Observer;
use crate::throttle::{Event, Outcome};

/// Shows a key of a policy as text.
pub(super) type Show = dyn Fn(&str, &Key) -> Option<String> + Send + Sync;

/// Bytes that are kept of a key's text.
const MAX_TEXT: usize = 64;

/// Counts the refusals of a layer by key. It holds digests of keys and what the user's function shows.
pub(super) struct Tracker {
    show: Option<Box<Show>>,
    secret: RandomState,
    pub(super) recent: Mutex<Recent>,
    uncounted: AtomicU64,
}

impl Observer for Tracker {
    fn judged(&self, event: &Event<'_>, calls: &[Call]) {
        if let Outcome::Refused = event.outcome
            && let Some(place) = event.decision.and_then(|decision| decision.binding())
            && let (Some(policy), Some(call)) = (event.policies.get(place), calls.get(place))
            && let Some(key) = call.key()
        {
            self.count(place, policy, key);
        }
    }
}

impl Tracker {
    pub(super) fn new(show: Option<Box<Show>>) -> Self {
        let secret = RandomState::new();
        // Of all that the sketch hashes, nothing is known to a client. So it needs no secret of its own.
        let recent = Mutex::new(Recent::new(Instant::now(), show.is_some()));
        Self { show, secret, recent, uncounted: AtomicU64::new(0) }
    }

    #[cfg(feature = "dashboard")]
    pub(super) fn secret(&self) -> RandomState {
        self.secret.clone()
    }

    /// Counts one refusal of a key.
    pub(super) fn count(&self, place: usize, policy: &Policy, key: &Key) {
        let refused = Refused { policy: place, digest: self.secret.hash_one(key) };
        let now = Instant::now();
        let Some(wants_text) = try_lock(&self.recent).map(|mut recent| recent.count(refused, now)) else {
            self.uncounted.fetch_add(1, Ordering::Relaxed);
            return;
        };
        if wants_text && let Some(show) = &self.show {
            // Not under the lock, because the function may read the list. If the lock is not free afterwards, the
            // key's next refusal asks again.
            let text = show(policy.name(), key).map(cut);
            if let Some(mut recent) = try_lock(&self.recent) {
                recent.show(refused, text);
            }
        }
    }

    pub(super) fn uncounted(&self) -> u64 {
        self.uncounted.load(Ordering::Relaxed)
    }

    /// The keys that were refused most.
    pub(super) fn list(&self, n: usize, policies: &[Policy]) -> Vec<Offender> {
        let missing = self.secret.hash_one(Key::missing());
        let counted = lock(&self.recent).list(n, Instant::now());
        let offenders = counted.into_iter().filter_map(|(Refused { policy, digest }, refused, shown)| {
            let policy = policies.get(policy)?.policy_name().clone();
            Some(Offender { policy, digest: (digest != missing).then_some(digest), refused, shown })
        });
        offenders.collect()
    }
}

/// The first bytes of a text, in whole characters.
fn cut(mut text: String) -> Box<str> {
    text.truncate(text.floor_char_boundary(MAX_TEXT));
    text.into()
}

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use throttle_core::{Key, Policy};
use tokio::time::Instant;

use super::offender::Offender;
use super::recent::{Recent, Refused};
use crate::event::BuiltInObserver;
use crate::event::Observed;
use crate::event::{Event, Outcome};
use crate::lock::{lock, try_lock};

/// Shows a key of a policy as text.
pub(in crate::observe) type Show = dyn Fn(&str, &Key) -> Option<String> + Send + Sync;

/// Bytes that are kept of a key's text.
const MAX_TEXT: usize = 64;

/// Counts the refusals of a layer by key. It holds digests of keys and what the user's function
/// shows.
pub(in crate::observe) struct Tracker {
    show: Option<Arc<Show>>,
    secret: RandomState,
    pub(super) recent: Mutex<Recent>,
    uncounted: AtomicU64,
}

impl BuiltInObserver for Arc<Tracker> {
    /// It knows limits by their places.
    fn renewed(
        &self,
        former: &Observed,
        of: &Observed,
        _: &crate::event::Observers,
    ) -> Option<Box<dyn BuiltInObserver>> {
        if former.has_names_of(of) {
            None
        } else {
            Some(Box::new(Self::new(self.anew())))
        }
    }

    fn decided(&self, event: &Event<'_>) {
        if let Some((place, policy, key)) = refused_key(event) {
            self.count(place, policy, key);
        }
    }
}

/// The key of a request that a limit refused, and the policy that did.
fn refused_key<'a>(event: &Event<'a>) -> Option<(usize, &'a Policy, &'a Key)> {
    let Outcome::Refused = event.outcome else {
        return None;
    };
    let place = event.decision?.binding()?;
    Some((
        event.place(place),
        event.policies.get(place)?,
        event.set.calls.get(place)?.key()?,
    ))
}

impl Tracker {
    /// A tracker of other limits, which shows keys in the same way.
    pub(in crate::observe) fn anew(&self) -> Self {
        Self::new(self.show.clone())
    }

    pub(in crate::observe) fn new(show: Option<Arc<Show>>) -> Self {
        let recent = Mutex::new(Recent::new(Instant::now(), show.is_some()));
        Self {
            show,
            secret: RandomState::new(),
            recent,
            uncounted: AtomicU64::new(0),
        }
    }

    /// What digests of keys are under.
    #[cfg(feature = "dashboard")]
    pub(in crate::observe) fn secret(&self) -> RandomState {
        self.secret.clone()
    }

    /// Counts one refusal of a key, unless the counts are in use.
    pub(super) fn count(&self, place: usize, policy: &Policy, key: &Key) {
        let refused = Refused {
            policy: place,
            digest: self.secret.hash_one(key),
        };
        let now = Instant::now();
        let Some(is_text_wanted) =
            try_lock(&self.recent).map(|mut recent| recent.add(refused, now))
        else {
            self.uncounted.fetch_add(1, Ordering::Relaxed);
            return;
        };
        if is_text_wanted {
            // Not under the lock, because the function may read the list. If the lock is not free
            // afterwards, the key's next refusal asks again.
            let text = self
                .show
                .as_ref()
                .and_then(|show| show(policy.name(), key))
                .map(cut);
            if let Some(mut recent) = try_lock(&self.recent) {
                recent.set_text(refused, text);
            }
        }
    }

    pub(super) fn uncounted(&self) -> u64 {
        self.uncounted.load(Ordering::Relaxed)
    }

    /// The keys that were refused most.
    pub(in crate::observe) fn list(&self, n: usize, policies: &[Policy]) -> Vec<Offender> {
        let missing = self.secret.hash_one(Key::missing());
        let counted = lock(&self.recent).list(n, Instant::now());
        let offenders =
            counted
                .into_iter()
                .filter_map(|(Refused { policy, digest }, refused, shown)| {
                    let policy = policies.get(policy)?.policy_name().clone();
                    Some(Offender {
                        policy,
                        digest: (digest != missing).then_some(digest),
                        refused,
                        shown,
                    })
                });
        offenders.collect()
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

#[cfg(all(test, feature = "dashboard"))]
impl Tracker {
    pub(in crate::observe) fn hold_lock(&self) -> impl Sized + use<'_> {
        lock(&self.recent)
    }
}

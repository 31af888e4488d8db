//! What this process knows of the pauses of its fleet, and which steps at the store are under way.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use throttle_core::Key;
use tokio::time::Instant;

use crate::lock::lock;

/// A process looks at a key after this time, if calls of it leave.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// A pause that ends later than another by less than this is the same one, heard in another response.
const SAME: Duration = Duration::from_millis(50);

/// More keys than these are not looked at, and their pauses are not told. So a sweep takes a short time, and the looks
/// of a store that does not answer take little memory.
const MAX_KEYS: usize = 4_096;

#[derive(Clone, Default)]
pub(super) struct PausesKnown(Arc<Mutex<Keys>>);

#[derive(Default)]
struct Keys {
    by_key: HashMap<Key, Known>,
    /// The number of keys at which the next sweep removes those that are not used any more.
    sweep_at: usize,
    /// How many steps have begun.
    begun: u64,
}

struct Known {
    look_at: Instant,
    /// The end of a pause that this process keeps, because it was told of it by another one, or has told it.
    shared_until: Instant,
    /// The latest end that this process has heard of itself.
    own_until: Instant,
    /// The numbers of the steps under way; 0 for none.
    looking: u64,
    telling: u64,
}

/// A step under way, at most one of its kind for each key. It ends when it is dropped.
pub(super) struct Step {
    known: PausesKnown,
    key: Key,
    number: u64,
}

impl PausesKnown {
    /// Begins a look, if it is time to.
    pub(super) fn look(&self, key: &Key, now: Instant) -> Option<Step> {
        let mut keys = lock(&self.0);
        let number = keys.next_step();
        let known = keys.of(key, now)?;
        if known.look_at > now || known.looking > 0 {
            return None;
        }
        (known.look_at, known.looking) = (now + LOOK_EVERY, number);
        Some(self.step(key, number))
    }

    /// What a look has found. Returns whether that is a pause that was not known.
    pub(super) fn heard(&self, step: &Step, until: Instant) -> bool {
        let mut keys = lock(&self.0);
        let known = keys.by_key.get_mut(&step.key).filter(|known| known.looking == step.number);
        let Some(known) = known.filter(|known| until > known.shared_until + SAME) else { return false };
        known.shared_until = until;
        true
    }

    /// This process has heard of a pause itself. Begins to tell it, if it is news and no step does so already.
    pub(super) fn tell(&self, key: &Key, now: Instant, until: Instant) -> Option<Step> {
        let mut keys = lock(&self.0);
        let number = keys.next_step();
        let known = keys.of(key, now)?;
        known.own_until = known.own_until.max(until);
        if known.telling > 0 || until <= known.shared_until + SAME {
            return None;
        }
        known.telling = number;
        Some(self.step(key, number))
    }

    /// The end of the pause that is to be told. If there is none, the step is over: what is heard from then on is told
    /// by another one.
    pub(super) fn untold(&self, step: &Step) -> Option<Instant> {
        let mut keys = lock(&self.0);
        let known = keys.by_key.get_mut(&step.key).filter(|known| known.telling == step.number)?;
        if known.own_until > known.shared_until + SAME {
            return Some(known.own_until);
        }
        known.telling = 0;
        None
    }

    pub(super) fn told(&self, step: &Step, until: Instant) {
        if let Some(known) = lock(&self.0).by_key.get_mut(&step.key).filter(|known| known.telling == step.number) {
            known.shared_until = known.shared_until.max(until);
        }
    }

    /// Steps that are under way for a key find that they are none any more.
    pub(super) fn forget(&self, key: &Key) {
        lock(&self.0).by_key.remove(key);
    }

    fn step(&self, key: &Key, number: u64) -> Step {
        Step { known: self.clone(), key: key.clone(), number }
    }
}

impl Keys {
    fn next_step(&mut self) -> u64 {
        self.begun += 1;
        self.begun
    }

    /// `None` if there are too many keys.
    fn of(&mut self, key: &Key, now: Instant) -> Option<&mut Known> {
        if !self.by_key.contains_key(key) {
            self.sweep(now);
            if self.by_key.len() >= MAX_KEYS {
                return None;
            }
            let new = Known { look_at: now, shared_until: now, own_until: now, looking: 0, telling: 0 };
            self.by_key.insert(key.clone(), new);
        }
        self.by_key.get_mut(key)
    }

    /// A sweep only when the number of keys has doubled since the last one, or when there are too many, makes its cost
    /// constant per key.
    fn sweep(&mut self, now: Instant) {
        if self.by_key.len() >= self.sweep_at.min(MAX_KEYS) {
            self.by_key.retain(|_, known| known.is_needed(now));
            self.sweep_at = (2 * self.by_key.len()).max(64);
        }
    }
}

impl Known {
    fn is_needed(&self, now: Instant) -> bool {
        self.look_at > now || self.shared_until > now || self.looking > 0 || self.telling > 0
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        if let Some(known) = lock(&self.known.0).by_key.get_mut(&self.key) {
            for step in [&mut known.looking, &mut known.telling] {
                if *step == self.number {
                    *step = 0;
                }
            }
        }
    }
}

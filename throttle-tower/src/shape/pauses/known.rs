//! What this process knows of the pauses of its fleet, and which steps at the store are under way.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use throttle_core::Key;
use tokio::time::Instant;

use crate::lock::lock;

/// A process looks at a key after this time, if calls of it leave.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// A pause that ends later than another by less than this is the same one, heard in another
/// response.
const SAME: Duration = Duration::from_millis(50);

/// More keys than these are not looked at, and their pauses are not shared. So a sweep takes a
/// short time, and the looks of a store that does not answer take little memory.
const MAX_KEYS: usize = 4_096;

#[derive(Default)]
pub(super) struct KnownPauses(Mutex<Keys>);

#[derive(Default)]
struct Keys {
    by_key: HashMap<Key, KeyPauses>,
    /// The number of keys at which the next sweep removes those that are not used any more.
    sweep_at: usize,
}

struct KeyPauses {
    look_at: Instant,
    /// The end of a pause that this process keeps, because it has read it at the store, or written
    /// it there.
    shared_until: Instant,
    /// The latest end that this process has heard of itself.
    own_until: Instant,
    /// The steps under way.
    looking: Weak<()>,
    sharing: Weak<()>,
}

/// A step under way, at most one of its kind for each key. It ends when it is dropped.
pub(super) struct PauseStep {
    key: Key,
    itself: Arc<()>,
}

impl KnownPauses {
    /// Begins a look, if it is time to.
    pub(super) fn look(&self, key: &Key, now: Instant) -> Option<PauseStep> {
        let mut keys = lock(&self.0);
        let known = keys.of(key, now)?;
        if known.look_at > now || is_under_way(&known.looking) {
            return None;
        }
        known.look_at = now + LOOK_EVERY;
        Some(PauseStep::begin(key, &mut known.looking))
    }

    /// What a look has found. Returns whether that is a pause that was not known.
    pub(super) fn heard(&self, step: &PauseStep, until: Instant) -> bool {
        let mut keys = lock(&self.0);
        let known = keys
            .by_key
            .get_mut(&step.key)
            .filter(|known| step.is(&known.looking));
        let Some(known) = known.filter(|known| until > known.shared_until + SAME) else {
            return false;
        };
        known.shared_until = until;
        true
    }

    /// This process has heard of a pause itself. Begins to share it, if it is news and no step does
    /// so already.
    pub(super) fn share(&self, key: &Key, now: Instant, until: Instant) -> Option<PauseStep> {
        let mut keys = lock(&self.0);
        let known = keys.of(key, now)?;
        known.own_until = known.own_until.max(until);
        if is_under_way(&known.sharing) || until <= known.shared_until + SAME {
            return None;
        }
        Some(PauseStep::begin(key, &mut known.sharing))
    }

    /// The end of the pause that is to be shared. If there is none, the step is over: what is heard
    /// from then on is shared by another one.
    pub(super) fn unshared(&self, step: &PauseStep) -> Option<Instant> {
        let mut keys = lock(&self.0);
        let known = keys
            .by_key
            .get_mut(&step.key)
            .filter(|known| step.is(&known.sharing))?;
        if known.own_until > known.shared_until + SAME {
            return Some(known.own_until);
        }
        known.sharing = Weak::new();
        None
    }

    pub(super) fn note_shared(&self, step: &PauseStep, until: Instant) {
        if let Some(known) = lock(&self.0)
            .by_key
            .get_mut(&step.key)
            .filter(|known| step.is(&known.sharing))
        {
            known.shared_until = known.shared_until.max(until);
        }
    }

    /// Steps that are under way for a key find that they are none any more.
    pub(super) fn forget(&self, key: &Key) {
        lock(&self.0).by_key.remove(key);
    }
}

impl PauseStep {
    fn begin(key: &Key, under_way: &mut Weak<()>) -> Self {
        let itself = Arc::new(());
        *under_way = Arc::downgrade(&itself);
        Self {
            key: key.clone(),
            itself,
        }
    }

    fn is(&self, under_way: &Weak<()>) -> bool {
        under_way.as_ptr() == Arc::as_ptr(&self.itself)
    }
}

fn is_under_way(step: &Weak<()>) -> bool {
    step.strong_count() > 0
}

impl Keys {
    /// `None` if there are too many keys.
    fn of(&mut self, key: &Key, now: Instant) -> Option<&mut KeyPauses> {
        if !self.by_key.contains_key(key) {
            self.sweep(now);
            if self.by_key.len() >= MAX_KEYS {
                return None;
            }
            let new = KeyPauses {
                look_at: now,
                shared_until: now,
                own_until: now,
                looking: Weak::new(),
                sharing: Weak::new(),
            };
            self.by_key.insert(key.clone(), new);
        }
        self.by_key.get_mut(key)
    }

    /// A sweep only when the number of keys has doubled since the last one, or when there are too
    /// many, makes its cost constant per key.
    fn sweep(&mut self, now: Instant) {
        if self.by_key.len() >= self.sweep_at.min(MAX_KEYS) {
            self.by_key.retain(|_, known| known.is_needed(now));
            self.sweep_at = (2 * self.by_key.len()).max(64);
        }
    }
}

impl KeyPauses {
    fn is_needed(&self, now: Instant) -> bool {
        self.look_at > now
            || self.shared_until > now
            || is_under_way(&self.looking)
            || is_under_way(&self.sharing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NANO: Duration = Duration::from_nanos(1);
    const SECOND: Duration = Duration::from_secs(1);

    /// Those that were used long ago make room.
    #[tokio::test(start_paused = true)]
    async fn shape_fleet_is_looked_at_for_any_number_of_keys_one_after_the_other() {
        let (known, start) = (KnownPauses::default(), Instant::now());
        for number in 0..2 * MAX_KEYS {
            let now =
                start + Duration::from_millis(10) * u32::try_from(number).expect("a few thousand");
            assert!(
                known.look(&Key::from(number as u64), now).is_some(),
                "{number}"
            );
        }
        let kept = lock(&known.0).by_key.len();
        assert!(kept <= 64, "{kept}");
    }

    #[tokio::test(start_paused = true)]
    async fn shape_fleet_is_looked_at_for_max_keys_at_most_at_once() {
        let (known, now) = (KnownPauses::default(), Instant::now());
        for number in 0..MAX_KEYS as u64 {
            assert!(known.look(&Key::from(number), now).is_some(), "{number}");
        }
        let more = Key::from("more");
        assert!(
            known.look(&more, now).is_none() && known.share(&more, now, now + SECOND).is_none()
        );
        assert!(
            known.share(&Key::from(0), now, now + SECOND).is_some(),
            "a key that is known"
        );
        assert!(known.look(&more, now + LOOK_EVERY).is_some());
    }

    /// However many other keys are used meanwhile.
    #[tokio::test(start_paused = true)]
    async fn shape_steps_under_way_are_not_swept() {
        let (known, start) = (KnownPauses::default(), Instant::now());
        let looking = known
            .look(&Key::from("looking"), start)
            .expect("the first look");
        let sharing = known
            .share(&Key::from("sharing"), start, start + SECOND)
            .expect("news");
        let now = start + LOOK_EVERY;
        for number in 0..500_u64 {
            drop(known.look(&Key::from(number), now));
        }
        assert!(known.heard(&looking, now + SECOND));
        assert_eq!(known.unshared(&sharing), Some(start + SECOND));
    }

    #[tokio::test(start_paused = true)]
    async fn shape_pause_that_ends_a_little_later_is_the_same_one() {
        let (known, key, now) = (KnownPauses::default(), Key::from("key"), Instant::now());
        let until = now + SECOND;
        let look = known.look(&key, now).expect("the first look");
        assert!(!known.heard(&look, now + SAME) && known.heard(&look, until));
        assert!(!known.heard(&look, until + SAME) && !known.heard(&look, now));
        assert!(known.share(&key, now, until + SAME).is_none());
        let sharing = known
            .share(&key, now, until + SAME + NANO)
            .expect("a longer one");
        assert!(
            known.share(&key, now, until + SECOND).is_none(),
            "the step under way shares it"
        );
        assert_eq!(known.unshared(&sharing), Some(until + SECOND));
        known.note_shared(&sharing, until + SECOND);
        assert_eq!(known.unshared(&sharing), None);
        assert!(
            known.share(&key, now, until + 2 * SECOND).is_some(),
            "though the former step is not dropped yet"
        );
    }

    /// Steps of the same key that begin afterwards apply.
    #[tokio::test(start_paused = true)]
    async fn shape_steps_of_a_forgotten_key_apply_no_more() {
        let (known, key, now) = (KnownPauses::default(), Key::from("key"), Instant::now());
        let look = known.look(&key, now).expect("the first look");
        let sharing = known.share(&key, now, now + SECOND).expect("news");
        known.forget(&key);
        assert!(!known.heard(&look, now + SECOND));
        assert_eq!(known.unshared(&sharing), None);
        let (look_again, share_again) =
            (known.look(&key, now), known.share(&key, now, now + SECOND));
        known.note_shared(&sharing, now + SECOND);
        drop((look, sharing));
        assert!(
            known.look(&key, now + LOOK_EVERY).is_none(),
            "one is under way"
        );
        assert_eq!(
            known.unshared(&share_again.expect("news again")),
            Some(now + SECOND)
        );
        assert!(known.heard(&look_again.expect("nothing is known"), now + SECOND));
    }

    /// Another look may have begun since, and another announcement.
    #[tokio::test(start_paused = true)]
    async fn shape_look_begun_before_a_reset_is_ignored() {
        let (known, key, now) = (KnownPauses::default(), Key::from("key"), Instant::now());
        let look = known.look(&key, now).expect("the first look");
        known.forget(&key);
        let sharing = known
            .share(&key, now, now + SECOND)
            .expect("nothing is known");
        assert!(!known.heard(&look, now + 10 * SECOND));
        let look_again = known.look(&key, now).expect("none is under way");
        assert!(
            !known.heard(&look, now + 10 * SECOND) && known.heard(&look_again, now + 10 * SECOND)
        );
        drop(sharing);
    }

    /// However many other keys are used meanwhile, a pause that the fleet knows is not announced
    /// again.
    #[tokio::test(start_paused = true)]
    async fn shape_pauses_of_the_fleet_are_not_swept_before_their_end() {
        let (known, key, start) = (KnownPauses::default(), Key::from("key"), Instant::now());
        let end = start + 10 * SECOND;
        let look = known.look(&key, start).expect("the first look");
        assert!(known.heard(&look, end));
        drop(look);
        for number in 0..500_u64 {
            drop(known.look(&Key::from(number), start + SECOND));
        }
        assert!(known.share(&key, start + SECOND, end).is_none());
    }
}

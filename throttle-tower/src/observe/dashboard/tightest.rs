use std::cmp::Ordering;
use std::hash::{BuildHasher, RandomState};
use std::sync::Mutex;
use std::time::Duration;

use throttle_core::Key;
use tokio::time::Instant;

use crate::lock::{lock, try_lock};
use crate::time::FAR;

/// The keys with the least left, each as of its last decision. It holds a few keys whatever clients send, and no key
/// that has recovered since. A request that finds it locked is not noted.
pub(super) struct Tightest {
    secret: RandomState,
    keys: Mutex<Vec<TightKey>>,
}

/// More than are shown, so that those who follow are known when one recovers.
const MOST: usize = 32;

/// What is left for one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TightKey {
    /// By its place.
    pub(super) policy: usize,
    pub(super) name: KeyName,
    pub(super) left: u64,
    /// The most that can be left.
    pub(super) of: u64,
    /// When all of it is left again, if no other request comes.
    pub(super) resets: Instant,
}

/// What a key is called where it is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum KeyName {
    /// The one key of all requests.
    All,
    /// The key that requests without one share.
    Missing,
    /// Under the layer's secret.
    Digest(u64),
}

impl std::fmt::Display for KeyName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Missing => f.write_str("missing"),
            Self::Digest(digest) => write!(f, "{digest:016x}"),
        }
    }
}

/// What a decision says about a key.
pub(super) struct Standing {
    pub(super) left: u64,
    pub(super) of: u64,
    pub(super) reset_after: Duration,
}

impl Tightest {
    /// Keys are shown under a secret, so that clients cannot tell which key a digest is of.
    pub(super) fn new(secret: RandomState) -> Self {
        Self { secret, keys: Mutex::default() }
    }

    /// Notes what a decision has left for a key.
    pub(super) fn note(&self, policy: usize, key: &Key, standing: &Standing, now: Instant) {
        // Hashed before the lock is taken, so that it is held for a moment only.
        let name = self.name(key);
        let Some(mut keys) = try_lock(&self.keys) else { return };
        let Standing { left, of, reset_after } = *standing;
        let noted = TightKey { policy, name, left, of, resets: now + reset_after.min(FAR) };
        let known = keys.iter().position(|key| (key.policy, key.name) == (policy, name));
        match known {
            Some(place) if left >= of => drop(keys.swap_remove(place)),
            Some(place) => keys[place] = noted,
            None if left >= of => {}
            None if keys.len() < MOST => keys.push(noted),
            None => {
                // Those that have recovered count as the least tight.
                let loosest = keys.iter_mut().max_by(|one, other| {
                    one.is_over(now).cmp(&other.is_over(now)).then_with(|| one.by_share_left(other))
                });
                if let Some(loosest) = loosest
                    && (loosest.is_over(now) || noted.by_share_left(loosest) == Ordering::Less)
                {
                    *loosest = noted;
                }
            }
        }
    }

    /// The keys with the smallest share of their limit left, tightest first.
    pub(super) fn list(&self, most: usize, now: Instant) -> Vec<TightKey> {
        let mut keys = lock(&self.keys).clone();
        keys.retain(|key| !key.is_over(now));
        keys.sort_unstable_by(|one, other| {
            let by_reset = other.resets.cmp(&one.resets);
            one.by_share_left(other)
                .then(by_reset)
                .then_with(|| (one.policy, one.name).cmp(&(other.policy, other.name)))
        });
        keys.truncate(most);
        keys
    }

    fn name(&self, key: &Key) -> KeyName {
        if *key == Key::missing() { KeyName::Missing } else { self.name_of(self.secret.hash_one(key)) }
    }

    /// The name of a key by its digest under the same secret.
    pub(super) fn name_of(&self, digest: u64) -> KeyName {
        if digest == self.secret.hash_one(Key::CONSTANT) { KeyName::All } else { KeyName::Digest(digest) }
    }
}

impl TightKey {
    /// By the share that is left: 2 of 10 is tighter than 30 of 100.
    fn by_share_left(&self, other: &Self) -> Ordering {
        let crossed = |one: &Self, other: &Self| u128::from(one.left) * u128::from(other.of);
        crossed(self, other).cmp(&crossed(other, self))
    }

    fn is_over(&self, now: Instant) -> bool {
        self.resets <= now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn note(tightest: &Tightest, key: &str, left: u64, of: u64) {
        tightest.note(0, &key.into(), &Standing { left, of, reset_after: MINUTE }, Instant::now());
    }

    fn left(tightest: &Tightest) -> Vec<(u64, u64)> {
        tightest.list(10, Instant::now()).iter().map(|key| (key.left, key.of)).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn keys_are_listed_by_the_share_that_is_left() {
        let tightest = Tightest::new(RandomState::new());
        for (key, left, of) in [("ada", 30, 100), ("bob", 2, 10), ("cyd", 1, 1_000_000), ("dan", 9, 10)] {
            note(&tightest, key, left, of);
        }
        assert_eq!(left(&tightest), [(1, 1_000_000), (2, 10), (30, 100), (9, 10)]);
        assert_eq!(tightest.list(1, Instant::now()).len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn key_stands_as_its_last_decision_left_it() {
        let tightest = Tightest::new(RandomState::new());
        note(&tightest, "ada", 1, 10);
        note(&tightest, "ada", 7, 10);
        assert_eq!(left(&tightest), [(7, 10)]);
        note(&tightest, "ada", 10, 10);
        assert_eq!(left(&tightest), [], "all of it is left");
        note(&tightest, "bob", 10, 10);
        assert_eq!(left(&tightest), []);
        tightest.note(1, &"ada".into(), &Standing { left: 1, of: 2, reset_after: MINUTE }, Instant::now());
        note(&tightest, "ada", 1, 10);
        assert_eq!(left(&tightest), [(1, 10), (1, 2)], "each policy has a budget of its own");
    }

    #[tokio::test(start_paused = true)]
    async fn key_is_forgotten_when_it_equals_an_unused_one() {
        let tightest = Tightest::new(RandomState::new());
        note(&tightest, "ada", 1, 10);
        tokio::time::advance(MINUTE - Duration::from_millis(1)).await;
        assert_eq!(left(&tightest), [(1, 10)]);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(left(&tightest), []);
    }

    #[tokio::test(start_paused = true)]
    async fn the_tightest_stay_however_many_keys_come_and_make_room_once_they_have_recovered() {
        let tightest = Tightest::new(RandomState::new());
        note(&tightest, "ada", 1, 1_000);
        for n in 0..100_000 {
            note(&tightest, &format!("hostile-{n}"), 1, 2);
        }
        assert_eq!(lock(&tightest.keys).len(), MOST);
        assert_eq!(left(&tightest)[0], (1, 1_000));
        tokio::time::advance(MINUTE).await;
        for n in 0..MOST {
            note(&tightest, &format!("late-{n}"), 9, 10);
        }
        assert_eq!(left(&tightest), [(9, 10); 10], "none of those before is in the way");
        assert_eq!(tightest.list(100, Instant::now()).len(), MOST);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_does_not_wait_for_a_reader() {
        let tightest = Tightest::new(RandomState::new());
        let held = lock(&tightest.keys);
        note(&tightest, "ada", 1, 10);
        drop(held);
        assert_eq!(left(&tightest), [], "it was not noted");
        note(&tightest, "ada", 1, 10);
        assert_eq!(left(&tightest), [(1, 10)]);
    }

    #[tokio::test(start_paused = true)]
    async fn law_11_keys_are_shown_as_digests_under_a_secret() {
        let (one, other) = (Tightest::new(RandomState::new()), Tightest::new(RandomState::new()));
        let names = |tightest: &Tightest| ["ada", "bob"].map(|key| tightest.name(&key.into()).to_string());
        assert_eq!(names(&one), names(&one));
        assert_ne!(names(&one)[0], names(&one)[1]);
        assert_ne!(names(&one), names(&other));
        assert!(names(&one).iter().all(|name| name.len() == 16 && name.bytes().all(|b| b.is_ascii_hexdigit())));
        assert_eq!(one.name(&Key::CONSTANT).to_string(), "all");
        assert_eq!(one.name(&Key::missing()).to_string(), "missing");
    }
}

use std::cmp::Ordering;
use std::fmt;
use std::sync::Mutex;

use throttle_core::{Key, PolicyName, Status};

use crate::Offenders;
use crate::lock::{lock, try_lock};
use crate::time::micros;

/// The keys with the least left, each as of its last decision. It holds a few keys whatever clients
/// send, and no key that has recovered since. A request that finds it locked is not noted.
///
/// All times are in µs since some instant.
pub(super) struct Tightest {
    offenders: Offenders,
    pub(super) list: Mutex<TightKeys>,
}

impl Tightest {
    /// Keys are shown under the digests of a list of offenders, which has a secret, so that clients
    /// cannot tell which key a digest is of.
    pub(super) fn new(offenders: Offenders) -> Self {
        Self {
            offenders,
            list: Mutex::default(),
        }
    }

    /// Notes what a decision has left for a key of `of` units.
    pub(super) fn note(&self, limit: &PolicyName, key: &Key, status: &Status, of: u64, now: u64) {
        let resets = now.saturating_add(micros(status.reset_after()));
        let name = self.name_of(self.offenders.digest(key));
        if let Some(mut list) = try_lock(&self.list) {
            let noted = TightKey {
                limit: limit.clone(),
                name,
                left: status.remaining(),
                of,
                resets,
            };
            list.note(noted, now);
        }
    }

    /// The keys with the smallest share of their limit left, tightest first.
    pub(super) fn list(&self, now: u64) -> Vec<TightKey> {
        lock(&self.list).keys(now)
    }

    /// The name of a key by its digest.
    pub(super) fn name_of(&self, digest: Option<u64>) -> KeyName {
        match digest {
            None => KeyName::Missing,
            all if all == self.offenders.digest(&Key::CONSTANT) => KeyName::All,
            Some(digest) => KeyName::Digest(digest),
        }
    }
}

/// The list keeps more keys than the page shows: when one recovers, the next is known.
const MOST: usize = 32;

/// The keys with the smallest share of their limit left.
#[derive(Default)]
pub(super) struct TightKeys(Vec<TightKey>);

impl TightKeys {
    /// Notes what is left for a key, in place of what was noted before. It is listed if it is among
    /// the tightest, until it has recovered.
    pub(super) fn note(&mut self, noted: TightKey, now: u64) {
        self.0
            .retain(|key| key.resets > now && (&key.limit, key.name) != (&noted.limit, noted.name));
        if noted.left >= noted.of {
            return;
        }
        self.0.push(noted);
        if self.0.len() > MOST
            && let Some((loosest, _)) = self
                .0
                .iter()
                .enumerate()
                .max_by(|(_, one), (_, other)| one.by_share_left(other))
        {
            self.0.swap_remove(loosest);
        }
    }

    /// Those that have not recovered, tightest first.
    pub(super) fn keys(&self, now: u64) -> Vec<TightKey> {
        let mut keys: Vec<TightKey> = self
            .0
            .iter()
            .filter(|key| key.resets > now)
            .cloned()
            .collect();
        keys.sort_unstable_by(|one, other| {
            let by_reset = other.resets.cmp(&one.resets);
            one.by_share_left(other)
                .then(by_reset)
                .then_with(|| (&one.limit, one.name).cmp(&(&other.limit, other.name)))
        });
        keys
    }
}

/// What is left for one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TightKey {
    pub(super) limit: PolicyName,
    pub(super) name: KeyName,
    pub(super) left: u64,
    /// The most that can be left.
    pub(super) of: u64,
    /// When all of it is left again, if no other request comes.
    pub(super) resets: u64,
}

/// What a key is called where it is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum KeyName {
    /// The one key of all requests.
    All,
    /// The key that requests without one share.
    Missing,
    /// Under a secret.
    Digest(u64),
}

impl fmt::Display for KeyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Missing => f.write_str("missing"),
            Self::Digest(digest) => write!(f, "{digest:016x}"),
        }
    }
}

impl TightKey {
    /// By the share that is left: 2 of 10 is tighter than 30 of 100.
    fn by_share_left(&self, other: &Self) -> Ordering {
        let crossed = |one: &Self, other: &Self| u128::from(one.left) * u128::from(other.of);
        crossed(self, other).cmp(&crossed(other, self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60_000_000;

    fn tightest() -> Tightest {
        Tightest::new(Offenders::new())
    }

    fn name(tightest: &Tightest, key: &Key) -> KeyName {
        tightest.name_of(tightest.offenders.digest(key))
    }

    /// Notes a key, at the time 0.
    fn note(tightest: &Tightest, key: &str, left: u64, of: u64) {
        note_at(tightest, key, left, of, 0);
    }

    fn note_at(tightest: &Tightest, key: &str, left: u64, of: u64, now: u64) {
        let noted = TightKey {
            limit: PolicyName::new("p").unwrap(),
            name: name(tightest, &key.into()),
            left,
            of,
            resets: now + MINUTE,
        };
        lock(&tightest.list).note(noted, now);
    }

    fn left(tightest: &Tightest) -> Vec<(u64, u64)> {
        left_at(tightest, 0)
    }

    fn left_at(tightest: &Tightest, now: u64) -> Vec<(u64, u64)> {
        tightest
            .list(now)
            .iter()
            .take(10)
            .map(|key| (key.left, key.of))
            .collect()
    }

    #[test]
    fn keys_are_listed_by_the_share_that_is_left() {
        let tightest = tightest();
        for (key, left, of) in [
            ("ada", 30, 100),
            ("bob", 2, 10),
            ("cyd", 1, 1_000_000),
            ("dan", 9, 10),
        ] {
            note(&tightest, key, left, of);
        }
        assert_eq!(
            left(&tightest),
            [(1, 1_000_000), (2, 10), (30, 100), (9, 10)]
        );
    }

    #[test]
    fn key_is_forgotten_when_it_equals_an_unused_one() {
        let tightest = tightest();
        note(&tightest, "ada", 1, 10);
        assert_eq!(left_at(&tightest, MINUTE - 1), [(1, 10)]);
        assert_eq!(left_at(&tightest, MINUTE), []);
    }

    #[test]
    fn tightest_keys_stay_until_they_have_recovered() {
        let tightest = tightest();
        note(&tightest, "ada", 1, 1_000);
        for n in 0..10_000 {
            note(&tightest, &format!("hostile-{n}"), 1, 2);
        }
        assert_eq!(tightest.list(0).len(), MOST);
        assert_eq!(left(&tightest)[0], (1, 1_000));
        for n in 0..MOST {
            note_at(&tightest, &format!("late-{n}"), 9, 10, MINUTE);
        }
        assert_eq!(
            left_at(&tightest, MINUTE),
            [(9, 10); 10],
            "none of those before is in the way"
        );
        assert_eq!(tightest.list(MINUTE).len(), MOST);
    }

    #[test]
    fn law_11_keys_are_shown_as_digests_under_a_secret() {
        let (one, other) = (tightest(), tightest());
        let names =
            |tightest: &Tightest| ["ada", "bob"].map(|key| name(tightest, &key.into()).to_string());
        assert_eq!(names(&one), names(&one));
        assert_ne!(names(&one)[0], names(&one)[1]);
        assert_ne!(names(&one), names(&other));
        assert!(
            names(&one)
                .iter()
                .all(|name| name.len() == 16 && name.bytes().all(|b| b.is_ascii_hexdigit()))
        );
        assert_eq!(name(&one, &Key::CONSTANT).to_string(), "all");
        assert_eq!(name(&one, &Key::missing()).to_string(), "missing");
    }
}

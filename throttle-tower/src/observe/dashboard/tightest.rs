use std::sync::Mutex;

use throttle_core::{Key, PolicyName, Status};

use super::tight_list::{KeyName, TightKey, TightKeys};
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

#[cfg(test)]
mod tests {
    use super::super::tight_list::MOST;
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

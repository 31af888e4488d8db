use std::cmp::Ordering;
use std::fmt;

use throttle_core::PolicyName;

/// The list keeps more keys than the page shows: when one recovers, the next is known.
pub(super) const MOST: usize = 32;

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

use std::cmp::Ordering;
use std::fmt;

/// The list keeps more keys than the page shows: when one recovers, the next is known.
pub(super) const MOST: usize = 32;

/// Any share but the whole.
pub(super) const ANY: u64 = u64::MAX;

/// The least time between two looks for keys that have recovered. It bounds how many keys can enter the list where all
/// recover within microseconds.
const BETWEEN_CLEARINGS: u64 = 10_000;

/// The keys with the smallest share of their limit left, at places that stay theirs.
#[derive(Default)]
pub(super) struct List {
    keys: [Option<TightKey>; MOST],
    /// When keys that have recovered were removed last.
    cleared: u64,
}

impl List {
    pub(super) fn name_at(&self, place: usize) -> Option<KeyName> {
        Some(self.keys[place]?.name)
    }

    pub(super) fn put(&mut self, place: usize, key: TightKey) {
        self.keys[place] = Some(key);
    }

    pub(super) fn remove(&mut self, place: usize) {
        self.keys[place] = None;
    }

    /// Where a key that is not listed can stand: at a free place, or in the place of the loosest key if it is tighter.
    /// Keys that have recovered count as the loosest.
    pub(super) fn room(&self, noted: &TightKey, now: u64) -> Option<usize> {
        if let Some(free) = self.keys.iter().position(Option::is_none) {
            return Some(free);
        }
        let listed = self.keys.iter().enumerate().filter_map(|(place, key)| Some((place, key.as_ref()?)));
        let (place, loosest) = listed.max_by(|(_, one), (_, other)| {
            one.is_over(now).cmp(&other.is_over(now)).then_with(|| one.by_share_left(other))
        })?;
        (loosest.is_over(now) || noted.by_share_left(loosest) == Ordering::Less).then_some(place)
    }

    /// The share below which a key enters: what the loosest one has left, if there is no free place.
    pub(super) fn enters_below(&self) -> u64 {
        if self.keys.iter().any(Option::is_none) {
            return ANY;
        }
        self.keys.iter().flatten().max_by(|one, other| one.by_share_left(other)).map_or(ANY, TightKey::share_left)
    }

    /// The places of keys that have recovered.
    pub(super) fn over(&self, now: u64) -> impl Iterator<Item = usize> + use<> {
        let is_over = self.keys.map(|key| key.is_some_and(|key| key.is_over(now)));
        (0..MOST).filter(move |place| is_over[*place])
    }

    /// When a key that recovers at an instant can be removed.
    pub(super) fn may_clear(&self, resets: u64) -> u64 {
        resets.max(self.cleared + BETWEEN_CLEARINGS)
    }

    /// Notes that keys that have recovered were removed, and returns when the next ones can be.
    pub(super) fn cleared(&mut self, now: u64) -> u64 {
        self.cleared = now;
        let next = self.keys.iter().flatten().map(|key| key.resets).min();
        next.map_or(u64::MAX, |resets| self.may_clear(resets))
    }

    /// Those that have not recovered, tightest first.
    pub(super) fn keys(&self, now: u64) -> Vec<TightKey> {
        let mut keys: Vec<TightKey> = self.keys.iter().flatten().copied().filter(|key| !key.is_over(now)).collect();
        keys.sort_unstable_by(|one, other| {
            let by_reset = other.resets.cmp(&one.resets);
            one.by_share_left(other)
                .then(by_reset)
                .then_with(|| (one.policy, one.name).cmp(&(other.policy, other.name)))
        });
        keys
    }
}

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
    pub(super) resets: u64,
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
    /// Rounded down. It is below [`ANY`]: a key of which all is left is not listed.
    fn share_left(&self) -> u64 {
        let share = (u128::from(self.left) << 64).checked_div(self.of.into());
        share.and_then(|share| u64::try_from(share).ok()).unwrap_or(ANY)
    }

    /// By the share that is left: 2 of 10 is tighter than 30 of 100.
    fn by_share_left(&self, other: &Self) -> Ordering {
        let crossed = |one: &Self, other: &Self| u128::from(one.left) * u128::from(other.of);
        crossed(self, other).cmp(&crossed(other, self))
    }

    fn is_over(&self, now: u64) -> bool {
        self.resets <= now
    }
}

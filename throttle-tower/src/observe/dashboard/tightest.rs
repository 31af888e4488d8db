use std::hash::{BuildHasher, RandomState};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use throttle_core::{Key, Policy, Status};

use super::marks::Marks;
use super::tight_list::{ANY, KeyName, List, TightKey};
use crate::lock::{lock, try_lock};
use crate::time::micros;

/// The keys with the least left, each as of its last decision. It holds a few keys whatever clients send, and no key
/// that has recovered since. A request that finds it locked is not noted.
///
/// Where a thread decides thousands of requests a second, noting each would cost as much as deciding it. There, most
/// requests are between two turns to read the clock. Such a request is noted if its key is [tight](Self::is_tight) and
/// was not noted a moment ago. The others wait for a request that has a turn.
///
/// All times are in µs since some instant.
pub(super) struct Tightest {
    secret: RandomState,
    list: Mutex<List>,
    marks: Marks,
    /// A key with a smaller share left enters the list. Shares are 64 bits behind the point.
    enters_below: AtomicU64,
    /// The capacities of each policy, by its tiers.
    capacities: Box<[Box<[Capacity]>]>,
    /// What is tight of the only policy, by its tiers. Empty if there are several.
    tight_of_only: Box<[AtomicU64]>,
    /// A listed key may have recovered by then.
    clear_at: AtomicU64,
}

const HALF: u64 = 1 << 63;

/// The units that an unused key has.
struct Capacity {
    of: u64,
    /// A key with less left than this is tight.
    tight_below: AtomicU64,
}

impl Capacity {
    fn new(of: u64) -> Self {
        Self { of, tight_below: AtomicU64::new(0) }
    }
}

/// What a decision says about a key.
struct Standing {
    left: u64,
    of: u64,
    reset_after: u64,
}

impl Tightest {
    /// Keys are shown under a secret, so that clients cannot tell which key a digest is of.
    pub(super) fn new(secret: RandomState, policies: &[Policy]) -> Self {
        let tightest = Self {
            secret,
            list: Mutex::default(),
            marks: Marks::default(),
            enters_below: AtomicU64::new(0),
            capacities: policies.iter().map(|policy| capacities(policy).map(Capacity::new).collect()).collect(),
            tight_of_only: match policies {
                [only] => capacities(only).map(|_| AtomicU64::new(0)).collect(),
                _ => Box::default(),
            },
            clear_at: AtomicU64::new(u64::MAX),
        };
        tightest.let_enter_below(ANY);
        tightest
    }

    /// Whether a key of the only policy is tight: it has no half left, and less than a listed one. A request of a tight
    /// key is noted also between two turns. `None` if the layer has several policies.
    #[inline(always)]
    pub(super) fn is_tight_of_only(&self, tier: u8, left: u64) -> Option<bool> {
        Some(left < self.tight_of_only.get(usize::from(tier))?.load(Ordering::Relaxed))
    }

    /// Whether a key of a policy is tight.
    #[inline]
    pub(super) fn is_tight(&self, policy: usize, tier: u8, left: u64) -> bool {
        self.capacity(policy, tier).is_some_and(|capacity| left < capacity.tight_below.load(Ordering::Relaxed))
    }

    /// Whether a key with parameters of its own is tight, which hold `of` units.
    #[cold]
    pub(super) fn is_tight_of(&self, of: u64, left: u64) -> bool {
        left < units(self.enters_below.load(Ordering::Relaxed).min(HALF), of)
    }

    /// The units that an unused key of a tier has.
    pub(super) fn units_of(&self, policy: usize, tier: u8) -> Option<u64> {
        self.capacity(policy, tier).map(|capacity| capacity.of)
    }

    fn capacity(&self, policy: usize, tier: u8) -> Option<&Capacity> {
        self.capacities.get(policy)?.get(usize::from(tier))
    }

    fn let_enter_below(&self, share: u64) {
        if self.enters_below.swap(share, Ordering::Relaxed) != share {
            let tight_below = |capacity: &Capacity| units(share.min(HALF), capacity.of);
            for capacity in self.capacities.iter().flatten() {
                capacity.tight_below.store(tight_below(capacity), Ordering::Relaxed);
            }
            for (of_only, capacity) in self.tight_of_only.iter().zip(self.capacities.iter().flatten()) {
                of_only.store(tight_below(capacity), Ordering::Relaxed);
            }
        }
    }

    /// Whether the present standing of a key is noted, or was a moment ago. `about` is the time, or a little earlier.
    #[inline]
    pub(super) fn is_noted(&self, tag: u64, left: u64, about: u64) -> bool {
        self.marks.find(tag).is_some_and(|place| self.marks.is_fresh(place, left, about))
    }

    /// Whether a decision that has a turn is to be noted: its key is listed, or enters the list. An unused key has `of`
    /// units.
    pub(super) fn is_wanted(&self, of: u64, tag: u64, left: u64) -> bool {
        self.marks.find(tag).is_some() || left < units(self.enters_below.load(Ordering::Relaxed), of)
    }

    /// Notes what a decision has left for a key of `of` units.
    #[inline(never)]
    pub(super) fn note(&self, (policy, key, tag): (usize, &Key, u64), status: &Status, of: u64, now: u64) {
        let reset_after = micros(status.reset_after());
        self.note_standing(policy, key, tag, &Standing { left: status.remaining(), of, reset_after }, now);
    }

    fn note_standing(&self, policy: usize, key: &Key, tag: u64, standing: &Standing, now: u64) {
        let Some(mut list) = try_lock(&self.list) else { return };
        let Standing { left, of, reset_after } = *standing;
        let resets = now.saturating_add(reset_after);
        let noted = |name| TightKey { policy, name, left, of, resets };
        // Marks change under the lock alone.
        let (place, name) = match self.marks.find(tag) {
            Some(place) if left >= of => return self.remove(&mut list, place),
            Some(place) => (place, list.name_at(place).unwrap_or_else(|| self.name(key))),
            None if left >= of => return,
            None => match list.room(&noted(KeyName::Missing), now) {
                Some(place) => (place, self.name(key)),
                None => return,
            },
        };
        list.put(place, noted(name));
        self.marks.set(place, tag, left, now);
        self.let_enter_below(list.enters_below());
        self.clear_at.fetch_min(list.may_clear(resets), Ordering::Relaxed);
    }

    /// Removes keys that have recovered, so that others enter.
    pub(super) fn clear(&self, now: u64) {
        if now >= self.clear_at.load(Ordering::Relaxed)
            && let Some(mut list) = try_lock(&self.list)
        {
            list.over(now).for_each(|place| self.remove(&mut list, place));
            self.clear_at.store(list.cleared(now), Ordering::Relaxed);
        }
    }

    fn remove(&self, list: &mut List, place: usize) {
        list.remove(place);
        self.marks.remove(place);
        self.let_enter_below(ANY);
    }

    /// The keys with the smallest share of their limit left, tightest first.
    pub(super) fn list(&self, most: usize, now: u64) -> Vec<TightKey> {
        let mut keys = lock(&self.list).keys(now);
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

/// What a share of so many units is, rounded up: of whole numbers, those below the share are those below this.
fn units(share: u64, of: u64) -> u64 {
    let (product, whole) = (u128::from(share) * u128::from(of), 1 << 64);
    u64::try_from(product.div_ceil(whole)).unwrap_or(u64::MAX)
}

/// The units that an unused key has, by the policy's tiers.
pub(super) fn capacities(policy: &Policy) -> impl Iterator<Item = u64> {
    let untiered = (!policy.is_tiered()).then_some(policy);
    untiered.into_iter().chain(policy.tiers().map(|(_, tier)| tier)).map(|policy| policy.algorithm().capacity())
}

#[cfg(test)]
impl Tightest {
    pub(super) fn hold_lock(&self) -> impl Sized + use<'_> {
        lock(&self.list)
    }
}

#[cfg(test)]
mod tests {
    use std::hash::{DefaultHasher, Hash, Hasher};

    use throttle_core::{FixedWindow, Gcra, Rate};

    use super::super::tight_list::MOST;
    use super::*;

    const MINUTE: u64 = 60_000_000;

    fn tightest() -> Tightest {
        let policy = |of| Policy::new(&format!("of-{of}"), FixedWindow::new(Rate::per_hour(of))).unwrap();
        Tightest::new(RandomState::new(), &OF.map(policy))
    }

    /// The capacities of the policies.
    const OF: [u64; 10] = [10, 1, 3, 4, 6, 9, 100, 1_000_000, 1 << 30, HUGE];
    const HUGE: u64 = 1 << 40;

    fn tag(policy: usize, key: &str) -> u64 {
        let mut hasher = DefaultHasher::new();
        (policy, key).hash(&mut hasher);
        hasher.finish()
    }

    /// Notes, at the time 0.
    fn note(tightest: &Tightest, key: &str, left: u64, of: u64) {
        note_at(tightest, key, left, of, 0);
    }

    fn note_at(tightest: &Tightest, key: &str, left: u64, of: u64, now: u64) {
        tightest.note_standing(0, &key.into(), tag(0, key), &Standing { left, of, reset_after: MINUTE }, now);
    }

    /// Keys in the list, also those that have recovered.
    fn listed(tightest: &Tightest) -> usize {
        (0..MOST).filter(|place| lock(&tightest.list).name_at(*place).is_some()).count()
    }

    fn left(tightest: &Tightest) -> Vec<(u64, u64)> {
        left_at(tightest, 0)
    }

    fn left_at(tightest: &Tightest, now: u64) -> Vec<(u64, u64)> {
        tightest.list(10, now).iter().map(|key| (key.left, key.of)).collect()
    }

    #[test]
    fn keys_are_listed_by_the_share_that_is_left() {
        let tightest = tightest();
        for (key, left, of) in [("ada", 30, 100), ("bob", 2, 10), ("cyd", 1, 1_000_000), ("dan", 9, 10)] {
            note(&tightest, key, left, of);
        }
        assert_eq!(left(&tightest), [(1, 1_000_000), (2, 10), (30, 100), (9, 10)]);
        assert_eq!(tightest.list(1, 0).len(), 1);
    }

    #[test]
    fn key_stands_as_its_last_decision_left_it() {
        let tightest = tightest();
        note(&tightest, "ada", 1, 10);
        note(&tightest, "ada", 7, 10);
        assert_eq!(left(&tightest), [(7, 10)]);
        note(&tightest, "ada", 10, 10);
        assert_eq!(left(&tightest), [], "all of it is left");
        note(&tightest, "bob", 10, 10);
        assert_eq!(left(&tightest), []);
        let standing = Standing { left: 1, of: 2, reset_after: MINUTE };
        tightest.note_standing(1, &"ada".into(), tag(1, "ada"), &standing, 0);
        note(&tightest, "ada", 1, 10);
        assert_eq!(left(&tightest), [(1, 10), (1, 2)], "each policy has a budget of its own");
    }

    #[test]
    fn key_is_forgotten_when_it_equals_an_unused_one() {
        let tightest = tightest();
        note(&tightest, "ada", 1, 10);
        assert_eq!(left_at(&tightest, MINUTE - 1), [(1, 10)]);
        assert_eq!(left_at(&tightest, MINUTE), []);
    }

    #[test]
    fn the_tightest_stay_however_many_keys_come_and_make_room_once_they_have_recovered() {
        let tightest = tightest();
        note(&tightest, "ada", 1, 1_000);
        for n in 0..100_000 {
            note(&tightest, &format!("hostile-{n}"), 1, 2);
        }
        assert!(listed(&tightest) == MOST);
        assert_eq!(left(&tightest)[0], (1, 1_000));
        for n in 0..MOST {
            note_at(&tightest, &format!("late-{n}"), 9, 10, MINUTE);
        }
        assert_eq!(left_at(&tightest, MINUTE), [(9, 10); 10], "none of those before is in the way");
        assert_eq!(tightest.list(100, MINUTE).len(), MOST);
    }

    #[test]
    fn a_request_does_not_wait_for_a_reader() {
        let tightest = tightest();
        let held = lock(&tightest.list);
        note(&tightest, "ada", 1, 10);
        drop(held);
        assert_eq!(left(&tightest), [], "it was not noted");
        note(&tightest, "ada", 1, 10);
        assert_eq!(left(&tightest), [(1, 10)]);
    }

    /// Whether a request between two turns, and one that has a turn, would enter the list.
    fn enters(tightest: &Tightest, left: u64, of: u64) -> [bool; 2] {
        let policy = OF.iter().position(|capacity| *capacity == of).unwrap();
        [
            tightest.is_tight(policy, 0, left),
            tightest.is_wanted(tightest.units_of(policy, 0).unwrap(), tag(policy, "new"), left),
        ]
    }

    #[test]
    fn any_used_key_enters_a_list_with_room_and_without_a_turn_if_less_than_half_is_left() {
        let tightest = tightest();
        for n in 0..MOST {
            assert_eq!(enters(&tightest, 10, 10), [false, false]);
            assert_eq!(enters(&tightest, 9, 10), [false, true]);
            assert_eq!(enters(&tightest, 5, 10), [false, true]);
            assert_eq!(enters(&tightest, 4, 10), [true, true]);
            assert_eq!(enters(&tightest, (1 << 30) - 1, 1 << 30), [false, true]);
            assert_eq!(enters(&tightest, 0, 1), [true, true]);
            note(&tightest, &n.to_string(), 1, 3);
        }
        assert_eq!(enters(&tightest, 9, 10), [false, false], "it is full");
    }

    #[test]
    fn half_of_a_limit_is_not_tight_whatever_parameters_the_key_has() {
        let policy = Policy::new("only", Gcra::new(Rate::per_hour(10)).burst(10)).unwrap();
        let only = Tightest::new(RandomState::new(), &[policy]);
        assert_eq!([4, 5, 6].map(|left| only.is_tight_of_only(0, left)), [Some(true), Some(false), Some(false)]);
        assert_eq!([4, 5, 6].map(|left| only.is_tight_of(10, left)), [true, false, false]);
        assert_eq!([499, 500].map(|left| only.is_tight_of(1_000, left)), [true, false]);
        (0..MOST).for_each(|n| note(&only, &n.to_string(), 2, 10));
        assert_eq!([1, 2].map(|left| only.is_tight_of_only(0, left)), [Some(true), Some(false)], "it is full");
        assert_eq!([1, 2].map(|left| only.is_tight_of(10, left)), [true, false], "it is full");
        assert_eq!(tightest().is_tight_of_only(0, 0), None, "of several policies");
    }

    #[test]
    fn key_that_is_tighter_by_one_unit_of_very_many_enters_a_full_list() {
        let tightest = tightest();
        let loosest = HUGE / 4 + 2;
        (0..MOST).for_each(|n| note(&tightest, &n.to_string(), loosest, HUGE));
        assert_eq!([loosest - 1, loosest].map(|left| enters(&tightest, left, HUGE)), [[true; 2], [false; 2]]);
    }

    #[test]
    fn each_tier_of_the_only_policy_is_tight_by_its_own_units() {
        let tiers = [10, 1_000, 50].map(|of| (format!("of-{of}"), Gcra::new(Rate::per_hour(of)).burst(of)));
        let only = Tightest::new(RandomState::new(), &[Policy::tiered("only", tiers).unwrap()]);
        let tight = |tier, around: u64| [around - 1, around].map(|left| only.is_tight_of_only(tier, left));
        let bounds = |of_tiers: [u64; 3]| {
            for (tier, bound) in (0..).zip(of_tiers) {
                assert_eq!(tight(tier, bound), [Some(true), Some(false)], "{tier}");
            }
        };
        bounds([5, 500, 25]);
        (0..MOST).for_each(|n| note(&only, &n.to_string(), 2, 10));
        bounds([2, 200, 10]);
        assert_eq!(only.is_tight_of_only(3, 0), None, "no such tier");
    }

    #[test]
    fn only_tighter_keys_than_the_loosest_enter_a_full_list() {
        let tightest = tightest();
        for n in 0..MOST {
            note(&tightest, &n.to_string(), 1, 3);
        }
        for (left, of, is_tighter) in
            [(1, 3, false), (2, 6, false), (33, 100, true), (34, 100, false), (333_333, 1_000_000, true), (0, 1, true)]
        {
            assert_eq!(enters(&tightest, left, of), [is_tighter; 2], "{left} of {of}");
        }
        note(&tightest, "0", 3, 4);
        assert_eq!(enters(&tightest, 2, 3), [false, true], "one has become looser");
        note(&tightest, "0", 4, 4);
        assert_eq!(enters(&tightest, 9, 10), [false, true], "one has recovered");
        note(&tightest, "0", 0, 4);
        (0..MOST).for_each(|n| note(&tightest, &n.to_string(), 0, 3));
        assert_eq!(enters(&tightest, 0, 9), [false; 2], "nothing is tighter than nothing left");
    }

    #[test]
    fn listed_key_is_noted_again_in_each_turn_and_else_when_it_is_tighter_by_half_or_after_a_moment() {
        let tightest = tightest();
        let ada = tag(0, "ada");
        assert!(!tightest.is_noted(ada, 4, 0));
        note_at(&tightest, "ada", 4, 10, 1_000);
        assert!(
            tightest.is_wanted(tightest.units_of(0, 0).unwrap(), ada, 10),
            "looser than any: it must not stay as it is"
        );
        assert!(tightest.is_noted(ada, 4, 1_000) && tightest.is_noted(ada, 2, 5_999));
        assert!(!tightest.is_noted(ada, 1, 1_000) && !tightest.is_noted(ada, 4, 6_000));
        note_at(&tightest, "ada", 10, 10, 1_000);
        assert!(!tightest.is_noted(ada, 4, 1_000), "it has recovered, and is a new one");
        assert!(!tightest.is_wanted(tightest.units_of(0, 0).unwrap(), ada, 10));
    }

    #[test]
    fn keys_that_have_recovered_make_room_at_the_next_turn_but_not_more_than_once_in_ten_milliseconds() {
        let tightest = tightest();
        let note_for = |key: &str, reset_after, now| {
            let standing = Standing { left: 0, of: 1, reset_after };
            tightest.note_standing(0, &key.into(), tag(0, key), &standing, now);
        };
        (0..MOST as u64).for_each(|n| note_for(&n.to_string(), 10_000 + n / 16, 0));
        tightest.clear(9_999);
        assert_eq!((listed(&tightest), enters(&tightest, 0, 1)), (MOST, [false; 2]));
        tightest.clear(10_000);
        assert_eq!((listed(&tightest), enters(&tightest, 0, 1)), (16, [true; 2]));
        note_for("new", 1, 10_000);
        tightest.clear(19_999);
        assert_eq!(listed(&tightest), 17, "ten milliseconds have not passed");
        tightest.clear(20_000);
        assert_eq!(listed(&tightest), 0);
        note_for("new", 20_000, 20_000);
        tightest.clear(39_999);
        assert_eq!(listed(&tightest), 1);
        tightest.clear(40_000);
        assert_eq!(listed(&tightest), 0);
    }

    #[test]
    fn each_key_makes_room_when_it_has_recovered_itself() {
        let tightest = tightest();
        for n in 0..MOST as u64 {
            let (key, reset_after) = (n.to_string(), 20_000 * (1 + n / 8));
            let standing = Standing { left: 0, of: 1, reset_after };
            tightest.note_standing(0, &(&*key).into(), tag(0, &key), &standing, 0);
        }
        for (now, left) in [(20_000, 24), (39_999, 24), (40_000, 16), (60_000, 8), (80_000, 0)] {
            tightest.clear(now);
            assert_eq!(listed(&tightest), left, "at {now}");
        }
    }

    #[test]
    fn law_11_keys_are_shown_as_digests_under_a_secret() {
        let (one, other) = (tightest(), tightest());
        let names = |tightest: &Tightest| ["ada", "bob"].map(|key| tightest.name(&key.into()).to_string());
        assert_eq!(names(&one), names(&one));
        assert_ne!(names(&one)[0], names(&one)[1]);
        assert_ne!(names(&one), names(&other));
        assert!(names(&one).iter().all(|name| name.len() == 16 && name.bytes().all(|b| b.is_ascii_hexdigit())));
        assert_eq!(one.name(&Key::CONSTANT).to_string(), "all");
        assert_eq!(one.name(&Key::missing()).to_string(), "missing");
    }
}

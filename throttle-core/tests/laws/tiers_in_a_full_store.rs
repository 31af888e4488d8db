//! Tiers in a store without room: a policy has a shared bucket for each tier, and a key that shares one is charged in
//! all of them, whatever other policies stand in the set.

use std::time::Duration;

use throttle_core::backend::{Call, Receipt};
use throttle_core::{
    AnyCharge, Backend, Carry, Decision, FixedWindow, Gcra, Key, LeakyBucket, ManualClock, MemoryBackend, MemorySet,
    Policy, PolicySet, PolicyTree, Rate, SlidingLog, Timestamp,
};

const T0: Timestamp = Timestamp::from_micros(1_790_000_000_000_000);
const SECOND: u64 = 1_000_000;

/// A store without room: keys of another policy fill it.
struct Desk {
    backend: MemoryBackend<ManualClock>,
    clock: ManualClock,
    filler: MemorySet,
}

impl Desk {
    fn new() -> Self {
        Self::of(1)
    }

    fn of(max_keys: usize) -> Self {
        let clock = ManualClock::new(T0);
        let backend = MemoryBackend::builder().clock(clock.clone()).max_keys(max_keys).build();
        let filler = Policy::new("filler", FixedWindow::new(Rate::per_day(9))).unwrap();
        let filler = backend.prepare(PolicySet::new(filler).unwrap()).unwrap();
        let desk = Self { backend, clock, filler };
        for key in 0..max_keys as u64 {
            assert!(desk.backend.decide_now(&desk.filler, &[Call::from(Key::from(key))]).is_admitted());
        }
        desk
    }

    fn prepare(&self, tree: impl Into<PolicyTree>) -> MemorySet {
        self.backend.prepare(PolicySet::new(tree).unwrap().replace_existing()).unwrap()
    }

    /// A decision about a new key of one policy, which shares the tier's bucket.
    fn ask(&self, set: &MemorySet, tier: u8, cost: u64) -> Decision {
        self.backend.decide_now(set, &[Call::from(Key::from("newcomer")).costing(cost).in_tier(tier)])
    }

    /// Charges a new key, and returns what settles the charge.
    fn charge(&self, set: &MemorySet, tier: u8, cost: u64) -> Receipt {
        let calls = [Call::from(Key::from("newcomer")).costing(cost).in_tier(tier)];
        Receipt::of(&self.backend.decide_now(set, &calls), &calls).unwrap()
    }

    /// Forgets buckets that count nothing.
    fn sweep(&self) {
        for key in 1_000..1_100_u64 {
            drop(self.backend.decide_now(&self.filler, &[Call::from(Key::from(key))]));
        }
    }

    fn left(&self, set: &MemorySet, tier: u8) -> u64 {
        self.ask(set, tier, 0).remaining()
    }

    /// Forgets the key that fills the store, so that there is room for another.
    fn make_room(&self) {
        drop(self.backend.reset_all("filler"));
        assert_eq!(self.backend.keys(), 0);
    }
}

fn per_hour(name: &str, counts: &[u64], carry: Carry) -> Policy {
    let tiers = counts.iter().enumerate().map(|(tier, count)| (format!("t{tier}"), Gcra::new(Rate::per_hour(*count))));
    Policy::tiered(name, tiers, carry).unwrap()
}

#[test]
fn law_09_a_charge_of_several_policies_counts_in_every_tier_of_each() {
    let desk = Desk::new();
    let three = || per_hour("three", &[10, 20, 30], Carry::Keep);
    let two = || per_hour("two", &[5, 100], Carry::Reset);
    let plain = || Policy::new("plain", SlidingLog::new(Rate::per_hour(50))).unwrap();
    let members = || vec![plain().into(), three().into(), two().into()];
    let trees = [PolicyTree::All(members()), PolicyTree::Any(members(), AnyCharge::EveryAdmitting)];
    for (round, tree) in (0..).zip(trees) {
        drop(desk.backend.reset_all("t"));
        drop(desk.backend.reset_all("p"));
        let set = desk.prepare(tree);
        let tiers = [0, 2 - round, 1];
        let calls: Vec<Call> = [6, 4, 3]
            .into_iter()
            .zip(tiers)
            .enumerate()
            .map(|(n, (cost, tier))| Call::from(Key::from(n as u64)).costing(cost).in_tier(tier))
            .collect();
        let decision = desk.backend.decide_now(&set, &calls);
        for ((status, tier), left) in decision.statuses().iter().zip(tiers).zip([44, [26, 16][round as usize], 97]) {
            assert!(status.is_overflow(), "there is no room");
            assert_eq!((status.tier(), status.remaining()), (tier, left));
        }
        drop(set);
        let (plain, three, two) = (desk.prepare(plain()), desk.prepare(three()), desk.prepare(two()));
        assert_eq!(desk.left(&plain, 0), 44);
        assert_eq!([0, 1, 2].map(|tier| desk.left(&three, tier)), [6, 16, 26]);
        assert_eq!([0, 1].map(|tier| desk.left(&two, tier)), [2, 97]);
        assert!(desk.ask(&three, 0, 7).statuses()[0].is_violated() && desk.ask(&two, 0, 3).statuses()[0].is_violated());
        assert_eq!((desk.left(&three, 1), desk.left(&two, 1)), (16, 97), "a refusal charges no bucket");
    }
}

/// A key with numbers of its own shares a bucket too: all such keys of a policy have one, beside those of the tiers.
#[test]
fn law_09_a_change_between_tiers_and_own_numbers_evades_no_shared_bucket() {
    for carry in [Carry::Keep, Carry::Reset] {
        let desk = Desk::new();
        let plan = per_hour("p", &[10, 20], carry);
        let own = |count| desk.prepare(plan.with_own(Gcra::new(Rate::per_hour(count))).unwrap());
        let (tiers, fifteen, forty) = (desk.prepare(plan.clone()), own(15), own(40));
        let decision = desk.ask(&fifteen, 0, 6);
        assert!(decision.statuses()[0].is_overflow() && decision.is_admitted());
        assert_eq!([0, 1].map(|tier| desk.left(&tiers, tier)), [4, 14], "{carry:?}");
        assert_eq!((desk.left(&fifteen, 0), desk.left(&forty, 0)), (9, 34), "{carry:?}");
        assert!(desk.ask(&tiers, 1, 9).is_admitted());
        assert_eq!((desk.left(&fifteen, 0), desk.left(&forty, 0)), (0, 25), "{carry:?}");
        assert!(!desk.ask(&fifteen, 0, 1).is_admitted() && !desk.ask(&tiers, 0, 1).is_admitted());
        assert_eq!(desk.left(&tiers, 1), 5);
        desk.make_room();
        assert_eq!((desk.left(&fifteen, 0), desk.left(&tiers, 1)), (0, 5), "the key may have used the shared units");
        assert!(desk.ask(&forty, 0, 5).is_admitted());
        assert_eq!((desk.left(&forty, 0), desk.left(&tiers, 1)), (20, 0), "{carry:?}");
    }
}

/// A key moves between a tier and numbers of its own while it shares a bucket, in both directions, and also where the
/// limit has no tiers: what it used before counts after.
#[test]
fn law_09_the_first_charge_under_own_numbers_counts_what_the_tiers_have_counted() {
    for (is_tiered, carry) in [(true, Carry::Keep), (true, Carry::Reset), (false, Carry::Keep)] {
        let base = match is_tiered {
            true => per_hour("p", &[10, 20], carry),
            false => Policy::new("p", Gcra::new(Rate::per_hour(20))).unwrap(),
        };
        let tier = u8::from(is_tiered);
        let own = |count| base.with_own(Gcra::new(Rate::per_hour(count))).unwrap();

        let desk = Desk::new();
        let (tiers, fifty) = (desk.prepare(base.clone()), desk.prepare(own(50)));
        assert!(desk.ask(&tiers, tier, 20).statuses()[0].is_overflow());
        assert_eq!(desk.left(&fifty, 0), 30, "{carry:?}");
        assert!(!desk.ask(&fifty, 0, 31).is_admitted() && desk.ask(&fifty, 0, 30).is_admitted());
        assert_eq!((desk.left(&fifty, 0), desk.left(&tiers, tier)), (0, 0), "{carry:?}");

        let desk = Desk::new();
        let (tiers, fifteen) = (desk.prepare(base.clone()), desk.prepare(own(15)));
        assert!(desk.ask(&fifteen, 0, 15).statuses()[0].is_overflow());
        assert_eq!(desk.left(&tiers, tier), 5, "{carry:?}");
        assert!(desk.ask(&tiers, tier, 5).is_admitted() && !desk.ask(&tiers, tier, 1).is_admitted());
        let (thirty, tiny) = (desk.prepare(own(30)), desk.prepare(own(3)));
        assert_eq!(desk.left(&thirty, 0), 10, "the tier has counted 20, the numbers of 15 could not: {carry:?}");
        assert!(!desk.ask(&tiny, 0, 1).is_admitted() && !desk.ask(&fifteen, 0, 1).is_admitted());
        desk.clock.advance(Duration::from_secs(3_600));
        assert!(desk.ask(&tiny, 0, 3).is_admitted() && !desk.ask(&tiny, 0, 1).is_admitted());
        assert_eq!(desk.left(&thirty, 0), 27, "{carry:?}");
    }
}

/// Such numbers use the bucket of own numbers too. With room, the key has used what the tiers have counted.
#[test]
fn law_09_own_numbers_that_equal_those_of_the_limit_count_what_its_tiers_have_counted() {
    let tiered = |carry| (per_hour("p", &[10, 20], carry), 1);
    let plain = (Policy::new("p", Gcra::new(Rate::per_hour(20))).unwrap(), 0);
    for (base, tier) in [tiered(Carry::Keep), tiered(Carry::Reset), plain] {
        for has_room in [false, true] {
            let desk = Desk::new();
            let limit = desk.prepare(base.clone());
            let own = desk.prepare(base.with_own(Gcra::new(Rate::per_hour(20))).unwrap());
            assert!(desk.ask(&limit, tier, 15).statuses()[0].is_overflow());
            if has_room {
                desk.make_room();
            }
            assert_eq!(desk.left(&own, 0), 5, "{base:?}");
            assert!(!desk.ask(&own, 0, 6).is_admitted());
            let decision = desk.ask(&own, 0, 5);
            assert_eq!((decision.is_admitted(), decision.statuses()[0].is_overflow()), (true, !has_room));
            assert_eq!((desk.left(&own, 0), desk.left(&limit, tier)), (0, 0), "{base:?}");
        }
    }
}

/// There is room again for a key with numbers of its own that no bucket has a state of.
#[test]
fn law_09_a_key_that_gets_a_slot_under_own_numbers_has_used_what_the_tiers_have_counted() {
    for is_tiered in [true, false] {
        let base = match is_tiered {
            true => per_hour("p", &[10, 20], Carry::Keep),
            false => Policy::new("p", Gcra::new(Rate::per_hour(20))).unwrap(),
        };
        let desk = Desk::new();
        let tiers = desk.prepare(base.clone());
        assert!(desk.ask(&tiers, u8::from(is_tiered), 20).statuses()[0].is_overflow());
        let own = desk.prepare(base.with_own(Gcra::new(Rate::per_hour(50))).unwrap());
        desk.make_room();
        assert_eq!(desk.left(&own, 0), 30);
        let decision = desk.ask(&own, 0, 30);
        assert!(decision.is_admitted() && !decision.statuses()[0].is_overflow());
        assert!(!desk.ask(&own, 0, 1).is_admitted());
        assert_eq!(desk.left(&tiers, u8::from(is_tiered)), 0);
    }
}

/// All keys with own numbers share one bucket, which has room for eight different numbers: while eight count, ninth
/// ones wait, because a state that is forgotten would give back what it has counted.
#[test]
fn law_09_ninth_own_numbers_in_a_shared_bucket_make_it_forget_nothing() {
    let desk = Desk::new();
    let base = per_hour("p", &[1_000], Carry::Keep);
    let tiers = desk.prepare(base.clone());
    // All are used up after one unit. The larger a capacity, the slower: 100 s, 200 s, ….
    let own: Vec<MemorySet> = (1..=9)
        .map(|n| desk.prepare(base.with_own(Gcra::new(Rate::new(n, seconds(100 * n * n))).burst(n)).unwrap()))
        .collect();
    for (n, own) in own[..8].iter().enumerate() {
        // Each begins with what those before it have counted, and each has room for one unit more.
        let decision = desk.ask(own, 0, 1);
        assert!(decision.is_admitted() && decision.statuses()[0].is_overflow(), "{n}");
    }
    assert!(own[..8].iter().all(|own| !desk.ask(own, 0, 1).is_admitted()), "all are used up");
    let ninth = &own[8];
    let refused = desk.ask(ninth, 0, 1);
    assert_eq!((refused.is_admitted(), refused.remaining(), desk.left(ninth, 0)), (false, 0, 0), "of 9, 8 are used");
    assert_eq!(desk.ask(ninth, 0, 10).retry_after(), None, "never");
    // The first ones are idle after 100 s.
    assert_eq!(refused.retry_after(), Some(seconds(100)));
    desk.clock.advance(seconds(100) - Duration::from_micros(1));
    assert!(!desk.ask(ninth, 0, 1).is_admitted());
    assert!(own[..8].iter().all(|own| !desk.ask(own, 0, 1).is_admitted()), "nothing was forgotten for it");
    desk.clock.advance(Duration::from_micros(1));
    let before: Vec<u64> = own[1..8].iter().map(|own| desk.left(own, 0)).collect();
    assert!(desk.ask(ninth, 0, 1).is_admitted());
    let after: Vec<u64> = own[1..8].iter().map(|own| desk.left(own, 0)).collect();
    assert!(
        before.iter().zip(&after).all(|(before, after)| before.saturating_sub(1) == *after),
        "{before:?} {after:?}"
    );
    assert_eq!(desk.left(&own[0], 0), 0, "the first ones count what the others count");
    assert_eq!(desk.left(&tiers, 0), 999, "the first eight have drained there");
}

/// A key that gets a slot takes along what its shared bucket has counted. The bucket holds at most eight sets of own
/// numbers and refuses a ninth; a slot refuses none, because no other key depends on it.
#[test]
fn law_09_a_key_that_gets_a_slot_waits_for_no_other_numbers() {
    let desk = Desk::new();
    let base = per_hour("p", &[1_000], Carry::Keep);
    let own = |n: u64| desk.prepare(base.with_own(Gcra::new(Rate::new(n, seconds(3_600))).burst(n)).unwrap());
    let own: Vec<MemorySet> = (1..=10).map(|n| own(10 * n)).collect();
    for own in &own[..8] {
        assert!(desk.ask(own, 0, 1).statuses()[0].is_overflow());
    }
    assert!(!desk.ask(&own[8], 0, 1).is_admitted(), "there are eight already");
    desk.make_room();
    for own in &own[8..] {
        let decision = desk.ask(own, 0, 1);
        assert!(decision.is_admitted() && !decision.statuses()[0].is_overflow());
    }
    assert_eq!(desk.left(&own[9], 0), 100 - 8 - 2, "all that was used stays used");
}

/// The bucket holds the states of two sets of own numbers. The one that was charged last recovers first.
#[test]
fn law_09_a_key_that_gets_a_slot_in_a_tier_has_used_what_all_own_numbers_have_counted() {
    let desk = Desk::new();
    let tier = [("t0", Gcra::new(Rate::per_second(100)))];
    let base = Policy::tiered("p", tier, Carry::Keep).unwrap();
    let (tiers, slow) =
        (desk.prepare(base.clone()), desk.prepare(base.with_own(Gcra::new(Rate::per_day(50))).unwrap()));
    let quick = desk.prepare(base.with_own(Gcra::new(Rate::per_second(30))).unwrap());
    assert!(desk.ask(&slow, 0, 20).is_admitted() && desk.ask(&quick, 0, 5).is_admitted());
    assert_eq!(desk.left(&slow, 0), 25);
    desk.clock.advance(seconds(10));
    desk.make_room();
    let decision = desk.ask(&tiers, 0, 1);
    assert!(decision.is_admitted() && !decision.statuses()[0].is_overflow());
    assert_eq!(desk.left(&slow, 0), 24);
    assert!(!desk.ask(&slow, 0, 26).is_admitted());
}

/// What is owed beyond a charge belongs to the instant of the charge, and leaves the window with it.
#[test]
fn law_10_a_settlement_of_more_in_a_shared_bucket_counts_at_the_instant_of_the_charge() {
    let desk = Desk::new();
    let base = Policy::tiered("p", [("t0", SlidingLog::new(Rate::per_hour(20)))], Carry::Keep).unwrap();
    let own = desk.prepare(base.with_own(SlidingLog::new(Rate::per_hour(10))).unwrap());
    let receipt = desk.charge(&own, 0, 2);
    desk.clock.advance(seconds(1_800));
    desk.backend.settle_now(&own, receipt.actual(2 + 3));
    assert_eq!(desk.left(&own, 0), 5);
    desk.clock.advance(seconds(1_800));
    assert_eq!(desk.left(&own, 0), 10, "the charge is an hour old");
}

/// The bucket of own numbers was forgotten, or holds others that count nothing any more, while those of the tiers
/// count.
#[test]
fn law_09_a_settlement_of_more_under_own_numbers_counts_what_the_tiers_have_counted() {
    for has_others in [false, true] {
        let desk = Desk::new();
        let base = per_hour("p", &[10, 20], Carry::Keep);
        let own = |count| desk.prepare(base.with_own(Gcra::new(Rate::per_minute(count))).unwrap());
        let (tiers, forty, fifty) = (desk.prepare(base.clone()), own(40), own(50));
        let receipt = desk.charge(&forty, 0, 5);
        desk.clock.advance(seconds(2 * 3_600));
        desk.sweep();
        assert!(desk.ask(&tiers, 1, 15).is_admitted());
        if has_others {
            assert!(desk.ask(&fifty, 0, 1).is_admitted());
            desk.clock.advance(seconds(61));
        }
        let (left, of_tiers) = (desk.left(&forty, 0), desk.left(&tiers, 1));
        assert_eq!((left, of_tiers), if has_others { (24, 4) } else { (25, 5) });
        desk.backend.settle_now(&forty, receipt.actual(5 + 3));
        assert_eq!((desk.left(&forty, 0), desk.left(&tiers, 1)), (left - 3, of_tiers - 3));
        assert!(!desk.ask(&forty, 0, left - 2).is_admitted());
    }
}

/// Own numbers recover in a minute, and the tiers in an hour. To begin anew would count what the tiers count.
#[test]
fn law_09_own_numbers_that_count_nothing_are_not_forgotten_beside_tiers_that_do() {
    let desk = Desk::new();
    let base = per_hour("p", &[10, 20], Carry::Keep);
    let own = |count| desk.prepare(base.with_own(Gcra::new(Rate::per_minute(count))).unwrap());
    let (tiers, forty, fifty) = (desk.prepare(base.clone()), own(40), own(50));
    assert!(desk.ask(&forty, 0, 1).is_admitted() && desk.ask(&fifty, 0, 1).is_admitted());
    assert!(desk.ask(&tiers, 1, 15).is_admitted());
    desk.clock.advance(seconds(61));
    desk.sweep();
    assert_eq!((desk.left(&forty, 0), desk.left(&fifty, 0)), (40, 50));
    assert!(desk.ask(&forty, 0, 2).is_admitted());
    assert_eq!((desk.left(&forty, 0), desk.left(&fifty, 0)), (38, 48));
}

#[test]
fn law_09_a_settlement_of_more_counts_in_every_bucket_of_the_policy() {
    let desk = Desk::new();
    let base = per_hour("p", &[10, 20], Carry::Keep);
    let (tiers, own) =
        (desk.prepare(base.clone()), desk.prepare(base.with_own(Gcra::new(Rate::per_hour(15))).unwrap()));
    let [of_tier, of_own] = [desk.charge(&tiers, 0, 2), desk.charge(&own, 0, 2)];
    desk.backend.settle_now(&tiers, of_tier.actual(2 + 3));
    assert_eq!((desk.left(&tiers, 0), desk.left(&tiers, 1), desk.left(&own, 0)), (3, 13, 8));
    desk.backend.settle_now(&own, of_own.actual(2 + 1));
    assert_eq!((desk.left(&tiers, 0), desk.left(&tiers, 1), desk.left(&own, 0)), (2, 12, 7));
    let returned = desk.charge(&own, 0, 2);
    desk.backend.settle_now(&own, returned.actual(0));
    assert_eq!((desk.left(&own, 0), desk.left(&tiers, 1)), (7, 10), "only the bucket that was charged gets units back");
}

/// A key whose slot was forgotten settles a charge after it has used the shared units.
#[test]
fn law_09_a_settlement_of_more_gives_a_key_no_slot_without_what_its_bucket_has_counted() {
    let desk = Desk::new();
    let (plan, fast) = (per_hour("p", &[10], Carry::Keep), Gcra::new(Rate::per_minute(10)));
    let own = desk.prepare(plan.with_own(fast).unwrap());
    desk.make_room();
    let receipt = desk.charge(&own, 0, 1);
    desk.clock.advance(seconds(61));
    assert!(desk.backend.decide_now(&desk.filler, &[Call::from(Key::from(0))]).is_admitted());
    assert!(desk.ask(&own, 0, 10).statuses()[0].is_overflow(), "its slot is forgotten");
    desk.make_room();
    desk.backend.settle_now(&own, receipt.actual(2));
    assert_eq!(desk.left(&own, 0), 0);
}

struct Random(u64);

impl Random {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }
}

/// Random charges of keys that share buckets, in tiers and under ever other numbers: whatever a key moves between, it
/// is admitted no more than the largest burst and what its fastest numbers give back in all the time.
#[test]
fn law_09_moving_between_tiers_and_own_numbers_in_a_full_store_buys_nothing() {
    for seed in 0..200_u64 {
        let mut trace = Trace::new(seed);
        // Before the keys that fill the store are forgotten.
        while trace.steps < 400 && trace.passed < 30_000 * SECOND {
            trace.step();
        }
        assert!(trace.steps > 100, "seed {seed}");
    }
}

struct Trace {
    seed: u64,
    random: Random,
    desk: Desk,
    /// That of the tiers is the first.
    sets: Vec<MemorySet>,
    /// By their sets and tiers.
    charges: Vec<(usize, u8, u64, Receipt)>,
    /// Units that were admitted and not given back.
    used: u64,
    /// µs.
    passed: u64,
    steps: usize,
}

impl Trace {
    const LARGEST: u64 = 40;

    fn new(seed: u64) -> Self {
        let desk = Desk::new();
        let base = match !seed.is_multiple_of(3) {
            true => per_hour("p", &[10, 25], [Carry::Keep, Carry::Reset][(seed % 2) as usize]),
            false => Policy::new("p", Gcra::new(Rate::per_hour(25))).unwrap(),
        };
        // All recover in an hour; or some in a minute, so that buckets come to count nothing at different times.
        let of = |n: u64| {
            let count = (7 * n + seed) % Self::LARGEST + 1;
            let is_fast = Self::has_fast(seed) && !n.is_multiple_of(2);
            base.with_own(Gcra::new(if is_fast { Rate::per_minute(count) } else { Rate::per_hour(count) })).unwrap()
        };
        let sets = std::iter::once(base.clone()).chain((0..12).map(of)).map(|policy| desk.prepare(policy)).collect();
        let random = Random(seed * 7_919 + 1);
        Self { seed, random, desk, sets, charges: Vec::new(), used: 0, passed: 0, steps: 0 }
    }

    fn has_fast(seed: u64) -> bool {
        seed % 4 > 1
    }

    fn step(&mut self) {
        self.steps += 1;
        match self.random.below(20) {
            0..=3 => self.settle(),
            4 => self.desk.sweep(),
            _ => self.ask(),
        }
        let pace = if Self::has_fast(self.seed) { 60 * SECOND } else { 3_600 * SECOND };
        let most = Self::LARGEST + 1 + Self::LARGEST * self.passed / pace;
        assert!(self.used <= most, "{self}: {} of {most} after {} us", self.used, self.passed);
        if self.random.below(4) == 0 {
            let ahead = self.random.below(200) * SECOND;
            self.advance(ahead);
        }
    }

    /// Asks for one of several keys, half of the time in a tier.
    fn ask(&mut self) {
        let place = self.random.below(2 * self.sets.len() as u64) as usize;
        let place = if place < self.sets.len() { place } else { 0 };
        let (cost, tier) = (self.random.below(6), (self.random.below(2) * u64::from(place == 0)) as u8);
        let key = ["ada", "bob", "eve"][self.random.below(3) as usize];
        let left = self.left(place, tier);
        let calls = [Call::from(Key::from(key)).costing(cost).in_tier(tier)];
        let decision = self.desk.backend.decide_now(&self.sets[place], &calls);
        assert_eq!(decision.is_admitted(), cost <= left, "{self}: law 3");
        assert!(cost == 0 || decision.statuses()[0].is_overflow(), "{self}: the store is full");
        if decision.is_admitted() {
            self.used += cost;
            self.charges.extend(Receipt::of(&decision, &calls).map(|receipt| (place, tier, cost, receipt)));
        } else if let Some(wait) = decision.retry_after().filter(|_| self.random.below(30) == 0) {
            self.advance(wait.as_micros() as u64 - 1);
            assert!(self.left(place, tier) < cost, "{self}: law 2, a microsecond early");
            self.advance(1);
            assert!(self.left(place, tier) >= cost, "{self}: law 2, after {wait:?}");
        }
    }

    /// Settles any of the charges, as more or as less.
    fn settle(&mut self) {
        if self.charges.is_empty() {
            return;
        }
        let open = self.random.below(self.charges.len() as u64) as usize;
        let (place, tier, cost, receipt) = self.charges.swap_remove(open);
        let actual = self.random.below(2 * cost + 3);
        let all = self.all_left();
        let left = self.left(place, tier);
        self.desk.backend.settle_now(&self.sets[place], receipt.actual(actual));
        if actual < cost {
            self.used -= cost - actual;
            return;
        }
        let now = self.left(place, tier);
        assert_eq!(now, left.saturating_sub(actual - cost), "{self}: {} more of {left}", actual - cost);
        let grown = all.iter().zip(self.all_left()).position(|(before, after)| after > *before);
        assert_eq!(grown, None, "{self}: more was used, and so no more is left");
    }

    fn left(&self, place: usize, tier: u8) -> u64 {
        self.desk.left(&self.sets[place], tier)
    }

    fn all_left(&self) -> Vec<u64> {
        (0..self.sets.len()).map(|place| self.left(place, 0)).chain([self.left(0, 1)]).collect()
    }

    fn advance(&mut self, micros: u64) {
        self.passed += micros;
        self.desk.clock.advance(Duration::from_micros(micros));
    }
}

impl std::fmt::Display for Trace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "seed {}, step {}", self.seed, self.steps)
    }
}

const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// What has drained of the next unit is not lost when a charge takes exactly what remains in whole units.
#[test]
fn law_09_a_charge_of_exactly_what_remains_of_another_tier_keeps_a_part_of_a_unit() {
    let desk = Desk::new();
    let tier = |burst| Gcra::new(Rate::per_second(1)).burst(burst);
    let policy = Policy::tiered("p", [("small", tier(10)), ("large", tier(100))], Carry::Keep).unwrap();
    let set = desk.prepare(policy);
    assert!(desk.ask(&set, 1, 4).is_admitted());
    desk.clock.advance(Duration::from_millis(500));
    assert!(desk.ask(&set, 1, 6).is_admitted(), "3.5 of the small tier's 10 are used, so 6 remain");
    assert_eq!(desk.ask(&set, 0, 1).retry_after(), Some(Duration::from_millis(500)));
}

/// The parameters of a tier are changed: units of its shared bucket stay used, because keys of that tier may have used
/// them.
#[test]
fn law_09_no_carry_rule_forgets_units_of_a_shared_bucket_whose_limits_change() {
    for carry in [Carry::Keep, Carry::Proportional, Carry::Reset] {
        let desk = Desk::new();
        let before = desk.prepare(per_hour("p", &[10, 100], carry));
        assert!(desk.ask(&before, 1, 50).statuses()[0].is_overflow());
        let after = desk.prepare(per_hour("p", &[10, 200], carry));
        assert_eq!(desk.left(&after, 1), 150, "{carry:?}");
        assert!(desk.ask(&after, 1, 50).is_admitted());
        assert_eq!(desk.left(&after, 1), 100, "{carry:?}");
    }
}

/// A key that could have a place of its own, and is refused for what its shared bucket has counted under former limits,
/// is admitted exactly when it was told.
#[test]
fn law_02_a_key_that_leaves_a_shared_bucket_of_former_limits_is_told_when_it_is_admitted() {
    for (former, later) in [(10, 1), (1, 10), (10, 10)] {
        let desk = Desk::new();
        let tier = |count| Gcra::new(Rate::per_hour(count)).burst(10);
        let policy = |count| Policy::tiered("p", [("only", tier(count))], Carry::Keep).unwrap();
        let set = desk.prepare(policy(former));
        assert!(desk.ask(&set, 0, 10).statuses()[0].is_overflow());
        let set = desk.prepare(policy(later));
        desk.make_room();
        let wait = desk.ask(&set, 0, 1).retry_after().unwrap();
        assert!(!wait.is_zero(), "all ten are used");
        desk.clock.advance(wait - Duration::from_micros(1));
        assert!(!desk.ask(&set, 0, 1).is_admitted(), "{former} an hour, then {later}: a microsecond early");
        desk.clock.advance(Duration::from_micros(1));
        assert!(desk.ask(&set, 0, 1).is_admitted(), "{former} an hour, then {later}: after {wait:?}");
    }
}

/// The shared bucket of one policy is idle, and another policy of the same request looks for room, mostly among other
/// slots than the first one: the bucket is not forgotten while it is being charged.
#[test]
fn law_05_a_shared_bucket_that_a_request_charges_is_not_swept_by_it() {
    let desk = Desk::of(128);
    let policy = |name| Policy::new(name, FixedWindow::new(Rate::per_second(9))).unwrap();
    let (a, both) = (desk.prepare(policy("a")), vec![policy("a").into(), policy("b").into()]);
    let both = desk.prepare(PolicyTree::All(both));
    for round in 0..60 {
        desk.clock.set(T0.after_micros(round * 3 * SECOND));
        assert!(desk.ask(&a, 0, 2).statuses()[0].is_overflow());
        desk.clock.advance(Duration::from_secs(1));
        let calls = [1, 2].map(|key| Call::from(Key::from(key)).costing(3));
        let decision = desk.backend.decide_now(&both, &calls);
        assert!(decision.statuses().iter().all(|status| status.is_overflow() && status.remaining() == 6));
        assert_eq!(desk.left(&a, 0), 6, "what was charged to the shared bucket is there");
    }
}

/// The limits of the tiers were changed since their buckets were written: a bucket that cannot hold a charge is full
/// by the present limits.
#[test]
fn law_09_a_bucket_of_former_limits_that_cannot_hold_a_charge_is_full_by_the_present_ones() {
    let desk = Desk::new();
    let before = desk.prepare(per_hour("p", &[10, 100], Carry::Keep));
    assert!(desk.ask(&before, 1, 5).is_admitted());
    let after = desk.prepare(per_hour("p", &[20, 100], Carry::Keep));
    assert_eq!(desk.left(&after, 0), 15);
    assert!(desk.ask(&after, 1, 50).is_admitted());
    assert_eq!(desk.ask(&after, 0, 1).retry_after(), Some(Duration::from_secs(180)), "twenty an hour");
    assert_eq!(desk.ask(&after, 0, 20).retry_after(), Some(Duration::from_secs(3_600)));
}

/// The clock has stepped back behind an instant at which keys were forgotten: keys without a place of their own are
/// decided at that instant, and all that they are told counts from the clock's time.
#[test]
fn law_04_what_a_key_is_told_behind_the_instant_that_counts_is_told_from_the_clock() {
    let queue = LeakyBucket::new(Rate::per_second(1)).max_wait(seconds(1)).build().unwrap();
    for (algorithm, delays) in [(Gcra::new(Rate::per_second(1)).burst(2).build().unwrap(), false), (queue, true)] {
        let (clock, policy) = (ManualClock::new(T0), Policy::new("p", algorithm).unwrap());
        let backend = MemoryBackend::builder().clock(clock.clone()).max_keys(1).build();
        let second = Policy::new("second", FixedWindow::new(Rate::per_second(9))).unwrap();
        let [set, second] = [policy, second].map(|policy| backend.prepare(PolicySet::new(policy).unwrap()).unwrap());
        let ask =
            |set: &MemorySet, key: &str, cost| backend.decide_now(set, &[Call::from(Key::from(key)).costing(cost)]);
        assert!(ask(&second, "forgotten", 1).is_admitted());
        clock.advance(seconds(1));
        let day = Policy::new("day", FixedWindow::new(Rate::per_day(9))).unwrap();
        let day = backend.prepare(PolicySet::new(day).unwrap()).unwrap();
        assert!(!ask(&day, "fills the store", 1).statuses()[0].is_overflow(), "the other key was forgotten");
        clock.set(T0);
        let delay = |micros| if delays { seconds(micros) } else { Duration::ZERO };
        let told = |decision: &Decision| (decision.delay(), decision.reset_after(), decision.retry_after());
        assert_eq!(told(&ask(&set, "ada", 1)), (delay(1), seconds(2), Some(Duration::ZERO)), "{algorithm:?}");
        let both = ask(&set, "ada", 1);
        assert_eq!(told(&both), (delay(2), seconds(3), Some(Duration::ZERO)));
        assert_eq!((both.remaining(), both.statuses()[0].is_overflow()), (0, true));
        let window = both.statuses()[0].effective_window(&MemoryBackend::<ManualClock>::set(&set).policies()[0]);
        assert_eq!(window, seconds(2), "until the next unit");
        assert_eq!(told(&ask(&set, "ada", 1)), (Duration::ZERO, seconds(3), Some(seconds(2))));
        assert_eq!(told(&ask(&set, "ada", 3)), (Duration::ZERO, seconds(3), None), "never");
        assert_eq!(told(&ask(&set, "ada", 0)).1, seconds(3));
    }
}

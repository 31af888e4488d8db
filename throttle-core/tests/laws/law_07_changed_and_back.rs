//! Law 7, limits that change and change back, and versions of a limit that are live at the same time: each version
//! decides as if it had been in force all along.

use std::cell::Cell;
use std::time::Duration;

use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use proptest::sample::select;
use throttle_core::backend::Call;
use throttle_core::{
    Algorithm, Backend, CalendarQuota, Decision, FixedWindow, Gcra, IntoAlgorithm, Key, LeakyMeter, ManualClock,
    MemoryBackend, Policy, PolicySet, Rate, SlidingLog, Timestamp, TokenBucket,
};

use crate::support::changes::{InHand, Memory, alike, check, live, mixed, steps};
use crate::support::strategies::run;

const T0: Timestamp = Timestamp::from_micros(1_790_000_000_000_000);

struct Desk {
    backend: MemoryBackend<ManualClock>,
    clock: ManualClock,
}

impl Desk {
    fn new() -> Self {
        let clock = ManualClock::new(T0);
        Self { backend: MemoryBackend::builder().clock(clock.clone()).build(), clock }
    }

    /// Puts a version in force, and decides.
    fn ask(&self, version: Algorithm, cost: u64) -> Decision {
        let policy = Policy::new("limit", version).unwrap().replace_existing();
        let set = self.backend.prepare(PolicySet::new(policy).unwrap()).unwrap();
        self.backend.decide_now(&set, &[Call::from(Key::from("ada")).costing(cost)])
    }

    fn left(&self, version: Algorithm, cost: u64) -> u64 {
        let decision = self.ask(version, cost);
        assert!(decision.is_admitted(), "{decision:?}");
        decision.remaining()
    }
}

fn built(algorithm: impl IntoAlgorithm) -> Algorithm {
    algorithm.into_algorithm().unwrap()
}

#[test]
fn law_07_a_mistaken_limit_costs_a_client_nothing() {
    let (monthly, mistake) = (built(CalendarQuota::monthly(10_000)), built(CalendarQuota::monthly(10)));
    let desk = Desk::new();
    assert_eq!(desk.left(monthly, 51), 9_949);
    assert!(!desk.ask(mistake, 1).is_admitted());
    assert_eq!(desk.left(monthly, 0), 9_949);
    assert_eq!(desk.left(monthly, 1), 9_948);
}

#[test]
fn law_07_both_versions_of_a_rolling_deployment_count_all_charges() {
    for version in [|n| built(Gcra::new(Rate::per_hour(n)).burst(n)), |n| built(SlidingLog::new(Rate::per_hour(n)))] {
        let (old, new, desk) = (version(5), version(100), Desk::new());
        for used in [0, 2, 4] {
            assert_eq!(desk.left(new, 1), 99 - used);
            // Six are more than the old version holds.
            assert_eq!(desk.ask(old, 1).is_admitted(), used < 4);
        }
        assert_eq!(desk.left(new, 1), 94);
        assert_eq!(desk.ask(old, 1).retry_after(), desk.ask(old, 1).retry_after());
        desk.clock.set(T0.after_micros(3_600_000_000));
        assert_eq!((desk.left(old, 0), desk.left(new, 0)), (5, 100));
    }
}

/// A hundred an hour, of which fifty are used, and then five a minute.
#[test]
fn law_07_a_lowered_limit_locks_no_key_out_for_longer_than_its_own_window() {
    let (hourly, minutely) = (built(Gcra::new(Rate::per_hour(100))), built(Gcra::new(Rate::per_minute(5))));
    let desk = Desk::new();
    assert_eq!(desk.left(hourly, 50), 50);
    assert_eq!(desk.ask(minutely, 1).retry_after(), Some(Duration::from_secs(12)), "not half an hour");
    assert_eq!(desk.left(hourly, 0), 50, "of the former limit nothing is lost");
    desk.clock.set(T0.after_micros(12_000_000));
    assert_eq!(desk.left(minutely, 1), 0);
    assert_eq!(desk.left(hourly, 0), 49);
}

#[test]
fn law_07_changing_limits_of_one_kind_equal_the_reference() {
    let compared = Cell::new(0);
    run("one kind", &(alike(), vec(steps(60, true), 6)), |(versions, lives)| {
        lives.iter().try_for_each(|steps| {
            let (mut memory, mut in_hand) = (Memory::new(versions), InHand::new(versions));
            check(live(versions, steps, &Key::from("key"), &mut [&mut memory, &mut in_hand]), &compared)
        })
    });
    assert!(compared.get() > 50_000, "{} decisions", compared.get());
}

#[test]
fn law_07_changing_limits_of_several_kinds_equal_the_reference() {
    let compared = Cell::new(0);
    run("several kinds", &(mixed(), vec(steps(60, false), 6)), |(versions, lives)| {
        lives.iter().try_for_each(|steps| {
            let (mut memory, mut in_hand) = (Memory::new(versions), InHand::new(versions));
            check(live(versions, steps, &Key::from("key"), &mut [&mut memory, &mut in_hand]), &compared)
        })
    });
    assert!(compared.get() > 50_000, "{} decisions", compared.get());
}

/// Versions of one kind, each larger one at least as quick.
fn ladder() -> impl Strategy<Value = Vec<Algorithm>> {
    let count = || select(vec![1_u64, 2, 3, 5, 8, 13, 60]);
    (0..4_usize, btree_set(count(), 2..4), 1..100_u64).prop_map(|(kind, counts, period)| {
        let version = |count: u64| {
            let rate = Rate::new(count, Duration::from_micros(period * 7));
            match kind {
                0 => built(Gcra::new(rate)),
                1 => built(TokenBucket::new(rate)),
                2 => built(LeakyMeter::new(rate)),
                _ => built(FixedWindow::new(rate)),
            }
        };
        counts.into_iter().map(version).collect()
    })
}

/// Version, cost, and microseconds ahead.
fn asked() -> impl Strategy<Value = Vec<(usize, u64, u64)>> {
    vec((0..3_usize, 0..14_u64, prop_oneof![Just(0_u64), 0..40_u64, 0..900_u64]), 1..200)
}

/// The largest version alone admits what all versions together admit. If it is the first to charge an idle key, and does
/// so again within its own window, it refuses nothing that it would admit alone.
#[test]
fn law_07_of_versions_that_are_live_the_largest_alone_says_how_much() {
    run("ladders", &(ladder(), asked()), |(versions, asked)| {
        let (desk, largest) = (Desk::new(), *versions.last().unwrap());
        let (mut alone, mut now, mut exact_until) = (largest.fresh(), T0, T0);
        for (version, cost, ahead) in asked {
            now = now.after_micros(*ahead);
            desk.clock.set(now);
            let version = versions[version % versions.len()];
            let is_idle = versions.iter().all(|version| desk.ask(*version, 0).reset_after().is_zero());
            let is_exact = now < exact_until;
            let is_admitted = desk.ask(version, *cost).is_admitted();
            let (state, verdict) = largest.decide(alone.clone(), now, *cost);
            prop_assert!(!is_admitted || verdict.is_admitted(), "{} units at {:?} of {:?}", cost, now, largest);
            if version == largest && is_exact {
                prop_assert_eq!(is_admitted, verdict.is_admitted(), "{} units at {:?} of {:?}", cost, now, largest);
            }
            if is_admitted && *cost > 0 {
                alone = state;
                let (_, all) = largest.decide(largest.fresh(), now, largest.capacity());
                if version == largest && (is_idle || is_exact) {
                    exact_until = now.after_micros(all.reset_after_micros());
                } else if is_idle {
                    exact_until = T0;
                }
            }
        }
        Ok(())
    });
}

/// Looks in between change no later decision, and a refusal takes nothing from any version.
#[test]
fn law_01_looks_and_refusals_under_other_versions_take_nothing() {
    run("looks", &(ladder(), asked(), any::<u64>()), |(versions, asked, dice)| {
        let (desk, watched) = (Desk::new(), Desk::new());
        let mut now = T0;
        for (step, (version, cost, ahead)) in asked.iter().enumerate() {
            now = now.after_micros(*ahead);
            desk.clock.set(now);
            watched.clock.set(now);
            let other = versions[dice.rotate_left(step as u32 * 7) as usize % versions.len()];
            let before: Vec<Decision> = versions.iter().map(|version| watched.ask(*version, 0)).collect();
            if before[0].remaining() < other.capacity() {
                // More than remains.
                let left = watched.ask(other, 0).remaining();
                prop_assert!(!watched.ask(other, left + 1).is_admitted());
            }
            let after: Vec<Decision> = versions.iter().map(|version| watched.ask(*version, 0)).collect();
            prop_assert_eq!(before, after);
            let version = versions[version % versions.len()];
            prop_assert_eq!(desk.ask(version, *cost), watched.ask(version, *cost));
        }
        Ok(())
    });
}

/// Beyond this, a wait of years may end after the last instant that there is.
const FAR: Timestamp = Timestamp::from_micros(1 << 52);

/// Whatever was used under whatever version: a refusal's wait is no longer than the window of the version that refuses,
/// and it is true.
#[test]
fn law_07_no_version_refuses_for_longer_than_its_own_window() {
    run("windows", &(mixed(), asked()), |(versions, asked)| {
        let (desk, mut now) = (Desk::new(), T0);
        for (version, cost, ahead) in asked {
            now = now.after_micros(*ahead);
            if now > FAR {
                break;
            }
            desk.clock.set(now);
            let version = versions[version % versions.len()].algorithm();
            let decision = desk.ask(version, *cost);
            if let Some(wait) = decision.retry_after().filter(|wait| !wait.is_zero()) {
                let (_, all) = version.decide(version.fresh(), now, version.capacity());
                prop_assert!(wait.as_micros() <= u128::from(all.reset_after_micros()), "{wait:?} of {:?}", version);
                desk.clock.set(now + wait);
                prop_assert!(desk.ask(version, *cost).is_admitted(), "after {wait:?} of {:?}", version);
                now = now + wait;
            }
        }
        Ok(())
    });
}

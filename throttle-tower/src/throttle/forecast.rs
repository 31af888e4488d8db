//! When the last request of a queue will be admitted, so that one that cannot make it in time is
//! refused at once.

use std::time::Duration;

use throttle_core::{Algorithm, Policy, Status};
use tokio::time::Instant;

use crate::time::FAR;

/// What the latest decision about a limit says about the requests that are queued for it: at one
/// instant there is room for so many units.
#[derive(Clone, Copy, Debug)]
pub(super) struct Forecast {
    at: Instant,
    units: u64,
    decided: Instant,
    /// When the next whole window opens. Buckets that drain ignore it, because their units come one
    /// by one.
    opens: Instant,
    /// The units of each window: those beyond the reserve of the requests' class.
    portion: u64,
}

impl Forecast {
    /// After a decision as of `now` that asked for `cost` units beside a reserve.
    pub(super) fn new(
        policy: &Policy,
        status: &Status,
        now: Instant,
        (cost, reserve): (u64, u64),
    ) -> Self {
        let algorithm = policy.tier(status.tier()).algorithm();
        let count = algorithm.rate().count().max(1);
        let beyond = algorithm.capacity().saturating_sub(reserve).max(1);
        let portion = if reserve == 0 {
            count
        } else {
            count.min(beyond)
        };
        match status.retry_after().filter(|wait| !wait.is_zero()) {
            Some(wait) => {
                let at = later(now, wait);
                let units = if algorithm.drains() {
                    cost
                } else {
                    cost.max(portion)
                };
                Self {
                    at,
                    units,
                    decided: now,
                    opens: later(at, Duration::from_micros(algorithm.rate().period_micros())),
                    portion,
                }
            }
            None => {
                // A bucket that refills in portions gets the next one long before it is full.
                let opens = later(
                    now,
                    status.effective_window(policy).min(status.reset_after()),
                );
                Self {
                    at: now,
                    units: status.remaining(),
                    decided: now,
                    opens,
                    portion,
                }
            }
        }
    }

    /// The instant by which so many units are admitted in turn. Where units come back as they were
    /// used, in a sliding window or log, it is the earliest that is possible.
    pub(super) fn admits_by(&self, algorithm: &Algorithm, units: u64) -> Instant {
        let (count, period) = (
            u128::from(algorithm.rate().count().max(1)),
            u128::from(algorithm.rate().period_micros()),
        );
        let whole = |micros: u128| Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX));
        let more = u128::from(units.saturating_sub(self.units));
        let fewer = u128::from(self.units.saturating_sub(units));
        match (algorithm.drains(), more) {
            (true, 0) => {
                let earlier = self.at.checked_sub(whole(fewer * period / count));
                earlier.map_or(self.decided, |at| at.max(self.decided))
            }
            (false, 0) => self.at,
            (true, more) => later(self.at, whole((more * period).div_ceil(count))),
            (false, more) => later(
                self.opens,
                whole((more - 1) / u128::from(self.portion) * period),
            ),
        }
    }
}

/// How late a decision may be before a later one is delayed by it: as long as a burst makes up for.
pub(super) fn made_up_for(algorithm: &Algorithm, cost: u64) -> Duration {
    if !algorithm.drains() {
        return Duration::MAX;
    }
    let (count, period) = (
        algorithm.rate().count().max(1),
        algorithm.rate().period_micros(),
    );
    let micros = u128::from(algorithm.capacity().saturating_sub(cost)) * u128::from(period)
        / u128::from(count);
    Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
}

/// At most some thirty years later, which every `Instant` can be.
fn later(at: Instant, wait: Duration) -> Instant {
    at + wait.min(FAR)
}

#[cfg(test)]
mod tests {
    use throttle_core::backend::Call;
    use throttle_core::{
        Backend, Cost, FixedWindow, Gcra, IntervalBucket, IntoAlgorithm, Key, ManualClock,
        MemoryBackend, PolicySet, Rate,
    };

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// When so many units are admitted, after requests of such costs in the middle of a window.
    fn admits_by(algorithm: impl IntoAlgorithm, costs: &[u64], units: u64) -> Duration {
        admits_in_tier(0, &Policy::new("p", algorithm).unwrap(), costs, units)
    }

    fn admits_in_tier(tier: u8, policy: &Policy, costs: &[u64], units: u64) -> Duration {
        let clock = ManualClock::default();
        let store = MemoryBackend::builder().clock(clock.clone()).build();
        let set = store
            .prepare(PolicySet::new(policy.clone()).unwrap())
            .unwrap();
        clock.advance(400 * MS);
        let call = |cost| Call::new(Key::from("key"), Cost::new(cost).unwrap()).in_tier(tier);
        let ask = |cost| store.decide_now(&set, &[call(cost)]);
        let (now, decisions) = (
            Instant::now(),
            costs.iter().map(|cost| ask(*cost)).collect::<Vec<_>>(),
        );
        let (status, cost) = (
            &decisions.last().unwrap().statuses()[0],
            *costs.last().unwrap(),
        );
        Forecast::new(policy, status, now, (cost, 0))
            .admits_by(policy.tier(tier).algorithm(), units)
            - now
    }

    #[test]
    fn units_of_a_bucket_that_drains_come_one_by_one_rounded_up() {
        let third = || Gcra::new(Rate::per_second(3)).burst(2);
        assert_eq!(admits_by(third(), &[1], 1), Duration::ZERO, "one is left");
        assert_eq!(admits_by(third(), &[1], 2), Duration::from_micros(333_334));
        assert_eq!(
            admits_by(third(), &[2, 1], 2),
            Duration::from_micros(2 * 333_334),
            "refused, and one behind it"
        );
    }

    /// The request that was refused may leave, and the ones behind it need not wait for all of its
    /// units.
    #[test]
    fn fewer_units_of_a_bucket_that_drains_come_earlier_than_those_refused() {
        let third = || Gcra::new(Rate::per_second(3)).burst(9);
        assert_eq!(admits_by(third(), &[9, 9], 9), Duration::from_secs(3));
        assert_eq!(
            admits_by(third(), &[9, 9], 1),
            Duration::from_micros(333_334)
        );
        assert_eq!(
            admits_by(third(), &[5, 9], 1),
            Duration::ZERO,
            "four are left"
        );
    }

    #[test]
    fn window_admits_its_count_when_it_opens() {
        let ten = || FixedWindow::new(Rate::per_second(10));
        for costs in [&[10][..], &[10, 1]] {
            assert_eq!(admits_by(ten(), costs, 10), 600 * MS, "{costs:?}");
            assert_eq!(admits_by(ten(), costs, 11), 1_600 * MS, "{costs:?}");
            assert_eq!(admits_by(ten(), costs, 21), 2_600 * MS, "{costs:?}");
        }
    }

    #[test]
    fn window_of_a_tier_admits_the_count_of_the_tier() {
        let tiers = [("free", 2, 10), ("pro", 10, 1)];
        let tiers = tiers
            .map(|(tier, count, seconds)| (tier, Rate::new(count, Duration::from_secs(seconds))));
        let tiers = tiers.map(|(tier, rate)| (tier, FixedWindow::new(rate)));
        let policy = Policy::tiered("p", tiers).unwrap();
        assert_eq!(
            [10, 11].map(|units| admits_in_tier(1, &policy, &[10, 1], units)),
            [600 * MS, 1_600 * MS]
        );
    }

    /// Of each window, and of the portions that come back, the reserve is not theirs.
    #[test]
    fn class_is_admitted_what_is_beyond_its_reserve() {
        let admits_by = |algorithm: Algorithm, units| {
            let clock = ManualClock::default();
            let store = MemoryBackend::builder().clock(clock.clone()).build();
            let policy = Policy::new("p", algorithm).unwrap();
            let set = store
                .prepare(PolicySet::new(policy.clone()).unwrap())
                .unwrap();
            let call = |cost| Call::from(Key::from("key")).costing(cost);
            assert!(store.decide_now(&set, &[call(10)]).is_admitted());
            let (now, refused) = (
                Instant::now(),
                store.decide_now(&set, &[call(1).reserving(6)]),
            );
            Forecast::new(&policy, &refused.statuses()[0], now, (1, 6)).admits_by(&algorithm, units)
                - now
        };
        let bucket = Gcra::new(Rate::per_second(10))
            .burst(10)
            .into_algorithm()
            .unwrap();
        assert_eq!(
            [1, 2, 5].map(|units| admits_by(bucket, units)),
            [700 * MS, 800 * MS, 1_100 * MS]
        );
        let window = FixedWindow::new(Rate::per_second(10))
            .into_algorithm()
            .unwrap();
        assert_eq!(
            [1, 4, 5, 9].map(|units| admits_by(window, units)),
            [1_000 * MS, 1_000 * MS, 2_000 * MS, 3_000 * MS]
        );
        let portions = IntervalBucket::new(10)
            .refill(5, 100 * MS)
            .into_algorithm()
            .unwrap();
        assert_eq!(
            [1, 4, 5].map(|units| admits_by(portions, units)),
            [200 * MS, 200 * MS, 300 * MS]
        );
    }

    #[test]
    fn cost_of_several_portions_is_admitted_when_they_are_there() {
        let portions = || IntervalBucket::new(10).refill(1, 100 * MS);
        assert_eq!(admits_by(portions(), &[10, 5], 5), 500 * MS);
        assert_eq!(admits_by(portions(), &[1], 10), 100 * MS, "one was used");
    }

    #[test]
    fn burst_makes_up_for_its_units_and_a_window_for_any_delay() {
        let algorithm = |policy: Policy| *policy.algorithm();
        let burst = algorithm(Policy::new("p", Gcra::new(Rate::per_second(10)).burst(3)).unwrap());
        assert_eq!(
            [1, 2, 4].map(|cost| made_up_for(&burst, cost)),
            [200 * MS, 100 * MS, Duration::ZERO]
        );
        let window = algorithm(Policy::new("p", FixedWindow::new(Rate::per_second(10))).unwrap());
        assert_eq!(made_up_for(&window, 1), Duration::MAX);
    }
}

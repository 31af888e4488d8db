use std::sync::Mutex;
use std::time::Duration;

use throttle_core::algorithm::{Algorithm, Departure, DepartureSchedule};
use throttle_core::{Clock, Cost};

use super::clock::TokioClock;
use crate::lock::lock;

/// The schedule of [`Key::CONSTANT`](throttle_core::Key::CONSTANT) where no other shaper can use it: a lock and a
/// clock, without a store. It decides as the store in memory does.
pub(super) struct OneKey {
    clock: TokioClock,
    state: Mutex<State>,
}

struct State {
    schedule: DepartureSchedule,
    /// Calls that have left at once. Counted here, because another atomic number would take as long as the lock.
    sent: u64,
}

/// What is admitted: a call that has left, or one that waits for its departure.
pub(super) enum Admitted {
    Left,
    Later(Departure),
}

impl OneKey {
    /// `None` for an algorithm that does not delay calls.
    pub(super) fn new(algorithm: &Algorithm) -> Option<Self> {
        let schedule = DepartureSchedule::new(algorithm)?;
        Some(Self { clock: TokioClock::new(), state: Mutex::new(State { schedule, sent: 0 }) })
    }

    /// Reserves a departure; a call that need not wait leaves at once if it `may_leave`. If there is no departure,
    /// returns how long until there is one; `None` if no wait helps.
    #[inline]
    pub(super) fn reserve(&self, cost: Cost, may_leave: bool) -> Result<Admitted, Option<Duration>> {
        let now = self.clock.now();
        let mut state = lock(&self.state);
        let departure = state.schedule.reserve(now, cost)?;
        if may_leave && departure.is_now() {
            state.sent += 1;
            return Ok(Admitted::Left);
        }
        Ok(Admitted::Later(departure))
    }

    /// Calls that have left at once.
    pub(super) fn sent(&self) -> u64 {
        lock(&self.state).sent
    }

    pub(super) fn give_back(&self, departure: Departure) {
        let now = self.clock.now();
        lock(&self.state).schedule.give_back(now, departure);
    }

    /// Gives back the last units of a departure.
    pub(super) fn shorten(&self, departure: &mut Departure, units: u64) {
        let now = self.clock.now();
        lock(&self.state).schedule.shorten(now, departure, units);
    }

    /// How long until the schedule equals an unused one.
    pub(super) fn reset_after(&self) -> Duration {
        let now = self.clock.now();
        lock(&self.state).schedule.reset_after(now)
    }

    pub(super) fn reset(&self) {
        lock(&self.state).schedule.reset();
    }
}

#[cfg(test)]
mod tests {
    use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

    use throttle_core::{Key, LeakyBucket, Rate};
    use tokio::time::advance;

    use super::super::shaper::Shaper;
    use super::super::slot::Slot;
    use super::*;

    /// The constant key, which is kept here, and a key of the store get the same answers.
    #[tokio::test(start_paused = true)]
    async fn shape_constant_key_is_scheduled_like_any_other() {
        let bucket = LeakyBucket::new(Rate::per_second(7)).max_wait(Duration::from_millis(1_500));
        let shaper = Shaper::new(bucket).unwrap();
        let keys = [Key::CONSTANT, Key::from("key")];
        let reserve = async |key: &Key, cost| {
            let slot = shaper.reserve(key.clone(), cost).await;
            slot.map_err(|error| *error.queue_full().expect("memory does not fail"))
        };
        let mut slots: Vec<[Slot; 2]> = Vec::new();
        let (mut waited, mut refused) = (0, 0);
        for step in 0..4_000_u64 {
            let random = BuildHasherDefault::<DefaultHasher>::default().hash_one(step);
            match random % 16 {
                0..8 => match [reserve(&keys[0], random >> 60).await, reserve(&keys[1], random >> 60).await] {
                    [Ok(one), Ok(other)] => {
                        assert_eq!(one.delay(), other.delay(), "step {step}");
                        waited += u32::from(!one.delay().is_zero());
                        slots.push([one, other]);
                    }
                    [one, other] => {
                        assert_eq!(one.err(), other.err(), "step {step}");
                        refused += 1;
                    }
                },
                8..12 if !slots.is_empty() => drop(slots.swap_remove(random as usize / 16 % slots.len())),
                // Slots are given back long after their times, too.
                12..15 => advance(Duration::from_micros(random / 16 % 400_000)).await,
                15 if random / 16 % 16 == 0 => {
                    for key in &keys {
                        shaper.reset(key.clone()).await.unwrap();
                    }
                }
                _ => {}
            }
        }
        assert!(waited > 300 && refused > 300, "{waited} {refused}");
    }

    /// One departure an hour, and none later than in ten.
    #[test]
    fn shape_threads_on_one_key_reserve_no_more_than_fit() {
        let hours = |hours: u64| Duration::from_secs(3_600 * hours);
        let bucket = LeakyBucket::new(Rate::per_hour(1)).max_wait(hours(10));
        let one_key = OneKey::new(&bucket.build().unwrap()).unwrap();
        let reserve_all = || (0..10).filter(|_| one_key.reserve(Cost::ONE, true).is_ok()).count();
        let reserved: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(reserve_all)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!((reserved, one_key.sent()), (11, 1));
    }

    /// Whoever keeps the key.
    #[tokio::test(start_paused = true)]
    async fn shape_cost_of_zero_counts_as_one_unit() {
        let shaper = Shaper::builder(LeakyBucket::new(Rate::per_second(10))).headroom(Duration::ZERO).build().unwrap();
        for key in [Key::CONSTANT, Key::from("key")] {
            shaper.schedule(key.clone(), 0).await.unwrap();
            let slots = [shaper.reserve(key.clone(), 0).await.unwrap(), shaper.reserve(key.clone(), 1).await.unwrap()];
            let delays = slots.each_ref().map(|slot| slot.delay().as_millis());
            assert_eq!(delays, [100, 200], "{key:?}");
        }
    }
}

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use throttle_core::{Key, Rate};
use tokio::time::Instant;

use super::lane::Lane;
use crate::lock::lock;

/// Keys whose calls must not leave yet, although their slots have come: an upstream has said so, or the process has stood
/// still and calls that were due meanwhile would leave all at once.
///
/// The schedule knows nothing of it and runs on. Whoever's slot comes during a pause, or while those who waited it out
/// have not all left, takes a turn here, in the order of the slots. When everybody has left the key is forgotten.
pub(crate) struct Pauses {
    rate: Rate,
    /// Who is later than this puts off those behind; `None` if that is nobody.
    tolerance: Option<Duration>,
    /// How many keys there are, so that calls need not lock when there is none.
    count: AtomicUsize,
    lanes: Mutex<Lanes>,
}

#[derive(Default)]
struct Lanes {
    by_key: HashMap<Key, Lane>,
    /// Lanes there have ever been.
    made: u64,
    /// At so many keys those of no further use are swept out.
    sweep_at: usize,
}

/// A turn taken, to be shown when its time has come.
#[derive(Clone, Copy)]
pub(crate) struct Taken {
    pub(crate) at: Instant,
    unit: u64,
    /// The lane's number.
    lane: u64,
}

impl Pauses {
    pub(crate) fn new(rate: Rate, tolerance: Option<Duration>) -> Self {
        Self { rate, tolerance, count: AtomicUsize::new(0), lanes: Mutex::default() }
    }

    /// Whether any key may be here.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// How many keys are paused, slowed down, or catching up.
    pub(crate) fn active(&self, now: Instant) -> usize {
        if self.is_empty() { 0 } else { self.lock().by_key.values().filter(|lane| lane.is_active(now)).count() }
    }

    /// Lets nobody of this key leave before `until`.
    pub(crate) fn pause(&self, key: &Key, now: Instant, until: Instant) {
        if until > now {
            self.change(key, now, |lane| lane.pause(until, now));
        }
    }

    /// Until then, units of this key leave `spacing` apart; if that is not farther than the pace, at the pace.
    pub(crate) fn slow(&self, key: &Key, now: Instant, spacing: Duration, until: Instant) {
        if spacing > spread(self.rate, 1) {
            self.change(key, now, |lane| lane.slow(spacing, until, now));
        } else if !self.is_empty()
            && let Some(lane) = self.lock().by_key.get_mut(key)
        {
            lane.slow(spacing, until, now);
        }
    }

    pub(crate) fn forget(&self, key: &Key) {
        if !self.is_empty() {
            let mut lanes = self.lock();
            lanes.by_key.remove(key);
            self.count.store(lanes.by_key.len(), Ordering::Release);
        }
    }

    /// When the last of `cost` units would leave, if their slot is so far away; `None` for a key that is not here.
    pub(crate) fn finish(&self, key: &Key, cost: u64, delay: Duration, now: Instant) -> Option<Duration> {
        if self.is_empty() {
            return None;
        }
        self.lock().by_key.get(key).map(|lane| lane.finish(delay, cost, now))
    }

    /// Gives back the turn of a call that has gone away.
    pub(crate) fn give_back(&self, key: &Key, cost: u64, turn: Taken) {
        if let Some(lane) = self.lock().by_key.get_mut(key).filter(|lane| lane.number == turn.lane) {
            lane.give_back(turn.unit, cost);
        }
    }

    /// Whether a call of `cost` units whose slot has come, or whose turn, may leave. If not, when to ask again.
    pub(crate) fn leave(
        &self,
        key: &Key,
        cost: u64,
        due: Instant,
        turn: Option<Taken>,
        now: Instant,
    ) -> Result<(), Taken> {
        let late = now.saturating_duration_since(due);
        let is_late = self.tolerance.is_some_and(|tolerance| late > tolerance);
        if is_late && turn.is_none() {
            // Those behind are due as well: from here on each takes a turn.
            self.change(key, now, |_| {});
        } else if self.is_empty() {
            return Ok(());
        }
        let mut lanes = self.lock();
        // A lane is forgotten when the last turn's time has come, and whoever holds that may leave.
        let Some(lane) = lanes.by_key.get_mut(key) else { return Ok(()) };
        if turn.is_none() && !is_late && !lane.is_active(now) {
            lanes.by_key.remove(key);
            self.count.store(lanes.by_key.len(), Ordering::Release);
            return Ok(());
        }
        let turn = turn.filter(|turn| turn.lane == lane.number);
        let unit = turn.map_or_else(|| lane.take(cost, now), |turn| turn.unit);
        match lane.time(unit) {
            at if at > now => Err(Taken { at, unit, lane: lane.number }),
            _ => {
                lane.leave(unit, cost);
                if is_late && turn.is_some() {
                    lane.put_off(late);
                }
                Ok(())
            }
        }
    }

    fn change(&self, key: &Key, now: Instant, change: impl FnOnce(&mut Lane)) {
        let mut lanes = self.lock();
        if !lanes.by_key.contains_key(key) {
            lanes.sweep(now);
        }
        lanes.made += 1;
        let number = lanes.made;
        let unused = || Lane::new(number, now, spread(self.rate, 1));
        change(lanes.by_key.entry(key.clone()).or_insert_with(unused));
        self.count.store(lanes.by_key.len(), Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, Lanes> {
        lock(&self.lanes)
    }
}

impl Lanes {
    /// Keys that nobody calls any more would stay for ever. Sweeping only when twice as many are there as were left makes
    /// it cheap for each of them.
    fn sweep(&mut self, now: Instant) {
        if self.by_key.len() >= self.sweep_at {
            self.by_key.retain(|_, lane| lane.is_active(now));
            self.sweep_at = (2 * self.by_key.len()).max(64);
        }
    }
}

/// How long `units` take at a rate, rounded up to nanoseconds.
pub(crate) fn spread(rate: Rate, units: u64) -> Duration {
    let nanos = rate.period().as_nanos().saturating_mul(u128::from(units)).div_ceil(u128::from(rate.count().max(1)));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The process has stood still, and all three turns have come: the first leaves late, and the others as much later.
    #[tokio::test(start_paused = true)]
    async fn shape_a_late_turn_puts_off_those_behind_it() {
        let ms = |ms: u64| Duration::from_millis(ms);
        let pauses = Pauses::new(Rate::per_second(10), Some(ms(20)));
        let (key, start) = (Key::from("key"), Instant::now());
        pauses.pause(&key, start, start + ms(1_000));
        let turns = [(); 3].map(|()| pauses.leave(&key, 1, start, None, start).expect_err("paused"));
        assert_eq!(turns.map(|turn| turn.at), [1_000, 1_100, 1_200].map(|at| start + ms(at)));
        let leave = |turn: Taken, now| pauses.leave(&key, 1, turn.at, Some(turn), now).map_err(|turn| turn.at);
        let now = start + ms(1_350);
        assert_eq!(leave(turns[0], now), Ok(()));
        assert_eq!(leave(turns[1], now), Err(start + ms(1_450)));
        assert_eq!(leave(turns[2], now), Err(start + ms(1_550)));
    }

    #[tokio::test(start_paused = true)]
    async fn shape_keys_that_nobody_calls_any_more_are_swept_out() {
        let pauses = Pauses::new(Rate::per_second(10), None);
        for number in 0..10_000_u64 {
            let now = Instant::now();
            pauses.pause(&Key::from(number), now, now + Duration::from_millis(10));
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert!(pauses.count.load(Ordering::Acquire) <= 64, "{:?}", pauses.count);
        assert!((5..=12).contains(&pauses.active(Instant::now())));
    }
}

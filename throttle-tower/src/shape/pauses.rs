use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use throttle_core::{Key, Rate};
use tokio::time::Instant;

use super::lane::Lane;

/// Keys whose calls must not leave yet, although their slots have come: an upstream has said so.
///
/// The schedule knows nothing of it and runs on. Whoever's slot comes during a pause, or while those who waited it out
/// have not all left, takes a turn here, in the order of the slots. When everybody has left the key is forgotten.
pub(crate) struct Pauses {
    rate: Rate,
    /// How many keys there are, so that calls need not lock when there is none.
    count: AtomicUsize,
    lanes: Mutex<Lanes>,
}

#[derive(Default)]
struct Lanes {
    by_key: HashMap<Key, Lane>,
    /// At so many keys those of no further use are swept out.
    sweep_at: usize,
}

/// A turn taken, to be shown when its time has come.
#[derive(Clone, Copy)]
pub(crate) struct Taken {
    pub(crate) at: Instant,
    unit: u64,
}

impl Pauses {
    pub(crate) fn new(rate: Rate) -> Self {
        Self { rate, count: AtomicUsize::new(0), lanes: Mutex::default() }
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

    /// How long the first free turn is away; zero for a key that is not here.
    pub(crate) fn lag(&self, key: &Key, now: Instant) -> Option<Duration> {
        if self.is_empty() {
            return None;
        }
        self.lock().by_key.get(key).map(|lane| lane.lag(now))
    }

    /// Whether a call of `cost` units whose slot has come, or whose turn, may leave. If not, when to ask again.
    pub(crate) fn leave(&self, key: &Key, cost: u64, turn: Option<Taken>, now: Instant) -> Result<(), Taken> {
        if self.is_empty() {
            return Ok(());
        }
        let mut lanes = self.lock();
        // A lane is forgotten when the last turn's time has come, and whoever holds that may leave.
        let Some(lane) = lanes.by_key.get_mut(key) else { return Ok(()) };
        if turn.is_none() && !lane.is_active(now) {
            lanes.by_key.remove(key);
            self.count.store(lanes.by_key.len(), Ordering::Release);
            return Ok(());
        }
        let unit = turn.map_or_else(|| lane.take(cost, now), |turn| turn.unit);
        match lane.time(unit) {
            at if at > now => Err(Taken { at, unit }),
            _ => {
                lane.leave(unit, cost);
                Ok(())
            }
        }
    }

    fn change(&self, key: &Key, now: Instant, change: impl FnOnce(&mut Lane)) {
        let mut lanes = self.lock();
        if !lanes.by_key.contains_key(key) {
            lanes.sweep(now);
        }
        let unused = || Lane::new(now, spread(self.rate, 1));
        change(lanes.by_key.entry(key.clone()).or_insert_with(unused));
        self.count.store(lanes.by_key.len(), Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, Lanes> {
        // Nothing in here panics halfway through a change.
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
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

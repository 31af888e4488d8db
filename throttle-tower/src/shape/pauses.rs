use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use throttle_core::{Key, Rate};
use tokio::time::Instant;

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

struct Lane {
    /// Nobody leaves before.
    until: Instant,
    /// The first free turn.
    next: Instant,
    /// By how much pauses have put off turns that had been taken.
    put_off: Duration,
    /// Until `slow_until` units leave so far apart.
    spacing: Duration,
    slow_until: Instant,
}

/// A turn taken, to be shown when its time has come.
#[derive(Clone, Copy)]
pub(crate) struct Taken {
    pub(crate) at: Instant,
    put_off: Duration,
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
        if until <= now {
            return;
        }
        self.change(key, now, |lane| {
            // Who has a turn keeps it, later by as much as the pause goes on for longer than was known.
            let more = until.saturating_duration_since(lane.until.max(now));
            lane.put_off += more;
            lane.next = until.max(lane.next + more);
            lane.until = until.max(lane.until);
        });
    }

    /// Until then, units of this key leave `spacing` apart.
    pub(crate) fn slow(&self, key: &Key, now: Instant, spacing: Duration, until: Instant) {
        self.change(key, now, |lane| (lane.spacing, lane.slow_until) = (spacing, until));
    }

    /// Ends what [`slow`](Self::slow) began.
    pub(crate) fn quicken(&self, key: &Key, now: Instant) {
        if !self.is_empty()
            && let Some(lane) = self.lock().by_key.get_mut(key)
        {
            lane.slow_until = now;
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
        let lanes = self.lock();
        let lane = lanes.by_key.get(key)?;
        Some(lane.next.max(lane.until).saturating_duration_since(now))
    }

    /// Whether a call of `cost` units whose slot has come, or whose turn, may leave. If not, when to ask again.
    pub(crate) fn leave(&self, key: &Key, cost: u64, turn: Option<Taken>, now: Instant) -> Result<(), Taken> {
        if self.is_empty() {
            return Ok(());
        }
        let mut lanes = self.lock();
        let Some(lane) = lanes.by_key.get_mut(key) else { return Ok(()) };
        if let Some(turn) = turn {
            let at = turn.at + lane.put_off.saturating_sub(turn.put_off);
            return if at <= now { Ok(()) } else { Err(Taken { at, put_off: lane.put_off }) };
        }
        if !lane.is_active(now) {
            lanes.by_key.remove(key);
            self.count.store(lanes.by_key.len(), Ordering::Release);
            return Ok(());
        }
        let at = lane.next.max(now);
        let unit = if at < lane.slow_until { lane.spacing } else { Duration::ZERO };
        lane.next = at + spread(self.rate, cost).max(unit.saturating_mul(u32::try_from(cost).unwrap_or(u32::MAX)));
        if at <= now { Ok(()) } else { Err(Taken { at, put_off: lane.put_off }) }
    }

    fn change(&self, key: &Key, now: Instant, change: impl FnOnce(&mut Lane)) {
        let mut lanes = self.lock();
        if !lanes.by_key.contains_key(key) {
            lanes.sweep(now);
        }
        let unused = Lane { until: now, next: now, put_off: Duration::ZERO, spacing: Duration::ZERO, slow_until: now };
        change(lanes.by_key.entry(key.clone()).or_insert(unused));
        self.count.store(lanes.by_key.len(), Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, Lanes> {
        // Nothing in here panics halfway through a change.
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lane {
    fn is_active(&self, now: Instant) -> bool {
        self.until.max(self.next).max(self.slow_until) > now
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

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use smallvec::SmallVec;
use throttle_core::Key;
use throttle_core::backend::Receipt;
use tokio::time::Instant;

use super::demand::Demand;
use super::error::{Pause, PauseCause};
use super::schedule::Schedule;
use crate::lock::lock;
use crate::usage::UsageError;

/// Reports what a call has really used of the [units](crate::shape::ShaperBuilder::by_unit) that it
/// was charged an estimate of. Clones report on the same call.
///
/// [`Shaper::schedule_units`](crate::shape::Shaper::schedule_units) returns one, and
/// [`ShapeLayer::settle_with`](crate::ShapeLayer::settle_with) passes one on with each response.
///
/// ```
/// use std::time::Duration;
/// use throttle_tower::shape::{ShapeUsage, Shaper};
/// use throttle_tower::{Pace, Rate};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let requests = Pace::new(Rate::per_minute(600)).max_wait(Duration::from_secs(60));
/// let model = Shaper::builder(requests)
///     .by_unit("tokens", Rate::per_minute(6_000))
///     .headroom(Duration::ZERO)
///     .build()?;
/// let began = tokio::time::Instant::now();
/// let usage: ShapeUsage = model.schedule_units("key", 1, &[("tokens", 500)]).await?;
/// assert_eq!(usage.taken("tokens"), 500);
/// usage.settle("tokens", 40)?; // the model's answer was short
/// model.schedule_units("key", 1, &[("tokens", 500)]).await?;
/// assert_eq!(
///     began.elapsed(),
///     Duration::from_millis(400),
///     "40 tokens take 0.4 s, and 500 would take 5 s"
/// );
/// # Ok(())
/// # }
/// ```
///
/// # What becomes of the difference
///
/// * **Less was used**: the time that the rest would have taken is free again, as far as it has not
///   passed. If calls wait, the next one leaves earlier, also if other calls have left since.
///   Requests keep their distance.
/// * **More was used**: the next call that uses the unit leaves as much later. So that no wrong
///   number stops a key for long, at most a minute of the pace is owed, or the longest wait if that
///   is longer.
///
/// What an upstream can count on: in any period, what the calls that leave in it were charged fits
/// the pace, apart from the last of them and from what was given back in that period.
///
/// The correction holds for all processes that share the schedule. What a call has used of a unit
/// of which it was charged nothing delays the calls of this process only.
///
/// A call that is not settled counts by its estimate, also if it failed. One that is settled after
/// a [`reset`](crate::shape::Shaper::reset) of its key still changes the new schedule by the
/// difference.
#[derive(Clone)]
pub struct ShapeUsage(Arc<UnitCharge>);

struct UnitCharge {
    schedule: Arc<Schedule>,
    key: Key,
    taken: Box<[u64]>,
    settled: SmallVec<[AtomicBool; 2]>,
    /// What it was charged, once it has left.
    receipt: Mutex<Option<Box<Receipt>>>,
}

impl ShapeUsage {
    pub(super) fn new(schedule: &Arc<Schedule>, demand: &Demand) -> Self {
        let taken = demand.units.clone().unwrap_or_default();
        Self(Arc::new(UnitCharge {
            schedule: Arc::clone(schedule),
            key: demand.key.clone(),
            settled: taken.iter().map(|_| AtomicBool::new(false)).collect(),
            taken,
            receipt: Mutex::default(),
        }))
    }

    /// The call has left.
    pub(super) fn left(&self, receipt: Option<Box<Receipt>>) {
        *lock(&self.0.receipt) = receipt;
    }

    /// The names of the units, in the order given.
    pub fn units(&self) -> impl Iterator<Item = &'static str> {
        self.0.schedule.paces.names()
    }

    /// The estimate of a unit that the call was charged; 0 if there is no such unit.
    #[must_use]
    pub fn taken(&self, unit: &str) -> u64 {
        let index = self.0.schedule.paces.index(unit);
        index
            .and_then(|index| self.0.taken.get(index))
            .map_or(0, |taken| *taken)
    }

    /// Makes `actual` what the call has used of a unit. No method waits for the store or fails
    /// because of it.
    ///
    /// # Errors
    ///
    /// If there is no such unit, or it is settled already.
    pub fn settle(&self, unit: &str, actual: u64) -> Result<(), UsageError> {
        let UnitCharge {
            schedule,
            key,
            taken,
            settled,
            receipt,
        } = &*self.0;
        let paces = &schedule.paces;
        let index = paces.index(unit).ok_or_else(|| paces.unknown_unit(unit))?;
        if settled[index].swap(true, Ordering::Relaxed) {
            return Err(UsageError::Settled {
                name: unit.to_owned(),
            });
        }
        if taken[index] == 0 {
            let now = Instant::now();
            let until = now + paces.time_of(index, actual);
            let cause = PauseCause::Program;
            schedule.pause_here(key, now, Pause { until, cause });
            return Ok(());
        }
        // The first policy is that of requests.
        let receipt = lock(receipt)
            .as_mut()
            .and_then(|receipt| receipt.take(index + 1));
        if let Some(receipt) = receipt.filter(|_| actual != taken[index]) {
            let (look_again, key) = (Arc::clone(schedule), key.clone());
            // A charge that is given back in full is that of a call that was not made.
            schedule.settle(receipt.actual(actual.max(1)), move || {
                look_again.look_again(&key);
            });
        }
        Ok(())
    }
}

impl fmt::Debug for ShapeUsage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(self.units().map(|unit| (unit, self.taken(unit))))
            .finish()
    }
}

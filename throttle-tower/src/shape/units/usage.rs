use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use smallvec::SmallVec;
use throttle_core::{Backend, Key};

use super::super::schedule::Schedule;
use super::Units;
use crate::usage::UsageError;

/// Reports what a call has really used of the [units](crate::shape::ShaperBuilder::by_unit) that it was charged an
/// estimate of. Clones report on the same call.
///
/// [`Shaper::schedule_units`](crate::shape::Shaper::schedule_units) returns one, and
/// [`ShapeLayer::settle_with`](crate::ShapeLayer::settle_with) passes one on with each response.
///
/// ```
/// use std::time::Duration;
/// use throttle_tower::shape::{ShapeUsage, Shaper};
/// use throttle_tower::{LeakyBucket, Rate};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let requests = LeakyBucket::new(Rate::per_minute(600)).max_wait(Duration::from_secs(60));
/// let model = Shaper::builder(requests).by_unit("tokens", Rate::per_minute(6_000)).headroom(Duration::ZERO).build()?;
/// let began = tokio::time::Instant::now();
/// let usage: ShapeUsage = model.schedule_units("key", 1, &[("tokens", 500)]).await?;
/// assert_eq!(usage.taken("tokens"), 500);
/// usage.settle("tokens", 40)?; // the model's answer was short
/// model.schedule_units("key", 1, &[("tokens", 500)]).await?;
/// assert_eq!(began.elapsed(), Duration::from_millis(400), "40 tokens take 0.4 s, and 500 would take 5 s");
/// # Ok(())
/// # }
/// ```
///
/// # What becomes of the difference
///
/// * **Less was used**: if no call of the key is scheduled behind this one, the next one leaves earlier. Otherwise the
///   calls behind keep their times, and a later call of this process takes so much less; it does so until the schedule
///   of the key was idle.
/// * **More was used**: the next call of this process takes so much more, so that the calls behind it leave later.
///
/// So in the long run the pace is kept by what was used. In any period the calls use at most what the pace allows,
/// by their estimates, and what was given back. Requests keep their distance in any case.
///
/// A call that is not settled counts by its estimate, also if it failed.
#[derive(Clone)]
pub struct ShapeUsage(Arc<Charged>);

struct Charged {
    schedule: Arc<dyn SettleUnits>,
    key: Key,
    taken: SmallVec<[u64; 2]>,
    settled: SmallVec<[AtomicBool; 2]>,
}

/// A schedule of any backend.
trait SettleUnits: Send + Sync {
    fn units(&self) -> Option<&Units>;
    fn unknown_unit(&self, unit: &str) -> UsageError;
    fn settle(&self, key: &Key, unit: usize, taken: u64, actual: u64);
}

impl<B: Backend> SettleUnits for Schedule<B> {
    fn units(&self) -> Option<&Units> {
        self.units.as_ref()
    }

    fn unknown_unit(&self, unit: &str) -> UsageError {
        self.unknown_unit(unit)
    }

    fn settle(&self, key: &Key, unit: usize, taken: u64, actual: u64) {
        self.settle_unit(key, unit, taken, actual);
    }
}

impl ShapeUsage {
    #[cfg(test)]
    pub(super) const SIZE: usize = size_of::<Charged>();

    pub(in super::super) fn new<B: Backend>(schedule: &Arc<Schedule<B>>, key: Key, taken: SmallVec<[u64; 2]>) -> Self {
        let settled = taken.iter().map(|_| AtomicBool::new(false)).collect();
        Self(Arc::new(Charged { schedule: Arc::clone(schedule) as _, key, taken, settled }))
    }

    /// The names of the units, in the order given.
    pub fn units(&self) -> impl Iterator<Item = &'static str> {
        self.0.schedule.units().into_iter().flat_map(Units::names)
    }

    /// The estimate of a unit that the call was charged; 0 if there is no such unit.
    #[must_use]
    pub fn taken(&self, unit: &str) -> u64 {
        self.place(unit).and_then(|place| self.0.taken.get(place).copied()).unwrap_or(0)
    }

    /// Makes `actual` what the call has used of a unit. No method waits for the store or fails because of it.
    ///
    /// # Errors
    ///
    /// If there is no such unit, or it is settled already.
    pub fn settle(&self, unit: &str, actual: u64) -> Result<(), UsageError> {
        let place = self.place(unit).ok_or_else(|| self.0.schedule.unknown_unit(unit))?;
        if self.0.settled[place].swap(true, Ordering::Relaxed) {
            return Err(UsageError::Settled { name: unit.to_owned() });
        }
        self.0.schedule.settle(&self.0.key, place, self.0.taken[place], actual);
        Ok(())
    }

    fn place(&self, unit: &str) -> Option<usize> {
        self.0.schedule.units()?.place(unit)
    }
}

impl fmt::Debug for ShapeUsage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.units().map(|unit| (unit, self.taken(unit)))).finish()
    }
}

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;
use throttle_core::Backend;

use super::super::schedule::Schedule;
use super::{Turn, Units};
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
/// by their estimates, and what was given back, as far as the store still can: nothing, once the schedule has been idle
/// since the call, or if the slot to be shortened is not the last one there. What was given back while calls waited can
/// be used at once by those behind them, so a period can hold more than its share by as much as the backlog was worth.
/// Requests keep their distance in any case.
///
/// No debt locks a caller out: each call pays as much of it as fits beside it within its bounds, at least a quarter
/// of what would fit on an empty schedule, and leaves the rest to later ones. A call that fills its bounds by itself pays nothing. The time that
/// is paid delays the calls behind, which may miss their own bounds. Idle time pays as well, but not where the schedule
/// is kept in a store. No debt is longer than an hour of the pace, and one beside a store is forgotten an hour after the
/// last such settlement. Both differences are known only to this process.
///
/// A call that is not settled counts by its estimate, also if it failed. One that is settled after a
/// [`reset`](crate::shape::Shaper::reset) of its key still changes the new schedule by the difference.
#[derive(Clone)]
pub struct ShapeUsage(Arc<Charged>);

struct Charged {
    schedule: Arc<dyn SettleUnits>,
    taken: SmallVec<[u64; 2]>,
    settled: SmallVec<[AtomicBool; 2]>,
    /// Its place on the schedule, once it has one.
    turn: OnceLock<Arc<Turn>>,
}

/// A schedule of any backend.
trait SettleUnits: Send + Sync {
    fn units(&self) -> Option<&Units>;
    fn unknown_unit(&self, unit: &str) -> UsageError;
    fn settle(&self, turn: &Turn, unit: usize, taken: u64, actual: u64);
}

impl<B: Backend> SettleUnits for Schedule<B> {
    fn units(&self) -> Option<&Units> {
        self.units.as_ref()
    }

    fn unknown_unit(&self, unit: &str) -> UsageError {
        self.unknown_unit(unit)
    }

    fn settle(&self, turn: &Turn, unit: usize, taken: u64, actual: u64) {
        self.settle_unit(turn, unit, taken, actual);
    }
}

impl ShapeUsage {
    #[cfg(test)]
    pub(super) const SIZE: usize = size_of::<Charged>();

    pub(in super::super) fn new<B: Backend>(schedule: &Arc<Schedule<B>>, taken: SmallVec<[u64; 2]>) -> Self {
        let settled = taken.iter().map(|_| AtomicBool::new(false)).collect();
        Self(Arc::new(Charged { schedule: Arc::clone(schedule) as _, taken, settled, turn: OnceLock::new() }))
    }

    /// The call has a slot.
    pub(super) fn left_in(&self, turn: &Arc<Turn>) {
        self.0.turn.get_or_init(|| Arc::clone(turn));
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
        if let Some(turn) = self.0.turn.get() {
            self.0.schedule.settle(turn, place, self.0.taken[place], actual);
        }
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

#[cfg(test)]
mod tests {
    use smallvec::smallvec;
    use throttle_core::{LeakyBucket, Rate};

    use super::super::super::shaper::Shaper;
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn shape_unit_is_settled_once_even_before_its_call_has_a_slot() {
        let requests = LeakyBucket::new(Rate::per_second(10));
        let shaper = Shaper::builder(requests).by_unit("tokens", Rate::per_second(100)).build().unwrap();
        let usage = ShapeUsage::new(&shaper.schedule, smallvec![10]);
        usage.settle("tokens", 5).unwrap();
        let error = usage.clone().settle("tokens", 5).unwrap_err();
        assert!(matches!(&error, UsageError::Settled { name } if name == "tokens"), "{error}");
    }
}

//! A leaky bucket on a state that the caller keeps: for a program with one schedule, which needs no store.

use std::time::Duration;

use super::cell::decide;
use super::kind::{Algorithm, Kind};
use super::leaky_bucket::{Departures, Queue};
use super::transition::Transition;
use super::verdict::{NEVER, Taken};
use crate::cost::Cost;
use crate::time::Timestamp;

/// The schedule of one key of a [`LeakyBucket`](super::LeakyBucket).
///
/// It decides as a [`MemoryBackend`](crate::MemoryBackend) does for a key that nothing else changes. It has no lock and
/// no clock.
///
/// ```
/// use std::time::Duration;
/// use throttle_core::algorithm::DepartureSchedule;
/// use throttle_core::{Cost, LeakyBucket, Rate, Timestamp};
///
/// let bucket = LeakyBucket::new(Rate::per_second(10)).max_wait(Duration::from_millis(150));
/// let mut schedule = DepartureSchedule::new(&bucket.build()?).expect("it is a leaky bucket");
/// let now = Timestamp::EPOCH;
/// assert_eq!(schedule.reserve(now, Cost::ONE).map(|departure| departure.is_now()), Ok(true));
/// let second = schedule.reserve(now, Cost::ONE).expect("it fits");
/// assert_eq!(second.delay(), Duration::from_millis(100));
/// assert_eq!(schedule.reserve(now, Cost::ONE).map(drop), Err(Some(Duration::from_millis(50))));
/// schedule.give_back(now, second);
/// assert_eq!(schedule.reset_after(now), Duration::from_millis(100));
/// # Ok::<(), throttle_core::ConfigError>(())
/// ```
#[derive(Clone, Debug)]
pub struct DepartureSchedule {
    queue: Queue,
    state: Departures,
}

/// A place in a [`DepartureSchedule`], to be used or given back.
#[derive(Debug, PartialEq, Eq)]
pub struct Departure {
    delay: u64,
    taken: Taken,
}

impl Departure {
    /// Whether its request need not wait.
    #[inline]
    #[must_use]
    pub const fn is_now(&self) -> bool {
        self.delay == 0
    }

    /// How long its request has to wait.
    #[inline]
    #[must_use]
    pub const fn delay(&self) -> Duration {
        Duration::from_micros(self.delay)
    }

    /// Its units.
    #[must_use]
    pub const fn cost(&self) -> u64 {
        self.taken.cost
    }
}

impl DepartureSchedule {
    /// The schedule of an unused key; `None` for an algorithm that does not delay requests.
    #[must_use]
    pub fn new(algorithm: &Algorithm) -> Option<Self> {
        match algorithm.kind {
            Kind::LeakyBucket(queue) => Some(Self { queue, state: queue.fresh() }),
            _ => None,
        }
    }

    /// Reserves the next departure.
    ///
    /// # Errors
    ///
    /// How long until the cost is admitted, if it is not admitted now; `None` if no wait helps.
    #[inline]
    pub fn reserve(&mut self, now: Timestamp, cost: Cost) -> Result<Departure, Option<Duration>> {
        let outcome = decide(&self.queue, &mut self.state, now, cost.get(), true);
        match outcome.wait {
            0 => Ok(Departure { delay: outcome.delay, taken: outcome.taken }),
            NEVER => Err(None),
            wait => Err(Some(Duration::from_micros(wait))),
        }
    }

    /// Gives a departure back. Its time becomes free again if nothing is scheduled behind it.
    #[expect(clippy::needless_pass_by_value, reason = "a departure is given back once")]
    pub fn give_back(&mut self, now: Timestamp, departure: Departure) {
        let Taken { cost, mark } = departure.taken;
        self.queue.give_back(&mut self.state, now, mark, cost, cost);
    }

    /// Gives back the last units of a departure, at most all of them; the departure keeps the others. Their time
    /// becomes free again if nothing is scheduled behind it.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use throttle_core::algorithm::DepartureSchedule;
    /// # use throttle_core::{Cost, LeakyBucket, Rate, Timestamp};
    /// let bucket = LeakyBucket::new(Rate::per_second(10));
    /// let mut schedule = DepartureSchedule::new(&bucket.build()?).expect("it is a leaky bucket");
    /// let now = Timestamp::EPOCH;
    /// let mut departure = schedule.reserve(now, Cost::new(5)?).expect("it fits");
    /// schedule.shorten(now, &mut departure, 3);
    /// assert_eq!((departure.cost(), schedule.reset_after(now)), (2, Duration::from_millis(200)));
    /// # Ok::<(), throttle_core::ConfigError>(())
    /// ```
    pub fn shorten(&mut self, now: Timestamp, departure: &mut Departure, units: u64) {
        let Taken { cost, mark } = departure.taken;
        self.queue.give_back(&mut self.state, now, mark, cost, units);
        departure.taken.cost = cost.saturating_sub(units);
    }

    /// How long until the schedule equals an unused one if nothing else happens.
    #[must_use]
    pub fn reset_after(&self, now: Timestamp) -> Duration {
        Duration::from_micros(self.queue.standing(&self.state, now).reset)
    }

    /// Makes the schedule an unused one.
    pub fn reset(&mut self) {
        self.state = self.queue.fresh();
    }
}

use std::num::NonZeroU32;

use super::dispatch::{Algorithm, Kind};
use super::drain::Drain;
use super::fixed_window::Counter;
use super::gcra::Arrival;
use super::leaky_bucket::Queue;
use super::level::Leveled;
use crate::rate::{Rate, part};

impl Algorithm {
    /// Returns the part of the limit that one of `processes` processes may use when they cannot coordinate: the same
    /// algorithm at 1/N.
    ///
    /// Rates are divided exactly. A burst, a capacity, a refill and a limit are divided and rounded down, to 1 at
    /// least. So N shares together never admit more than the limit itself, in any stretch of time, except in these
    /// cases:
    ///
    /// * A burst below N: each share has a burst of 1, so N units may be admitted at one instant. The rate is still
    ///   exact.
    /// * A refill below N: each share gets 1 unit per refill and is refilled less often, so that the shares together do
    ///   not exceed the rate. Up to N units may come at one instant.
    /// * A limit of a window or a quota below N: each share admits 1 unit per window, so N shares admit N units.
    /// * A [`LeakyBucket`](super::LeakyBucket) lets an idle key's first unit leave at once, and so does each share. So
    ///   N units may leave together. The longest wait stays the same.
    ///
    /// A share is always valid. If a share's exact rate needs numbers beyond 2^53, the rate is rounded down to one unit
    /// in a whole number of microseconds (142 years at most). A longest wait or a capacity that needs such numbers is
    /// reduced.
    ///
    /// ```
    /// use std::num::NonZeroU32;
    /// use throttle_core::{Gcra, Rate};
    ///
    /// let four = NonZeroU32::new(4).expect("four is not zero");
    /// let share = Gcra::new(Rate::per_second(10)).burst(30).build()?.share(four);
    /// assert_eq!(share, Gcra::new("5/2s".parse()?).burst(7).build()?);
    /// # Ok::<(), throttle_core::ConfigError>(())
    /// ```
    #[must_use]
    pub fn share(&self, processes: NonZeroU32) -> Self {
        let n = u64::from(processes.get());
        if n == 1 {
            return *self;
        }
        let drained = |drain: &Drain| drain.share(self.rate(), n);
        let counted = |kind, limit| Self::from_kind(kind, Rate::new(limit, self.rate().period()));
        match &self.kind {
            Kind::Gcra(Arrival(drain)) => {
                let (drain, rate) = drained(drain);
                Self::from_kind(Kind::Gcra(Arrival(drain)), rate)
            }
            Kind::TokenBucket(bucket) => {
                let (drain, rate) = drained(bucket.drain());
                Self::from_kind(Kind::TokenBucket(Leveled::new(drain)), rate)
            }
            Kind::LeakyMeter(meter) => {
                let (drain, rate) = drained(meter.drain());
                Self::from_kind(Kind::LeakyMeter(Leveled::new(drain)), rate)
            }
            Kind::LeakyBucket(queue) => {
                let (drain, rate) = queue.drain().share_of_wait(self.rate(), n);
                Self::from_kind(Kind::LeakyBucket(Queue::new(drain, queue.is_without_delay())), rate)
            }
            Kind::IntervalBucket(portions) => {
                let (portions, rate) = portions.share(n);
                Self::from_kind(Kind::IntervalBucket(portions), rate)
            }
            Kind::FixedWindow(counter) => {
                let limit = part(counter.limit, n);
                counted(Kind::FixedWindow(Counter { limit, ..*counter }), limit)
            }
            Kind::CalendarQuota(counter) => {
                let limit = part(counter.limit, n);
                counted(Kind::CalendarQuota(Counter { limit, ..*counter }), limit)
            }
            Kind::SlidingWindow(estimate) => {
                let estimate = estimate.share(n);
                counted(Kind::SlidingWindow(estimate), estimate.limit())
            }
            Kind::SlidingLog(log) => {
                let log = log.share(n);
                counted(Kind::SlidingLog(log), log.limit())
            }
        }
    }
}

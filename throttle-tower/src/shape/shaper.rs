use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, StatusCode};
use throttle_core::backend::{KeyStep, Receipt};
use throttle_core::{Backend, BackendError, Key, Rate};
use tokio::time::Instant;

use super::demand::Demand;
use super::error::{Pause, PauseCause, ShapeError};
use super::obey_upstream::ObeyUpstream;
use super::queue::CallQueue;
use super::schedule::Schedule;
use super::start::Start;
use super::stats::ShapeStats;
use super::unit_usage::ShapeUsage;
use crate::time::FAR;

/// A steady pace without a service: for queue workers, cron jobs, batch runs.
///
/// A [`ShapeLayer`](crate::ShapeLayer) is a shaper around a service. Clones share the schedule.
///
/// ```
/// use std::time::Duration;
/// use throttle_tower::shape::Shaper;
/// use throttle_tower::{Pace, Rate};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mails =
///     Shaper::new(Pace::new(Rate::per_second(10)).max_wait(Duration::from_secs(60)))?;
/// for _ in 0..3 {
///     mails.schedule("smtp.example", 1).await?;
///     // send one
/// }
/// assert_eq!(mails.stats().sent, 3);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Shaper {
    pub(super) schedule: Arc<Schedule>,
    pub(super) obey: ObeyUpstream,
}

impl Shaper {
    /// Waits for a turn in the schedule of `key` for `cost` units (0 counts as 1). The call then
    /// leaves as a whole, and the next turn is due later by one emission interval for each unit.
    ///
    /// Calls of one key in this process take their turns in the order in which they were first
    /// polled.
    ///
    /// # Errors
    ///
    /// Immediately if the call's last unit would have to wait longer than the pace's longest wait
    /// as things stand, or if too many calls are waiting. Later if a pause of the key begins that
    /// ends too late, if the longest wait has passed because other processes took turns, or if the
    /// store fails.
    ///
    /// # Cancel safety
    ///
    /// The future may be dropped at any time: it holds nothing before it is ready.
    ///
    /// # Panics
    ///
    /// The future panics when it has to wait outside of a tokio runtime that has its timers
    /// enabled.
    pub async fn schedule(&self, key: impl Into<Key>, cost: u64) -> Result<(), ShapeError> {
        let units = self.schedule.paces.no_units();
        let demand = Demand::new(key.into(), cost, units);
        self.take_turn(demand).await.map(drop)
    }

    /// Waits for a turn for `cost` requests (0 counts as 1) and for other units. A unit that is not
    /// among `units` costs nothing. What the call has used in the end is settled with the
    /// [`ShapeUsage`].
    ///
    /// ```
    /// # use throttle_tower::shape::Shaper;
    /// # use throttle_tower::{Pace, Rate};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let requests = Pace::new(Rate::per_minute(500));
    /// let model = Shaper::builder(requests).by_unit("tokens", Rate::per_minute(30_000)).build()?;
    /// let usage = model.schedule_units("gpt", 1, &[("tokens", 1_200)]).await?;
    /// // make the call, and read from its response what it has used
    /// usage.settle("tokens", 317)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`schedule`](Self::schedule), and if the shaper has no pace of one of the units.
    ///
    /// # Cancel safety
    ///
    /// As the future of [`schedule`](Self::schedule).
    ///
    /// # Panics
    ///
    /// As the future of [`schedule`](Self::schedule).
    pub async fn schedule_units(
        &self,
        key: impl Into<Key>,
        cost: u64,
        units: &[(&str, u64)],
    ) -> Result<ShapeUsage, ShapeError> {
        let paces = &self.schedule.paces;
        let mut counts = paces.no_units();
        for (unit, count) in units {
            let index = paces
                .index(unit)
                .ok_or_else(|| ShapeError::UnknownUnit(paces.unknown_unit(unit)))?;
            if let Some(counts) = &mut counts {
                counts[index] = counts[index].saturating_add(*count);
            }
        }
        let demand = Demand::new(key.into(), cost, counts);
        let usage = ShapeUsage::new(&self.schedule, &demand);
        usage.left(self.take_turn(demand).await?);
        Ok(usage)
    }

    async fn take_turn(&self, demand: Demand) -> Result<Option<Box<Receipt>>, ShapeError> {
        match self.schedule.start(demand)? {
            Start::Left(receipt) => Ok(receipt),
            Start::Waits(turn) => turn.await,
        }
    }

    /// Forgets the schedule of `key`, and its pauses: the next call leaves immediately, or the
    /// first one that waits. Other processes of a fleet keep [shared
    /// pauses](super::ShaperBuilder::share_pauses) of which they have heard.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub async fn reset(&self, key: impl Into<Key>) -> Result<(), BackendError> {
        let key = key.into();
        if let Some(shared) = &self.schedule.shared_pauses {
            shared.forget(&key).await?;
        }
        let reset = self.reset_paces(&key).await;
        self.schedule.forget(&key);
        reset
    }

    async fn reset_paces(&self, key: &Key) -> Result<(), BackendError> {
        let schedule = &self.schedule;
        let paces = 0..=schedule.paces.names().count();
        if let Some(share) = &schedule.share {
            for pace in paces.clone() {
                share.reset(pace, key)?;
            }
        }
        for pace in paces {
            let reset = KeyStep::Reset(key.clone());
            let reset = schedule.backend.run(&schedule.prepared, pace, reset);
            reset.await?;
        }
        Ok(())
    }

    /// Pauses `key`: no call of it leaves for so long, not even one that waits already. Afterwards
    /// the calls leave in their order, at the pace. Calls that could not leave within their bounds
    /// fail: those that wait now when the pause begins, later ones when they are made. A pause that
    /// ends before the present one changes nothing. A pause holds in this process, and in others if
    /// they [share pauses](super::ShaperBuilder::share_pauses).
    ///
    /// ```
    /// use std::time::Duration;
    /// use throttle_tower::shape::Shaper;
    /// use throttle_tower::{Pace, Rate};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let shaper =
    ///     Shaper::new(Pace::new(Rate::per_second(10)).max_wait(Duration::from_secs(60)))?;
    /// shaper.pause("api.example", Duration::from_secs(30));
    /// let before = tokio::time::Instant::now();
    /// shaper.schedule("api.example", 1).await?;
    /// assert!(before.elapsed() >= Duration::from_secs(30));
    /// # Ok(())
    /// # }
    /// ```
    pub fn pause(&self, key: impl Into<Key>, pause: Duration) {
        let now = Instant::now();
        let until = now.checked_add(pause).unwrap_or_else(|| now + FAR);
        let cause = PauseCause::Program;
        self.schedule
            .pause(&key.into(), now, Pause { until, cause });
    }

    /// Returns the pause of `key`, if it is paused now: for a progress line. A key whose calls are
    /// held for an answer is not paused.
    ///
    /// ```
    /// use std::time::Duration;
    /// use throttle_tower::shape::Shaper;
    /// use throttle_tower::{Pace, Rate};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let shaper = Shaper::new(Pace::new(Rate::per_second(10)))?;
    /// assert!(shaper.paused_until("api.example").is_none());
    /// shaper.pause("api.example", Duration::from_secs(30));
    /// let paused = shaper.paused_until("api.example").expect("a pause");
    /// assert_eq!(paused.until - tokio::time::Instant::now(), Duration::from_secs(30));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn paused_until(&self, key: impl Into<Key>) -> Option<Pause> {
        let paused = |queue: &mut CallQueue, now| queue.pauses.paused(now);
        self.schedule.change(&key.into(), false, paused).flatten()
    }

    /// Obeys what an upstream has said in its response to a call of `key` that left at that
    /// instant, as [`ShapeLayer::obey_upstream`](crate::ShapeLayer::obey_upstream) does: for
    /// clients that are no services, and for responses whose body alone refuses. The shaper of a
    /// layer has the settings of that layer.
    ///
    /// ```
    /// use std::time::Duration;
    /// use throttle_tower::shape::Shaper;
    /// use throttle_tower::{Pace, Rate};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let call = async || http::Response::builder().status(429).header("retry-after", "30").body(());
    /// let shaper =
    ///     Shaper::new(Pace::new(Rate::per_second(10)).max_wait(Duration::from_secs(60)))?;
    /// shaper.schedule("api.example", 1).await?;
    /// let left = tokio::time::Instant::now();
    /// let response = call().await?;
    /// shaper.obey("api.example", left, response.status(), response.headers());
    ///
    /// shaper.schedule("api.example", 1).await?;
    /// assert!(left.elapsed() >= Duration::from_secs(30));
    /// # Ok(())
    /// # }
    /// ```
    pub fn obey(
        &self,
        key: impl Into<Key>,
        left: Instant,
        status: StatusCode,
        headers: &HeaderMap,
    ) {
        let response = (status, headers);
        self.obey.apply(&self.schedule, &key.into(), left, response);
    }

    /// What the shaper has done so far, and how many calls wait now: in this process, of all keys
    /// together.
    #[must_use]
    pub fn stats(&self) -> ShapeStats {
        let schedule = &self.schedule;
        let lost = schedule.background.counters.read().failed;
        let paused = schedule.queues.paused(Instant::now());
        schedule.counters.snapshot(lost, paused)
    }

    /// The rate of the shaper, of requests, [headroom](super::ShaperBuilder::headroom) included.
    #[must_use]
    pub fn rate(&self) -> Rate {
        self.schedule.paces.requests
    }
}

impl fmt::Debug for Shaper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shaper")
            .field("rate", &self.schedule.paces.requests)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::super::pace::Pace;
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn shape_reset_forgets_how_often_a_key_was_refused() {
        let pace = Pace::new(Rate::per_second(10)).max_wait(Duration::from_secs(60));
        let shaper = Shaper::builder(pace)
            .headroom(Duration::ZERO)
            .build()
            .unwrap();
        let mut pauses = Vec::new();
        for resets in [false, false, true, false] {
            if resets {
                shaper.reset("key").await.unwrap();
            }
            let left = Instant::now();
            shaper.obey(
                "key",
                left,
                StatusCode::TOO_MANY_REQUESTS,
                &HeaderMap::new(),
            );
            shaper.schedule("key", 1).await.unwrap();
            pauses.push(left.elapsed().as_millis());
        }
        assert_eq!(pauses, [1_000, 2_000, 1_000, 2_000]);
    }
}

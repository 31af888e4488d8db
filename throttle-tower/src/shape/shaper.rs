use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, StatusCode};
use throttle_core::{Backend, BackendError, Key, MemoryBackend, Rate};
use tokio::time::Instant;

use super::clock::TokioClock;
use super::error::{Paused, PausedBy, ShapeError};
use super::obey_upstream::ObeyUpstream;
use super::one_key::OneKey;
use super::queue::Queue;
use super::schedule::Schedule;
use super::schedule_future::ScheduleFuture;
use super::start::Start;
use super::stats::ShapeStats;
use super::units::ShapeUsage;
use super::wanted::{Class, Wanted};
use crate::time::FAR;

/// A steady pace without a service: for queue workers, cron jobs, batch runs.
///
/// A [`ShapeLayer`](crate::ShapeLayer) is a shaper around a service. Clones share the schedule.
///
/// ```
/// use std::time::Duration;
/// use throttle_tower::shape::Shaper;
/// use throttle_tower::{LeakyBucket, Rate};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mails =
///     Shaper::new(LeakyBucket::new(Rate::per_second(10)).max_wait(Duration::from_secs(60)))?;
/// for _ in 0..3 {
///     mails.schedule("smtp.example", 1).await?;
///     // send one
/// }
/// assert_eq!(mails.stats().sent, 3);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Shaper<B: Backend = MemoryBackend<TokioClock>> {
    pub(super) schedule: Arc<Schedule<B>>,
    pub(super) obey: ObeyUpstream,
}

impl<B: Backend> Shaper<B> {
    /// Waits for a turn in the schedule of `key` for `cost` units (0 counts as 1). The call then
    /// leaves as a whole, and the next turn is due later by one emission interval for each unit.
    ///
    /// Calls of one key in this process take their turns in the order in which they were first
    /// polled.
    ///
    /// # Errors
    ///
    /// Immediately if the call's last unit would have to wait longer than the bucket's longest wait
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
    #[inline]
    pub fn schedule(&self, key: impl Into<Key>, cost: u64) -> ScheduleFuture<'_, B> {
        let units = self.schedule.paces.no_units();
        ScheduleFuture::new(
            &self.schedule,
            Wanted {
                key: key.into(),
                cost: cost.max(1),
                deadline: None,
                units,
            },
        )
    }

    /// Waits for a turn for `cost` requests (0 counts as 1) and for other units. A unit that is not
    /// among `units` costs nothing. What the call has used in the end is settled with the
    /// [`ShapeUsage`].
    ///
    /// ```
    /// # use throttle_tower::shape::Shaper;
    /// # use throttle_tower::{LeakyBucket, Rate};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let requests = LeakyBucket::new(Rate::per_minute(500));
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
        let (key, paces) = (key.into(), &self.schedule.paces);
        let mut counts = paces.no_units();
        for (unit, count) in units {
            let place = paces
                .place(unit)
                .ok_or_else(|| ShapeError::UnknownUnit(paces.unknown_unit(unit)))?;
            if let Some(counts) = &mut counts {
                counts[place] = counts[place].saturating_add(*count);
            }
        }
        let wanted = Wanted {
            key,
            cost: cost.max(1),
            deadline: None,
            units: counts,
        };
        let usage = ShapeUsage::new(&self.schedule, &wanted);
        usage.left(match self.schedule.start(&wanted, Class::default)? {
            Start::Left(receipt) => receipt,
            Start::Waits(waits) => waits.await?,
        });
        Ok(usage)
    }

    /// Forgets the schedule of `key`, and its pauses: the next call leaves at once, or the first
    /// one that waits. Other processes of a fleet keep [shared
    /// pauses](super::ShaperBuilder::share_pauses) of which they have heard.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub async fn reset(&self, key: impl Into<Key>) -> Result<(), BackendError> {
        let key = key.into();
        if let Some(shared) = &self.schedule.shared_pauses {
            shared.forget(&self.schedule.backend, &key).await?;
        }
        let reset = self.reset_schedule(&key).await;
        self.schedule.forget(&key);
        reset
    }

    async fn reset_schedule(&self, key: &Key) -> Result<(), BackendError> {
        if let Some(one_key) = self.schedule.one_key(key) {
            one_key.reset();
            return Ok(());
        }
        let paces = 0..=self.schedule.paces.names().count();
        if let Some(share) = &self.schedule.share {
            paces.clone().for_each(|pace| share.reset(pace, key));
        }
        for pace in paces {
            self.schedule
                .backend
                .reset(&self.schedule.prepared, pace, key)
                .await?;
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
    /// use throttle_tower::{LeakyBucket, Rate};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let shaper =
    ///     Shaper::new(LeakyBucket::new(Rate::per_second(10)).max_wait(Duration::from_secs(60)))?;
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
        let by = PausedBy::Program;
        self.schedule.pause(&key.into(), now, Paused { until, by });
    }

    /// Returns the pause of `key`, if it is paused now: for a progress line. A key whose calls are
    /// held for an answer is not paused.
    ///
    /// ```
    /// use std::time::Duration;
    /// use throttle_tower::shape::Shaper;
    /// use throttle_tower::{LeakyBucket, Rate};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let shaper = Shaper::new(LeakyBucket::new(Rate::per_second(10)))?;
    /// assert!(shaper.paused_until("api.example").is_none());
    /// shaper.pause("api.example", Duration::from_secs(30));
    /// let paused = shaper.paused_until("api.example").expect("a pause");
    /// assert_eq!(paused.until - tokio::time::Instant::now(), Duration::from_secs(30));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn paused_until(&self, key: impl Into<Key>) -> Option<Paused> {
        let paused = |queue: &mut Queue, now| queue.pauses.paused(now);
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
    /// use throttle_tower::{LeakyBucket, Rate};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let call = async || http::Response::builder().status(429).header("retry-after", "30").body(());
    /// let shaper =
    ///     Shaper::new(LeakyBucket::new(Rate::per_second(10)).max_wait(Duration::from_secs(60)))?;
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
        let sent_at_once = schedule.one_key.as_ref().map_or(0, OneKey::sent);
        schedule
            .counters
            .snapshot(sent_at_once, lost, schedule.queues.paused(Instant::now()))
    }

    /// The pace of the shaper, of requests, [headroom](super::ShaperBuilder::headroom) included.
    #[must_use]
    pub fn rate(&self) -> Rate {
        self.schedule.paces.requests
    }
}

impl<B: Backend> fmt::Debug for Shaper<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shaper")
            .field("rate", &self.schedule.paces.requests)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use throttle_core::LeakyBucket;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn shape_reset_forgets_how_often_a_key_was_refused() {
        let bucket = LeakyBucket::new(Rate::per_second(10)).max_wait(Duration::from_secs(60));
        let shaper = Shaper::builder(bucket)
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

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use throttle_core::{Backend, BackendError, Cost, Key, LeakyBucket, MemoryBackend, Rate};
use tokio::time::Instant;

use super::builder::ShaperBuilder;
use super::clock::TokioClock;
use super::counters::ShapeStats;
use super::error::ShapeError;
use super::pace::{Answer, Ask, Pace};
use super::slot::Slot;
use crate::time::FAR;

/// A steady pace, for what is no service: queue workers, cron jobs, batch runs.
///
/// A [`ShapeLayer`](crate::ShapeLayer) is a shaper around a service. Clones share the schedule.
///
/// ```
/// use std::time::Duration;
/// use throttle_tower::{LeakyBucket, Rate};
/// use throttle_tower::shape::Shaper;
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mails = Shaper::new(LeakyBucket::new(Rate::per_second(10)).max_wait(Duration::from_secs(60)))?;
/// for _ in 0..3 {
///     mails.schedule("smtp.example", 1).await?;
///     // send one
/// }
/// # Ok(())
/// # }
/// ```
pub struct Shaper<B: Backend = MemoryBackend<TokioClock>> {
    pub(super) pace: Arc<Pace<B>>,
}

impl Shaper {
    /// A pace of this process alone.
    ///
    /// # Errors
    ///
    /// If the bucket's configuration is wrong: which field, value and bound.
    pub fn new(bucket: LeakyBucket) -> Result<Self, throttle_core::ConfigError> {
        Self::builder(bucket).build()
    }

    /// A pace with options, among them a store that a fleet of processes shares.
    pub fn builder(bucket: LeakyBucket) -> ShaperBuilder {
        ShaperBuilder::new(bucket)
    }
}

impl<B: Backend> Shaper<B> {
    pub(super) fn from_pace(pace: Pace<B>) -> Self {
        Self { pace: Arc::new(pace) }
    }

    /// A place in the schedule of `key` for `cost` units (0 counts as 1). It is taken at once: await the slot to wait for
    /// its time, drop it to give it back.
    ///
    /// Units leave one emission interval apart, those of one call together when the first may. In memory slots are handed
    /// out in the order of the calls to this method; over a store, in the order in which it hears of them.
    ///
    /// # Errors
    ///
    /// If the last unit would have to wait longer than the bucket's longest wait, if too many are waiting, or if the store
    /// fails.
    ///
    /// # Cancel safety
    ///
    /// Dropped while the store is asked, a place that it then hands out is given back.
    pub async fn reserve(&self, key: impl Into<Key>, cost: u64) -> Result<Slot<B>, ShapeError> {
        let ask = Ask { key: key.into(), cost: Cost::at_least_one(cost), within: None, holds: true };
        let answered = match self.pace.ask_at_once(&ask) {
            Some(answered) => answered,
            None => self.pace.ask(ask).await,
        };
        match answered? {
            Answer::Wait(slot) => Ok(slot),
            Answer::Go => unreachable!("a reservation always holds a slot"),
        }
    }

    /// Reserves a place and waits for its time.
    ///
    /// # Errors
    ///
    /// At once, as [`reserve`](Self::reserve).
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point before it is ready, its place is given back.
    ///
    /// # Panics
    ///
    /// When it has to wait outside of a tokio runtime that has its timers enabled.
    pub async fn schedule(&self, key: impl Into<Key>, cost: u64) -> Result<(), ShapeError> {
        let ask = Ask { key: key.into(), cost: Cost::at_least_one(cost), within: None, holds: false };
        // Pinned where it is: a future in between would be moved on each call.
        let answered = match self.pace.ask_at_once(&ask) {
            Some(answered) => answered.map(Answer::into_turn),
            None => self.pace.ask(ask).await.map(Answer::into_turn),
        };
        if let Some(turn) = pin!(answered?).as_pin_mut() {
            turn.await;
        }
        Ok(())
    }

    /// Forgets what is scheduled for `key`, and its pauses: whoever comes next leaves at once. Those who wait already leave
    /// when they were told.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub async fn reset(&self, key: impl Into<Key>) -> Result<(), BackendError> {
        let key = key.into();
        self.pace.pauses.forget(&key);
        if let Some(share) = &self.pace.share {
            share.reset(0, &key);
        }
        self.pace.backend.reset(&self.pace.prepared, 0, &key).await
    }

    /// Lets nobody of `key` leave for so long, those who wait already included. Afterwards they leave in their order, at the
    /// pace. It holds in this process.
    pub fn pause(&self, key: impl Into<Key>, pause: Duration) {
        let now = Instant::now();
        let until = now.checked_add(pause).unwrap_or_else(|| now + FAR);
        self.pace.pauses.pause(&key.into(), now, until);
    }

    /// What it has done so far, and how many wait now. Of this process, and of all keys together.
    #[must_use]
    pub fn stats(&self) -> ShapeStats {
        self.pace.counters.snapshot(self.pace.post.counters.read().failed, self.pace.pauses.active(Instant::now()))
    }

    /// The pace that is kept, [headroom](ShaperBuilder::headroom) included.
    #[must_use]
    pub fn rate(&self) -> Rate {
        self.pace.rate
    }
}

impl<B: Backend> Clone for Shaper<B> {
    fn clone(&self) -> Self {
        Self { pace: Arc::clone(&self.pace) }
    }
}

impl<B: Backend> fmt::Debug for Shaper<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shaper").field("rate", &self.pace.rate).field("stats", &self.stats()).finish_non_exhaustive()
    }
}

//! How much work may be under way to a server at a time.

use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout_at};

/// Bounds the work under way. Calls that wait for room get it in their order of arrival.
pub(crate) struct InFlightLimit {
    free: Semaphore,
    most: u32,
}

/// Room that a call has taken, until it is dropped.
pub(crate) type InFlightPermit<'a> = SemaphorePermit<'a>;

impl InFlightLimit {
    /// A limit of `most` of a server's time.
    pub(crate) fn new(most: Duration) -> Self {
        let most = u32::try_from(most.as_micros()).unwrap_or(u32::MAX).max(1);
        Self {
            free: Semaphore::new(most as usize),
            most,
        }
    }

    /// Returns a limit of half the size.
    pub(crate) fn half(&self) -> Self {
        Self::new(Duration::from_micros(u64::from(self.most / 2)))
    }

    /// Waits for room. Work that needs more than the whole limit takes all of it.
    pub(crate) async fn take(&self, work: u32) -> InFlightPermit<'_> {
        self.free
            .acquire_many(work.min(self.most))
            .await
            .expect("it is never closed")
    }

    /// Takes room if there is enough now.
    #[inline]
    pub(crate) fn take_now(&self, work: u32) -> Option<InFlightPermit<'_>> {
        self.free.try_acquire_many(work.min(self.most)).ok()
    }

    /// Takes room if there is enough before `until`.
    #[inline]
    pub(crate) async fn take_by(&self, work: u32, until: Instant) -> Option<InFlightPermit<'_>> {
        match self.take_now(work) {
            Some(held) => Some(held),
            // Boxed because it is rare: every call's future would have room for it.
            None => Box::pin(timeout_at(until, self.take(work))).await.ok(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn work_that_needs_more_than_there_is_takes_all_of_it() {
        let room = InFlightLimit::new(Duration::from_micros(100));
        let later = || Instant::now() + Duration::from_secs(1);
        let all = room
            .take_by(1_000, later())
            .await
            .expect("all of it is there");
        assert!(room.take_now(1).is_none(), "nothing is left of it");
        let began = Instant::now();
        assert!(
            room.take_by(1_000, later()).await.is_none(),
            "nobody gives any back in time"
        );
        assert_eq!(began.elapsed(), Duration::from_secs(1));
        drop(all);
        assert!(room.take(1_000).await.num_permits() == 100);
    }

    #[test]
    fn half_of_the_room_is_half_of_its_size() {
        let half = InFlightLimit::new(Duration::from_micros(101)).half();
        let _held = half.take_now(49).expect("there are 50");
        assert!(half.take_now(2).is_none() && half.take_now(1).is_some());
        assert!(
            InFlightLimit::new(Duration::ZERO).take_now(1).is_some(),
            "one thing at a time always has room"
        );
    }
}

//! How many calls a client of a cluster has at once.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use super::super::translate::CONNECT_TIMEOUT;

/// The task that polls all calls of a client may take 128 steps in a turn. A call takes up to five, and listing the
/// slots takes two for each server. A task that wants more may stand still for ever: DESIGN.md says why.
pub(super) const PLACES: usize = 16;

/// How long the place of a call stays taken when its caller has gone. The client's task finds out when it has its next
/// turn, and that is later if the process is busy.
const LINGER: Duration = Duration::from_millis(100);

/// The client itself ends a call after this time, also one whose caller does not look for the answer.
const LONGEST: Duration = CONNECT_TIMEOUT;

/// The places of one client, for one call each. Callers that wait for one get it in their order of arrival.
pub(super) struct Places {
    free: Semaphore,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    /// How many places were taken so far.
    count: u64,
    places: Vec<Record>,
}

#[derive(Clone, Copy)]
struct Record {
    number: u64,
    /// When the place is free again at the latest.
    until: Instant,
}

impl Places {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { free: Semaphore::new(PLACES), taken: Mutex::default() })
    }

    pub(super) async fn take(self: &Arc<Self>) -> TakenPlace {
        let mut free = pin!(self.free.acquire());
        loop {
            // A timeout polls what it waits for before it checks the clock.
            if let Ok(Ok(free)) = timeout_at(self.next_look(), &mut free).await {
                free.forget();
                return TakenPlace { number: self.note_taken(), places: Arc::clone(self), is_in_use: false };
            }
        }
    }

    fn note_taken(&self) -> u64 {
        let mut taken = self.taken.lock();
        taken.count += 1;
        let number = taken.count;
        taken.places.push(Record { number, until: Instant::now() + LONGEST });
        number
    }

    /// Frees the places whose time is up. Returns when the time of the next one may be.
    fn next_look(&self) -> Instant {
        let (now, mut taken) = (Instant::now(), self.taken.lock());
        let before = taken.places.len();
        taken.places.retain(|place| place.until > now);
        self.free.add_permits(before - taken.places.len());
        // A caller may go meanwhile, and leave its place taken for so long.
        taken.places.iter().map(|place| place.until).fold(now + LINGER, Instant::min)
    }

    fn leave(&self, number: u64, is_in_use: bool) {
        let mut taken = self.taken.lock();
        let Some(index) = taken.places.iter().position(|place| place.number == number) else { return };
        if is_in_use {
            let place = &mut taken.places[index];
            place.until = place.until.min(Instant::now() + LINGER);
        } else {
            taken.places.swap_remove(index);
            self.free.add_permits(1);
        }
    }
}

/// A place that a call has taken, until it is dropped, and for a while longer if the client still has the call then.
pub(super) struct TakenPlace {
    places: Arc<Places>,
    number: u64,
    /// Whether the client has the call.
    is_in_use: bool,
}

impl TakenPlace {
    /// Keeps the place while the client has a call.
    pub(super) async fn during<T>(mut self, call: impl Future<Output = T>) -> T {
        self.is_in_use = true;
        let answer = call.await;
        self.is_in_use = false;
        answer
    }
}

impl Drop for TakenPlace {
    fn drop(&mut self) {
        self.places.leave(self.number, self.is_in_use);
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use tokio::time::{advance, timeout};

    use super::*;

    async fn all(places: &Arc<Places>) -> Vec<TakenPlace> {
        let mut all = all_but_one(places).await;
        all.push(places.take().await);
        all
    }

    async fn all_but_one(places: &Arc<Places>) -> Vec<TakenPlace> {
        let mut taken = Vec::new();
        for _ in 1..PLACES {
            taken.push(places.take().await);
        }
        taken
    }

    /// Whether a place is free after this time at the latest.
    async fn is_free_in(places: &Arc<Places>, time: Duration) -> bool {
        timeout(time, places.take()).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_waits_until_another_one_is_answered() {
        let places = Places::new();
        let mut all = all(&places).await;
        let waiting = tokio::spawn({
            let places = Arc::clone(&places);
            async move { drop(places.take().await) }
        });
        advance(LINGER).await;
        assert!(!waiting.is_finished());
        all.remove(0).during(ready(())).await;
        waiting.await.expect("no panic");
        assert!(is_free_in(&places, Duration::ZERO).await, "it gave its place back");
    }

    #[tokio::test(start_paused = true)]
    async fn a_place_that_no_call_was_sent_from_is_free_at_once() {
        let places = Places::new();
        let mut all = all(&places).await;
        drop(all.pop());
        assert!(is_free_in(&places, Duration::ZERO).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_waits_finds_the_place_of_a_caller_that_goes_meanwhile() {
        let places = Places::new();
        for place in all(&places).await {
            tokio::spawn(timeout(Duration::from_millis(1), place.during(pending::<()>())));
        }
        assert!(is_free_in(&places, 2 * LINGER + Duration::from_millis(2)).await);
    }

    #[tokio::test(start_paused = true)]
    async fn the_place_of_a_call_whose_caller_has_gone_stays_taken_for_a_while() {
        let places = Places::new();
        let mut all = all(&places).await;
        let place = all.remove(0);
        assert!(timeout(Duration::ZERO, place.during(pending::<()>())).await.is_err(), "the caller has gone");
        assert!(!is_free_in(&places, LINGER - Duration::from_millis(1)).await);
        assert!(is_free_in(&places, Duration::from_millis(2)).await);
    }

    /// A task may be stopped without being dropped.
    #[tokio::test(start_paused = true)]
    async fn a_place_is_free_again_when_the_client_itself_has_ended_the_call() {
        let places = Places::new();
        let mut stopped = all(&places).await;
        assert!(!is_free_in(&places, LONGEST - Duration::from_millis(1)).await);
        let others = all(&places).await;
        stopped.clear();
        assert!(!is_free_in(&places, Duration::ZERO).await, "their places are those of others now");
        drop(others);
        drop(all(&places).await);
    }

    #[tokio::test(start_paused = true)]
    async fn callers_that_give_up_waiting_take_no_place() {
        let places = Places::new();
        let all_of_them = all(&places).await;
        for _ in 0..3 {
            assert!(!is_free_in(&places, Duration::from_millis(1)).await);
        }
        drop(all_of_them);
        drop(all(&places).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_goes_shortly_before_the_client_ends_its_call_keeps_the_place_no_longer() {
        let places = Places::new();
        let place = places.take().await;
        advance(LONGEST / 2).await;
        let _others = all_but_one(&places).await;
        let time = LONGEST / 2 - LINGER / 10;
        assert!(timeout(time, place.during(pending::<()>())).await.is_err(), "the caller has gone");
        assert!(!is_free_in(&places, LINGER / 20).await);
        assert!(is_free_in(&places, LINGER / 10).await);
    }
}

//! When the next attempt to reconnect is due, and whether the task that makes the attempts is
//! alive.

use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Shortest time between two attempts.
const PAUSE: Duration = Duration::from_millis(100);
/// Longest time: a server that refused connections is asked within half a second of its return. One
/// that lets them hang is asked after the connect timeout.
const LONGEST_PAUSE: Duration = Duration::from_millis(350);
/// Shortest time between two attempts while requests wait for a connection.
const WANTED_PAUSE: Duration = Duration::from_millis(10);
/// After this time without an attempt, pauses are short again.
const CALM: Duration = Duration::from_secs(2);

/// A task that has not begun by then may never begin, because its runtime may no longer be driven.
const BEGINS: Duration = Duration::from_millis(100);
/// How long the task may take for one step, beyond the time for connecting and for a sign of life.
const STEP: Duration = Duration::from_secs(1);

/// The pauses between attempts. They outlive the task: a server that gives signs of life but fails
/// every decision would otherwise be tried at each of them.
#[derive(Debug)]
pub(crate) struct Pauses {
    shortest: Duration,
    longest: Duration,
    pause: Duration,
    /// When the last attempt began, and when the next one may begin.
    last: Option<(Instant, Instant)>,
}

impl Default for Pauses {
    fn default() -> Self {
        Self::new(PAUSE, LONGEST_PAUSE)
    }
}

impl Pauses {
    /// Pauses that grow up to a length below [`CALM`].
    pub(crate) fn new(shortest: Duration, longest: Duration) -> Self {
        Self {
            shortest,
            longest,
            pause: shortest,
            last: None,
        }
    }

    /// How long to wait before the next attempt.
    pub(crate) fn wait(&self, now: Instant) -> Duration {
        self.last.map_or(Duration::ZERO, |(_, next)| {
            next.saturating_duration_since(now)
        })
    }

    /// How long to wait before the next attempt if a request waits for it.
    pub(crate) fn short_wait(&self, now: Instant) -> Duration {
        self.last.map_or(Duration::ZERO, |(last, _)| {
            (last + WANTED_PAUSE).saturating_duration_since(now)
        })
    }

    /// Notes that an attempt begins. Pauses grow until no attempt was needed for a while. The random
    /// number makes the pause longer or shorter.
    pub(crate) fn begin(&mut self, now: Instant, random: u64) {
        let recently = self
            .last
            .is_some_and(|(last, _)| now.saturating_duration_since(last) < CALM);
        self.pause = if recently {
            (self.pause * 2).min(self.longest)
        } else {
            self.shortest
        };
        self.last = Some((now, now + jittered(self.pause, random)));
    }
}

/// Half of a pause to all of it, so that processes that lost the store together do not come back
/// together.
fn jittered(pause: Duration, random: u64) -> Duration {
    pause * (512 + random as u32 % 512) / 1024
}

pub(crate) fn random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0_u8)
}

/// The task that reconnects. Its runtime may be shut down, or stand still, at any point. Then a
/// request that finds the link broken starts another task in its own runtime, and the earlier task
/// ends when it resumes.
#[derive(Debug)]
pub(super) struct ReconnectTask {
    /// How many tasks were started.
    started: u64,
    /// The latest task that has reported; earlier ones end.
    active: u64,
    task: Option<JoinHandle<()>>,
    /// When the next report of the task is due.
    due: Instant,
}

impl Default for ReconnectTask {
    fn default() -> Self {
        Self {
            started: 0,
            active: 0,
            task: None,
            due: Instant::now(),
        }
    }
}

impl ReconnectTask {
    /// Whether the task makes progress. A task whose runtime was shut down is finished.
    pub(super) fn is_at_work(&self) -> bool {
        self.task.as_ref().is_some_and(|task| !task.is_finished()) && Instant::now() < self.due
    }

    /// Starts the next task and passes its number.
    pub(super) fn start(&mut self, task: impl FnOnce(u64) -> JoinHandle<()>) {
        self.started += 1;
        self.due = Instant::now() + BEGINS;
        self.task = Some(task(self.started));
    }

    /// Each task reports before each of its steps. Returns whether the task should continue.
    pub(super) fn report(&mut self, number: u64, step: Duration) -> bool {
        if number < self.active {
            return false;
        }
        self.active = number;
        self.due = Instant::now() + step + STEP;
        true
    }

    pub(super) fn end(&mut self) {
        self.task = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_until_no_attempt_was_needed_for_a_while() {
        let mut pauses = Pauses::default();
        assert_eq!(pauses.wait(Instant::now()), Duration::ZERO);
        let mut begin = || {
            pauses.begin(Instant::now(), random());
            assert!(
                (pauses.pause / 2..=pauses.pause).contains(&pauses.wait(Instant::now())),
                "{pauses:?}"
            );
            pauses.pause.as_millis()
        };
        assert_eq!([(); 4].map(|()| begin()), [100, 200, 350, 350]);
        tokio::time::advance(CALM).await;
        assert_eq!(begin(), 100);
    }

    #[tokio::test(start_paused = true)]
    async fn processes_that_lost_the_store_together_do_not_come_back_together() {
        let first = || {
            let mut pauses = Pauses::default();
            pauses.begin(Instant::now(), random());
            pauses.wait(Instant::now())
        };
        let waits: std::collections::HashSet<Duration> = (0..100).map(|_| first()).collect();
        assert!(waits.len() > 10, "{waits:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_does_not_report_in_time_is_replaced_and_ends() {
        let mut reconnecting = ReconnectTask::default();
        assert!(!reconnecting.is_at_work(), "none was started");
        let start = |reconnecting: &mut ReconnectTask| {
            let mut number = 0;
            reconnecting.start(|started| {
                number = started;
                tokio::spawn(std::future::pending())
            });
            number
        };
        let first = start(&mut reconnecting);
        assert!(reconnecting.is_at_work());
        tokio::time::advance(BEGINS).await;
        assert!(!reconnecting.is_at_work(), "it never began");
        assert!(reconnecting.report(first, Duration::from_millis(25)) && reconnecting.is_at_work());
        tokio::time::advance(STEP + Duration::from_millis(24)).await;
        assert!(reconnecting.is_at_work());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(!reconnecting.is_at_work(), "its runtime stands still");

        let second = start(&mut reconnecting);
        assert!(
            reconnecting.report(first, Duration::ZERO),
            "the next one has not begun"
        );
        assert!(
            reconnecting.report(second, Duration::ZERO)
                && !reconnecting.report(first, Duration::ZERO)
        );
        reconnecting.end();
        assert!(!reconnecting.is_at_work());
        let third = start(&mut reconnecting);
        assert!(reconnecting.report(third, Duration::ZERO));
        assert!(
            ![first, second]
                .into_iter()
                .any(|earlier| reconnecting.report(earlier, Duration::ZERO))
        );
    }

    /// Its runtime was shut down, or it has ended.
    #[tokio::test(start_paused = true)]
    async fn a_task_that_is_finished_is_replaced_at_once() {
        let mut reconnecting = ReconnectTask::default();
        reconnecting.start(|_| tokio::spawn(std::future::ready(())));
        assert!(reconnecting.is_at_work());
        tokio::task::yield_now().await;
        assert!(!reconnecting.is_at_work());
    }

    /// What an earlier task reported says nothing about the next one.
    #[tokio::test(start_paused = true)]
    async fn task_that_never_begins_is_replaced_soon() {
        let mut reconnecting = ReconnectTask::default();
        reconnecting.start(|_| tokio::spawn(std::future::ready(())));
        assert!(reconnecting.report(1, Duration::from_millis(25)));
        tokio::task::yield_now().await;
        reconnecting.start(|_| tokio::spawn(std::future::pending()));
        tokio::time::advance(BEGINS - Duration::from_millis(1)).await;
        assert!(reconnecting.is_at_work());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(!reconnecting.is_at_work());
    }
}

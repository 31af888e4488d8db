//! Decides whether the store or this process is late when the answer to a sent command is missing.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout, timeout_at};

use super::connection::{ConnectionFuture, Fault, FaultKind, Reply};

/// How often the process looks for an answer within a deadline.
const LOOKS: u32 = 5;

/// How many more looks are allowed if one of them came late. Late looks count only after `PATIENCE`
/// has run out.
const MORE_LOOKS: u32 = 15;

/// The time between looks after the deadline: one turn of the runtime to its sockets and its tasks.
const TURN: Duration = Duration::from_millis(1);

/// Deadlines after which the command counts as late although the process stays busy, or although
/// the store answers other commands.
pub(super) const PATIENCE: u32 = 4;

/// A look that comes later than planned by more than this shows that the process is busy. Timers
/// are up to 1 ms late.
const LAG: Duration = Duration::from_millis(2);

/// This many tasks that no worker has started yet also show a busy process: the connection's task
/// may be among them.
const CROWD: usize = 64;

/// A look that comes early by less than this counts, because a caller's own deadline ends just
/// before it.
pub(super) const EARLY: Duration = Duration::from_millis(1);

/// A deadline that is over once the answer has been looked for often enough.
///
/// A process with thousands of tasks to run reads its sockets late. An answer that arrived in time
/// is still unread then, and a plain timer would blame the store. Each look is one turn of the
/// runtime, in which it could have read the answer.
#[derive(Debug)]
struct Looks {
    began: Instant,
    deadline: Duration,
    due: Instant,
    left: u32,
    lagged: bool,
}

impl Looks {
    fn begin(began: Instant, deadline: Duration) -> Self {
        Self {
            began,
            deadline,
            due: began + deadline / LOOKS,
            left: LOOKS,
            lagged: false,
        }
    }

    fn patience(&self) -> Instant {
        self.began + PATIENCE * self.deadline
    }

    fn is_late(&self, now: Instant) -> bool {
        now > self.due + LAG || Handle::current().metrics().global_queue_depth() > CROWD
    }

    fn look_in_vain(&mut self, now: Instant) {
        if now + EARLY < self.due {
            return;
        }
        let late = self.is_late(now);
        if late && !self.lagged {
            self.lagged = true;
            self.left += MORE_LOOKS;
        } else if !late || now >= self.patience() {
            self.left = self.left.saturating_sub(1);
        }
        let step = self.deadline / LOOKS;
        let planned = (self.due + step).min(self.began + self.deadline);
        self.due = planned.max(now + TURN.min(step));
    }
}

type CommandAnswer = Result<Reply, Fault>;

/// The answer to a command that comes after its caller's deadline, if there was such a command.
pub(crate) type LateAnswer = Mutex<Option<oneshot::Receiver<CommandAnswer>>>;

/// A command that was sent and has no answer yet.
pub(crate) struct SentCommand {
    answer: ConnectionFuture<Reply>,
    looks: Looks,
}

/// The outcome of a command whose caller stopped waiting.
pub(super) enum Verdict {
    Answered(Result<Reply, Fault>),
    /// The answer was late, and it is not certain that the store was the cause.
    Undecided,
    /// The store did not answer within the deadline.
    Late,
}

impl SentCommand {
    /// The store's deadline begins `now`. Nothing is sent before the first wait for the answer.
    pub(super) fn new(answer: ConnectionFuture<Reply>, now: Instant, deadline: Duration) -> Self {
        Self {
            answer,
            looks: Looks::begin(now, deadline),
        }
    }

    /// Returns the answer if it arrives before `until`.
    pub(super) async fn answer_by(&mut self, until: Instant) -> Option<Result<Reply, Fault>> {
        loop {
            // A timeout polls the answer before it checks the clock.
            if let Ok(answer) = timeout_at(self.looks.due.min(until), &mut self.answer).await {
                return Some(answer);
            }
            let now = Instant::now();
            self.looks.look_in_vain(now);
            if now >= until {
                return None;
            }
        }
    }

    /// Returns the command and a second receiver of its answer, which comes within `patience`.
    pub(super) fn forward(self, patience: Duration) -> (Self, oneshot::Receiver<CommandAnswer>) {
        let Self { answer, looks } = self;
        let (sender, watched) = oneshot::channel();
        let (late_sender, late) = oneshot::channel();
        tokio::spawn(async move {
            if let Ok(answer) = timeout(patience, answer).await {
                let _ = late_sender.send(answer.clone());
                let _ = sender.send(answer);
            }
        });
        let lost = |_| Err(Fault::new(FaultKind::Lost, "its answer is not waited for"));
        let answer = Box::pin(async move { watched.await.unwrap_or_else(lost) });
        (Self { answer, looks }, late)
    }

    /// Whether the store has had its full deadline.
    pub(super) fn is_overdue(&self) -> bool {
        self.looks.left == 0
    }

    /// When the command was sent.
    pub(super) fn sent(&self) -> Instant {
        self.looks.began
    }

    /// Waits as long as the store has time to answer. A store that has answered other commands
    /// meanwhile is alive, and the answer itself will show whether it is slow.
    pub(super) async fn verdict(mut self, answers_others: impl Fn() -> bool) -> Verdict {
        while !self.is_overdue() || (answers_others() && Instant::now() < self.looks.patience()) {
            match timeout_at(self.looks.due, &mut self.answer).await {
                Ok(answer) if self.looks.began.elapsed() <= self.looks.deadline => {
                    return Verdict::Answered(answer);
                }
                // The look that found the answer may itself have been late.
                Ok(_) if self.looks.lagged || self.looks.is_late(Instant::now()) => {
                    return Verdict::Undecided;
                }
                Ok(_) => return Verdict::Late,
                Err(_) => self.looks.look_in_vain(Instant::now()),
            }
        }
        Verdict::Late
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;

    use super::*;

    const DEADLINE: Duration = Duration::from_millis(25);

    async fn verdict_of(
        answer_after: Duration,
        busy: impl Future<Output = ()> + Send + 'static,
    ) -> Verdict {
        let answer: ConnectionFuture<Reply> = Box::pin(async move {
            tokio::time::sleep(answer_after).await;
            Ok(Reply::Nil)
        });
        let mut underway = SentCommand::new(answer, Instant::now(), DEADLINE);
        tokio::spawn(busy);
        match underway.answer_by(Instant::now() + DEADLINE).await {
            Some(answer) => Verdict::Answered(answer),
            None => underway.verdict(|| false).await,
        }
    }

    /// Holds the test's clock still, and then moves it forward by `by`, as if no task had run
    /// meanwhile.
    async fn stall(after: Duration, by: Duration) {
        tokio::time::sleep(after).await;
        tokio::time::advance(by).await;
    }

    #[tokio::test(start_paused = true)]
    async fn law_13_an_answer_after_the_deadline_is_the_stores_fault() {
        for after in [26, 30, 1_000] {
            let verdict = verdict_of(Duration::from_millis(after), std::future::ready(())).await;
            assert!(
                matches!(verdict, Verdict::Late),
                "answered after {after} ms"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn law_13_answer_that_a_stalled_process_reads_late_is_no_fault() {
        let stall = stall(Duration::from_millis(2), Duration::from_millis(60));
        let verdict = verdict_of(Duration::from_millis(65), stall).await;
        assert!(matches!(verdict, Verdict::Undecided));
    }

    #[tokio::test(start_paused = true)]
    async fn law_13_a_store_that_never_answers_fails_a_stalled_process_too() {
        let began = Instant::now();
        let stall = stall(Duration::from_millis(2), Duration::from_millis(60));
        let verdict = verdict_of(Duration::from_secs(3_600), stall).await;
        assert!(matches!(verdict, Verdict::Late));
        assert!(
            began.elapsed() < Duration::from_millis(60) + 2 * DEADLINE,
            "{:?}",
            began.elapsed()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn law_13_a_stall_of_many_deadlines_leaves_time_to_read_the_answer() {
        let stall = stall(Duration::from_millis(2), Duration::from_millis(500));
        let verdict = verdict_of(Duration::from_millis(510), stall).await;
        assert!(matches!(verdict, Verdict::Undecided));
    }

    #[tokio::test(start_paused = true)]
    async fn law_13_a_store_that_answers_other_commands_may_be_late_for_a_while() {
        let verdict = async |answer_after| {
            let answer: ConnectionFuture<Reply> = Box::pin(async move {
                tokio::time::sleep(Duration::from_millis(answer_after)).await;
                Ok(Reply::Nil)
            });
            let mut underway = SentCommand::new(answer, Instant::now(), DEADLINE);
            tokio::spawn(stall(Duration::from_millis(2), Duration::from_millis(30)));
            assert!(
                underway
                    .answer_by(Instant::now() + DEADLINE)
                    .await
                    .is_none()
            );
            underway.verdict(|| true).await
        };
        assert!(matches!(verdict(90).await, Verdict::Undecided));
        assert!(matches!(verdict(110).await, Verdict::Late));
    }

    #[tokio::test(start_paused = true)]
    async fn law_13_a_command_that_was_sent_late_has_a_whole_deadline() {
        let answer: ConnectionFuture<Reply> = Box::pin(async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            Ok(Reply::Nil)
        });
        let mut underway = SentCommand::new(answer, Instant::now(), DEADLINE);
        let until = Instant::now() + Duration::from_millis(3);
        assert!(underway.answer_by(until).await.is_none() && !underway.is_overdue());
        assert!(matches!(
            underway.verdict(|| false).await,
            Verdict::Answered(Ok(Reply::Nil))
        ));
    }

    #[tokio::test(start_paused = true)]
    async fn law_13_slow_answer_of_a_store_that_answers_others_counts_on_arrival() {
        for (after, judged) in [(40, 40), (99, 99), (3_600_000, 100)] {
            let began = Instant::now();
            let answer: ConnectionFuture<Reply> = Box::pin(async move {
                tokio::time::sleep(Duration::from_millis(after)).await;
                Ok(Reply::Nil)
            });
            let mut underway = SentCommand::new(answer, began, DEADLINE);
            assert!(underway.answer_by(began + DEADLINE).await.is_none() && underway.is_overdue());
            assert!(
                matches!(underway.verdict(|| true).await, Verdict::Late),
                "answered after {after} ms"
            );
            assert!(
                (judged..judged + 3).contains(&(began.elapsed().as_millis() as u64)),
                "{:?}",
                began.elapsed()
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn law_13_a_look_just_before_its_time_counts_and_an_earlier_one_does_not() {
        for (before, counts) in [
            (Duration::from_micros(900), true),
            (Duration::from_micros(1_100), false),
        ] {
            let mut looks = Looks::begin(Instant::now(), DEADLINE);
            let due = looks.due;
            looks.look_in_vain(due - before);
            assert_eq!(
                (looks.left < LOOKS, looks.due > due),
                (counts, counts),
                "{before:?} before its time"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn law_13_late_looks_count_once_patience_has_run_out() {
        let began = Instant::now();
        let mut looks = Looks::begin(began, DEADLINE);
        let late = LAG + Duration::from_micros(1);
        looks.look_in_vain(looks.due + late);
        assert_eq!(
            (looks.left, looks.due),
            (LOOKS + MORE_LOOKS, began + 2 * DEADLINE / LOOKS)
        );
        for _ in 0..100 {
            looks.look_in_vain(looks.due + late);
            assert_eq!(looks.left, LOOKS + MORE_LOOKS, "the process is busy");
            if looks.due + late >= looks.patience() {
                break;
            }
        }
        for left in (0..LOOKS + MORE_LOOKS).rev() {
            let now = looks.due + late;
            looks.look_in_vain(now);
            assert_eq!(
                (looks.left, looks.due),
                (left, now + TURN),
                "the store has had its time"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn law_13_looks_in_time_count_until_the_deadline() {
        let began = Instant::now();
        let mut looks = Looks::begin(began, DEADLINE);
        for look in 1..=LOOKS {
            assert_eq!(looks.due, began + look * DEADLINE / LOOKS);
            looks.look_in_vain(looks.due + LAG);
            assert_eq!(looks.left, LOOKS - look);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn law_13_a_crowd_of_tasks_that_wait_for_a_worker_shows_a_busy_process() {
        let (looks, runtime) = (Looks::begin(Instant::now(), DEADLINE), Handle::current());
        let spawn = move |count: usize| {
            let runtime = runtime.clone();
            // A thread outside of the runtime leaves its tasks in the common queue.
            std::thread::spawn(move || {
                (0..count).for_each(|_| drop(runtime.spawn(std::future::ready(()))));
            })
        };
        spawn(CROWD).join().expect("no panic");
        assert!(!looks.is_late(Instant::now()));
        spawn(1).join().expect("no panic");
        assert!(looks.is_late(Instant::now()));
    }
}

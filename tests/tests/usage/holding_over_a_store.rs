//! Requests that are held over a store: when it is asked, and what its late answers do to the
//! requests behind.

use std::collections::VecDeque;
use std::future::{Future, Ready};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use http::{Request, StatusCode};
use throttle_core::backend::{Call, ExceptedKey, KeyStep, Receipt};
use throttle_core::{Backend, BackendError, Clock, Decision, MemorySet, PolicySet, Timestamp};
use throttle_tower::limit::IntoLimitTree;
use throttle_tower::shape::TokioClock;
use throttle_tower::{
    ConfigError, Constant, Gcra, InFlight, Limit, MemoryBackend, Rate, Throttle, ThrottleLayer,
    all, limit,
};
use tokio::time::{Instant, sleep, sleep_until};
use tower::{Layer, ServiceExt};

use crate::holding::{Hello, MS, poll};

/// A store that counts its questions. It decides each at once, and its answer takes some time to
/// come back.
#[derive(Clone)]
pub(crate) struct Distant {
    memory: MemoryBackend<SteppingClock>,
    clock: SteppingClock,
    /// Whether the store's clock can be read here.
    tells_time: bool,
    questions: Arc<AtomicUsize>,
    /// The decisions that have admitted a request.
    admitted: Arc<AtomicUsize>,
    /// How long the next answers take, in the order of the questions; later ones take a round trip.
    takes: Arc<Mutex<VecDeque<Duration>>>,
    round_trip: Duration,
    /// The store is not asked more often.
    most: usize,
}

/// A clock that may have stepped back.
#[derive(Clone)]
struct SteppingClock {
    tokio: TokioClock,
    /// µs.
    back: Arc<AtomicU64>,
}

impl Clock for SteppingClock {
    fn now(&self) -> Timestamp {
        let back = i64::try_from(self.back.load(Ordering::SeqCst)).unwrap();
        Timestamp::from_micros(self.tokio.now().as_micros() - back)
    }
}

impl Distant {
    /// A store that tells its time and may be asked without end.
    pub(crate) fn at(round_trip: Duration) -> Self {
        Self {
            round_trip,
            most: usize::MAX,
            ..Self::new(true)
        }
    }

    pub(crate) fn admitted(&self) -> usize {
        self.admitted.load(Ordering::SeqCst)
    }

    fn new(tells_time: bool) -> Self {
        let clock = SteppingClock {
            tokio: TokioClock::new(),
            back: Arc::default(),
        };
        let memory = MemoryBackend::builder().clock(clock.clone()).build();
        let (questions, admitted, takes) = Default::default();
        Self {
            memory,
            clock,
            tells_time,
            questions,
            admitted,
            takes,
            round_trip: Duration::ZERO,
            most: 1_000,
        }
    }

    fn questions(&self) -> usize {
        self.questions.load(Ordering::SeqCst)
    }

    fn next_answers_take(&self, takes: impl IntoIterator<Item = Duration>) {
        self.takes.lock().unwrap().extend(takes);
    }

    fn answer(&self, decision: Decision) -> <Self as Backend>::Decide {
        let questions = self.questions.fetch_add(1, Ordering::SeqCst);
        assert!(questions < self.most, "the store is asked without end");
        self.admitted
            .fetch_add(usize::from(decision.is_admitted()), Ordering::SeqCst);
        let takes = self
            .takes
            .lock()
            .unwrap()
            .pop_front()
            .unwrap_or(self.round_trip);
        Box::pin(async move {
            if !takes.is_zero() {
                sleep(takes).await;
            }
            Ok(decision)
        })
    }
}

impl Backend for Distant {
    type Prepared = MemorySet;
    type Decide = Pin<Box<dyn Future<Output = Result<Decision, BackendError>> + Send>>;
    type Done = Ready<Result<(), BackendError>>;

    fn prepare(&self, set: PolicySet) -> Result<MemorySet, ConfigError> {
        self.memory.prepare(set)
    }

    fn set(prepared: &MemorySet) -> &PolicySet {
        MemoryBackend::<SteppingClock>::set(prepared)
    }

    fn decide(&self, prepared: &Arc<MemorySet>, calls: &[Call]) -> Self::Decide {
        self.answer(self.memory.decide_now(prepared, calls))
    }

    fn now(&self, _: &Arc<MemorySet>, _: &[Call]) -> Option<Timestamp> {
        self.tells_time.then(|| self.clock.now())
    }

    fn decide_as_of(
        &self,
        prepared: &Arc<MemorySet>,
        calls: &[Call],
        at: Timestamp,
    ) -> Self::Decide {
        self.answer(
            self.memory
                .decide_as_of(prepared, calls, at)
                .into_inner()
                .unwrap(),
        )
    }

    fn settle(&self, prepared: &Arc<MemorySet>, receipt: Receipt) -> Self::Done {
        self.memory.settle(prepared, receipt)
    }

    fn run(
        &self,
        prepared: &Arc<MemorySet>,
        policy: usize,
        step: KeyStep,
    ) -> throttle_core::backend::Answer<Vec<ExceptedKey>> {
        self.memory.run(prepared, policy, step)
    }

    fn reset_all(&self, prefix: &str) -> Self::Done {
        self.memory.reset_all(prefix)
    }

    fn can_fail(&self) -> bool {
        false
    }
}

/// A service over such a store.
struct Site {
    store: Distant,
    service: Throttle<Hello, Distant>,
    start: Instant,
}

#[derive(Debug)]
struct Answer {
    status: StatusCode,
    /// The header, in seconds.
    retry_after: Option<u64>,
    /// Since the start.
    at: Duration,
}

type Sending = Pin<Box<dyn Future<Output = Answer> + Send>>;

impl Site {
    fn new(tells_time: bool, limits: impl IntoLimitTree) -> Self {
        let store = Distant::new(tells_time);
        let service = ThrottleLayer::builder(limits)
            .backend(store.clone())
            .build()
            .unwrap()
            .layer(Hello);
        Self {
            store,
            service,
            start: Instant::now(),
        }
    }

    fn send(&self) -> Sending {
        let (response, start) = (self.service.clone().oneshot(Request::new(())), self.start);
        Box::pin(async move {
            let response = response.await.unwrap();
            let retry_after = response
                .headers()
                .get("retry-after")
                .map(|value| value.to_str().unwrap());
            let retry_after = retry_after.map(|seconds| seconds.parse().unwrap());
            Answer {
                status: response.status(),
                retry_after,
                at: start.elapsed(),
            }
        })
    }

    /// A request that is held, or whose answer is under way.
    fn held(&self) -> Sending {
        let mut sending = self.send();
        assert!(poll(&mut sending).is_pending());
        sending
    }

    async fn admit(&self) {
        assert_eq!(self.send().await.status, StatusCode::OK);
    }
}

/// One each such period.
fn one_each(period: Duration, longest: Duration) -> Limit {
    limit("held", Gcra::new(Rate::new(1, period)).burst(1))
        .by(Constant)
        .wait_up_to(longest)
}

fn about(at: Duration, expected: Duration) -> bool {
    (expected..=expected + 3 * MS).contains(&at)
}

/// The first asks before it queues and when it is due. Where the time is known, each of the others
/// is only asked about when it is due; otherwise also when it becomes the first.
#[tokio::test(start_paused = true)]
async fn store_that_has_a_known_clock_is_asked_once_for_each_queued_request() {
    for (tells_time, questions) in [(true, 1 + 2 + 4), (false, 1 + 2 + 4 * 2)] {
        let site = Site::new(tells_time, one_each(100 * MS, 10_000 * MS));
        site.admit().await;
        let held: Vec<_> = (0..5).map(|_| site.held()).collect();
        for (number, held) in (1..).zip(held) {
            let answer = held.await;
            assert_eq!(answer.status, StatusCode::OK);
            assert!(about(answer.at, number * 100 * MS), "{number}: {answer:?}");
        }
        assert_eq!(site.store.questions(), questions, "{tells_time}");
    }
}

/// The first one's answer comes after the second one's longest wait.
#[tokio::test(start_paused = true)]
async fn law_15_request_behind_a_slow_answer_is_admitted_at_its_own_turn() {
    for tells_time in [true, false] {
        let site = Site::new(tells_time, one_each(100 * MS, 210 * MS));
        site.admit().await;
        let (first, second) = (site.held(), site.held());
        site.store.next_answers_take([130 * MS]);
        let (first, second) = tokio::join!(first, second);
        assert!(
            first.status == StatusCode::OK && about(first.at, 230 * MS),
            "{first:?}"
        );
        assert!(
            second.status == StatusCode::OK && about(second.at, 200 * MS),
            "{tells_time}: {second:?}"
        );
    }
}

/// Timers and round trips make each turn 2 ms late, until that is measured.
#[tokio::test(start_paused = true)]
async fn charge_queue_is_shorter_where_the_store_does_not_tell_its_time() {
    for (tells_time, longest, admitted) in [
        (true, 1_000, 10),
        (false, 1_000, 9),
        (false, 10_199, 99),
        (false, 10_200, 100),
    ] {
        let site = Site::new(tells_time, one_each(100 * MS, longest * MS));
        site.admit().await;
        let mut sent: Vec<_> = (0..120).map(|_| site.send()).collect();
        let held = sent.iter_mut().map(poll).filter(Poll::is_pending).count();
        assert_eq!(held, admitted, "{tells_time}, {longest} ms");
    }
}

/// One answer is 20 ms late, and a single quick one does not make the next one quick.
#[tokio::test(start_paused = true)]
async fn charge_queue_is_shorter_by_the_lateness_of_the_turns_before() {
    let site = Site::new(false, one_each(100 * MS, 5_000 * MS));
    site.admit().await;
    let held: Vec<_> = (0..4).map(|_| site.held()).collect();
    held.into_iter().for_each(|held| _ = tokio::spawn(held));
    site.store.next_answers_take([20 * MS]);
    for (at, queued, longest) in [(130, 3, 41), (250, 2, 42)] {
        sleep_until(site.start + at * MS).await;
        let mut sent: Vec<_> = (0..100).map(|_| site.send()).collect();
        let joined = sent.iter_mut().map(poll).filter(Poll::is_pending).count();
        assert_eq!(queued + joined, longest, "after {at} ms");
    }
}

/// Its bound counts from its arrival, and not from the answer after which it would join the queue.
#[tokio::test(start_paused = true)]
async fn charge_request_that_learns_late_of_a_long_queue_is_refused_at_once() {
    let site = Site::new(true, one_each(100 * MS, 250 * MS));
    site.admit().await;
    site.store.next_answers_take([60 * MS]);
    let (late, _first, _second) = (site.held(), site.held(), site.held());
    let late = late.await;
    assert_eq!(late.status, StatusCode::TOO_MANY_REQUESTS);
    assert!(about(late.at, 60 * MS), "{late:?}");
}

/// Another layer takes the turn of the first request, and the store's answer about its next turn is
/// late. The `Retry-After` of the second request does not count that request's own place in the
/// queue.
#[tokio::test(start_paused = true)]
async fn charge_retry_after_of_a_queued_request_does_not_count_itself() {
    let site = Site::new(false, one_each(1_000 * MS, 2_020 * MS));
    let other =
        ThrottleLayer::builder(limit("held", Gcra::new(Rate::per_second(1)).burst(1)).by(Constant))
            .backend(site.store.memory.clone())
            .build()
            .unwrap()
            .layer(Hello);
    site.admit().await;
    site.store
        .next_answers_take([10, 0, 0, 500].map(|ms| ms * MS));
    let second = tokio::spawn(site.held());
    let mut first = site.held();
    sleep(1_003 * MS).await;
    assert_eq!(
        other.oneshot(Request::new(())).await.unwrap().status(),
        StatusCode::OK
    );
    assert!(poll(&mut first).is_pending(), "its turn is taken");
    let (first, second) = tokio::join!(first, second);
    let second = second.unwrap();
    assert_eq!(
        (first.status, second.status),
        (StatusCode::OK, StatusCode::TOO_MANY_REQUESTS)
    );
    assert!(
        about(second.at, 2_020 * MS),
        "before the answer about the first one: {second:?}"
    );
    assert_eq!(
        second.retry_after,
        Some(1),
        "one turn after the first one's"
    );
}

/// Sets of fewer limits would have queues of their own.
#[tokio::test(start_paused = true)]
async fn charge_requests_queue_together_whatever_other_limits_apply_to_them() {
    let other = limit("other", Gcra::new(Rate::per_second(9)))
        .by(Constant)
        .when(|parts| parts.uri.path() == "/other");
    let site = Site::new(true, all((one_each(100 * MS, 250 * MS), other)));
    site.admit().await;
    let _held = [site.held(), site.held()];
    let other = Request::get("/other").body(()).unwrap();
    let Poll::Ready(third) = poll(&mut Box::pin(site.service.clone().oneshot(other))) else {
        panic!("it is held")
    };
    assert_eq!(third.unwrap().status(), StatusCode::TOO_MANY_REQUESTS);
}

/// Law 7: a queued request is not decided as of an instant that the store's clock has not reached
/// again.
#[tokio::test(start_paused = true)]
async fn law_07_charge_queued_request_is_admitted_after_a_step_back() {
    let site = Site::new(true, one_each(100 * MS, 1_000 * MS));
    site.admit().await;
    let held = site.held();
    site.store.clock.back.store(30_000, Ordering::SeqCst);
    let held = held.await;
    assert!(
        held.status == StatusCode::OK && about(held.at, 130 * MS),
        "{held:?}"
    );
    assert_eq!(site.store.questions(), 1 + 3);
}

/// A request that is not limited takes the last permit meanwhile.
#[tokio::test(start_paused = true)]
async fn store_is_not_asked_about_a_queued_request_that_finds_no_permit() {
    let limited = one_each(100 * MS, 1_000 * MS).when(|parts| parts.uri.path() != "/free");
    let site = Site::new(
        true,
        all((limited, limit("in-flight", InFlight::new(1)).by(Constant))),
    );
    site.admit().await;
    let held = site.held();
    let free = Request::get("/free").body(()).unwrap();
    let free = site.service.clone().oneshot(free).await.unwrap();
    let held = held.await;
    assert_eq!(
        (free.status(), held.status),
        (StatusCode::OK, StatusCode::SERVICE_UNAVAILABLE)
    );
    assert_eq!(site.store.questions(), 1 + 1, "as it was before it queued");
}

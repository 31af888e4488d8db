//! How long a request waits for a store that hangs, on a clock that advances only by waits.

use std::future::{Future, pending, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::StatusCode;
use throttle_core::backend::{Call, ExceptedKey, KeyStep, Receipt};
use throttle_core::{Backend, BackendError, BackendErrorKind};
use throttle_core::{MemorySet, PolicySet};
use throttle_tower::limit::IntoLimitTree;
use throttle_tower::{ConfigError, Decision, OnError, ThrottleLayer, all, limit};
use tokio::time::Instant;
use tower::{Layer, ServiceExt};

use crate::common::{Memory, Strict, get, memory, shared};

/// The longest time of each question to the store.
const DEADLINE: Duration = Duration::from_millis(25);
/// The longest time for which a request may be held.
const LONGEST: Duration = Duration::from_secs(70);

type Step<T> = Pin<Box<dyn Future<Output = Result<T, BackendError>> + Send>>;

/// A store that answers a number of questions, and then hangs: each question until the deadline,
/// and settlements for ever.
#[derive(Clone)]
struct Hanging {
    memory: Memory,
    answers: Arc<AtomicUsize>,
    questions: Arc<AtomicUsize>,
}

impl Hanging {
    fn new(answers: usize) -> Self {
        Self {
            memory: memory(),
            answers: Arc::new(answers.into()),
            questions: Arc::default(),
        }
    }

    fn answer(&self, questions: usize) {
        self.answers.store(questions, Ordering::SeqCst);
    }

    fn questions(&self) -> usize {
        self.questions.load(Ordering::SeqCst)
    }
}

impl Backend for Hanging {
    type Prepared = MemorySet;
    type Decide = Step<Decision>;
    type Done = Step<()>;

    fn prepare(&self, set: PolicySet) -> Result<MemorySet, ConfigError> {
        self.memory.prepare(set)
    }

    fn set(prepared: &MemorySet) -> &PolicySet {
        Memory::set(prepared)
    }

    fn decide(&self, prepared: &Arc<MemorySet>, calls: &[Call]) -> Step<Decision> {
        self.questions.fetch_add(1, Ordering::SeqCst);
        let left = self.answers.load(Ordering::SeqCst);
        self.answer(left.saturating_sub(1));
        if left == 0 {
            return Box::pin(async {
                tokio::time::sleep(DEADLINE).await;
                Err(BackendError::new(BackendErrorKind::Timeout))
            });
        }
        Box::pin(ready(Ok(self.memory.decide_now(prepared, calls))))
    }

    fn settle(&self, prepared: &Arc<MemorySet>, receipt: Receipt) -> Step<()> {
        if self.answers.load(Ordering::SeqCst) == 0 {
            return Box::pin(pending());
        }
        Box::pin(self.memory.settle(prepared, receipt))
    }

    fn run(&self, _: &Arc<MemorySet>, _: usize, _: KeyStep) -> Step<Vec<ExceptedKey>> {
        unreachable!("a layer resets nothing")
    }

    fn reset_all(&self, _: &str) -> Step<()> {
        unreachable!("a layer resets nothing")
    }
}

fn layer(backend: &Hanging, rule: OnError, limits: impl IntoLimitTree) -> ThrottleLayer<Hanging> {
    ThrottleLayer::builder(limits)
        .on_error(rule)
        .local_store(&memory())
        .backend(backend.clone())
        .max_waiting(2)
        .build()
        .unwrap()
}

/// The status of a request, and the time that it waited.
async fn timed(layer: &ThrottleLayer<Hanging>) -> (StatusCode, Duration) {
    let start = Instant::now();
    let response = layer.layer(Strict::default()).oneshot(get()).await.unwrap();
    (response.status(), start.elapsed())
}

/// Tokio's timers are exact to the millisecond.
fn assert_within(waited: Duration, most: Duration) {
    assert!(
        waited <= most + Duration::from_millis(5),
        "{waited:?}, at most {most:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn law_12_request_waits_one_deadline_for_a_store_that_hangs() {
    for (rule, status) in [
        (OnError::Open, StatusCode::OK),
        (OnError::local(1), StatusCode::OK),
        (OnError::Closed, StatusCode::SERVICE_UNAVAILABLE),
    ] {
        let backend = Hanging::new(0);
        for limits in [
            all([shared("a", 5), shared("b", 5)]),
            all([
                shared("a", 5).refund_aborted(),
                shared("b", 5).refund_if(limit::successful),
            ]),
            all([
                shared("a", 5).charge_refused(),
                shared("b", 5).settled_later(),
            ]),
            all([shared("a", 5).wait_up_to(LONGEST), shared("b", 5)]),
        ] {
            let before = backend.questions();
            let (answered, waited) = timed(&layer(&backend, rule, limits)).await;
            assert_eq!(
                (answered, backend.questions() - before),
                (status, 1),
                "{rule:?}"
            );
            assert_within(waited, DEADLINE);
        }
    }
}

/// Work that follows a decision runs behind the response, however long it takes.
#[tokio::test(start_paused = true)]
async fn law_12_no_response_waits_for_what_follows_on_its_decision() {
    let backend = Hanging::new(0);
    let limits = all([
        shared("refunded", 9).refund_if(limit::successful),
        shared("settled", 9).cost(2).settled_later(),
        shared("tried", 9).charge_refused(),
        shared("tight", 1),
    ]);
    let layer = layer(&backend, OnError::Closed, limits);
    for (status, pending) in [(StatusCode::OK, 1), (StatusCode::TOO_MANY_REQUESTS, 2)] {
        // The decision is answered. The refund, and the charge of the refused attempt, are not.
        backend.answer(1);
        assert_eq!(timed(&layer).await, (status, Duration::ZERO));
        assert_eq!(layer.settlements().pending, pending);
    }
}

/// A held request waits for its turn, and then for one more question.
#[tokio::test(start_paused = true)]
async fn law_12_held_request_waits_no_longer_than_its_limit_and_one_deadline() {
    let backend = Hanging::new(usize::MAX);
    let layer = layer(
        &backend,
        OnError::Closed,
        shared("p", 1).wait_up_to(LONGEST),
    );
    assert_eq!(timed(&layer).await.0, StatusCode::OK);
    // One request is held until there is room, another is queued behind it; the store hangs when
    // their turn comes.
    let held = [0, 1].map(|_| {
        let layer = layer.clone();
        tokio::spawn(async move { timed(&layer).await })
    });
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    backend.answer(0);
    // A full queue causes no wait either: the new request is refused after a peek, which takes one
    // deadline.
    assert_within(timed(&layer).await.1, DEADLINE);
    for request in held {
        let (status, waited) = request.await.unwrap();
        assert_ne!(status, StatusCode::OK);
        assert_within(waited, LONGEST + DEADLINE);
    }
}

/// If the store's queue is full, it answers at once, and so does the layer.
#[tokio::test(start_paused = true)]
async fn law_12_saturated_store_costs_no_wait() {
    for (rule, status) in [
        (OnError::Open, StatusCode::OK),
        (OnError::local(1), StatusCode::OK),
        (OnError::Closed, StatusCode::SERVICE_UNAVAILABLE),
    ] {
        let layer = ThrottleLayer::builder(shared("p", 5).wait_up_to(LONGEST))
            .on_error(rule)
            .backend(crate::common::Remote::failing(BackendErrorKind::Saturated))
            .build()
            .unwrap();
        let start = Instant::now();
        let response = layer.layer(Strict::default()).oneshot(get()).await.unwrap();
        assert_eq!(
            (response.status(), start.elapsed()),
            (status, Duration::ZERO),
            "{rule:?}"
        );
    }
}

//! Services that record their calls, and stores that are slow.

use std::convert::Infallible;
use std::future::{Future, Ready, ready};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use throttle_core::backend::{Call, ExceptedKey, KeyStep, Receipt};
use throttle_core::{
    Backend, BackendError, BackendErrorKind, Decision, MemorySet, PolicySet, Timestamp,
};
use throttle_tower::shape::{Shaper, ShaperBuilder, TokioClock};
use throttle_tower::{ConfigError, Key, MemoryBackend, OnError, Pace, Rate, ShapeLayer};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tower::Service;

pub(crate) const MS: Duration = Duration::from_millis(1);

/// Exactly ten a second, with a longest wait in milliseconds.
pub(crate) fn ten(max_wait_ms: u64) -> ShaperBuilder {
    Shaper::builder(Pace::new(Rate::per_second(10)).max_wait(Duration::from_millis(max_wait_ms)))
        .headroom(Duration::ZERO)
}

/// The numbers of the calls to the service, with the time of each since it was created.
#[derive(Clone)]
pub(crate) struct Notes {
    start: Instant,
    calls: Arc<Mutex<Vec<(u64, Duration)>>>,
}

impl Notes {
    pub(crate) fn new() -> Self {
        Self {
            start: Instant::now(),
            calls: Arc::default(),
        }
    }

    pub(crate) fn calls(&self) -> Vec<(u64, Duration)> {
        self.calls.lock().unwrap().clone()
    }

    pub(crate) fn order(&self) -> Vec<u64> {
        self.calls().into_iter().map(|(call, _)| call).collect()
    }

    pub(crate) fn times(&self) -> Vec<Duration> {
        self.calls().into_iter().map(|(_, at)| at).collect()
    }
}

impl Service<u64> for Notes {
    type Response = u64;
    type Error = Infallible;
    type Future = Ready<Result<u64, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, call: u64) -> Self::Future {
        self.calls
            .lock()
            .unwrap()
            .push((call, self.start.elapsed()));
        ready(Ok(call))
    }
}

/// A store that takes one round trip, and may fail.
#[derive(Clone)]
pub(crate) struct Remote {
    pub(crate) memory: MemoryBackend<TokioClock>,
    pub(crate) trip: Duration,
    pub(crate) fails: Arc<AtomicBool>,
    pub(crate) busy: Arc<AtomicBool>,
    /// Decides without a round trip.
    pub(crate) at_once: bool,
    pub(crate) decisions: Arc<AtomicUsize>,
    pub(crate) settled: Arc<AtomicUsize>,
}

impl Remote {
    pub(crate) fn new(trip: Duration) -> Self {
        let memory = MemoryBackend::builder().clock(TokioClock::new()).build();
        Self {
            memory,
            trip,
            fails: Arc::default(),
            busy: Arc::default(),
            at_once: false,
            decisions: Arc::default(),
            settled: Arc::default(),
        }
    }

    pub(crate) fn fail(&self, fails: bool) {
        self.fails.store(fails, Ordering::SeqCst);
    }

    pub(crate) fn decisions(&self) -> usize {
        self.decisions.load(Ordering::SeqCst)
    }

    pub(crate) fn settled(&self) -> usize {
        self.settled.load(Ordering::SeqCst)
    }

    pub(crate) fn be_busy(&self) {
        self.busy.store(true, Ordering::SeqCst);
    }

    fn check(&self) -> Result<(), BackendError> {
        if self.busy.load(Ordering::SeqCst) {
            return Err(BackendError::new(BackendErrorKind::Saturated).uncharged());
        }
        if self.fails.load(Ordering::SeqCst) {
            Err(BackendError::new(BackendErrorKind::Unavailable).uncharged())
        } else {
            Ok(())
        }
    }
}

type Boxed<T> = Pin<Box<dyn Future<Output = Result<T, BackendError>> + Send>>;

impl Backend for Remote {
    type Prepared = MemorySet;
    type Decide = Boxed<Decision>;
    type Done = Boxed<()>;

    fn prepare(&self, set: PolicySet) -> Result<MemorySet, ConfigError> {
        self.memory.prepare(set)
    }

    fn set(prepared: &MemorySet) -> &PolicySet {
        MemoryBackend::<TokioClock>::set(prepared)
    }

    fn decide_at_once(&self, prepared: &Arc<MemorySet>, calls: &[Call]) -> Option<Decision> {
        self.at_once.then(|| {
            self.decisions.fetch_add(1, Ordering::SeqCst);
            self.memory.decide_now(prepared, calls)
        })
    }

    fn decide(&self, prepared: &Arc<MemorySet>, calls: &[Call]) -> Self::Decide {
        let (remote, prepared, calls) = (self.clone(), Arc::clone(prepared), calls.to_vec());
        Box::pin(async move {
            sleep(remote.trip / 2).await;
            remote.check()?;
            remote.decisions.fetch_add(1, Ordering::SeqCst);
            let decision = remote.memory.decide_now(&prepared, &calls);
            sleep(remote.trip / 2).await;
            Ok(decision)
        })
    }

    fn now(&self, prepared: &Arc<MemorySet>, calls: &[Call]) -> Option<Timestamp> {
        self.memory.now(prepared, calls)
    }

    fn decide_as_of(
        &self,
        prepared: &Arc<MemorySet>,
        calls: &[Call],
        at: Timestamp,
    ) -> Self::Decide {
        let (remote, prepared, calls) = (self.clone(), Arc::clone(prepared), calls.to_vec());
        Box::pin(async move {
            sleep(remote.trip / 2).await;
            remote.check()?;
            remote.decisions.fetch_add(1, Ordering::SeqCst);
            let decision = remote.memory.decide_as_of(&prepared, &calls, at).await;
            sleep(remote.trip / 2).await;
            decision
        })
    }

    fn settle(&self, prepared: &Arc<MemorySet>, receipt: Receipt) -> Self::Done {
        let (remote, prepared) = (self.clone(), Arc::clone(prepared));
        Box::pin(async move {
            sleep(remote.trip / 2).await;
            remote.check()?;
            remote.settled.fetch_add(1, Ordering::SeqCst);
            remote.memory.settle_now(&prepared, receipt);
            Ok(())
        })
    }

    fn run(
        &self,
        prepared: &Arc<MemorySet>,
        policy: usize,
        step: KeyStep,
    ) -> Boxed<Vec<ExceptedKey>> {
        let (remote, prepared) = (self.clone(), Arc::clone(prepared));
        Box::pin(async move {
            remote.check()?;
            remote.memory.run(&prepared, policy, step).await
        })
    }

    fn reset_all(&self, prefix: &str) -> Self::Done {
        Box::pin(self.memory.reset_all(prefix))
    }
}

/// A shaper over a remote store.
pub(crate) fn over(remote: &Remote, builder: ShaperBuilder, rule: OnError) -> Shaper {
    builder
        .name("test")
        .on_error(rule)
        .backend(remote.clone())
        .build()
        .unwrap()
}

pub(crate) fn layer<Res>(builder: ShaperBuilder) -> ShapeLayer<u64, Res> {
    ShapeLayer::of(builder.build().unwrap())
}

/// How long a call of one unit waits that comes now.
pub(crate) async fn wait(shaper: &Shaper, key: impl Into<Key>) -> Duration {
    let start = Instant::now();
    shaper.schedule(key, 1).await.unwrap();
    start.elapsed()
}

/// A call that waits in a task of its own.
pub(crate) async fn waiting(shaper: &Shaper, key: impl Into<Key>) -> JoinHandle<()> {
    let (shaper, key) = (shaper.clone(), key.into());
    let waiting = tokio::spawn(async move { shaper.schedule(key, 1).await.unwrap() });
    tokio::task::yield_now().await;
    waiting
}

/// Polls a future once.
pub(crate) fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

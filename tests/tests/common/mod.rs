//! Backends and services that tests control.

#![allow(dead_code, reason = "each test crate uses a part of this")]

use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use throttle_core::backend::{Call, ExceptedKey, KeyStep, Receipt};
use throttle_core::{Backend, BackendError, BackendErrorKind, ManualClock};
use throttle_core::{Key, MemorySet, PolicySet};
use throttle_tower::{
    ConfigError, Constant, Decision, Gcra, Limit, MemoryBackend, Rate, ThrottleLayer, limit,
};
use tokio::sync::Semaphore;
use tower::{Layer, Service, ServiceExt};

pub(crate) type Memory = MemoryBackend<ManualClock>;
pub(crate) type Text = Full<Bytes>;

/// A store whose clock stands still, so that no units refill during a test.
pub(crate) fn memory() -> Memory {
    MemoryBackend::builder()
        .clock(ManualClock::default())
        .build()
}

/// One budget of `burst` units for all requests.
pub(crate) fn shared(name: &str, burst: u64) -> Limit {
    limit(name, Gcra::new(Rate::per_minute(1)).burst(burst)).by(Constant)
}

/// The remaining units of the budget that [`shared`] makes.
pub(crate) fn left(memory: &Memory, name: &str, burst: u64) -> u64 {
    take(memory, name, burst, 0)
}

/// Takes units of the budget that [`shared`] makes, if so many are left. Returns what remains.
pub(crate) fn take(memory: &Memory, name: &str, burst: u64, units: u64) -> u64 {
    let policy =
        throttle_core::Policy::new(name, Gcra::new(Rate::per_minute(1)).burst(burst)).unwrap();
    let prepared = memory.prepare(PolicySet::new(policy).unwrap()).unwrap();
    memory
        .decide_now(&prepared, &[Call::from(Key::CONSTANT).costing(units)])
        .remaining()
}

/// A backend that does not decide at once: it waits for a permit, or it fails.
#[derive(Clone)]
pub(crate) struct Remote {
    pub(crate) memory: Memory,
    pub(crate) decisions: Arc<AtomicUsize>,
    /// Called before each decision that may have to be waited for.
    before: Arc<Mutex<Option<Before>>>,
    answer: Answer,
}

#[derive(Clone)]
enum Answer {
    Charges {
        before: Arc<Semaphore>,
        after: Arc<Semaphore>,
        /// Where it may fail.
        trouble: Option<Trouble>,
    },
    Fails(BackendErrorKind),
    /// Decides unless a fault is set, and at once if it can.
    Falters {
        trouble: Trouble,
        at_once: bool,
    },
}

type Before = Box<dyn FnMut() + Send>;
type Trouble = Arc<Mutex<Option<BackendErrorKind>>>;

/// A store that accepts no call charges nothing.
fn error(kind: BackendErrorKind) -> BackendError {
    let error = BackendError::new(kind);
    if kind == BackendErrorKind::Saturated {
        error.uncharged()
    } else {
        error
    }
}

impl Remote {
    /// Takes a permit of `before`, charges, and takes a permit of `after`, like a request on its
    /// way to a store and its answer on the way back.
    pub(crate) fn slow(before: usize, after: usize) -> Self {
        let (before, after) = (
            Arc::new(Semaphore::new(before)),
            Arc::new(Semaphore::new(after)),
        );
        Self::answering(Answer::Charges {
            before,
            after,
            trouble: None,
        })
    }

    /// Like [`slow`](Self::slow), but may [fail](Self::trouble) when a request reaches it.
    pub(crate) fn slow_and_faltering(before: usize, after: usize) -> Self {
        let mut remote = Self::slow(before, after);
        if let Answer::Charges { trouble, .. } = &mut remote.answer {
            *trouble = Some(Trouble::default());
        }
        remote
    }

    pub(crate) fn failing(kind: BackendErrorKind) -> Self {
        Self::answering(Answer::Fails(kind))
    }

    /// Decides, but may [fail](Self::trouble).
    pub(crate) fn faltering(at_once: bool) -> Self {
        Self::answering(Answer::Falters {
            trouble: Arc::default(),
            at_once,
        })
    }

    fn answering(answer: Answer) -> Self {
        Self {
            memory: memory(),
            decisions: Arc::default(),
            before: Arc::default(),
            answer,
        }
    }

    /// From now on every decision fails with this kind of error, or none does.
    pub(crate) fn trouble(&self, kind: Option<BackendErrorKind>) {
        if let Answer::Falters { trouble, .. }
        | Answer::Charges {
            trouble: Some(trouble),
            ..
        } = &self.answer
        {
            *trouble.lock().unwrap() = kind;
        }
    }

    pub(crate) fn before_each(&self, before: impl FnMut() + Send + 'static) {
        *self.before.lock().unwrap() = Some(Box::new(before));
    }

    /// Lets one request reach the store.
    pub(crate) fn let_in(&self) {
        if let Answer::Charges { before, .. } = &self.answer {
            before.add_permits(1);
        }
    }

    /// Lets one answer return.
    pub(crate) fn let_out(&self) {
        if let Answer::Charges { after, .. } = &self.answer {
            after.add_permits(1);
        }
    }
}

impl Backend for Remote {
    type Prepared = MemorySet;
    type Decide = Pin<Box<dyn Future<Output = Result<Decision, BackendError>> + Send>>;
    type Done = std::future::Ready<Result<(), BackendError>>;

    fn prepare(&self, set: PolicySet) -> Result<MemorySet, ConfigError> {
        self.memory.prepare(set)
    }

    fn set(prepared: &MemorySet) -> &PolicySet {
        Memory::set(prepared)
    }

    fn decide(&self, prepared: &Arc<MemorySet>, calls: &[Call]) -> Self::Decide {
        self.decisions.fetch_add(1, Ordering::SeqCst);
        if let Some(before) = &mut *self.before.lock().unwrap() {
            before();
        }
        match self.answer.clone() {
            Answer::Fails(kind) => Box::pin(ready(Err(error(kind)))),
            Answer::Falters { trouble, .. } => {
                let answer = match *trouble.lock().unwrap() {
                    Some(kind) => Err(error(kind)),
                    None => Ok(self.memory.decide_now(prepared, calls)),
                };
                Box::pin(ready(answer))
            }
            Answer::Charges {
                before,
                after,
                trouble,
            } => {
                let (memory, prepared, calls) =
                    (self.memory.clone(), Arc::clone(prepared), calls.to_vec());
                Box::pin(async move {
                    before.acquire().await.unwrap().forget();
                    let trouble = trouble.and_then(|trouble| *trouble.lock().unwrap());
                    let decision = match trouble {
                        Some(kind) => Err(error(kind)),
                        None => Ok(memory.decide_now(&prepared, &calls)),
                    };
                    after.acquire().await.unwrap().forget();
                    decision
                })
            }
        }
    }

    fn decide_at_once(&self, prepared: &Arc<MemorySet>, calls: &[Call]) -> Option<Decision> {
        match &self.answer {
            Answer::Falters {
                trouble,
                at_once: true,
            } if trouble.lock().unwrap().is_none() => {
                self.decisions.fetch_add(1, Ordering::SeqCst);
                Some(self.memory.decide_now(prepared, calls))
            }
            _ => None,
        }
    }

    fn settle(&self, prepared: &Arc<MemorySet>, receipt: Receipt) -> Self::Done {
        self.memory.settle(prepared, receipt)
    }

    fn run(
        &self,
        _: &Arc<MemorySet>,
        _: usize,
        _: KeyStep,
    ) -> throttle_core::backend::Answer<Vec<ExceptedKey>> {
        unreachable!("a layer resets nothing")
    }

    fn reset_all(&self, _: &str) -> Self::Done {
        unreachable!("a layer resets nothing")
    }

    fn can_fail(&self) -> bool {
        !matches!(self.answer, Answer::Charges { trouble: None, .. })
    }
}

/// Responds `hello`, counts its calls over all clones, and panics if it is called before it was
/// ready. A clone starts unready, like tower's own concurrency limit.
#[derive(Debug, Default)]
pub(crate) struct Strict {
    ready: bool,
    pub(crate) calls: Arc<AtomicUsize>,
}

impl Strict {
    pub(crate) fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }
}

impl Clone for Strict {
    fn clone(&self) -> Self {
        Self {
            ready: false,
            calls: Arc::clone(&self.calls),
        }
    }
}

impl Service<Request<Text>> for Strict {
    type Response = Response<Text>;
    type Error = std::convert::Infallible;
    type Future = std::future::Ready<Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Text>) -> Self::Future {
        assert!(
            std::mem::take(&mut self.ready),
            "called without having been found ready"
        );
        self.calls.fetch_add(1, Ordering::SeqCst);
        ready(Ok(Response::new(Full::from("hello"))))
    }
}

/// A GET without a body, a peer address or extensions.
pub(crate) fn get() -> Request<Text> {
    Request::new(Full::default())
}

/// A [`get`] with an API key.
pub(crate) fn keyed(key: &str) -> Request<Text> {
    let mut request = get();
    request
        .headers_mut()
        .insert("x-api-key", key.parse().unwrap());
    request
}

/// Sends requests through a layer, one after the other.
pub(crate) async fn send_each<B: Backend>(
    layer: &ThrottleLayer<B>,
    requests: impl IntoIterator<Item = Request<Text>>,
) {
    let service = layer.layer(Strict::default());
    for request in requests {
        service.clone().oneshot(request).await.unwrap();
    }
}

/// Polls a future once, with a waker that does nothing.
pub(crate) fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// The whole body as text.
pub(crate) async fn text<B>(response: Response<B>) -> String
where
    B: BodyExt<Data = Bytes>,
    B::Error: std::fmt::Debug,
{
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(bytes.to_vec()).unwrap()
}

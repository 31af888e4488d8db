//! Steps that no request waits for.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use throttle_core::backend::Receipt;
use throttle_core::{Backend, BackendError, BackendErrorKind, LocalShare};
use tokio::runtime::Handle;

/// How many refunds, settlements and other charges in the background are under way, done and failed: see
/// [`ThrottleLayer::settlements`](crate::ThrottleLayer::settlements). Corrections of several limits that are due at the
/// same time count as one.
///
/// ```
/// use http::{Request, Response};
/// use throttle_tower::{Constant, Gcra, Rate, ThrottleLayer, limit};
/// use tower::{Layer, ServiceExt, service_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let logins = limit("failed-logins", Gcra::new(Rate::per_hour(5))).by(Constant).refund_successful();
/// let throttle = ThrottleLayer::new(logins)?;
/// let inner = service_fn(async |_: Request<()>| Ok::<_, std::convert::Infallible>(Response::new(())));
/// throttle.layer(inner).oneshot(Request::new(())).await?;
/// let settlements = throttle.settlements();
/// assert_eq!((settlements.pending, settlements.settled, settlements.failed), (0, 1, 0));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settlements {
    /// Under way now.
    pub pending: u64,
    /// Done.
    pub settled: u64,
    /// Failed, or not known to have succeeded: the store failed, or the runtime had shut down. If a refund fails, the
    /// charge stays, unless the store applied it and its reply was lost.
    pub failed: u64,
}

#[derive(Default)]
pub(crate) struct Counters {
    begun: AtomicU64,
    settled: AtomicU64,
    failed: AtomicU64,
}

impl Counters {
    pub(crate) fn read(&self) -> Settlements {
        // Ended steps are read first, so that they are among the begun ones.
        let (settled, failed) = (self.settled.load(Ordering::Acquire), self.failed.load(Ordering::Acquire));
        let begun = self.begun.load(Ordering::Acquire);
        Settlements { pending: begun.saturating_sub(settled + failed), settled, failed }
    }
}

/// Runs and counts steps, and calls the hook for those that fail.
#[derive(Clone, Default)]
pub(crate) struct Background {
    pub(crate) counters: Arc<Counters>,
    pub(crate) on_error: Option<OnSettleError>,
}

pub(crate) type OnSettleError = Arc<dyn Fn(&BackendError) + Send + Sync>;
pub(crate) type Sent = Pin<Box<dyn Future<Output = Result<(), BackendError>> + Send>>;

impl Background {
    /// Settles a receipt: at this process's share what that took, and only the rest at the store. Calls `settled` when
    /// all of it is settled.
    pub(crate) fn settle<B: Backend>(
        &self,
        Settling { backend, prepared, share, receipt }: Settling<'_, B>,
        runtime: Option<&Handle>,
        settled: impl FnOnce() + Send + 'static,
    ) {
        let receipt = match share {
            Some(share) => share.settle(receipt),
            None => Some(receipt),
        };
        let Some(receipt) = receipt else { return settled() };
        let settling = backend.settle(prepared, receipt);
        let step = async move { settling.await.map(|()| settled()) };
        self.send(Box::pin(step), runtime, backend.can_fail());
    }

    /// Polls the step once in the current runtime, and spawns the rest there. Without a current one, `runtime` does all
    /// of it.
    ///
    /// Steps often start while a response is dropped, so nothing here panics. A store that `needs_runtime` is polled in
    /// a runtime only: outside of one its timers and sockets panic, and so do those of a runtime that has ended. Such a
    /// runtime drops what is spawned on it, and the step counts as failed.
    pub(crate) fn send(&self, mut step: Sent, runtime: Option<&Handle>, needs_runtime: bool) {
        let counted = Counted::new(self.clone());
        let current = Handle::try_current().ok();
        if current.is_some() || !needs_runtime {
            match poll_once(&mut step) {
                Poll::Ready(result) => return counted.end(result),
                Poll::Pending => {}
            }
        }
        if let Some(handle) = current.as_ref().or(runtime) {
            drop(handle.spawn(async move { counted.end(step.await) }));
        }
    }
}

/// A receipt, and where it is settled.
pub(crate) struct Settling<'a, B: Backend> {
    pub(crate) backend: &'a B,
    pub(crate) prepared: &'a Arc<B::Prepared>,
    /// This process's share, if there is one.
    pub(crate) share: Option<&'a LocalShare>,
    pub(crate) receipt: Receipt,
}

/// A backend that panics has failed.
fn poll_once(step: &mut Sent) -> Poll<Result<(), BackendError>> {
    let poll = || step.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    catch_unwind(AssertUnwindSafe(poll)).unwrap_or_else(|_| {
        Poll::Ready(Err(BackendError::new(BackendErrorKind::Unavailable).with_source("the backend panicked")))
    })
}

/// Counts a step as failed if it is dropped before it has ended.
struct Counted(Option<Background>);

impl Counted {
    fn new(background: Background) -> Self {
        background.counters.begun.fetch_add(1, Ordering::AcqRel);
        Self(Some(background))
    }

    fn end(mut self, result: Result<(), BackendError>) {
        let Some(background) = self.0.take() else { return };
        match result {
            Ok(()) => drop(background.counters.settled.fetch_add(1, Ordering::AcqRel)),
            Err(error) => failed(&background, &error),
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        if let Some(background) = self.0.take() {
            let reason = "there is no tokio runtime to wait for the store, or it has ended";
            failed(&background, &BackendError::new(BackendErrorKind::Unavailable).with_source(reason));
        }
    }
}

fn failed(background: &Background, error: &BackendError) {
    background.counters.failed.fetch_add(1, Ordering::AcqRel);
    if let Some(hook) = &background.on_error {
        hook(error);
    }
}

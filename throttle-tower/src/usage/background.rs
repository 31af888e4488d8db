//! Steps that no request waits for.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use throttle_core::backend::{Answer, Receipt, correction};
use throttle_core::{BackendError, BackendErrorKind, LocalShare};
use tokio::runtime::Handle;

use crate::caught::caught;
use crate::log::OncePerMinute;

/// How many refunds, settlements and other charges in the background are under way, done and
/// failed: see [`ThrottleLayer::settlements`](crate::ThrottleLayer::settlements). Corrections of
/// several limits that are due at the same time count as one.
///
/// ```
/// use http::{Request, Response};
/// use throttle_tower::{Constant, Gcra, Rate, ThrottleLayer, limit};
/// use tower::{Layer, ServiceExt, service_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let logins = limit("failed-logins", Gcra::new(Rate::per_hour(5)))
///     .by(Constant)
///     .refund_if(limit::successful);
/// let throttle = ThrottleLayer::new(logins)?;
/// let inner =
///     service_fn(async |_: Request<()>| Ok::<_, std::convert::Infallible>(Response::new(())));
/// throttle.layer(inner).oneshot(Request::new(())).await?;
/// let settlements = throttle.settlements();
/// assert_eq!(
///     (settlements.pending, settlements.settled, settlements.failed),
///     (0, 1, 0)
/// );
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
    /// Failed, or not known to have succeeded: the store failed, or the runtime had shut down. If a
    /// refund fails, the charge stays, unless the store applied it and its reply was lost.
    pub failed: u64,
}

#[derive(Default)]
pub(crate) struct Counters {
    begun: AtomicU64,
    settled: AtomicU64,
    failed: AtomicU64,
    why: OncePerMinute,
}

impl Counters {
    pub(crate) fn read(&self) -> Settlements {
        // Ended steps are read first, so that they are among the begun ones.
        let (settled, failed) = (
            self.settled.load(Ordering::Acquire),
            self.failed.load(Ordering::Acquire),
        );
        let begun = self.begun.load(Ordering::Acquire);
        Settlements {
            pending: begun.saturating_sub(settled + failed),
            settled,
            failed,
        }
    }
}

/// Runs and counts steps, and calls the hook for those that fail.
#[derive(Clone, Default)]
pub(crate) struct Background {
    pub(crate) counters: Arc<Counters>,
    pub(crate) on_error: Option<OnSettleError>,
}

pub(crate) type OnSettleError = Arc<dyn Fn(&BackendError) + Send + Sync>;
pub(crate) type StepFuture = Pin<Box<dyn Future<Output = Result<(), BackendError>> + Send>>;

impl Background {
    /// Settles a receipt: at this process's share what that took, and only the rest at the store.
    /// Calls `settled` when all of it is settled.
    pub(crate) fn settle(
        &self,
        settle: impl FnOnce(Receipt) -> Answer<()>,
        can_fail: bool,
        share: Option<&LocalShare>,
        receipt: Receipt,
        runtime: Option<&Handle>,
        settled: impl FnOnce() + Send + 'static,
    ) {
        let rest = match share {
            Some(share) => share.settle(receipt),
            None => Some(receipt),
        };
        let Some(receipt) = rest else {
            return settled();
        };
        let settling = settle(receipt);
        let step = async move { settling.await.map(|()| settled()) };
        self.send(Box::pin(step), runtime, can_fail);
    }

    /// Polls the step once in the current runtime, and spawns the rest there. Without a current
    /// one, `runtime` does all of it.
    ///
    /// Steps often start while a response is dropped, so nothing here panics. A store that
    /// `needs_runtime` is polled in a runtime only: outside of one its timers and sockets panic,
    /// and so do those of a runtime that has ended. Such a runtime drops what is spawned on it, and
    /// the step counts as failed.
    pub(crate) fn send(&self, mut step: StepFuture, runtime: Option<&Handle>, needs_runtime: bool) {
        self.counters.begun.fetch_add(1, Ordering::AcqRel);
        let running = RunningStep {
            background: self.clone(),
            result: None,
        };
        if needs_runtime {
            step = Box::pin(correction(step));
        }
        let current = Handle::try_current().ok();
        if current.is_some() || !needs_runtime {
            match poll_once(&mut step) {
                Poll::Ready(result) => return running.end(result),
                Poll::Pending => {}
            }
        }
        if let Some(handle) = current.as_ref().or(runtime) {
            drop(handle.spawn(async move {
                running.end(caught(step).await.unwrap_or_else(|| Err(panicked())));
            }));
        }
    }

    fn count(&self, result: Result<(), BackendError>) {
        let Err(error) = result else {
            self.counters.settled.fetch_add(1, Ordering::AcqRel);
            return;
        };
        self.counters.failed.fetch_add(1, Ordering::AcqRel);
        match &self.on_error {
            Some(hook) => {
                // It may run while a response is dropped by another panic, where a second one would
                // end the process.
                let _ = catch_unwind(AssertUnwindSafe(|| hook(&error)));
            }
            None => self.counters.why.warn(&SettlementFailure(error)),
        }
    }
}

/// A backend that panics has failed.
fn poll_once(step: &mut StepFuture) -> Poll<Result<(), BackendError>> {
    let poll = || step.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    catch_unwind(AssertUnwindSafe(poll)).unwrap_or_else(|_| Poll::Ready(Err(panicked())))
}

fn panicked() -> BackendError {
    BackendError::new(BackendErrorKind::Unavailable).with_source("the backend panicked")
}

/// Counts a step when it is dropped: as failed, if that is before it has ended.
struct RunningStep {
    background: Background,
    result: Option<Result<(), BackendError>>,
}

impl RunningStep {
    fn end(mut self, result: Result<(), BackendError>) {
        self.result = Some(result);
    }
}

impl Drop for RunningStep {
    fn drop(&mut self) {
        self.background.count(self.result.take().unwrap_or_else(|| {
            let reason = "there is no tokio runtime to wait for the store, or it has ended";
            Err(BackendError::new(BackendErrorKind::Unavailable).with_source(reason))
        }));
    }
}

/// Says why a settlement failed: the error, and what caused it.
struct SettlementFailure(BackendError);

impl fmt::Display for SettlementFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a settlement failed, so its charge may stay as it was: {} ({})",
            self.0,
            self.0.kind().label()
        )?;
        let mut cause = self.0.source();
        while let Some(next) = cause {
            write!(f, ": {next}")?;
            cause = next.source();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::sync::Mutex;
    use std::sync::atomic::AtomicBool;

    use throttle_core::backend::Call;
    use throttle_core::{
        Backend, Cost, FixedWindow, Key, ManualClock, MemoryBackend, Policy, PolicySet, Rate,
    };
    use tokio::sync::oneshot;

    use super::*;

    type Heard = Arc<Mutex<Vec<(BackendErrorKind, String)>>>;

    /// Steps, and what its hook hears: the kind of the error and its cause.
    fn background() -> (Background, Heard) {
        let heard = Heard::default();
        let hook = Arc::clone(&heard);
        let on_error: OnSettleError = Arc::new(move |error| {
            let cause = error.source().map_or_else(String::new, ToString::to_string);
            hook.lock().unwrap().push((error.kind(), cause));
        });
        (
            Background {
                on_error: Some(on_error),
                ..Background::default()
            },
            heard,
        )
    }

    fn counts(background: &Background) -> (u64, u64, u64) {
        let Settlements {
            pending,
            settled,
            failed,
        } = background.counters.read();
        (pending, settled, failed)
    }

    /// Notes that it was polled, and ends when the sender says how.
    fn step(polled: &Arc<AtomicBool>) -> (oneshot::Sender<Result<(), BackendError>>, StepFuture) {
        let (end, ended) = oneshot::channel();
        let polled = Arc::clone(polled);
        let step = async move {
            polled.store(true, Ordering::SeqCst);
            ended.await.expect("the test says how it ends")
        };
        (end, Box::pin(step))
    }

    const NO_RUNTIME: &str = "there is no tokio runtime to wait for the store, or it has ended";

    #[tokio::test]
    async fn step_is_pending_until_it_ends() {
        let ((background, heard), polled) = (background(), Arc::default());
        for needs_runtime in [false, true] {
            let (before, _) = (counts(&background), ());
            let (end, under_way) = step(&polled);
            background.send(under_way, None, needs_runtime);
            assert!(polled.swap(false, Ordering::SeqCst), "at once");
            assert_eq!(counts(&background), (1, before.1, 0));
            end.send(Ok(())).unwrap();
            tokio::task::yield_now().await;
            assert_eq!(counts(&background), (0, before.1 + 1, 0));
        }
        assert!(heard.lock().unwrap().is_empty());
    }

    #[test]
    fn step_that_needs_a_runtime_is_not_polled_without_one() {
        let ((background, heard), polled) = (background(), Arc::default());
        let (_end, under_way) = step(&polled);
        background.send(under_way, None, true);
        assert!(!polled.load(Ordering::SeqCst));
        assert_eq!(counts(&background), (0, 0, 1));
        assert_eq!(
            *heard.lock().unwrap(),
            [(BackendErrorKind::Unavailable, NO_RUNTIME.to_owned())]
        );
    }

    #[tokio::test]
    async fn step_that_panics_later_has_failed_because_of_the_panic() {
        let (background, heard) = background();
        let step = async {
            tokio::task::yield_now().await;
            panic!("a mistake in the store")
        };
        background.send(Box::pin(step), None, true);
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
        assert_eq!(counts(&background), (0, 0, 1));
        assert_eq!(
            *heard.lock().unwrap(),
            [(
                BackendErrorKind::Unavailable,
                "the backend panicked".to_owned()
            )]
        );
    }

    /// A charge is settled while the panic of its handler unwinds.
    #[test]
    fn hook_that_panics_while_another_panic_unwinds_does_not_end_the_process() {
        struct Settles(Background);
        impl Drop for Settles {
            fn drop(&mut self) {
                let failed = Err(BackendError::new(BackendErrorKind::Unavailable));
                self.0
                    .send(Box::pin(std::future::ready(failed)), None, false);
            }
        }
        let on_error: OnSettleError = Arc::new(|_| panic!("a mistake in the hook"));
        let background = Background {
            on_error: Some(on_error),
            ..Background::default()
        };
        let handler = || {
            let _charge = Settles(background.clone());
            panic!("a mistake in the handler")
        };
        let panic = catch_unwind(AssertUnwindSafe(handler)).unwrap_err();
        assert_eq!(
            *panic.downcast::<&str>().unwrap(),
            "a mistake in the handler"
        );
        assert_eq!(counts(&background), (0, 0, 1));
    }

    #[test]
    fn other_step_is_polled_once_without_a_runtime() {
        let ((background, heard), polled) = (background(), Arc::default());
        background.send(Box::pin(std::future::ready(Ok(()))), None, false);
        assert_eq!(counts(&background), (0, 1, 0));
        let (_end, under_way) = step(&polled);
        background.send(under_way, None, false);
        assert!(polled.load(Ordering::SeqCst));
        assert_eq!(counts(&background), (0, 1, 1), "no runtime waits for it");
        assert_eq!(
            *heard.lock().unwrap(),
            [(BackendErrorKind::Unavailable, NO_RUNTIME.to_owned())]
        );
    }

    #[test]
    fn step_is_done_in_the_stated_runtime_where_none_is_current() {
        let ((background, heard), polled) = (background(), Arc::default());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let (end, under_way) = step(&polled);
        background.send(under_way, Some(runtime.handle()), true);
        assert!(!polled.load(Ordering::SeqCst), "not here");
        assert_eq!(counts(&background), (1, 0, 0));
        end.send(Ok(())).unwrap();
        runtime.block_on(tokio::task::yield_now());
        assert!(polled.load(Ordering::SeqCst));
        assert_eq!(counts(&background), (0, 1, 0));
        let (_end, lost) = step(&polled);
        background.send(lost, Some(runtime.handle()), true);
        drop(runtime);
        assert_eq!(counts(&background), (0, 1, 1));
        assert_eq!(
            *heard.lock().unwrap(),
            [(BackendErrorKind::Unavailable, NO_RUNTIME.to_owned())]
        );
    }

    /// A share takes no time, so that what it took is settled without a step.
    #[test]
    fn receipt_is_settled_where_it_was_charged() {
        let store = || {
            MemoryBackend::builder()
                .clock(ManualClock::default())
                .build()
        };
        let (backend, shares) = (store(), store());
        let set = PolicySet::new(Policy::new("p", FixedWindow::new(Rate::per_hour(100))).unwrap())
            .unwrap();
        let share = LocalShare::new(&shares, &set, NonZeroU32::MIN).unwrap();
        let prepared = Arc::new(backend.prepare(set).unwrap());
        let calls = |cost| [Call::new(Key::from("key"), Cost::new(cost).unwrap())];
        let peek = [Call::peek(Key::from("key"))];
        let left = || {
            let at_the_share = share.decide(&peek, BackendErrorKind::Timeout).remaining();
            (
                backend.decide_now(&prepared, &peek).remaining(),
                at_the_share,
            )
        };
        let by_store = Receipt::of(&backend.decide_now(&prepared, &calls(30)), &calls(30)).unwrap();
        let by_share = share.decide(&calls(40), BackendErrorKind::Timeout);
        let by_share = Receipt::of(&by_share, &calls(40)).unwrap();
        assert_eq!(left(), (70, 60));

        let (background, settled) = (Background::default(), Arc::new(AtomicU64::new(0)));
        let settle = |receipt: Receipt, share| {
            let counted = Arc::clone(&settled);
            let receipt = receipt.actual(10);
            let settle = |receipt| Box::pin(backend.settle(&prepared, receipt)) as _;
            background.settle(settle, false, share, receipt, None, move || {
                counted.fetch_add(1, Ordering::SeqCst);
            });
            settled.load(Ordering::SeqCst)
        };
        assert_eq!(settle(by_share, Some(&share)), 1);
        assert_eq!((left(), counts(&background)), ((70, 90), (0, 0, 0)));
        assert_eq!(settle(by_store, Some(&share)), 2);
        assert_eq!((left().0, counts(&background)), (90, (0, 1, 0)));
        let again = Receipt::of(&backend.decide_now(&prepared, &calls(30)), &calls(30)).unwrap();
        assert_eq!(settle(again, None), 3);
        assert_eq!((left().0, counts(&background)), (80, (0, 2, 0)));
    }
}

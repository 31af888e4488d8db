//! One lookup that several requests wait for.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use super::identity_tier::IdentityTier;
use crate::lock::lock;

pub(super) type LookupFuture = Pin<Box<dyn Future<Output = IdentityTier> + Send>>;

/// A lookup under way. Each request that waits for it also polls it, so it goes on as long as one of them waits, even
/// without the request that started it. It is dropped with the last of them.
pub(super) struct SharedLookup {
    state: Mutex<State>,
    waiters: Arc<Waiters>,
    /// Called when the lookup has ended, and when it is dropped.
    on_end: Box<dyn Fn() + Send + Sync>,
}

enum State {
    Running(LookupFuture),
    Done(IdentityTier),
}

/// The wakers of the waiting requests by their numbers. There may be thousands, and each request finds its own.
#[derive(Default)]
struct Waiters(Mutex<BTreeMap<u64, Waker>>);

impl Wake for Waiters {
    fn wake(self: Arc<Self>) {
        let woken = std::mem::take(&mut *lock(&self.0));
        woken.into_values().for_each(Waker::wake);
    }
}

impl SharedLookup {
    /// The lookup does not panic.
    pub(super) fn new(lookup: LookupFuture, on_end: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        let state = Mutex::new(State::Running(lookup));
        Arc::new(Self { state, waiters: Arc::default(), on_end: Box::new(on_end) })
    }

    /// A future of the result, for one more request.
    pub(super) fn join(self: &Arc<Self>, waiter: u64) -> JoinedLookup {
        JoinedLookup { lookup: Arc::clone(self), waiter }
    }
}

impl Drop for SharedLookup {
    fn drop(&mut self) {
        (self.on_end)();
    }
}

/// One request's wait for a shared lookup.
pub(super) struct JoinedLookup {
    lookup: Arc<SharedLookup>,
    waiter: u64,
}

impl Future for JoinedLookup {
    type Output = IdentityTier;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<IdentityTier> {
        let lookup = &self.lookup;
        // Held while the lookup is polled, never across an await.
        let mut state = lock(&lookup.state);
        // Before the poll, so that a wake-up in between reaches this request too.
        lock(&lookup.waiters.0).insert(self.waiter, cx.waker().clone());
        let future = match &mut *state {
            State::Running(future) => future,
            State::Done(tier) => return Poll::Ready(tier.clone()),
        };
        let all_waiters = Waker::from(Arc::clone(&lookup.waiters));
        let polled = future.as_mut().poll(&mut Context::from_waker(&all_waiters));
        if let Poll::Ready(tier) = &polled {
            *state = State::Done(tier.clone());
            drop(state);
            (lookup.on_end)();
            all_waiters.wake();
        }
        polled
    }
}

impl Drop for JoinedLookup {
    fn drop(&mut self) {
        lock(&self.lookup.waiters.0).remove(&self.waiter);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::oneshot;

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// A request may move to another task while it waits.
    #[test]
    fn waiting_request_is_woken_where_it_was_polled_last() {
        let (found, answer) = oneshot::channel();
        let lookup = Box::pin(async { answer.await.expect("there is an answer") });
        let mut joined = SharedLookup::new(lookup, || ()).join(1);
        let [former, current] = [0, 1].map(|_| Arc::new(Woken::default()));
        for task in [&former, &current] {
            let waker = Waker::from(Arc::clone(task));
            assert!(Pin::new(&mut joined).poll(&mut Context::from_waker(&waker)).is_pending());
        }
        found.send(IdentityTier::Known(1)).unwrap();
        assert_eq!([former, current].map(|task| task.0.load(Ordering::SeqCst)), [0, 1]);
        let ended = Pin::new(&mut joined).poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!(ended, Poll::Ready(IdentityTier::Known(1)));
    }

    /// A number is of one request, however many wait when it comes.
    #[test]
    fn all_that_wait_are_woken_after_one_has_gone_and_another_has_come() {
        let (found, answer) = oneshot::channel();
        let lookup = Box::pin(async { answer.await.expect("there is an answer") });
        let lookup = SharedLookup::new(lookup, || ());
        let wait = |number| {
            let (task, mut joined) = (Arc::new(Woken::default()), lookup.join(number));
            let waker = Waker::from(Arc::clone(&task));
            assert!(Pin::new(&mut joined).poll(&mut Context::from_waker(&waker)).is_pending());
            (task, joined)
        };
        let [(gone, leaves), stays] = [1, 2].map(wait);
        drop(leaves);
        let comes = wait(3);
        found.send(IdentityTier::Known(1)).unwrap();
        let woken = [&gone, &stays.0, &comes.0].map(|task| task.0.load(Ordering::SeqCst));
        assert_eq!(woken, [0, 1, 1]);
    }
}

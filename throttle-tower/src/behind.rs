//! What is settled behind the caller's back: nobody waits for it.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use throttle_core::BackendError;
use tokio::runtime::Handle;

/// Runs a step to its end without making anybody wait: at once where it can be, otherwise as a task of the runtime. Where
/// there is none any more it is dropped, done or not.
pub(crate) fn finish<D>(done: D, failed: impl FnOnce(&BackendError) + Send + 'static)
where
    D: Future<Output = Result<(), BackendError>> + Send + 'static,
{
    let mut done = Box::pin(done);
    // A store in memory is done already, and needs no runtime.
    let first = pin!(&mut done).poll(&mut Context::from_waker(Waker::noop()));
    match first {
        Poll::Ready(Ok(())) => {}
        Poll::Ready(Err(error)) => failed(&error),
        Poll::Pending => {
            if let Ok(runtime) = Handle::try_current() {
                drop(runtime.spawn(async move {
                    if let Err(error) = done.await {
                        failed(&error);
                    }
                }));
            }
        }
    }
}

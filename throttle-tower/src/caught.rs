use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::Poll;

/// Awaits a future of the user. `None` if it panics, while it runs or while it is dropped
/// afterwards.
///
/// For futures that others depend on beside the request that polls them.
pub(crate) async fn caught<F: Future + Unpin>(future: F) -> Option<F::Output> {
    let mut future = Some(future);
    poll_fn(|cx| {
        let polled = catch_unwind(AssertUnwindSafe(|| {
            let running = future.as_mut().expect("it is not polled again");
            let polled = Pin::new(running).poll(cx);
            if polled.is_ready() {
                future = None;
            }
            polled
        }));
        match polled {
            Ok(polled) => polled.map(Some),
            Err(_) => Poll::Ready(None),
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use super::*;

    struct PanicsWhenDropped;

    impl Drop for PanicsWhenDropped {
        fn drop(&mut self) {
            if !std::thread::panicking() {
                panic!("dropped");
            }
        }
    }

    #[tokio::test]
    async fn panic_of_a_future_is_no_value_whenever_it_comes() {
        assert_eq!(caught(ready(7)).await, Some(7));
        let later = async {
            tokio::task::yield_now().await;
            7
        };
        assert_eq!(caught(Box::pin(later)).await, Some(7));
        assert_eq!(
            caught(Box::pin(async { panic!("at once") })).await,
            None::<u8>
        );
        let later = async {
            tokio::task::yield_now().await;
            panic!("later")
        };
        assert_eq!(caught(Box::pin(later)).await, None::<u8>);
        let held = PanicsWhenDropped;
        let dropped = poll_fn(move |_| {
            let _held = &held;
            Poll::Ready(7)
        });
        assert_eq!(caught(dropped).await, None);
    }
}

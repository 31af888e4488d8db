use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame};
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::rendered::Rendered;

/// An event a second. A reader that is too slow for that gets fewer, and never old ones.
///
/// It ends after a while and the browser comes back: a server that shuts down waits for its responses to end, and a
/// page that somebody has left open must not keep it running.
pub(super) struct Events {
    rendered: Arc<Rendered>,
    seconds: Interval,
    left: u32,
}

const EVENTS: u32 = 15;

impl Events {
    pub(super) fn new(rendered: Arc<Rendered>) -> Self {
        let mut seconds = interval(Duration::from_secs(1));
        seconds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { rendered, seconds, left: EVENTS }
    }
}

impl Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Some(left) = self.left.checked_sub(1) else { return Poll::Ready(None) };
        ready!(self.seconds.poll_tick(cx));
        self.left = left;
        Poll::Ready(Some(Ok(Frame::data(self.rendered.event()))))
    }
}

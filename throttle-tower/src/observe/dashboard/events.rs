use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use futures_util::stream;
use tokio::time::{MissedTickBehavior, interval};

use super::rendered::PageData;

const EVENTS: u32 = 15;

/// An event a second. A reader that is too slow for that gets fewer, and never old ones.
///
/// It ends after a while and the browser comes back: a server that shuts down waits for its
/// responses to end, and a page that somebody has left open must not keep it running.
pub(super) fn events(rendered: Arc<PageData>) -> Body {
    let mut seconds = interval(Duration::from_secs(1));
    seconds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    Body::from_stream(stream::unfold(
        (seconds, EVENTS),
        move |(mut seconds, left)| {
            let rendered = Arc::clone(&rendered);
            async move {
                let left = left.checked_sub(1)?;
                seconds.tick().await;
                Some((Ok::<_, Infallible>(rendered.event()), (seconds, left)))
            }
        },
    ))
}

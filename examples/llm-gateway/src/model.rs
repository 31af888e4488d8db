//! A pretended model: it streams a number of words, one a line.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bytes::Bytes;
use http_body::Frame;
use tokio::time::{Interval, interval};

use crate::limits::max_tokens;

const PACE: Duration = Duration::from_millis(15);
const WORDS: [&str; 8] = ["rivers", "run", "where", "they", "are", "let", "to", "go"];

pub fn app() -> Router {
    Router::new()
        .route("/v1/complete", get(complete))
        .route("/v1/batch", get(complete))
}

/// Fails if the prompt contains `crash`. Sends `max_tokens` words if it contains `long`, and fewer
/// otherwise.
async fn complete(request: Request) -> Response {
    let (parts, _) = request.into_parts();
    let query = parts.uri.query().unwrap_or_default();
    if query.contains("crash") {
        return (StatusCode::INTERNAL_SERVER_ERROR, "the model is not well\n").into_response();
    }
    let most = max_tokens(&parts);
    let words = if query.contains("long") {
        most
    } else {
        most.min(8 + query.len() as u64 % 40)
    };
    Body::new(Words {
        next: 0,
        words,
        pace: interval(PACE),
    })
    .into_response()
}

struct Words {
    next: u64,
    words: u64,
    pace: Interval,
}

impl http_body::Body for Words {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.next == self.words {
            return Poll::Ready(None);
        }
        ready!(self.pace.poll_tick(cx));
        let word = WORDS[self.next as usize % WORDS.len()];
        self.next += 1;
        Poll::Ready(Some(Ok(Frame::data(Bytes::from(format!("{word}\n"))))))
    }
}

//! Forwards a request to the model, and its answer back to the client, token by token.

use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bytes::Bytes;
use http_body::Frame;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use throttle_tower::{ThrottleLayer, Usage};

use crate::board::{Board, Row};
use crate::limits::{MONTH, TOKENS, estimate, key, prompt_tokens};

#[derive(Clone)]
struct Gateway {
    model: SocketAddr,
    client: Client<HttpConnector, Body>,
    board: Board,
}

pub fn app(throttle: ThrottleLayer, model: SocketAddr, board: Board) -> Router {
    let gateway = Gateway {
        model,
        client: Client::builder(TokioExecutor::new()).build_http(),
        board,
    };
    let router = Router::new()
        .route("/v1/complete", get(complete))
        .route("/v1/batch", get(complete));
    router.layer(throttle).with_state(gateway)
}

/// Forwards a request that the limits have admitted.
async fn complete(State(gateway): State<Gateway>, usage: Usage, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let Some(key) = key(&parts) else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    let client = parts
        .headers
        .get("x-api-key")
        .and_then(|key| key.to_str().ok())
        .unwrap_or("-");
    let row = gateway.board.row(client, key, estimate(&parts));
    row.print(&usage, "reserved");
    let prompt = prompt_tokens(&parts);

    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let Ok(uri) = format!("http://{}{path}", gateway.model).parse::<Uri>() else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    // The model's connections are HTTP/1.1, whatever the client's version and headers are.
    let mut forwarded = Request::new(body);
    *forwarded.uri_mut() = uri;
    match gateway.client.request(forwarded).await {
        Ok(response) if response.status().is_success() => {
            let mut answer = Counted {
                inner: Body::new(response.into_body()),
                usage,
                row,
                seen: 0,
            };
            answer.count(prompt);
            Body::new(answer).into_response()
        }
        // The limits refund server errors.
        _ => {
            row.print_later(usage, "failed: refunded");
            (StatusCode::BAD_GATEWAY, "the model did not answer\n").into_response()
        }
    }
}

/// A body that adds every token that passes to the usage. The total is settled when the body ends,
/// or when the client disconnects and the body is dropped.
struct Counted {
    inner: Body,
    usage: Usage,
    row: Row,
    seen: u64,
}

impl Counted {
    fn count(&mut self, tokens: u64) {
        // An error would mean that the usage is final, or that there is no such limit. A client can
        // cause neither.
        for name in [TOKENS, MONTH] {
            let _ = self.usage.add(name, tokens);
        }
        let held = self.usage.taken(TOKENS);
        if self.seen > 0 && held > self.seen {
            self.row.print(&self.usage, "reserved more");
        }
        self.seen = held;
    }
}

impl http_body::Body for Counted {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.inner).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &frame
            && let Some(data) = frame.data_ref()
        {
            // One token a line.
            self.count(data.iter().filter(|byte| **byte == b'\n').count() as u64);
        }
        frame
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.row.print_later(self.usage.clone(), "settled");
    }
}

//! A server on a port of its own, a client that keeps its connections, and a model that records its
//! own use.

use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use axum::Router;
use bytes::Bytes;
use http::request::{Builder, Parts};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::body::{Body, Frame, Incoming};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use throttle_core::BoxBackend;
use throttle_tower::limit::IntoLimitTree;
use throttle_tower::{OnError, ThrottleLayer, Usage};
use tokio::net::TcpListener;
use tokio::time::Sleep;

use crate::store::Store;

pub(crate) struct Site {
    pub(crate) store: Store,
    pub(crate) layer: ThrottleLayer<BoxBackend>,
    address: SocketAddr,
    client: Client<HttpConnector, Empty<Bytes>>,
}

pub(crate) fn layer(store: &Store, limits: impl IntoLimitTree) -> ThrottleLayer<BoxBackend> {
    ThrottleLayer::builder(limits)
        .on_error(OnError::Closed)
        .backend(store.backend.clone())
        .report_in(throttle_tower::ReportIn::Both)
        .build()
        .unwrap()
}

impl Site {
    pub(crate) async fn new(store: Store, limits: impl IntoLimitTree, app: Router) -> Self {
        let layer = layer(&store, limits);
        Self::with(store, layer, app).await
    }

    pub(crate) async fn with(store: Store, layer: ThrottleLayer<BoxBackend>, app: Router) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let app = app.layer(layer.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self {
            store,
            layer,
            address,
            client: Client::builder(TokioExecutor::new()).build_http(),
        }
    }

    pub(crate) fn over_http2(mut self) -> Self {
        let mut builder = Client::builder(TokioExecutor::new());
        self.client = builder.http2_only(true).build_http();
        self
    }

    /// Sends a request. The caller reads the body.
    pub(crate) async fn send(&self, path: &str, headers: &[(&str, u64)]) -> Response<Incoming> {
        let request = Request::get(format!("http://{}{path}", self.address));
        self.client
            .request(with(request, headers).body(Empty::new()).unwrap())
            .await
            .unwrap()
    }

    /// Requests a switch of protocols.
    pub(crate) async fn upgrade(&self, path: &str, to: &str) -> Response<Incoming> {
        let request = Request::get(format!("http://{}{path}", self.address));
        let request = request
            .header(http::header::CONNECTION, "upgrade")
            .header(http::header::UPGRADE, to);
        self.client
            .request(request.body(Empty::new()).unwrap())
            .await
            .unwrap()
    }

    /// Sends a request and reads the whole response.
    pub(crate) async fn get(&self, path: &str, headers: &[(&str, u64)]) -> Response<Bytes> {
        let (head, body) = self.send(path, headers).await.into_parts();
        Response::from_parts(head, body.collect().await.unwrap().to_bytes())
    }

    pub(crate) async fn status(&self, path: &str) -> StatusCode {
        self.get(path, &[]).await.status()
    }

    /// Waits until no settlement is under way.
    pub(crate) async fn settled(&self) {
        settled(&self.layer).await;
    }

    pub(crate) async fn left(&self, name: &str, units: u64) -> u64 {
        self.settled().await;
        self.store.left(name, units).await
    }
}

fn with(request: Builder, headers: &[(&str, u64)]) -> Builder {
    headers.iter().fold(request, |request, (name, value)| {
        request.header(*name, *value)
    })
}

pub(crate) async fn settled(layer: &ThrottleLayer<BoxBackend>) {
    until(|| layer.settlements().pending == 0).await;
}

/// Waits for a condition that must become true soon.
pub(crate) async fn until(comes: impl Fn() -> bool) {
    let start = Instant::now();
    while !comes() {
        assert!(start.elapsed() < Duration::from_secs(10), "it did not come");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// A number that the client sent.
pub(crate) fn number(parts: &Parts, name: &str) -> u64 {
    parts
        .headers
        .get(name)
        .map_or(0, |value| value.to_str().unwrap().parse().unwrap())
}

/// The estimated cost in the request.
pub(crate) fn estimate(parts: &Parts) -> u64 {
    number(parts, "x-estimate")
}

/// The model's own count.
#[derive(Clone, Debug, Default)]
pub(crate) struct Books(Arc<AtomicU64>);

impl Books {
    pub(crate) fn note(&self, tokens: u64) {
        self.0.fetch_add(tokens, Ordering::SeqCst);
    }

    pub(crate) fn total(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

/// A body of tokens in steps, each with a pause before it. It reports each step to its charge.
pub(crate) struct Tokens {
    pub(crate) left: u64,
    pub(crate) step: u64,
    pub(crate) pause: Duration,
    pub(crate) usage: Usage,
    pub(crate) books: Books,
    /// Whether the body ends when the limit is exhausted.
    pub(crate) stops: bool,
    pub(crate) sleep: Option<Pin<Box<Sleep>>>,
}

impl Body for Tokens {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let pause = self.pause;
        ready!(
            self.sleep
                .get_or_insert_with(|| Box::pin(tokio::time::sleep(pause)))
                .as_mut()
                .poll(cx)
        );
        self.sleep = None;
        let step = self.step.min(self.left);
        self.left -= step;
        self.books.note(step);
        if !self.usage.add("tokens", step).unwrap() && self.stops {
            self.left = 0;
        }
        Poll::Ready(Some(Ok(Frame::data(Bytes::from(format!("{step} "))))))
    }
}

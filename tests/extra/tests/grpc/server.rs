//! A gRPC server, and what it saw of each client.

use std::collections::HashMap;
use std::fs;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue};
use axum::middleware::{self, Next};
use axum::response::{Html, Response};
use axum::routing::get;
use axum::{Router, serve};
use http_body_util::channel::Channel;
use throttle_extra::sdk;
use throttle_tower::{Gcra, Header, Rate, ThrottleLayer, all, limit};
use tokio::net::TcpListener;
use tonic_web::GrpcWebLayer;

/// The header by which a client says which limit it wants, and its name: `soon/grpcio`.
const CLIENT: &str = "x-client";
const LATE: Duration = Duration::from_millis(500);

/// One request, as the server sees it.
#[derive(Clone, Debug)]
pub struct Seen {
    pub arrived: Instant,
    pub answered: Instant,
    pub refused: bool,
    pub pushback: Option<i64>,
    /// Base64 without padding.
    pub details: Option<String>,
}

type Log = Arc<Mutex<HashMap<String, Vec<Seen>>>>;

pub struct Server {
    pub address: SocketAddr,
    log: Log,
}

/// Whether the throttle sees requests of gRPC-Web, or what tonic-web makes of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Throttle {
    BeforeTonicWeb,
    AfterTonicWeb,
}

impl Server {
    /// Admits a request of each client
    ///
    /// - each 2.3 seconds if its kind is `soon`,
    /// - each hour if its kind is `hour`,
    /// - never if its kind is `never`.
    pub async fn start(place: Throttle) -> Self {
        let of =
            |kind: &'static str| move |parts: &Parts| client_of(&parts.headers).starts_with(kind);
        let by_client = || Header::new(CLIENT);
        let limits = all([
            limit(
                "soon",
                Gcra::new(Rate::new(1, Duration::from_millis(2_300))),
            )
            .by(by_client())
            .when(of("soon")),
            limit("hour", Gcra::new(Rate::per_hour(1)))
                .by(by_client())
                .when(of("hour")),
            limit("never", Gcra::new(Rate::per_hour(1)))
                .by(by_client())
                .cost(|_: &Parts| 2)
                .when(of("never")),
        ]);
        let throttle = ThrottleLayer::new(limits).unwrap();
        let app = Router::new().fallback(answer);
        let app = match place {
            Throttle::BeforeTonicWeb => app.layer(GrpcWebLayer::new()).layer(throttle),
            Throttle::AfterTonicWeb => app.layer(throttle).layer(GrpcWebLayer::new()),
        };
        let log = Log::default();
        let app = app
            .layer(middleware::from_fn_with_state(Arc::clone(&log), record))
            .route("/", get(Html("<!doctype html><title>gRPC-Web</title>")))
            .route("/grpc-web.js", get(grpc_web));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { serve(listener, app).await });
        Self { address, log }
    }

    /// The requests of a client so far.
    pub fn seen(&self, client: &str) -> Vec<Seen> {
        self.log
            .lock()
            .unwrap()
            .get(client)
            .cloned()
            .unwrap_or_default()
    }

    /// Checks that a client was refused, and that each of these calls was made again once, no
    /// earlier than the refusal said. One came again within half a second; a busy machine may delay
    /// another.
    pub fn waited_as_told(&self, client: &str) {
        let seen = self.seen(client);
        let refusals = seen.windows(2).filter(|pair| pair[0].refused);
        let late = refusals.map(|pair| {
            let (refusal, again) = (&pair[0], &pair[1]);
            let stated = Duration::from_millis(refusal.pushback.unwrap().try_into().unwrap());
            let waited = again.arrived - refusal.answered;
            println!("{client}: stated {stated:?}, waited {waited:?}");
            assert!(
                !again.refused && again.arrived - refusal.arrived >= stated,
                "{client}: {waited:?} of {stated:?}"
            );
            waited.saturating_sub(stated)
        });
        let late = late
            .min()
            .unwrap_or_else(|| panic!("{client} was not refused: {seen:?}"));
        assert!(late <= LATE, "{client}: {late:?} late in {seen:?}");
    }
}

fn client_of(headers: &HeaderMap) -> &str {
    headers
        .get(CLIENT)
        .map_or("", |name| name.to_str().unwrap())
}

/// Answers with an empty message, which is a message of every type of protobuf 3.
async fn answer(request: Request) -> Response {
    to_bytes(request.into_body(), usize::MAX).await.unwrap();
    let trailers = HeaderMap::from_iter([(
        "grpc-status".parse().unwrap(),
        HeaderValue::from_static("0"),
    )]);
    // Its length is not known in advance: axum would state it, and tonic-web lets the body grow.
    let (mut sender, message) = Channel::<Bytes>::new(2);
    sender.send_data(Bytes::from_static(&[0; 5])).await.unwrap();
    sender.send_trailers(trailers).await.unwrap();
    Response::builder()
        .header(CONTENT_TYPE, "application/grpc")
        .body(Body::new(message))
        .unwrap()
}

async fn record(State(log): State<Log>, request: Request, next: Next) -> Response {
    let (client, arrived) = (client_of(request.headers()).to_owned(), Instant::now());
    let response = next.run(request).await;
    let header = |name| {
        response
            .headers()
            .get(name)
            .map(|value| value.to_str().unwrap())
    };
    let seen = Seen {
        arrived,
        answered: Instant::now(),
        refused: header("grpc-status").is_some(),
        pushback: header("grpc-retry-pushback-ms").map(|millis| millis.parse().unwrap()),
        details: header("grpc-status-details-bin").map(str::to_owned),
    };
    log.lock().unwrap().entry(client).or_default().push(seen);
    response
}

/// The module that a page loads.
async fn grpc_web() -> Response {
    let module = fs::read(sdk::packages().join("node_modules/grpc-web/index.esm.js")).unwrap();
    Response::builder()
        .header(CONTENT_TYPE, "text/javascript")
        .body(Body::from(module))
        .unwrap()
}

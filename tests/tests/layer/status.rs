//! "How much have I left?" over HTTP, on memory and on Redis.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use axum::Router;
use axum::routing::{any, get};
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use throttle_core::{BoxBackend, ManualClock, MemoryBackend, Timestamp};
use throttle_redis::{RedisBackend, Single};
use throttle_test_servers::Shared;
use throttle_tower::{
    Dialect, FixedWindow, Gcra, Header, InFlight, LimitTree, OnError, Rate, Route, ThrottleLayer,
    all, limit, plans,
};
use tokio::net::TcpListener;

/// A store with a manual clock.
struct Store {
    backend: BoxBackend,
    clock: ManualClock,
    _shared: Option<Shared>,
}

/// Two minutes after the full hour.
fn clock() -> ManualClock {
    ManualClock::new(Timestamp::from_micros(
        (1_790_000_000 / 3_600 * 3_600 + 120) * 1_000_000,
    ))
}

fn stores() -> [Store; 2] {
    let (memory, redis, shared) = (clock(), clock(), Shared::new());
    let builder =
        RedisBackend::builder(Single::new(&shared.url()).unwrap()).prefix(shared.prefix());
    let builder = builder
        .clock(redis.clone())
        .deadline(Duration::from_secs(10));
    let in_memory = MemoryBackend::builder().clock(memory.clone()).build();
    [
        Store {
            backend: BoxBackend::new(in_memory),
            clock: memory,
            _shared: None,
        },
        Store {
            backend: BoxBackend::new(builder.build().unwrap()),
            clock: redis,
            _shared: Some(shared),
        },
    ]
}

fn client() -> Header {
    Header::new("x-api-key")
}

/// A plan, a limit of another route, one by the route, and requests in flight.
fn limits() -> LimitTree {
    let tiers =
        [("free", 6), ("pro", 60)].map(|(tier, count)| (tier, Gcra::new(Rate::per_minute(count))));
    let plan = plans("plan", tiers).by(client());
    let plan = plan
        .lookup(async |who| Ok::<_, Infallible>(Some(if who == "ada" { "pro" } else { "free" })));
    let is_login = |parts: &Parts| parts.uri.path() == "/login";
    all((
        plan.unknown("free")
            .on_error(OnError::Closed)
            .on_missing(throttle_tower::OnMissing::Skip),
        limit("login", FixedWindow::new(Rate::per_hour(2)))
            .by(client())
            .when(is_login)
            .unit("attempts"),
        limit("per-route", Gcra::new(Rate::per_minute(100))).by((client(), Route)),
        limit("in \"flight\"", InFlight::new(4)).by(client()),
    ))
}

/// A server on a free port, and a client.
struct Server {
    address: SocketAddr,
    client: Client<HttpConnector, Empty<Bytes>>,
    throttle: ThrottleLayer<BoxBackend>,
}

impl Server {
    async fn start(store: &Store) -> Self {
        let throttle = ThrottleLayer::builder(limits())
            .on_error(OnError::Closed)
            .headers(Dialect::Draft07)
            .backend(store.backend.clone())
            .build()
            .unwrap();
        let looks = limit("looks", FixedWindow::new(Rate::per_hour(2))).by(Header::new("x-looker"));
        let looks = throttle
            .with_limits(looks.on_missing(throttle_tower::OnMissing::Skip))
            .unwrap();
        let app = Router::new()
            .route("/{*any}", get(async || ()))
            .route("/slow", any(std::future::pending::<()>));
        let app = app
            .layer(throttle.clone())
            .route("/rate_limit", throttle.status().layer(looks));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self {
            address,
            client: Client::builder(TokioExecutor::new()).build_http(),
            throttle,
        }
    }

    async fn get(&self, path: &str, headers: &[(&str, &str)]) -> (StatusCode, HeaderMap, Bytes) {
        let request = Request::get(format!("http://{}{path}", self.address));
        let request = headers.iter().fold(request, |request, (name, value)| {
            request.header(*name, *value)
        });
        let (head, body) = self
            .client
            .request(request.body(Empty::new()).unwrap())
            .await
            .unwrap()
            .into_parts();
        (
            head.status,
            head.headers,
            body.collect().await.unwrap().to_bytes(),
        )
    }

    async fn status(&self, who: &str) -> Value {
        let (status, headers, body) = self.get("/rate_limit", &[("x-api-key", who)]).await;
        assert_eq!(status, StatusCode::OK);
        assert_eq!(headers["content-type"], "application/json");
        assert_eq!(headers["cache-control"], "no-store");
        serde_json::from_slice(&body).unwrap()
    }
}

/// An answer: for each limit the fields in the order of their documentation. None has classes.
fn answer(limits: &[Value]) -> Value {
    let names = [
        "policy",
        "limit",
        "window",
        "remaining",
        "reset",
        "unit",
        "tier",
        "admitted",
        "retry_after",
    ];
    let object = |limit: &Value| -> Value {
        let fields = limit.as_array().unwrap().clone();
        let class = ("class".to_owned(), Value::Null);
        names
            .into_iter()
            .map(str::to_owned)
            .zip(fields)
            .chain([class])
            .collect::<serde_json::Map<_, _>>()
            .into()
    };
    json!({ "limits": limits.iter().map(object).collect::<Vec<_>>() })
}

#[tokio::test]
async fn status_shows_what_is_left_for_the_caller_and_charges_nothing() {
    for store in stores() {
        let server = Server::start(&store).await;
        let unused = answer(&[
            json!(["plan", 6, 60, 6, 0, "requests", "free", true, 0]),
            json!(["login", 2, 3600, 2, 0, "attempts", null, true, 0]),
            json!([
                "in \"flight\"",
                4,
                null,
                4,
                0,
                "concurrent-requests",
                null,
                true,
                0
            ]),
        ]);
        assert_eq!(server.status("bob").await, unused);
        for expected in [200, 200, 429] {
            assert_eq!(
                server.get("/login", &[("x-api-key", "ada")]).await.0,
                expected
            );
        }
        let used = answer(&[
            json!(["plan", 60, 60, 58, 2, "requests", "pro", true, 0]),
            json!(["login", 2, 3600, 0, 3480, "attempts", null, false, 3480]),
            json!([
                "in \"flight\"",
                4,
                null,
                4,
                0,
                "concurrent-requests",
                null,
                true,
                0
            ]),
        ]);
        for _ in 0..100 {
            assert_eq!(server.status("ada").await, used, "a look changes nothing");
        }
        assert_eq!(
            server.status("bob").await,
            unused,
            "nor is another key shown"
        );
        let anonymous = server.get("/rate_limit", &[]).await;
        assert_eq!(
            (anonymous.0, &anonymous.2[..]),
            (StatusCode::OK, &br#"{"limits":[]}"#[..])
        );
        store.clock.advance(Duration::from_secs(3_480));
        assert_eq!(
            server.get("/login", &[("x-api-key", "ada")]).await.0,
            200,
            "as it said"
        );
    }
}

#[tokio::test]
async fn status_has_the_headers_of_the_dialect() {
    for store in stores() {
        let server = Server::start(&store).await;
        server.get("/", &[("x-api-key", "bob")]).await;
        let (_, headers, _) = server.get("/rate_limit", &[("x-api-key", "bob")]).await;
        assert_eq!(
            headers["ratelimit"], "limit=2, remaining=2, reset=0",
            "the login's"
        );
        assert_eq!(headers["ratelimit-policy"], "6;w=60, 2;w=3600");
        assert!(
            !server
                .get("/rate_limit", &[])
                .await
                .1
                .contains_key("ratelimit")
        );
    }
}

#[tokio::test]
async fn status_counts_the_permits_that_are_free() {
    for store in stores() {
        let server = Server::start(&store).await;
        let slow = || server.get("/slow", &[("x-api-key", "ada")]);
        let all_taken = async {
            while server.throttle.in_flight("in \"flight\"") < Some(4) {
                tokio::task::yield_now().await;
            }
        };
        let mut held = std::pin::pin!(async { tokio::join!(slow(), slow(), slow(), slow()) });
        tokio::select! {
            _ = &mut held => unreachable!("they never end"),
            () = all_taken => {}
        }
        let full = json!({
            "policy": "in \"flight\"", "limit": 4, "window": null, "remaining": 0, "reset": 0,
            "unit": "concurrent-requests", "tier": null, "class": null, "admitted": false, "retry_after": null
        });
        assert_eq!(server.status("ada").await["limits"][2], full);
        assert_eq!(server.status("bob").await["limits"][2]["remaining"], 4);
    }
}

#[tokio::test]
async fn limit_of_the_status_itself_bounds_how_often_a_caller_asks() {
    for store in stores() {
        let server = Server::start(&store).await;
        let mut statuses = Vec::new();
        for _ in 0..3 {
            statuses.push(
                server
                    .get("/rate_limit", &[("x-looker", "ada"), ("x-api-key", "ada")])
                    .await
                    .0
                    .as_u16(),
            );
        }
        assert_eq!(statuses, [200, 200, 429]);
    }
}

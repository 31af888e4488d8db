//! A real server and a real client: what is sent over the wire, and what outer layers and handlers
//! see.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use crate::support::{builder, field, from, list, ok, parameter, retry_after, send, three_by};
use axum::Router;
use axum::routing::{any, get};
use bytes::Bytes;
use http::{Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use throttle_tower::ClientIp;
use throttle_tower::headers::{Dialect, Problem, ResetFormat};
use throttle_tower::{Gcra, LimitReport, Rate, ThrottleLayer, all, limit};
use tokio::net::TcpListener;

/// A server on a free port, and a client that keeps its connections.
struct Server {
    address: SocketAddr,
    client: Client<HttpConnector, Empty<Bytes>>,
}

impl Server {
    async fn start(app: Router) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let app = app.into_make_service_with_connect_info::<SocketAddr>();
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self {
            address,
            client: Client::builder(TokioExecutor::new()).build_http(),
        }
    }

    async fn get(&self, path: &str) -> Response<Bytes> {
        let uri: Uri = format!("http://{}{path}", self.address).parse().unwrap();
        let response = self
            .client
            .request(Request::get(uri).body(Empty::new()).unwrap())
            .await
            .unwrap();
        let (head, body) = response.into_parts();
        Response::from_parts(head, body.collect().await.unwrap().to_bytes())
    }
}

#[tokio::test]
async fn client_that_waits_for_retry_after_is_admitted() {
    let per_ip = limit("per-ip", Gcra::new(Rate::per_second(1)).burst(3)).by(ClientIp::peer());
    let per_day = limit("per-\"day\"", Gcra::new(Rate::per_day(1000))).by(ClientIp::peer());
    let throttle = ThrottleLayer::new(all([per_ip, per_day])).unwrap();
    let server = Server::start(Router::new().route("/", get(ok)).layer(throttle)).await;

    let mut refused = None;
    for n in 0..3 {
        let served = server.get("/").await;
        assert_eq!(
            (served.status(), served.body().as_ref()),
            (StatusCode::OK, &b"ok"[..])
        );
        assert_eq!(field(&served, "retry-after"), None);
        assert_eq!(list(&served, "ratelimit").len(), 2);
        assert_eq!(
            parameter(&served, "ratelimit", "per-\"day\"", "r"),
            Some(999 - n)
        );
        assert_eq!(
            field(&served, "ratelimit-policy"),
            Some(r#""per-ip";q=3;w=3, "per-\"day\"";q=1000;w=86400"#)
        );
    }
    // A slow machine may have earned a unit meanwhile.
    for _ in 0..5 {
        let response = server.get("/").await;
        if response.status() == StatusCode::TOO_MANY_REQUESTS {
            refused = Some(response);
            break;
        }
    }
    let refused = refused.expect("five at once exceed a burst of three");
    assert_eq!(field(&refused, "cache-control"), Some("no-store"));
    assert_eq!(
        field(&refused, "content-type"),
        Problem::CONTENT_TYPE.to_str().ok()
    );
    assert_eq!(
        list(&refused, "ratelimit"),
        [(
            "per-ip".to_owned(),
            vec![("r".to_owned(), 0), ("t".to_owned(), 1)]
        )]
    );
    assert_eq!(list(&refused, "ratelimit-policy").len(), 2);
    let problem: serde_json::Value = serde_json::from_slice(refused.body()).unwrap();
    assert_eq!(problem["status"], 429);
    assert_eq!(problem["violated-policies"], serde_json::json!(["per-ip"]));

    assert_eq!(retry_after(&refused), Some(1));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(server.get("/").await.status(), StatusCode::OK);
}

/// Wall-clock time: within the second that the request took.
#[tokio::test]
async fn reset_as_an_instant_is_that_of_the_wall_clock() {
    let (builder, ..) = builder(three_by(ClientIp::peer()));
    let epoch = Dialect::XRateLimit(ResetFormat::EpochSeconds);
    let layer = builder.headers(epoch).build().unwrap();
    let server = Server::start(Router::new().route("/", get(ok)).layer(layer)).await;
    let now = || {
        std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap()
            .as_secs()
    };
    let before = now();
    let reset: u64 = field(&server.get("/").await, "x-ratelimit-reset")
        .unwrap()
        .parse()
        .unwrap();
    assert!((before + 20..=now() + 21).contains(&reset), "{reset}");
}

#[tokio::test]
async fn response_carries_a_report_only_on_request() {
    let layer = ThrottleLayer::new(
        limit("once", Gcra::new(Rate::per_day(1)).burst(1)).by(ClientIp::peer()),
    )
    .unwrap();
    let app = Router::new().route("/", any(ok)).layer(layer);
    for status in [StatusCode::OK, StatusCode::TOO_MANY_REQUESTS] {
        let response = send(&app, from("203.0.113.9")).await;
        assert_eq!(response.status(), status);
        assert!(response.extensions().get::<LimitReport>().is_none());
        assert_eq!(list(&response, "ratelimit").len(), 1);
    }
}

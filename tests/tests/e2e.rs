//! A real server and a real client: what is sent over the wire, and what outer layers and handlers see.

mod support;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use axum::body::Body;
use axum::middleware::map_response;
use axum::routing::{any, get};
use axum::{Extension, Router};
use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use support::{field, from, layer, list, ok, parameter, retry_after, send, three, three_by};
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
        Self { address, client: Client::builder(TokioExecutor::new()).build_http() }
    }

    async fn get(&self, path: &str) -> Response<Bytes> {
        let uri: Uri = format!("http://{}{path}", self.address).parse().unwrap();
        let response = self.client.request(Request::get(uri).body(Empty::new()).unwrap()).await.unwrap();
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
        assert_eq!((served.status(), served.body().as_ref()), (StatusCode::OK, &b"ok"[..]));
        assert_eq!(field(&served, "retry-after"), None);
        assert_eq!(list(&served, "ratelimit").len(), 2);
        assert_eq!(parameter(&served, "ratelimit", "per-\"day\"", "r"), Some(999 - n));
        assert_eq!(field(&served, "ratelimit-policy"), Some(r#""per-ip";q=3;w=3, "per-\"day\"";q=1000;w=86400"#));
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
    assert_eq!(field(&refused, "content-type"), Problem::CONTENT_TYPE.to_str().ok());
    assert_eq!(list(&refused, "ratelimit"), [("per-ip".to_owned(), vec![("r".to_owned(), 0), ("t".to_owned(), 1)])]);
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
    let (layer, ..) = layer(three_by(ClientIp::peer()));
    let layer = layer.headers(Dialect::XRateLimit(ResetFormat::EpochSeconds));
    let server = Server::start(Router::new().route("/", get(ok)).layer(layer)).await;
    let now = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let before = now();
    let reset: u64 = field(&server.get("/").await, "x-ratelimit-reset").unwrap().parse().unwrap();
    assert!((before + 20..=now() + 21).contains(&reset), "{reset}");
}

#[tokio::test]
async fn stacked_layers_write_each_header_once() {
    let (inner, ..) = layer(all([
        limit("inner", three().burst(2)).by(ClientIp::peer()),
        limit("both", three().burst(10)).by(ClientIp::peer()),
    ]));
    let (outer, clock, _) = layer(all([
        limit("outer", Gcra::new(Rate::per_hour(6)).burst(4)).by(ClientIp::peer()),
        limit("both", three().burst(20)).by(ClientIp::peer()),
    ]));
    let server = Server::start(Router::new().route("/", get(ok)).layer(inner).layer(outer)).await;

    let names = |response: &Response<Bytes>, name: &str| {
        let mut names: Vec<_> = list(response, name).into_iter().map(|(name, _)| name).collect();
        names.sort_unstable();
        names
    };
    for n in 0..2 {
        let served = server.get("/").await;
        assert_eq!(served.status(), StatusCode::OK);
        for name in ["ratelimit", "ratelimit-policy"] {
            assert_eq!(names(&served, name), ["both", "inner", "outer"], "{name}");
        }
        // For two limits of one name the headers show the stricter.
        assert_eq!(parameter(&served, "ratelimit", "both", "r"), Some(9 - n));
        assert_eq!(parameter(&served, "ratelimit", "outer", "r"), Some(3 - n));
        assert_eq!(field(&served, "retry-after"), None);
    }
    // The inner limit refuses; the outer one admits, and adds no wait.
    for _ in 0..2 {
        let refused = server.get("/").await;
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(retry_after(&refused), Some(20));
        assert_eq!(names(&refused, "ratelimit"), ["inner"]);
        assert_eq!(parameter(&refused, "ratelimit", "inner", "r"), Some(0));
        assert_eq!(names(&refused, "ratelimit-policy"), ["both", "inner", "outer"]);
    }
    // Now the outer limit refuses, and the inner one is not asked.
    let refused = server.get("/").await;
    assert_eq!(retry_after(&refused), Some(600));
    assert_eq!(names(&refused, "ratelimit"), ["outer"]);
    clock.advance(Duration::from_secs(600));
    assert_eq!(retry_after(&server.get("/").await), Some(20));
}

#[tokio::test]
async fn custom_refusal_keeps_the_headers() {
    const PAST: &str = "Wed, 21 Oct 2015 07:28:00 GMT";
    // The later of the builder's own wait and the limit's is sent.
    for (own, stated) in [(None, 20), (Some("1"), 20), (Some("3600"), 3600), (Some("soon"), 20), (Some(PAST), 20)] {
        let (layer, ..) = layer(three_by(ClientIp::peer()));
        let layer = layer.response(move |refusal| {
            let wait = refusal.retry_after().map_or(0, |wait| wait.as_secs());
            let mut response = Response::new(format!("slow down for {wait} s\n").into());
            *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            response.headers_mut().insert("x-own", HeaderValue::from_static("kept"));
            if let Some(own) = own {
                response.headers_mut().insert("retry-after", HeaderValue::from_static(own));
            }
            response
        });
        let server = Server::start(Router::new().route("/", get(ok)).layer(layer)).await;
        for _ in 0..3 {
            assert_eq!(server.get("/").await.status(), StatusCode::OK);
        }
        let refused = server.get("/").await;
        assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(refused.body().as_ref(), b"slow down for 20 s\n");
        assert_eq!(field(&refused, "x-own"), Some("kept"));
        assert_eq!(retry_after(&refused), Some(stated), "{own:?}");
        assert_eq!(field(&refused, "ratelimit"), Some(r#""three";r=0;t=20"#));
        assert_eq!(field(&refused, "ratelimit-policy"), Some(r#""three";q=3;w=60"#));
        assert_eq!(field(&refused, "cache-control"), Some("no-store"));
    }
}

#[tokio::test]
async fn the_report_reaches_handlers_and_outer_layers() {
    async fn extracted(report: LimitReport) -> String {
        report.decision().remaining().to_string()
    }
    async fn optional(report: Option<LimitReport>) -> String {
        report.map_or("none".to_owned(), |report| report.decision().remaining().to_string())
    }
    async fn extension(Extension(report): Extension<LimitReport>) -> String {
        report.binding().unwrap().name().to_owned()
    }
    async fn outer(mut response: Response<Body>) -> Response<Body> {
        if let Some(report) = response.extensions().get::<LimitReport>() {
            let seen =
                format!("{}:{}", report.decision().is_admitted(), report.violated().collect::<Vec<_>>().join(","));
            response.headers_mut().insert("x-outer", HeaderValue::try_from(seen).unwrap());
        }
        response
    }
    let (layer, ..) = layer(limit("named", three()).by(ClientIp::peer()));
    let limited = Router::new()
        .route("/extracted", get(extracted))
        .route("/optional", get(optional))
        .route("/extension", get(extension))
        .layer(layer);
    let unlimited = Router::new().route("/free", get(optional)).route("/forgotten", get(extracted));
    let server = Server::start(limited.merge(unlimited).layer(map_response(outer))).await;

    for (path, body) in [("/extracted", "2"), ("/optional", "1"), ("/extension", "named")] {
        let served = server.get(path).await;
        assert_eq!(served.body().as_ref(), body.as_bytes());
        assert_eq!(field(&served, "x-outer"), Some("true:"));
    }
    let refused = server.get("/extracted").await;
    assert_eq!((refused.status(), field(&refused, "x-outer")), (StatusCode::TOO_MANY_REQUESTS, Some("false:named")));

    let free = server.get("/free").await;
    assert_eq!((free.body().as_ref(), field(&free, "x-outer")), (&b"none"[..], None));
    let forgotten = server.get("/forgotten").await;
    assert_eq!(forgotten.status(), StatusCode::INTERNAL_SERVER_ERROR);
    assert!(forgotten.body().is_empty(), "what is missing is the server's business: {:?}", forgotten.body());
}

#[tokio::test]
async fn refusal_carries_its_report_and_other_responses_only_on_request() {
    let layer = ThrottleLayer::new(limit("once", Gcra::new(Rate::per_day(1)).burst(1)).by(ClientIp::peer())).unwrap();
    let app = Router::new().route("/", any(ok)).layer(layer);
    for (status, has_report) in [(StatusCode::OK, false), (StatusCode::TOO_MANY_REQUESTS, true)] {
        let response = send(&app, from("203.0.113.9")).await;
        assert_eq!(response.status(), status);
        assert_eq!(response.extensions().get::<LimitReport>().is_some(), has_report);
        assert_eq!(list(&response, "ratelimit").len(), 1);
    }
}

//! No client can add a series.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{HeaderValue, Method, Request, Response};
use metrics_exporter_prometheus::PrometheusBuilder;
use throttle_extra::example::Example;
use throttle_extra::series::Series;
use throttle_extra::web;
use throttle_tower::client_ip::TrustedProxies;
use throttle_tower::extract::from_fn;
use throttle_tower::{
    ClientIp, Concurrency, Gcra, Header, MemoryBackend, OnMissing, Rate, ThrottleLayer, all, any, limit, plans,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tower::{Layer, ServiceExt, service_fn};

/// A sequence of numbers that looks random (xorshift).
struct Hostile(u64);

impl Hostile {
    fn number(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A word that no other request has, between letters that mean something to Prometheus.
    fn word(&mut self) -> String {
        const QUOTES: [&str; 6] = ["\"", "\"} 1", "{le=\"", "\\", "# HELP ", "',x=\""];
        format!("hostile{:x}{}", self.number(), QUOTES[(self.number() % 6) as usize])
    }

    /// The same, of the letters of a path.
    fn path(&mut self) -> String {
        self.word().bytes().map(|byte| format!("%{byte:02x}")).collect::<String>().replace("%68", "h")
    }

    fn method(&mut self) -> String {
        match self.number() % 3 {
            0 => "GET".to_owned(),
            1 => "POST".to_owned(),
            _ => format!("HOSTILE{:X}", self.number()),
        }
    }

    fn address(&mut self) -> String {
        match self.number() % 4 {
            0 => self.word().replace(['"', '\\'], ""),
            1 => format!("2001:db8::{:x}", self.number() & 0xffff),
            _ => format!("198.51.{}.{}", self.number() & 0xff, self.number() & 0xff),
        }
    }

    fn request(&mut self) -> Request<Body> {
        let uri = format!("/{}?{}", self.path(), self.path());
        let method = Method::from_bytes(self.method().as_bytes()).unwrap();
        let mut request = Request::builder().method(method).uri(uri).body(Body::empty()).unwrap();
        let mut key = self.word().into_bytes();
        if self.number().is_multiple_of(2) {
            // A header may have such a byte, which is no text.
            key.push(0x80 | (self.number() & 0x7f) as u8);
        }
        let headers = request.headers_mut();
        headers.insert("x-api-key", HeaderValue::from_bytes(&key).unwrap());
        headers.insert("x-forwarded-for", self.address().parse().unwrap());
        if self.number().is_multiple_of(8) {
            headers.remove("x-api-key");
        }
        request.extensions_mut().insert(ConnectInfo(SocketAddr::from(([127, 0, 0, 1], 40_000))));
        request
    }
}

/// Counters reach the recorder a moment later.
async fn wait_until_counted(requests: u64, read: impl AsyncFn() -> Series) -> Series {
    web::until(Duration::from_secs(10), "the last counts", async || {
        let series = read().await;
        let is_known = series.names().iter().any(|name| name.starts_with("throttle_requests_total"));
        match is_known.then(|| series.sum("throttle_requests_total", &[])) {
            Some(counted) if counted == requests => Ok(series),
            counted => Err(format!("{counted:?} of {requests} requests")),
        }
    })
    .await
}

const REQUESTS: u64 = 1_000_000;

#[tokio::test]
async fn a_million_hostile_requests_leave_the_series_as_the_first_request_made_them() {
    let recorder = PrometheusBuilder::new().set_buckets(&[0.01, 1.0]).unwrap();
    let metrics = recorder.install_recorder().unwrap();
    let gcra = |count| Gcra::new(Rate::per_second(count)).burst(count);
    let limits = all((
        limit("per-ip", gcra(5)).by(ClientIp::x_forwarded_for(TrustedProxies::new(["127.0.0.0/8"]).unwrap())),
        any([
            limit("per-key", gcra(2)).by(Header::new("x-api-key")).on_missing(OnMissing::Skip),
            limit("per-path", gcra(2)).by(from_fn(|parts| Some(parts.uri.path().to_owned()))),
        ]),
        limit("per-method", gcra(1_000)).by(from_fn(|parts| Some(parts.method.to_string()))),
        plans("per-plan", [("free", gcra(3)), ("pro", gcra(9))])
            .by(Header::new("x-api-key"))
            .lookup(async |key: String| Ok::<_, Infallible>(key.len().is_multiple_of(2).then_some("pro")))
            .unknown("free")
            .cache(1_000, Duration::from_secs(1)),
        limit("turns", gcra(2))
            .by(Header::new("x-turn"))
            .on_missing(OnMissing::Skip)
            .wait_up_to(Duration::from_secs(1)),
        Concurrency::new(10),
        Concurrency::new(2).name("in-flight-per-key").by(Header::new("x-api-key")),
    ));
    let memory = MemoryBackend::builder().max_keys(1_000).build();
    let layer = ThrottleLayer::new(limits).unwrap().backend(memory).unwrap().metrics("api");
    let service = layer.layer(service_fn(async |_: Request<Body>| Ok::<_, Infallible>(Response::new(Body::empty()))));

    let mut hostile = Hostile(0x9e37_79b9_7f4a_7c15);
    let counted = async |requests: u64| wait_until_counted(requests, async || Series::read(&metrics.render())).await;
    service.clone().oneshot(hostile.request()).await.unwrap();
    let before = counted(1).await;
    assert!(before.names().len() > 80, "{:#?}", before.names());
    for number in 1..REQUESTS {
        service.clone().oneshot(hostile.request()).await.unwrap();
        if number % 50_000 == 0 {
            metrics.run_upkeep();
        }
    }
    let after = counted(REQUESTS).await;
    assert_eq!(before.names(), after.names());
    let text = metrics.render();
    assert!(!text.to_ascii_lowercase().contains("hostile"), "a word of a request is in the metrics");
    for outcome in ["admitted", "refused"] {
        // The keys that share the buckets of a full store admit few of them.
        let requests = after.sum("throttle_requests_total", &[("outcome", outcome)]);
        assert!(requests > 100, "{requests} {outcome}");
    }
    let overflow = after.sum("throttle_overflow_total", &[]);
    assert!(overflow > 10_000, "the store is full: {overflow}");
}

#[tokio::test]
async fn hostile_requests_over_http_leave_the_series_of_the_example() {
    let example = Example::start(&["--port", "0", "--no-load"], &[]);
    let (client, metrics) = (web::client(), format!("{}/metrics", example.url));
    web::text(&client, &format!("{}/pay", example.url)).await.unwrap();
    let read = async || Series::read(&web::text(&client, &metrics).await.unwrap());
    let before = wait_until_counted(1, read).await;

    let address = example.url.trim_start_matches("http://").to_owned();
    let mut connection = TcpStream::connect(&address).await.unwrap();
    let mut hostile = Hostile(42);
    for _ in 0..10_000 {
        let head = format!(
            "{} /{} HTTP/1.1\r\nhost: {}\r\nx-api-key: key_{}\r\nx-forwarded-for: {}\r\ncontent-length: 0\r\n\r\n",
            hostile.method(),
            hostile.path(),
            address,
            hostile.word(),
            hostile.address(),
        );
        connection.write_all(head.as_bytes()).await.unwrap();
        read_response(&mut connection).await;
    }
    // The first was `/pay`.
    let after = wait_until_counted(10_001, read).await;
    assert_eq!(before.names(), after.names());
}

/// Reads a response whose length its head states.
async fn read_response(connection: &mut TcpStream) {
    let mut read = Vec::new();
    loop {
        assert!(connection.read_buf(&mut read).await.unwrap() > 0, "the server closed the connection");
        let Some(end) = read.windows(4).position(|bytes| bytes == b"\r\n\r\n") else { continue };
        let head = String::from_utf8_lossy(&read[..end]).to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length.map_or(0, |length| length.trim().parse().unwrap());
        assert!(head.starts_with("http/1.1 "), "{head}");
        if read.len() >= end + 4 + length {
            return;
        }
    }
}

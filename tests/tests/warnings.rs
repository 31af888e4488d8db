//! Warnings that a layer logs: that its configuration hardly does what was meant, and why a handler
//! was not called.

mod common;

use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::routing::get;
use http::{Request, StatusCode};
use throttle_core::Backend;
use throttle_redis::{RedisBackend, RedisBuilder, Single};
use throttle_test_servers::{Server, Shared};
use throttle_tower::ClientIp;
use throttle_tower::client_ip::TrustedProxies;
use throttle_tower::extract::PeerAddr;
use throttle_tower::{
    ConfigError, Constant, Gcra, Header, KeyExtractor, Limit, OnError, OnMissing, Rate,
    ThrottleLayer, Warning, all, limit, plans,
};
use tower::{Layer, ServiceExt};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Event, Metadata, Subscriber};

use common::{Strict, Text};

/// The lines that this thread logs, each with its level.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn start() -> (Self, DefaultGuard) {
        let log = Self::default();
        let guard = tracing::subscriber::set_default(log.clone());
        (log, guard)
    }

    fn lines(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        ["throttle_tower", "throttle_redis"]
            .iter()
            .any(|crate_name| metadata.target().starts_with(crate_name))
    }

    fn event(&self, event: &Event<'_>) {
        struct Message(String);
        impl Visit for Message {
            fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
                match field.name() {
                    "message" => self.0.insert_str(0, &format!("{value:?}")),
                    name => self.0.push_str(&format!(" {name}={value:?}")),
                }
            }
        }
        let mut message = Message(String::new());
        event.record(&mut message);
        self.0
            .lock()
            .unwrap()
            .push(format!("{} {}", event.metadata().level(), message.0));
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// More than the number of requests in these tests.
fn plenty_of() -> Gcra {
    Gcra::new(Rate::per_minute(1_000_000)).burst(1_000_000)
}

fn plenty(by: impl KeyExtractor) -> Limit {
    limit("plenty", plenty_of()).by(by)
}

fn plain() -> Request<Text> {
    Request::new(Text::default())
}

fn from_peer() -> Request<Text> {
    let mut request = plain();
    request
        .extensions_mut()
        .insert(PeerAddr("203.0.113.9".parse::<IpAddr>().unwrap()));
    request
}

/// From the trusted proxy, with these lines of `X-Forwarded-For`.
fn from_proxy(line: Option<&str>) -> Request<Text> {
    let mut request = Request::get("/").extension(PeerAddr(IpAddr::from([10, 0, 0, 1])));
    if let Some(line) = line {
        request = request.header("x-forwarded-for", line);
    }
    request.body(Text::default()).unwrap()
}

fn behind_proxy() -> ClientIp {
    ClientIp::x_forwarded_for(TrustedProxies::new(["10.0.0.1"]).unwrap())
}

fn with_key() -> Request<Text> {
    Request::get("/")
        .header("x-api-key", "hunter2")
        .body(Text::default())
        .unwrap()
}

/// The status of `count` requests, if it is the same for all.
async fn send<B: Backend>(
    layer: &ThrottleLayer<B>,
    count: usize,
    request: fn() -> Request<Text>,
) -> StatusCode {
    let service = layer.layer(Strict::default());
    let mut statuses = Vec::new();
    for _ in 0..count {
        statuses.push(service.clone().oneshot(request()).await.unwrap().status());
    }
    statuses.dedup();
    assert_eq!(statuses.len(), 1, "{statuses:?}");
    statuses[0]
}

#[tokio::test]
async fn missing_peer_address_is_logged_once_with_what_to_write() -> Result<(), ConfigError> {
    for by_net in [false, true] {
        let (log, _guard) = Log::start();
        let limit = if by_net {
            plenty(
                Header::new("x-api-key")
                    .or(ClientIp::peer().by_prefix(throttle_tower::client_ip::IpPrefix::default())),
            )
        } else {
            plenty(ClientIp::peer())
        };
        let layer = ThrottleLayer::new(limit)?;
        assert_eq!(
            send(&layer, 300, plain).await,
            StatusCode::OK,
            "no request is refused because of it"
        );
        let lines = log.lines();
        let [line] = lines.as_slice() else {
            panic!("{lines:?}")
        };
        for part in [
            "WARN ",
            "\"plenty\"",
            "share one budget",
            "feature `axum`",
            "app.into_make_service_with_connect_info::<SocketAddr>()",
            "tonic",
            "throttle_tower::extract::PeerAddr",
            "from_fn(",
        ] {
            assert!(line.contains(part), "{part} is not in: {line}");
        }
        // Clones count as the same layer.
        send(&layer.clone(), 300, plain).await;
        assert_eq!(log.lines(), [""; 0]);
    }
    Ok(())
}

#[tokio::test]
async fn key_that_is_not_found_in_a_hundred_requests_is_logged_once() -> Result<(), ConfigError> {
    for rule in [
        OnMissing::Share,
        OnMissing::Skip,
        OnMissing::Reject(StatusCode::UNAUTHORIZED),
    ] {
        let (log, _guard) = Log::start();
        let layer = ThrottleLayer::new(plenty(Header::new("x-api-kye")).on_missing(rule))?;
        send(&layer, 99, with_key).await;
        assert_eq!(log.lines(), [""; 0], "it may come yet");
        send(&layer, 1, with_key).await;
        let lines = log.lines();
        send(&layer, 300, with_key).await;
        assert_eq!(log.lines(), [""; 0], "once");
        let [line] = lines.as_slice() else {
            panic!("{lines:?}")
        };
        for part in [
            "WARN ",
            "\"plenty\"",
            "100 requests",
            "Header(\"x-api-kye\")",
        ] {
            assert!(line.contains(part), "{part} is not in: {line}");
        }
        assert!(!line.contains("hunter2"));
    }
    Ok(())
}

/// One key that was found shows that the configuration works, so later requests without a key cause
/// no warning.
#[tokio::test]
async fn key_that_was_found_once_may_be_missing() -> Result<(), ConfigError> {
    let (log, _guard) = Log::start();
    let by_key = ThrottleLayer::new(plenty(Header::new("x-api-key")))?;
    send(&by_key, 99, plain).await;
    send(&by_key, 1, with_key).await;
    send(&by_key, 300, plain).await;
    let by_peer = ThrottleLayer::new(plenty(ClientIp::peer()))?;
    send(&by_peer, 1, from_peer).await;
    send(&by_peer, 300, plain).await;
    let by_proxy = ThrottleLayer::new(plenty(behind_proxy()))?;
    send(&by_proxy, 1, || from_proxy(None)).await;
    send(&by_proxy, 300, plain).await;
    let elsewhere = ThrottleLayer::new(
        plenty(Header::new("x-api-key")).when(|parts| parts.uri.path() == "/none"),
    )?;
    send(&elsewhere, 300, plain).await;
    assert_eq!(log.lines(), [""; 0]);
    Ok(())
}

/// Keys of `by_async` and of plans count as found.
#[tokio::test]
async fn key_that_was_looked_up_once_may_be_missing() -> Result<(), ConfigError> {
    let (log, _guard) = Log::start();
    let plenty = || Gcra::new(Rate::per_minute(1_000_000)).burst(1_000_000);
    let by_async = limit("later", plenty()).by_async(|parts| {
        std::future::ready(parts.headers.contains_key("x-api-key").then_some(1_u64))
    });
    let plans = plans("plans", [("free", plenty())]).by(Header::new("x-api-key"));
    let plans = plans.lookup(|_| async { Some("free") }).unknown("free");
    for layer in [ThrottleLayer::new(by_async)?, ThrottleLayer::new(plans)?] {
        send(&layer, 1, with_key).await;
        send(&layer, 300, plain).await;
        assert_eq!(log.lines(), [""; 0]);
    }
    Ok(())
}

#[tokio::test]
async fn hook_takes_warnings_from_the_log() -> Result<(), ConfigError> {
    let (log, _guard) = Log::start();
    let heard: Arc<Mutex<Vec<Warning>>> = Arc::default();
    let hook = Arc::clone(&heard);
    let by_async = limit("later", Gcra::new(Rate::per_minute(1_000)))
        .by_async(|_| std::future::ready(None::<u64>));
    let limits = throttle_tower::all([
        limit("ip", Gcra::new(Rate::per_minute(1_000)).burst(500))
            .by((ClientIp::peer(), Header::new("x-api-key"))),
        limit("key", Gcra::new(Rate::per_minute(1_000)).burst(500))
            .by((Header::new("x-api-key"), Header::new("a"))),
        by_async,
    ]);
    let layer = ThrottleLayer::builder(limits)
        .on_warning(move |warning| hook.lock().unwrap().push(warning.clone()))
        .build()?;
    send(&layer, 200, plain).await;
    let heard = heard.lock().unwrap();
    assert!(
        matches!(&heard[0], Warning::PeerUnknown { policy } if policy.as_str() == "ip"),
        "{heard:?}"
    );
    let extractors = heard[1..].iter().map(|warning| match warning {
        Warning::KeyNeverFound { policy, extractor } => (policy.as_str(), extractor.as_str()),
        other => panic!("{other:?}"),
    });
    let expected = [
        ("key", "(Header(\"x-api-key\"), Header(\"a\"))"),
        ("later", "the future of by_async"),
    ];
    assert_eq!(extractors.collect::<Vec<_>>(), expected);
    assert_eq!(log.lines(), [""; 0]);
    Ok(())
}

/// A request with a peer address lacks something else.
#[tokio::test]
async fn missing_key_beside_a_peer_address_is_not_blamed_on_the_address() -> Result<(), ConfigError>
{
    let (log, _guard) = Log::start();
    let layer = ThrottleLayer::new(plenty((ClientIp::peer(), Header::new("x-api-key"))))?;
    send(&layer, 99, from_peer).await;
    assert_eq!(log.lines(), [""; 0]);
    send(&layer, 1, from_peer).await;
    let lines = log.lines();
    assert!(
        lines.len() == 1 && lines[0].contains("found no key in its first 100 requests"),
        "{lines:?}"
    );
    Ok(())
}

#[tokio::test]
async fn proxy_that_names_no_client_is_logged_once_with_what_to_write() -> Result<(), ConfigError> {
    let per_ip_and_key = all([
        plenty(behind_proxy()),
        limit("key", plenty_of()).by((behind_proxy(), Constant)),
    ]);
    for limits in [
        plenty(Header::new("x-api-key").or(behind_proxy())).into(),
        per_ip_and_key,
    ] {
        let (log, _guard) = Log::start();
        let layer = ThrottleLayer::new(limits)?;
        send(&layer, 99, || from_proxy(None)).await;
        assert_eq!(log.lines(), [""; 0], "one with the header may come yet");
        send(&layer, 1, || from_proxy(None)).await;
        let lines = log.lines();
        let [line] = lines.as_slice() else {
            panic!("{lines:?}")
        };
        for part in [
            "WARN ",
            "\"plenty\"",
            "they did not have the header X-Forwarded-For",
            "share the proxy's budget",
            "proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;",
        ] {
            assert!(line.contains(part), "{part} is not in: {line}");
        }
        send(&layer.clone(), 300, || from_proxy(None)).await;
        assert_eq!(log.lines(), [""; 0], "once");
    }
    Ok(())
}

/// Each reason why an address is not that of a client, and what the warning says of it.
#[tokio::test]
async fn reason_why_no_client_is_known_is_logged_with_its_own_remedy() -> Result<(), ConfigError> {
    let peer = |request: Request<Text>, address: &str| {
        let mut request = request;
        request
            .extensions_mut()
            .insert(PeerAddr(address.parse().unwrap()));
        request
    };
    let without_peer = |line: Option<&str>| {
        let mut request = from_proxy(line);
        request.extensions_mut().remove::<PeerAddr>();
        request
    };
    let hops = |hops| ClientIp::x_forwarded_for_hops(hops).unwrap();
    let single = ClientIp::header("x-real-ip", TrustedProxies::new(["10.0.0.1"]).unwrap()).unwrap();
    for (source, request, cause, remedy) in [
        (
            behind_proxy(),
            from_proxy(Some("\"203.0.113.7\"")),
            "no address where",
            "as in 203.0.113.7, without",
        ),
        (
            behind_proxy(),
            from_proxy(Some("203.0.113.7;")),
            "no address where",
            "$proxy_add_x_forwarded_for;",
        ),
        (
            behind_proxy(),
            from_proxy(Some("10.0.0.1")),
            "only trusted proxies",
            "not the network around",
        ),
        (
            hops(2),
            from_proxy(Some("203.0.113.7")),
            "fewer entries than hops",
            "Set hops to",
        ),
        (
            hops(1),
            without_peer(None),
            "they did not have the header",
            "$proxy_add_x_forwarded_for;",
        ),
        (
            single,
            from_proxy(Some("203.0.113.7")),
            "the header x-real-ip",
            "proxy_set_header x-real-ip $remote_addr;",
        ),
        (
            behind_proxy(),
            peer(from_proxy(Some("203.0.113.7")), "172.18.0.2"),
            "internal addresses that are not trusted",
            "Add the address from which the proxy connects",
        ),
        (
            ClientIp::peer(),
            from_proxy(Some("203.0.113.7")),
            "internal addresses and had X-Forwarded-For",
            "ClientIp::x_forwarded_for(",
        ),
    ] {
        let (log, _guard) = Log::start();
        let service = ThrottleLayer::new(plenty(source.clone()))?.layer(Strict::default());
        for _ in 0..300 {
            service.clone().oneshot(again(&request)).await.unwrap();
        }
        let lines = log.lines();
        let [line] = lines.as_slice() else {
            panic!("{source:?}: {lines:?}")
        };
        assert!(
            line.contains(cause) && line.contains(remedy),
            "{source:?}: {line}"
        );
    }
    Ok(())
}

/// The same request once more.
fn again(request: &Request<Text>) -> Request<Text> {
    let mut again = Request::new(Text::default());
    *again.headers_mut() = request.headers().clone();
    *again.extensions_mut() = request.extensions().clone();
    again
}

/// One request with a client is enough, even if all others have no header or come from elsewhere.
#[tokio::test]
async fn sound_sources_of_the_address_are_not_warned_of() -> Result<(), ConfigError> {
    let (log, _guard) = Log::start();
    let client = || from_proxy(Some("203.0.113.9"));
    // Health checks of the proxy, before and after the first client.
    let layer = ThrottleLayer::new(all([
        plenty(behind_proxy()),
        limit("other", plenty_of()).by(behind_proxy()),
    ]))?;
    send(&layer, 99, || from_proxy(None)).await;
    send(&layer, 1, client).await;
    send(&layer, 500, || from_proxy(None)).await;
    send(&layer, 500, || from_proxy(Some("garbage"))).await;
    // A zone is left out, and so it is no reason.
    send(&ThrottleLayer::new(plenty(behind_proxy()))?, 300, || {
        from_proxy(Some("2001:db8::1%eth0"))
    })
    .await;
    // Clients that connect directly, of which some send the header of a proxy.
    for source in [ClientIp::peer(), behind_proxy()] {
        let layer = ThrottleLayer::new(plenty(source))?;
        send(&layer, 300, from_peer).await;
        let with_header = || {
            let mut request = from_peer();
            request
                .headers_mut()
                .insert("x-forwarded-for", "10.0.0.1".parse().unwrap());
            request
        };
        send(&layer, 300, with_header).await;
    }
    // Clients of an internal network.
    let layer = ThrottleLayer::new(plenty(ClientIp::peer()))?;
    send(&layer, 1, || from_proxy(None)).await;
    send(&layer, 300, client).await;
    assert_eq!(log.lines(), [""; 0]);
    Ok(())
}

/// A limit by the connection, beside one by clients, is for the proxy, and says nothing about the
/// other source.
#[tokio::test]
async fn limit_by_the_connection_neither_hides_nor_causes_a_warning() -> Result<(), ConfigError> {
    let both = || {
        all([
            plenty(ClientIp::peer()),
            limit("client", plenty_of()).by(behind_proxy()),
        ])
    };
    let (log, _guard) = Log::start();
    send(&ThrottleLayer::new(both())?, 300, || {
        from_proxy(Some("203.0.113.9"))
    })
    .await;
    assert_eq!(log.lines(), [""; 0]);
    send(&ThrottleLayer::new(both())?, 300, || from_proxy(None)).await;
    let lines = log.lines();
    assert!(
        lines.len() == 1 && lines[0].contains("\"client\""),
        "{lines:?}"
    );
    Ok(())
}

/// A redirect and an error may come from a fallback, and a limit by route that does not apply lacks
/// no route.
#[tokio::test]
async fn unknown_route_is_logged_after_a_limited_request_succeeds() -> Result<(), ConfigError> {
    let (log, _guard) = Log::start();
    let other = limit("other", Gcra::new(Rate::per_minute(1_000))).by(throttle_tower::Constant);
    let elsewhere = plenty(throttle_tower::Route).when(|parts| parts.uri.path() != "/");
    send(
        &ThrottleLayer::new(throttle_tower::all([other, elsewhere]))?,
        3,
        plain,
    )
    .await;
    assert_eq!(log.lines(), [""; 0]);
    let layer = ThrottleLayer::new(plenty(throttle_tower::Route))?;
    for (status, lines) in [(301, 0), (404, 0), (500, 0), (204, 1), (204, 0)] {
        let handler = move |_: Request<Text>| {
            let response = http::Response::builder()
                .status(status)
                .body(Text::default())
                .unwrap();
            std::future::ready(Ok::<_, std::convert::Infallible>(response))
        };
        layer
            .layer(tower::service_fn(handler))
            .oneshot(plain())
            .await
            .unwrap();
        assert_eq!(log.lines().len(), lines, "{status}");
    }
    Ok(())
}

/// axum tells a layer no route for what `nest_service` and `fallback_service` serve, but one for a
/// nested router.
#[tokio::test]
async fn unknown_route_of_a_nested_service_is_logged_with_its_own_remedy() -> Result<(), ConfigError>
{
    let inner = || Router::new().route("/{id}", get(|| async {}));
    for (app, is_known) in [
        (Router::new().nest_service("/files", inner()), false),
        (
            Router::new().fallback_service(Router::new().nest("/files", inner())),
            false,
        ),
        (Router::new().nest("/files", inner()), true),
    ] {
        let (log, _guard) = Log::start();
        let app = app.layer(ThrottleLayer::new(plenty(throttle_tower::Route))?);
        let request = Request::get("/files/7")
            .body(axum::body::Body::empty())
            .unwrap();
        assert_eq!(app.oneshot(request).await.unwrap().status(), StatusCode::OK);
        let lines = log.lines();
        assert_eq!(lines.len(), usize::from(!is_known), "{lines:?}");
        for part in [
            "nest_service and fallback_service",
            "Router::nest",
            "match.paths",
        ] {
            assert!(is_known || lines[0].contains(part), "{lines:?}");
        }
    }
    Ok(())
}

fn patient(url: &str) -> RedisBuilder {
    RedisBackend::builder(Single::new(url).unwrap()).deadline(std::time::Duration::from_secs(10))
}

/// The breaker learns nothing from it, because other keys are decided.
#[tokio::test]
async fn key_with_a_foreign_value_is_logged_once_by_its_policy() -> Result<(), ConfigError> {
    let server = Shared::new();
    for (rule, status) in [
        (OnError::Closed, StatusCode::SERVICE_UNAVAILABLE),
        (OnError::Open, StatusCode::OK),
    ] {
        let (log, _guard) = Log::start();
        let backend = patient(&server.url())
            .prefix(server.prefix())
            .readable_keys()
            .build()?;
        let layer = ThrottleLayer::builder(plenty(Header::new("x-api-key")))
            .on_error(rule)
            .backend(backend.clone())
            .build()?;
        assert_eq!(send(&layer, 1, with_key).await, StatusCode::OK);
        for kind in ["string", "list"] {
            for key in server.own_keys() {
                let key = String::from_utf8(key).unwrap();
                server.command(&["DEL", &key]);
                let write = if kind == "list" {
                    ["RPUSH", &key, "foreign"]
                } else {
                    ["SET", &key, "foreign"]
                };
                server.command(&write);
            }
            assert_eq!(send(&layer, 100, with_key).await, status, "{kind}");
        }
        let lines = log.lines();
        let [line] = lines.as_slice() else {
            panic!("{lines:?}")
        };
        for part in [
            "WARN ",
            "\"plenty\"",
            "a key holds something that is no state of a limit",
        ] {
            assert!(line.contains(part), "{part} is not in: {line}");
        }
        assert!(!line.contains("hunter2"), "{line}");
        assert_eq!(backend.stats().failures, 200);
        server
            .own_keys()
            .iter()
            .for_each(|key| drop(server.command(&["DEL", std::str::from_utf8(key).unwrap()])));
    }
    Ok(())
}

/// The server answers some keys and refuses others, so that its breaker stays closed.
#[tokio::test]
async fn server_that_refuses_some_keys_is_logged_once_with_its_reason() -> Result<(), ConfigError> {
    let (log, _guard) = Log::start();
    let server = Server::builder()
        .user("web", "on >secret ~throttle{all}other* +@all")
        .start();
    let backend = patient(&server.url_of("web", "secret")).build()?;
    let on = |limits: Limit| {
        ThrottleLayer::builder(limits)
            .on_error(OnError::Closed)
            .backend(backend.clone())
            .build()
    };
    let refused = on(plenty(Constant))?;
    let decided = on(limit("other", plenty_of()).by(Constant))?;
    for _ in 0..3 {
        let status = send(&refused, 1, plain).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(send(&decided, 1, plain).await, StatusCode::OK);
    }
    assert!(backend.is_healthy());
    let lines = log.lines();
    let [line] = lines.as_slice() else {
        panic!("{lines:?}")
    };
    assert!(
        line.starts_with("WARN ") && line.contains("NOPERM") && line.contains("\"plenty\""),
        "{line}"
    );
    Ok(())
}

#[tokio::test]
async fn settlement_that_fails_is_logged_with_the_reason() -> Result<(), ConfigError> {
    let (log, _guard) = Log::start();
    let server = Arc::new(Server::start());
    let backend = patient(&server.url()).build()?;
    let limit = limit("refunded", Gcra::new(Rate::per_minute(9)).burst(9))
        .by(Constant)
        .refund_if(limit::successful);
    let layer = ThrottleLayer::builder(limit)
        .on_error(OnError::Closed)
        .backend(backend)
        .build()?;
    let down = Arc::clone(&server);
    let inner = tower::service_fn(move |_: Request<Text>| {
        down.kill();
        std::future::ready(Ok::<_, std::convert::Infallible>(http::Response::new(
            Text::default(),
        )))
    });
    let response = layer.layer(inner).oneshot(plain()).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    drop(response);
    let began = std::time::Instant::now();
    while layer.settlements().failed == 0 {
        assert!(began.elapsed().as_secs() < 30, "{:?}", layer.settlements());
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let lines = log.lines();
    let failed: Vec<_> = lines
        .iter()
        .filter(|line| line.contains("a settlement failed"))
        .collect();
    assert!(
        matches!(*failed, [line] if line.starts_with("WARN ") && line.contains("unavailable")),
        "{lines:?}"
    );
    Ok(())
}

/// Each share holds at least one unit, so more processes than units exceed the limit together.
#[tokio::test]
async fn local_rule_with_more_processes_than_the_burst_is_logged_at_build()
-> Result<(), ConfigError> {
    let store = || RedisBackend::new("redis://127.0.0.1:1");
    let burst_of_20 = || Gcra::new(Rate::per_second(10)).burst(20);
    let local = |processes| {
        let limit = limit("per-user", burst_of_20()).by(Constant);
        limit.on_error(OnError::local(processes))
    };
    let (log, _guard) = Log::start();
    let layer = ThrottleLayer::builder(local(20))
        .backend(store()?)
        .build()?;
    let _in_memory = ThrottleLayer::new(local(1_000))?;
    assert_eq!(log.lines(), [""; 0], "as many as units, or no store");

    layer.replace(local(21))?;
    let lines = log.lines();
    let [line] = lines.as_slice() else {
        panic!("{lines:?}")
    };
    for part in [
        "WARN ",
        "\"per-user\"",
        "OnError::local(21)",
        "its burst is 20",
        "admit up to 21 at one instant",
        "at most 20",
        "raise the burst to 21",
        "OnError::Closed",
    ] {
        assert!(line.contains(part), "{part} is not in: {line}");
    }
    layer.replace(local(21))?;
    assert_eq!(
        log.lines(),
        [""; 0],
        "the version before gave the same warning"
    );
    layer.replace(local(22))?;
    assert_eq!(log.lines().len(), 1, "another number");

    // The rule of the layer, and the smallest tier.
    let by_plan = plans("plans", [("free", burst_of_20()), ("paid", plenty_of())]);
    let by_plan = by_plan.by(Constant).lookup(|_| async { Some("paid") });
    let heard: Arc<Mutex<Vec<Warning>>> = Arc::default();
    let hook = Arc::clone(&heard);
    let _layer = ThrottleLayer::builder(all([plenty(Constant), by_plan.unknown("free")]))
        .backend(store()?)
        .on_error(OnError::local(21))
        .on_warning(move |warning| hook.lock().unwrap().push(warning.clone()))
        .build()?;
    let heard = heard.lock().unwrap();
    assert!(
        matches!(
            heard.as_slice(),
            [Warning::ShareBelowOne { policy, processes: 21, capacity: 20 }]
                if policy.as_str() == "plans"
        ),
        "{heard:?}"
    );
    assert_eq!(log.lines(), [""; 0]);
    Ok(())
}

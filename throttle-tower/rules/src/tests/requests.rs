//! Requests through a service whose limits come from a file, on a clock that the test moves.

use std::future::{Ready, ready};
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use throttle_core::backend::{Answer, Call, ExceptedKey, KeyStep, Receipt};
use throttle_core::{
    Backend, BackendError, BackendErrorKind, Decision, ManualClock, MemoryBackend, MemorySet,
    PolicySet,
};
use tower::{Layer, ServiceExt};

use crate::{Registry, Rules};
use throttle_tower::extract::{MatchedRoute, PeerAddr};
use throttle_tower::{Header, ThrottleBody, ThrottleLayer};

const EXAMPLE: &str = include_str!("good/example.toml");

type Memory = MemoryBackend<ManualClock>;

fn cost_of(parts: &Parts) -> u64 {
    parts
        .headers
        .get("x-tokens")
        .and_then(|tokens| tokens.to_str().ok()?.parse().ok())
        .unwrap_or(1)
}

fn registry() -> Registry {
    Registry::new()
        .key("api-key", Header::new("x-api-key"))
        .key(
            "tenant",
            Header::new("x-tenant").accept(|tenant| [&b"acme"[..], b"globex"].contains(&tenant)),
        )
        .cost("tokens", cost_of)
        .condition("internal", |parts: &Parts| {
            parts.headers.contains_key("x-internal")
        })
        .lookup("plan-of", |key: String| async move {
            key.strip_prefix("pro").map(|_| "pro")
        })
}

struct App {
    rules: Rules,
    layer: ThrottleLayer<Memory>,
    clock: ManualClock,
}

fn memory_at(clock: &ManualClock) -> Memory {
    MemoryBackend::builder().clock(clock.clone()).build()
}

impl App {
    fn new(text: &str) -> Self {
        Self::of(text, registry())
    }

    fn of(text: &str, registry: Registry) -> Self {
        let rules = Rules::from_str("throttle.toml", text, registry)
            .unwrap_or_else(|error| panic!("{error}"));
        let clock = ManualClock::default();
        Self {
            layer: rules.layer(memory_at(&clock)).unwrap().0,
            rules,
            clock,
        }
    }

    /// A limit of that many requests in a day, and what else the file says of it.
    fn limited(count: u64, rest: &str) -> Self {
        let limit = format!("name = \"p\"\ngcra = {{ rate = \"{count}/day\" }}\nby = \"constant\"");
        Self::new(&format!("version = 1\n[[limit]]\n{limit}\n{rest}\n"))
    }

    /// The status of the response to a request that the handler answers with `status`.
    async fn send(&self, request: http::request::Builder, status: StatusCode) -> StatusCode {
        self.answer(request, status).await.status()
    }

    async fn answer(
        &self,
        request: http::request::Builder,
        status: StatusCode,
    ) -> Response<ThrottleBody<Full<Bytes>>> {
        let handler = move |_: Request<()>| async move {
            let mut response = Response::new(Full::<Bytes>::default());
            *response.status_mut() = status;
            Ok::<_, std::convert::Infallible>(response)
        };
        let service = self.layer.layer(tower::service_fn(handler));
        service.oneshot(request.body(()).unwrap()).await.unwrap()
    }

    /// How many of so many requests are admitted.
    async fn admitted(&self, count: usize, request: impl Fn() -> http::request::Builder) -> usize {
        let mut admitted = 0;
        for _ in 0..count {
            admitted += usize::from(self.send(request(), StatusCode::OK).await == StatusCode::OK);
        }
        admitted
    }

    /// Whether the limit applies to a request, where it admits one in all.
    async fn applies(request: http::request::Builder, rest: &str) -> bool {
        let app = Self::limited(1, rest);
        let again = Request::builder()
            .method(request.method_ref().unwrap().clone())
            .uri(request.uri_ref().unwrap());
        let headers = request.headers_ref().unwrap().clone();
        let route: Option<MatchedRoute> = request.extensions_ref().unwrap().get().cloned();
        let mut again = again;
        *again.headers_mut().unwrap() = headers;
        if let Some(route) = route {
            again = again.extension(route);
        }
        assert_eq!(app.send(request, StatusCode::OK).await, StatusCode::OK);
        app.send(again, StatusCode::OK).await == StatusCode::TOO_MANY_REQUESTS
    }
}

/// A request of a client behind the proxy.
fn from(client: &str) -> http::request::Builder {
    let proxy = PeerAddr(IpAddr::from([10, 0, 0, 1]));
    Request::builder()
        .uri("/")
        .extension(proxy)
        .header("x-forwarded-for", client)
}

#[tokio::test]
async fn example_limits_failed_logins_on_its_routes() {
    let app = App::new(EXAMPLE);
    let login = |tenant: &'static str, route: &str| {
        from("203.0.113.9")
            .method("POST")
            .header("x-tenant", tenant)
            .extension(MatchedRoute(route.into()))
    };
    for _ in 0..10 {
        assert_eq!(
            app.send(login("acme", "/login"), StatusCode::OK).await,
            StatusCode::OK,
            "refunded"
        );
        app.clock.advance(Duration::from_secs(1));
    }
    for n in 0..7 {
        let route = if n % 2 == 0 {
            "/login"
        } else {
            "/users/{id}/password"
        };
        let expected = if n < 5 {
            StatusCode::UNAUTHORIZED
        } else {
            StatusCode::TOO_MANY_REQUESTS
        };
        assert_eq!(
            app.send(login("acme", route), StatusCode::UNAUTHORIZED)
                .await,
            expected,
            "{n}"
        );
        app.clock.advance(Duration::from_secs(1));
    }
    let is_admitted = async |request| app.send(request, StatusCode::OK).await == StatusCode::OK;
    assert!(
        is_admitted(login("globex", "/login")).await,
        "another tenant is another key"
    );
    for (n, tenant) in ["no-1", "no-2", "no-3", "no-4", "no-5", "no-6"]
        .into_iter()
        .enumerate()
    {
        let expected = if n < 5 {
            StatusCode::UNAUTHORIZED
        } else {
            StatusCode::TOO_MANY_REQUESTS
        };
        let status = app
            .send(login(tenant, "/login"), StatusCode::UNAUTHORIZED)
            .await;
        assert_eq!(
            status, expected,
            "tenants that are not known share a budget: {tenant}"
        );
    }
    assert!(is_admitted(login("acme", "/logout")).await, "another route");
    assert!(
        is_admitted(login("acme", "/login").method("GET")).await,
        "another method"
    );
    app.clock.advance(Duration::from_secs(15 * 60));
    assert!(is_admitted(login("acme", "/login")).await);
}

#[tokio::test]
async fn example_charges_tokens_to_the_key_and_then_to_the_pool() {
    let app = App::new(EXAMPLE);
    // Each from another address, so that only the tokens are counted.
    let spend = |key: &'static str, tokens: u64, address: u8| {
        from(&format!("203.0.113.{address}"))
            .header("x-api-key", key)
            .header("x-tokens", tokens)
    };
    let status = async |request| app.send(request, StatusCode::OK).await;
    assert_eq!(
        status(spend("pro-1", 10_000, 1)).await,
        StatusCode::OK,
        "the month of the key"
    );
    assert_eq!(
        status(spend("pro-1", 20_000, 2)).await,
        StatusCode::OK,
        "the pool"
    );
    assert_eq!(
        status(spend("pro-1", 1, 3)).await,
        StatusCode::TOO_MANY_REQUESTS
    );
    assert_eq!(
        status(spend("pro-2", 10_000, 4)).await,
        StatusCode::OK,
        "another key has a month of its own"
    );
}

#[tokio::test]
async fn limit_applies_to_requests_that_match_each_field() {
    let post = |path: &str| Request::post(path.to_owned());
    let matched = |route: &str| post("/any").extension(MatchedRoute(route.into()));
    for (rest, applies, not) in [
        (
            "match = { methods = [\"POST\"] }",
            post("/"),
            Request::get("/"),
        ),
        (
            "match = { methods = [\"GET\"] }",
            Request::head("/"),
            post("/"),
        ),
        (
            "match = { routes = [\"/users/{id}\"] }",
            matched("/users/{id}"),
            matched("/users/{id}/posts"),
        ),
        (
            "match = { routes = [\"/users/{id}\"] }",
            matched("/users/{name}"),
            matched("/users/{*name}"),
        ),
        (
            "match = { routes = [\"/users/{id}\"] }",
            matched("/users/{id}"),
            post("/users/{id}"),
        ),
        (
            "match = { paths = [\"/api/**\"] }",
            post("/%61pi//v1"),
            post("/app"),
        ),
        (
            "match = { hosts = [\"a.example\"] }",
            post("/").header("host", "A.example:80"),
            post("/"),
        ),
        (
            "match = { paths = [\"/a\"], methods = [\"POST\"] }",
            post("/a"),
            Request::get("/a"),
        ),
        (
            "match = { paths = [\"/a\", \"/b\"] }",
            post("/b"),
            post("/c"),
        ),
        (
            "when = \"internal\"",
            post("/").header("x-internal", "1"),
            post("/"),
        ),
        (
            "when = { not = \"internal\" }",
            post("/"),
            post("/").header("x-internal", "1"),
        ),
        (
            "when = [\"internal\"]\nmatch = { methods = [\"POST\"] }",
            post("/").header("x-internal", "1"),
            Request::get("/").header("x-internal", "1"),
        ),
        (
            "when = [\"internal\", { not = \"preflight\" }]",
            post("/").header("x-internal", "1"),
            post("/"),
        ),
        (
            "when = [{ not = \"preflight\" }, \"internal\"]",
            post("/").header("x-internal", "1"),
            Request::options("/")
                .header("x-internal", "1")
                .header("origin", "a")
                .header("access-control-request-method", "PUT"),
        ),
        (
            "match = { paths = [\"/a\"], hosts = [\"b\", \"c\"] }",
            post("/a").header("host", "c"),
            post("/a").header("host", "a"),
        ),
        (
            "match = { paths = [\"/a\", \"/a/b/c\", \"/b\"] }",
            post("/a/b/c"),
            post("/a/b/c/d"),
        ),
        (
            "when = { not = \"preflight\" }",
            Request::options("/"),
            Request::options("/")
                .header("origin", "a")
                .header("access-control-request-method", "PUT"),
        ),
    ] {
        assert!(App::applies(applies, rest).await, "{rest} applies");
        assert!(!App::applies(not, rest).await, "{rest} does not apply");
    }
}

/// So many that they are found by the request's route and path, and not asked one by one.
#[tokio::test]
async fn each_of_many_limits_applies_to_the_requests_that_match_it() {
    let limit = |n: usize| {
        let matches = if n.is_multiple_of(2) {
            format!("paths = [\"/p{n}/**\"]")
        } else {
            format!("routes = [\"/r{n}/{{id}}\"]")
        };
        format!(
            "[[limit]]\nname = \"l{n}\"\ngcra = {{ rate = \"1/day\" }}\nby \
                = \"constant\"\nmatch.{matches}\n"
        )
    };
    let app = App::new(&format!(
        "version = 1\n{}",
        (0..12).map(limit).collect::<String>()
    ));
    for n in 0..12_usize {
        let of_route =
            || Request::get("/").extension(MatchedRoute(format!("/r{n}/{{user}}").into()));
        let request = || {
            if n.is_multiple_of(2) {
                Request::get(format!("/p{n}/a"))
            } else {
                of_route()
            }
        };
        assert_eq!(app.admitted(3, request).await, 1, "{n}");
    }
    assert_eq!(app.admitted(3, || Request::get("/")).await, 3);
}

#[tokio::test]
async fn concurrency_of_a_file_is_in_force() {
    let app = App::new(
        "version = 1\n[[concurrency]]\nmost = 3\nname = \"busy\"\ncost \
            = \"tokens\"\nmatch.methods = [\"PUT\"]",
    );
    assert_eq!(
        app.send(Request::put("/").header("x-tokens", 4), StatusCode::OK)
            .await,
        StatusCode::SERVICE_UNAVAILABLE
    );
    assert_eq!(
        app.send(Request::get("/"), StatusCode::OK).await,
        StatusCode::OK
    );
    assert_eq!(app.layer.in_flight("busy"), Some(0));
}

#[tokio::test]
async fn limit_for_some_routes_warns_around_a_router() {
    let in_flight = "version = 1\n[[concurrency]]\nmost = 5\nmatch = ";
    for (mut app, warnings) in [
        (
            App::limited(5, "match = { routes = [\"/login\"] }"),
            &[throttle_tower::Warning::RouteUnknown][..],
        ),
        (App::limited(5, "match = { paths = [\"/login\"] }"), &[]),
        (
            App::new(&format!("{in_flight}{{ routes = [\"/login\"] }}")),
            &[throttle_tower::Warning::RouteUnknown],
        ),
        (
            App::new(&format!("{in_flight}{{ paths = [\"/login\"] }}")),
            &[],
        ),
    ] {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&seen);
        let program = ThrottleLayer::builder(())
            .backend(memory_at(&app.clock))
            .on_warning(move |warning| sink.lock().unwrap().push(warning.clone()));
        app.layer = app.rules.layer_with(program).unwrap().0;
        assert_eq!(app.admitted(3, || Request::post("/login")).await, 3);
        assert_eq!(*seen.lock().unwrap(), warnings);
    }
}

/// A backend in memory of which the layer must expect failures. A test can make it fail decisions,
/// or refuse all limits.
#[derive(Clone)]
pub(super) struct Fallible {
    pub(super) memory: Memory,
    pub(super) refuses: Option<throttle_tower::ConfigError>,
    pub(super) fails: bool,
    #[expect(dead_code, reason = "its clones are counted")]
    pub(super) clones: Arc<()>,
}

impl Fallible {
    pub(super) fn new(memory: Memory) -> Self {
        Self {
            memory,
            refuses: None,
            fails: false,
            clones: Arc::default(),
        }
    }
}

impl Backend for Fallible {
    type Prepared = MemorySet;
    type Decide = Ready<Result<Decision, BackendError>>;
    type Done = Ready<Result<(), BackendError>>;

    fn prepare(&self, set: PolicySet) -> Result<MemorySet, throttle_tower::ConfigError> {
        self.refuses
            .clone()
            .map_or_else(|| self.memory.prepare(set), Err)
    }

    fn set(prepared: &MemorySet) -> &PolicySet {
        Memory::set(prepared)
    }

    fn decide(&self, set: &Arc<MemorySet>, calls: &[Call]) -> Self::Decide {
        let failed = BackendError::new(BackendErrorKind::Unavailable);
        ready(if self.fails {
            Err(failed)
        } else {
            Ok(self.memory.decide_now(set, calls))
        })
    }

    fn settle(&self, _: &Arc<MemorySet>, _: Receipt) -> Self::Done {
        ready(Err(BackendError::new(BackendErrorKind::Unavailable)))
    }

    fn run(&self, _: &Arc<MemorySet>, _: usize, _: KeyStep) -> Answer<Vec<ExceptedKey>> {
        Box::pin(ready(Err(BackendError::new(BackendErrorKind::Unavailable))))
    }

    fn reset_all(&self, _: &str) -> Self::Done {
        ready(Err(BackendError::new(BackendErrorKind::Unavailable)))
    }

    fn can_fail(&self) -> bool {
        true
    }
}

#[test]
fn every_limit_without_on_error_is_named_on_a_backend_that_can_fail() {
    let limit = |name: &str, rest: &str| {
        format!(
            "[[limit]]\nname = \"{name}\"\nby = \"constant\"\ngcra = {{ rate = \"1/s\" }}\n{rest}\n"
        )
    };
    let in_flight = "[[concurrency]]\nmost = 5\n";
    let plans = "[[plans]]\nname = \"d\"\nby = \"constant\"\nlookup = \"plan-of\"\nunknown \
        = \"free\"\n\
                 tiers = { free = { gcra = { rate = \"1/s\" } } }\n";
    let (a, b, c) = (
        limit("a", ""),
        limit("b", "on-error = \"open\""),
        limit("c", ""),
    );
    let limits = format!("{a}{b}{c}{plans}{in_flight}");
    let backend = || {
        Fallible::new(
            MemoryBackend::builder()
                .clock(ManualClock::default())
                .build(),
        )
    };
    let rules = |text: &str| Rules::from_str("throttle.toml", text, registry()).unwrap();
    let error = rules(&format!("version = 1\n{limits}"))
        .layer(backend())
        .unwrap_err();
    let places: Vec<_> = error
        .problems()
        .iter()
        .map(|problem| (problem.line(), problem.column()))
        .collect();
    assert_eq!(
        places,
        [(Some(3), Some(8)), (Some(13), Some(8)), (Some(18), Some(8))]
    );
    let first = "throttle.toml:3:8: limit \"a\": on-error is missing: the backend can fail, and \
        there is no silent \
                 default; write on-error = \"local/4\" (4 processes share the limit), \"open\" \
                 or \"closed\", here or \
                 under [defaults]\n  |\n3 | name = \"a\"\n  |        ^^^";
    assert_eq!(error.problems()[0].to_string(), first);
    assert!(
        rules(&format!(
            "version = 1\n[defaults]\non-error = \"closed\"\n{limits}"
        ))
        .layer(backend())
        .is_ok()
    );
}

#[tokio::test]
async fn paths_and_routes_of_a_nested_router_have_its_prefix() {
    use axum::Router;
    use axum::routing::get;

    for (rest, expected) in [
        ("match = { paths = [\"/api/users/*\"] }", 1),
        ("match = { paths = [\"/api/**\"] }", 1),
        ("match = { paths = [\"/users/*\"] }", 3),
        ("match = { routes = [\"/api/users/{name}\"] }", 1),
        ("match = { routes = [\"/users/{id}\"] }", 3),
    ] {
        let users = Router::new()
            .route("/users/{id}", get(|| async {}))
            .layer(App::limited(1, rest).layer);
        let app = Router::new().nest("/api", users);
        let mut admitted = 0;
        for _ in 0..3 {
            let request = Request::get("/api/users/7")
                .body(axum::body::Body::empty())
                .unwrap();
            admitted +=
                usize::from(app.clone().oneshot(request).await.unwrap().status() == StatusCode::OK);
        }
        assert_eq!(admitted, expected, "{rest}");
    }
}

#[test]
fn error_that_is_about_no_limit_has_no_place() {
    let refusal = throttle_tower::ConfigError::new("store", "full", "make room");
    let memory = MemoryBackend::builder()
        .clock(ManualClock::default())
        .build();
    let backend = Fallible {
        refuses: Some(refusal.clone()),
        ..Fallible::new(memory)
    };
    let limit = "[[limit]]\nname = \"a\"\nby = \"constant\"\ngcra = { rate = \"1/s\" }\non-error \
        = \"open\"";
    let rules = Rules::from_str(
        "throttle.toml",
        &format!("version = 1\n{limit}"),
        Registry::new(),
    )
    .unwrap();
    let error = rules.layer(backend).unwrap_err();
    assert_eq!(error.to_string(), format!("throttle.toml: {refusal}"));
    assert_eq!(
        (error.problems()[0].line(), error.problems()[0].column()),
        (None, None)
    );
}

#[tokio::test]
async fn requests_of_one_key_share_a_budget() {
    let (get, route) = (
        || Request::get("/"),
        |route: &str| Request::get("/").extension(MatchedRoute(route.into())),
    );
    let peer = |peer: &str| Request::get("/").extension(PeerAddr(peer.parse().unwrap()));
    let session = |session: &str| Request::get("/").header("x-session", session);
    let registry = || {
        let session = |parts: &Parts| {
            parts
                .headers
                .get("x-session")
                .map(|value| value.as_bytes().len() as u64)
        };
        registry().key_async("session", move |parts| ready(session(parts)))
    };
    for (by, one, same, other) in [
        ("\"route\"", route("/a"), route("/a"), route("/b")),
        ("\"method\"", get(), Request::head("/"), Request::post("/")),
        (
            "\"constant\"\nmatch.methods = [\"GET\"]",
            get(),
            route("/a"),
            Request::post("/"),
        ),
        (
            "[\"method\", \"route\"]",
            route("/a"),
            route("/a"),
            Request::post("/").extension(MatchedRoute("/a".into())),
        ),
        ("\"session\"", session("a"), session("b"), session("ab")),
        (
            "\"session\"\non-missing = \"skip\"",
            session("a"),
            session("b"),
            get(),
        ),
        (
            "\"client-ip\"",
            peer("2001:db8:1:2::1"),
            peer("2001:db8:1:2::9"),
            peer("2001:db8:1:3::1"),
        ),
        (
            "{ client-ip = { ipv4 = 24 } }",
            peer("192.0.2.1"),
            peer("192.0.2.9"),
            peer("192.0.3.1"),
        ),
        (
            "{ client-ip = { ipv6 = 48 } }",
            peer("2001:db8:1:2::1"),
            peer("2001:db8:1:3::1"),
            peer("2001:db8:2::1"),
        ),
        (
            "{ first-of = [\"header:a\", \"header:b\"] }",
            get().header("a", "1"),
            get().header("b", "1"),
            get(),
        ),
        (
            "{ header = \"a\", normalize = \"lowercase\" }",
            get().header("a", "Ada"),
            get().header("a", "ADA"),
            get().header("a", "bob"),
        ),
        (
            "{ client-ip = { ipv4 = 24 } }",
            peer("2001:db8::1"),
            peer("2001:db8::2"),
            peer("2001:db8:0:1::1"),
        ),
        (
            "{ client-ip = { ipv6 = 48 } }",
            peer("192.0.2.1"),
            peer("192.0.2.1"),
            peer("192.0.2.2"),
        ),
        (
            "{ client-ip = {} }",
            peer("2001:db8::1"),
            peer("2001:db8::2"),
            peer("192.0.2.2"),
        ),
        (
            "{ header = \"a\" }",
            get().header("a", "1"),
            get().header("a", "1"),
            get().header("a", "A"),
        ),
        #[cfg(feature = "unicode")]
        (
            "{ header = \"a\", normalize = \"identity\" }",
            get().header("a", "\u{c9}".as_bytes()),
            get().header("a", "e\u{301}".as_bytes()),
            get().header("a", "e"),
        ),
    ] {
        let limit = "[[limit]]\nname = \"p\"\ngcra = { rate = \"1/day\" }";
        let app = App::of(&format!("version = 1\n{limit}\nby = {by}\n"), registry());
        assert_eq!(app.send(one, StatusCode::OK).await, StatusCode::OK, "{by}");
        assert_eq!(
            app.send(same, StatusCode::OK).await,
            StatusCode::TOO_MANY_REQUESTS,
            "{by}"
        );
        assert_eq!(
            app.send(other, StatusCode::OK).await,
            StatusCode::OK,
            "{by}"
        );
    }
}

/// Plans of a file with these settings, and how many lookups have begun. Those of some identities
/// never end.
fn plans(rest: &str) -> (App, Arc<AtomicUsize>) {
    let asked: Arc<AtomicUsize> = Arc::default();
    let counted = Arc::clone(&asked);
    let registry = Registry::new().lookup("plan-of", move |identity: String| {
        counted.fetch_add(1, Ordering::SeqCst);
        async move {
            if identity.starts_with("slow") {
                std::future::pending::<()>().await;
            }
            identity.starts_with("pro").then_some("pro")
        }
    });
    let tiers =
        "tiers = { pro = { gcra = { rate = \"2/day\" } }, free = { gcra = { rate = \"1/day\" } } }";
    let limit = "[[plans]]\nname = \"p\"\nby = \"header:x-api-key\"\nlookup \
        = \"plan-of\"\nunknown = \"free\"";
    (
        App::of(&format!("version = 1\n{limit}\n{tiers}\n{rest}"), registry),
        asked,
    )
}

fn of(identity: &'static str) -> impl Fn() -> http::request::Builder {
    move || Request::get("/").header("x-api-key", identity)
}

#[tokio::test]
async fn unknown_identities_share_a_budget_if_the_file_says_so() {
    for (setting, bobs) in [
        ("", 1),
        ("unknown-as-missing = false", 1),
        ("unknown-as-missing = true", 0),
    ] {
        let (app, _) = plans(setting);
        assert_eq!(app.admitted(5, of("pro")).await, 2);
        assert_eq!(
            (
                app.admitted(5, of("ada")).await,
                app.admitted(5, of("bob")).await
            ),
            (1, bobs),
            "{setting}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn tiers_are_remembered_for_as_long_as_the_file_says() {
    for (setting, lookups) in [
        ("", [1, 1, 2]),
        ("cache = { identities = 10, keep-for = \"10s\" }", [1, 2, 3]),
    ] {
        let (app, asked) = plans(setting);
        for (seconds, lookups) in [9, 2, 50].into_iter().zip(lookups) {
            app.admitted(2, of("pro")).await;
            tokio::time::advance(Duration::from_secs(seconds)).await;
            app.admitted(2, of("pro")).await;
            assert_eq!(
                asked.load(Ordering::SeqCst),
                lookups,
                "{setting} after {seconds} s"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn lookups_are_bounded_as_the_file_says() {
    for (setting, at_once, deadline) in [
        ("", 3, 1_000),
        ("lookups = { at-once = 2, deadline = \"50ms\" }", 2, 50),
    ] {
        let ((app, asked), start) = (plans(setting), tokio::time::Instant::now());
        let (one, two, three) = tokio::join!(
            app.admitted(1, of("slow-1")),
            app.admitted(1, of("slow-2")),
            app.admitted(1, of("slow-3"))
        );
        assert_eq!(
            (one, two, three),
            (1, 1, 1),
            "in the tier of unknown identities"
        );
        assert_eq!(asked.load(Ordering::SeqCst), at_once, "{setting}");
        assert_eq!(start.elapsed().as_millis(), deadline, "{setting}");
    }
}

//! Attacks through HTTP itself: aliases of a path, routes that match nothing, methods, preflights.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::support::{Dice, Site, builder, field, from, layer, ok, text, three, three_by};
use axum::body::Body;
use axum::routing::{any, get, post};
use axum::{Json, Router};
use http::header::{
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_REQUEST_METHOD,
    ORIGIN,
};
use http::request::{Builder, Parts};
use http::{Method as HttpMethod, Request, StatusCode};
use throttle_tower::ClientIp;
use throttle_tower::extract::{MatchedRoute, Method};
use throttle_tower::headers::Dialect;
use throttle_tower::{
    Constant, Gcra, Header, KeyExtractor, Rate, Route, Usage, Warning, all, is_preflight, limit,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tower::{Layer, ServiceExt};
use tower_http::cors::CorsLayer;

/// Serves over TCP. Requests are sent as raw bytes.
async fn served(app: Router) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

async fn raw(server: SocketAddr, line: &str) -> u16 {
    exchange(
        server,
        format!("{line} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").as_bytes(),
    )
    .await
}

/// Sends bytes, and returns the status of the response.
async fn exchange(server: SocketAddr, bytes: &[u8]) -> u16 {
    let mut stream = TcpStream::connect(server).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let answer = String::from_utf8_lossy(&answer);
    answer.strip_prefix("HTTP/1.1 ").unwrap()[..3]
        .parse()
        .unwrap()
}

#[tokio::test]
async fn attack_27_aliases_of_a_path_share_its_routes_bucket() {
    let served_times = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&served_times);
    let handler = move || {
        count.fetch_add(1, Ordering::Relaxed);
        ok()
    };
    let site = Site::with(three_by((Route, ClientIp::peer())), |layer| {
        Router::new()
            .route("/users/{id}", get(handler))
            .layer(layer)
    });
    let server = served(site.app.clone()).await;

    let aliases = [
        "/users/1",
        "/users/%31",
        "/users/..%2fadmin",
        "/users/2",
        "/users/1;x",
        "/users/1?n=1",
        "/users/%2e%2e",
    ];
    for (n, path) in aliases.iter().enumerate() {
        let status = raw(server, &format!("GET {path}")).await;
        assert_eq!(status, if n < 3 { 200 } else { 429 }, "{path}");
    }
    let absolute = format!("GET http://{server}/users/3");
    assert_eq!(raw(server, &absolute).await, 429);
    assert_eq!(site.store.keys(), 1);

    // Paths that the router does not match to the route share the bucket of unmatched paths.
    let others = [
        "//users/1",
        "/users/1/",
        "/%75sers/1",
        "/USERS/1",
        "/users/../admin",
        "/admin;x",
    ];
    for (n, path) in others.iter().enumerate() {
        let status = raw(server, &format!("GET {path}")).await;
        assert_eq!(status, if n < 3 { 404 } else { 429 }, "{path}");
    }
    assert_eq!(site.store.keys(), 2);
    assert_eq!(served_times.load(Ordering::Relaxed), 3);
}

#[tokio::test]
async fn attack_28_paths_that_match_nothing_are_one_key() {
    let site = Site::with(limit("per-route", three()).by(Route), |layer| {
        Router::new().route("/known", get(ok)).layer(layer)
    });
    let mut dice = Dice::new(28);
    let mut found = Vec::new();
    for _ in 0..1000 {
        found.push(
            site.status(from("203.0.113.9").uri(format!("/{}", dice.token())))
                .await,
        );
    }
    assert_eq!(
        found
            .iter()
            .filter(|status| **status == StatusCode::NOT_FOUND)
            .count(),
        3
    );
    assert_eq!(site.store.keys(), 1);
    // They do not spend the budget of a route, not even of one with that name.
    assert_eq!(
        site.status(from("203.0.113.9").uri("/known")).await,
        StatusCode::OK
    );
}

/// Warnings seen so far.
type Seen = Arc<Mutex<Vec<Warning>>>;

fn watched(
    by: impl KeyExtractor,
    wrap: impl FnOnce(throttle_tower::ThrottleLayer<crate::support::Store>) -> Router,
) -> (Router, Seen) {
    let seen = Seen::default();
    let (builder, ..) = builder(limit("per-route", three().burst(100)).by(by));
    let hook = Arc::clone(&seen);
    let layer = builder.on_warning(move |warning| hook.lock().unwrap().push(warning.clone()));
    (wrap(layer.build().unwrap()), seen)
}

fn router() -> Router {
    Router::new()
        .route("/known", get(ok))
        .route("/broken", get(async || StatusCode::BAD_GATEWAY))
}

async fn visit(app: &Router, path: &str) -> StatusCode {
    crate::support::send(app, from("203.0.113.9").uri(path))
        .await
        .status()
}

fn around(layer: &throttle_tower::ThrottleLayer<crate::support::Store>) -> Router {
    Router::new().fallback_service(layer.layer(router()))
}

#[tokio::test]
async fn attack_28_a_layer_around_the_router_is_warned_of_once() {
    let (app, seen) = watched((Route, ClientIp::peer()), |layer| around(&layer));
    assert_eq!(visit(&app, "/unknown").await, StatusCode::NOT_FOUND);
    assert_eq!(visit(&app, "/broken").await, StatusCode::BAD_GATEWAY);
    assert!(seen.lock().unwrap().is_empty());
    for _ in 0..3 {
        assert_eq!(visit(&app, "/known").await, StatusCode::OK);
    }
    assert_eq!(*seen.lock().unwrap(), [Warning::RouteUnknown]);
    assert!(Warning::RouteUnknown.to_string().contains("Router::layer"));

    // Clones are the same layer.
    let (app, seen) = watched(Route.or(Constant), |layer| {
        let clone = around(&layer.clone());
        Router::new()
            .nest_service("/clone", clone)
            .fallback_service(around(&layer))
    });
    assert_eq!(visit(&app, "/clone/known").await, StatusCode::OK);
    assert_eq!(visit(&app, "/known").await, StatusCode::OK);
    assert_eq!(seen.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn attack_28_a_layer_that_knows_the_route_or_needs_none_is_not_warned_of() {
    for path in ["/known", "/unknown", "/broken"] {
        let (inside, seen) = watched(Route, |layer| router().layer(layer));
        visit(&inside, path).await;
        assert!(seen.lock().unwrap().is_empty(), "{path}");

        let (routeless, seen) = watched(ClientIp::peer(), |layer| around(&layer));
        visit(&routeless, path).await;
        assert!(seen.lock().unwrap().is_empty(), "{path}");
    }

    // Another kind of router sets the route itself.
    let (by_route, ..) = builder(three_by(Route));
    let seen = Seen::default();
    let hook = Arc::clone(&seen);
    let service = by_route
        .on_warning(move |warning| hook.lock().unwrap().push(warning.clone()))
        .build()
        .unwrap()
        .layer(router());
    let mut request = Request::builder()
        .uri("/known")
        .body(Body::empty())
        .unwrap();
    request
        .extensions_mut()
        .insert(MatchedRoute("/known".into()));
    assert_eq!(
        service.oneshot(request).await.unwrap().status(),
        StatusCode::OK
    );
    assert!(seen.lock().unwrap().is_empty());

    // A limit that does not apply causes no warning either.
    let (elsewhere, ..) =
        builder(three_by(Route).when(|parts: &Parts| parts.uri.path() != "/known"));
    let hook = Arc::clone(&seen);
    let layer = elsewhere.on_warning(move |warning| hook.lock().unwrap().push(warning.clone()));
    let app = around(&layer.build().unwrap());
    assert_eq!(visit(&app, "/known").await, StatusCode::OK);
    assert!(seen.lock().unwrap().is_empty());
}

#[tokio::test]
async fn attack_29_head_spends_what_get_spends_and_405_is_not_free() {
    let site = Site::with(three_by((Method, ClientIp::peer())), |layer| {
        Router::new().route("/", get(ok)).layer(layer)
    });
    let by = |method: &str| from("203.0.113.9").method(method);
    for _ in 0..3 {
        assert_eq!(site.status(by("GET")).await, StatusCode::OK);
    }
    assert_eq!(site.status(by("HEAD")).await, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(site.store.keys(), 1);

    // The same in the other direction.
    let head = |peer| from(peer).method("HEAD");
    assert_eq!(site.admitted((0..3).map(|_| head("203.0.113.10"))).await, 3);
    assert_eq!(
        site.status(from("203.0.113.10")).await,
        StatusCode::TOO_MANY_REQUESTS
    );

    // A method that the route does not allow is still limited.
    for n in 0..4 {
        let status = site.status(by("POST")).await;
        assert_eq!(
            status,
            if n < 3 {
                StatusCode::METHOD_NOT_ALLOWED
            } else {
                StatusCode::TOO_MANY_REQUESTS
            }
        );
    }
    // The response does not show which methods are limited.
    let response = site.send(by("OPTIONS")).await;
    assert!(
        response
            .headers()
            .keys()
            .all(|name| !name.as_str().contains("white") && !name.as_str().starts_with("x-"))
    );
}

#[tokio::test]
async fn attack_30_made_up_methods_are_one_key() {
    let site = Site::with(limit("per-method", three()).by(Method), |layer| {
        Router::new().route("/", any(ok)).layer(layer)
    });
    let server = served(site.app.clone()).await;
    let mut dice = Dice::new(30);
    let mut admitted = 0;
    for n in 0..1000 {
        let method = ["FOOBAR", "get", "BREW", "M-SEARCH"][n % 4];
        let method = format!("{method}{:x}", dice.roll() >> 48);
        // A few over the wire, the rest directly.
        let status = if n < 20 {
            raw(server, &format!("{method} /")).await
        } else {
            site.status(from("203.0.113.9").method(method.as_str()))
                .await
                .as_u16()
        };
        admitted += usize::from(status == 200);
    }
    assert_eq!(admitted, 3);
    assert_eq!(site.store.keys(), 1);

    // An override header does not change the method.
    let overridden = |n: u64| {
        from("203.0.113.9")
            .method("POST")
            .header("x-http-method-override", format!("M{n}"))
    };
    assert_eq!(site.admitted((0..10).map(overridden)).await, 3);
    assert_eq!(site.store.keys(), 2);
}

fn cors() -> CorsLayer {
    CorsLayer::new()
        .allow_origin(["https://app.example".parse().unwrap()])
        .allow_methods([HttpMethod::GET, HttpMethod::POST])
        .expose_headers(Dialect::Draft11.exposed_names().to_vec())
}

fn page(method: &str) -> Builder {
    from("203.0.113.9")
        .method(method)
        .header(ORIGIN, "https://app.example")
}

fn preflight() -> Builder {
    page("OPTIONS").header(ACCESS_CONTROL_REQUEST_METHOD, "POST")
}

/// The PROXY protocol belongs to listeners that require it. On a plain listener its line is not
/// HTTP, and names no address.
#[tokio::test]
async fn attack_15_proxy_line_on_a_plain_listener_is_refused() {
    let (layer, _, store) = layer(three_by(ClientIp::peer()));
    let server = served(Router::new().route("/", get(ok)).layer(layer)).await;
    let request = b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    let second_version =
        b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\x06\x06\x06\x06\x0a\0\0\x01\x12\x67\0\x50";
    for line in [
        &b"PROXY TCP4 6.6.6.6 10.0.0.1 4711 80\r\n"[..],
        b"PROXY TCP6 2001:db8::6 ::1 4711 80\r\n",
        b"PROXY UNKNOWN\r\n",
        second_version,
    ] {
        for _ in 0..3 {
            assert_eq!(
                exchange(server, &[line, request].concat()).await,
                400,
                "{}",
                line.escape_ascii()
            );
        }
    }
    assert_eq!(store.keys(), 0, "nothing was charged");
    for expected in [200, 200, 200, 429] {
        assert_eq!(
            raw(server, "GET /").await,
            expected,
            "the connection's own address"
        );
    }
}

#[tokio::test]
async fn attack_31_made_up_hosts_earn_no_fresh_budget() {
    let mut dice = Dice::new(31);
    let mut host = || format!("{}.example", dice.token());
    // A key of route and address does not depend on the host, in whatever form it is sent.
    let site = Site::new(three_by((Route, ClientIp::peer())));
    let requests: Vec<_> = (0..20)
        .map(|_| from("203.0.113.9").uri(format!("http://{}/", host())))
        .collect();
    let headers = (0..20).map(|_| from("203.0.113.9").header("host", host()));
    site.assert_one_bucket(requests.into_iter().chain(headers.collect::<Vec<_>>()))
        .await;

    // In a key by host, only known hosts count. Every other host falls back to the address.
    let known = Header::new("host")
        .accept(|host| matches!(host, b"api.example" | b"www.example"))
        .or(ClientIp::peer());
    let site = Site::new(three_by(known));
    let asking = |host: &str| from("203.0.113.9").header("host", host);
    let made_up: Vec<_> = (0..1_000).map(|_| asking(&host())).collect();
    site.assert_one_bucket(made_up).await;
    for host in ["api.example", "www.example"] {
        assert_eq!(
            site.admitted((0..4).map(|_| asking(host))).await,
            3,
            "{host}"
        );
    }
    // Two hosts count as none, and the one in the request line is not read.
    for twice in [
        asking("api.example").header("host", "www.example"),
        asking("x").uri("http://api.example/"),
    ] {
        assert_eq!(site.status(twice).await, StatusCode::TOO_MANY_REQUESTS);
    }
    assert_eq!(site.store.keys(), 3);
}

#[tokio::test]
async fn attack_32_inside_cors_preflights_are_free_and_refusals_readable() {
    let site = Site::with(three_by(ClientIp::peer()), |layer| {
        Router::new()
            .route("/", post(ok))
            .layer(layer)
            .layer(cors())
    });
    for _ in 0..10 {
        let response = site.send(preflight()).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert!(response.headers().contains_key(ACCESS_CONTROL_ALLOW_ORIGIN));
    }
    assert_eq!(site.store.keys(), 0);
    for _ in 0..3 {
        assert_eq!(site.status(page("POST")).await, StatusCode::OK);
    }
    let refused = site.send(page("POST")).await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(
        refused.headers()[ACCESS_CONTROL_ALLOW_ORIGIN],
        "https://app.example"
    );
    assert_eq!(
        field(&refused, ACCESS_CONTROL_EXPOSE_HEADERS.as_str()),
        Some("ratelimit,ratelimit-policy,retry-after")
    );
}

#[tokio::test]
async fn attack_32_outside_cors_preflights_count_and_refusals_are_opaque() {
    let outside = |limits: throttle_tower::LimitTree| {
        Site::with(limits, |layer| {
            Router::new()
                .route("/", post(ok))
                .layer(cors())
                .layer(layer)
        })
    };
    let site = outside(three_by(ClientIp::peer()).into());
    assert_eq!(site.admitted((0..4).map(|_| preflight())).await, 3);
    let refused = site.send(page("POST")).await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(!refused.headers().contains_key(ACCESS_CONTROL_ALLOW_ORIGIN));

    // Exempted preflights have a limit of their own, and do not spend the limit of requests.
    let cheap = limit("preflights", three().burst(10))
        .by(ClientIp::peer())
        .when(is_preflight);
    let costly = three_by(ClientIp::peer()).when(|parts: &Parts| !is_preflight(parts));
    let site = outside(all([cheap, costly]));
    assert_eq!(site.admitted((0..20).map(|_| preflight())).await, 10);
    assert_eq!(site.admitted((0..4).map(|_| page("POST"))).await, 3);
    // OPTIONS without the headers of a preflight is not a preflight.
    assert_eq!(
        site.status(page("OPTIONS")).await,
        StatusCode::TOO_MANY_REQUESTS
    );
}

#[tokio::test]
async fn attack_32_every_field_sent_is_a_field_exposed() {
    for &dialect in Dialect::ALL {
        let tokens = limit("tokens", three()).by(ClientIp::peer()).unit("tokens");
        let limits = all([three_by(ClientIp::peer()), tokens]);
        let site = Site::built(limits, |builder| {
            Router::new()
                .route("/", any(ok))
                .layer(builder.headers(dialect).build().unwrap())
        });
        let mut sent = Vec::new();
        for _ in 0..4 {
            let response = site.send(from("203.0.113.9")).await;
            let ours = |name: &&str| name.contains("ratelimit") || *name == "retry-after";
            sent.extend(
                response
                    .headers()
                    .keys()
                    .map(|name| name.as_str().to_owned())
                    .filter(|name| ours(&name.as_str())),
            );
        }
        let mut exposed: Vec<&str> = dialect
            .exposed_names()
            .iter()
            .map(|name| name.as_str())
            .collect();
        sent.sort_unstable();
        sent.dedup();
        exposed.sort_unstable();
        assert_eq!(sent, exposed, "{dialect:?}");
    }
}

/// A request with many operations pays for each: one unit on arrival, the rest once its body is
/// read.
#[tokio::test]
async fn attack_36_a_batch_costs_what_is_in_it() {
    let calls = limit("calls", Gcra::new(Rate::per_hour(100)))
        .by(ClientIp::peer())
        .settled_later();
    let batch = async |usage: Usage, Json(calls): Json<Vec<u32>>| {
        usage.settle("calls", calls.len() as u64).unwrap();
    };
    let site = Site::with(calls, |layer| {
        Router::new().route("/", post(batch)).layer(layer)
    });
    let mut statuses = Vec::new();
    for size in [60_u32, 39, 99, 1] {
        let body = serde_json::to_vec(&(0..size).collect::<Vec<_>>()).unwrap();
        let request = from("203.0.113.9")
            .method("POST")
            .header("content-type", "application/json");
        let response = site
            .app
            .clone()
            .oneshot(request.body(Body::from(body)).unwrap())
            .await
            .unwrap();
        statuses.push(response.status());
        // The charge is settled when the response ends.
        drop(text(response).await);
    }
    // One unit was left for the third request, which took only that; the fourth finds none.
    let refused = StatusCode::TOO_MANY_REQUESTS;
    assert_eq!(
        statuses,
        [StatusCode::OK, StatusCode::OK, StatusCode::OK, refused]
    );
}

//! Plans end to end: a real client, axum, a lookup whose table changes, and the store, in memory
//! and in Redis.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Empty;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use throttle_core::backend::Call;
use throttle_core::{
    Backend, BackendErrorKind, BoxBackend, Key, Limiter, ManualClock, MemoryBackend, Policy,
    PolicySet, Timestamp,
};
use throttle_redis::{RedisBackend, Single};
use throttle_test_servers::Shared;
use throttle_tower::limit::IntoLimitTree;
use throttle_tower::shape::TokioClock;
use throttle_tower::{
    Constant, FixedWindow, Gcra, Header, Limit, LimitReport, OnError, OnMissing, Rate,
    ThrottleLayer, all, any, limit, plans,
};
use tokio::net::TcpListener;
use tower::ServiceExt;

/// The tiers of identities in the application's table.
#[derive(Clone, Default)]
struct Table {
    tiers: Arc<Mutex<HashMap<String, &'static str>>>,
    lookups: Arc<AtomicUsize>,
    broken: Arc<Mutex<bool>>,
}

impl Table {
    fn put(&self, who: &str, tier: &'static str) {
        self.tiers.lock().unwrap().insert(who.to_owned(), tier);
    }

    /// No tier is cached, so that a change takes effect at once.
    fn plans(&self) -> Limit {
        self.remembered_for(Duration::ZERO)
    }

    /// Six, sixty or six hundred a minute.
    fn remembered_for(&self, keep_for: Duration) -> Limit {
        let table = self.clone();
        let tiers = [("free", 6), ("pro", 60), ("internal", 600)];
        plans(
            "per-user",
            tiers.map(|(tier, count)| (tier, Gcra::new(Rate::per_minute(count)))),
        )
        .by(Header::new("x-api-key"))
        .lookup(move |who| {
            let table = table.clone();
            async move {
                table.lookups.fetch_add(1, Ordering::SeqCst);
                tokio::task::yield_now().await;
                if *table.broken.lock().unwrap() {
                    return Err("the table is away");
                }
                Ok(table.tiers.lock().unwrap().get(&who).copied())
            }
        })
        .cache(100, keep_for)
        .unknown("free")
        .on_error(OnError::Closed)
    }
}

/// A store with a manual clock.
struct Store {
    backend: BoxBackend,
    clock: ManualClock,
    _shared: Option<Shared>,
}

fn memory() -> Store {
    let clock = ManualClock::new(Timestamp::from_micros(1_790_000_000_000_000));
    Store {
        backend: BoxBackend::new(MemoryBackend::builder().clock(clock.clone()).build()),
        clock,
        _shared: None,
    }
}

fn redis() -> Store {
    let (clock, shared) = (
        ManualClock::new(Timestamp::from_micros(1_790_000_000_000_000)),
        Shared::new(),
    );
    let builder =
        RedisBackend::builder(Single::new(&shared.url()).unwrap()).prefix(shared.prefix());
    let backend = builder
        .clock(clock.clone())
        .deadline(Duration::from_secs(10))
        .build()
        .unwrap();
    Store {
        backend: BoxBackend::new(backend),
        clock,
        _shared: Some(shared),
    }
}

/// A server on a free port, and a client that keeps its connections.
#[derive(Clone)]
struct Server {
    address: SocketAddr,
    client: Client<HttpConnector, Empty<Bytes>>,
}

async fn tier(report: LimitReport) -> String {
    report.tier("per-user").unwrap_or("none").to_owned()
}

impl Server {
    async fn start<B: Backend>(limits: impl IntoLimitTree, backend: B) -> Self {
        let throttle = ThrottleLayer::builder(limits)
            .backend(backend)
            .build()
            .unwrap();
        let app = Router::new().route("/", get(tier)).layer(throttle);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self {
            address,
            client: Client::builder(TokioExecutor::new()).build_http(),
        }
    }

    async fn ask(&self, who: Option<&str>) -> Response<()> {
        let mut request = Request::get(format!("http://{}/", self.address));
        if let Some(who) = who {
            request = request.header("x-api-key", who);
        }
        let response = self
            .client
            .request(request.body(Empty::new()).unwrap())
            .await
            .unwrap();
        response.map(drop)
    }

    /// The remaining units after one admitted request, with the quota.
    async fn left(&self, who: &str) -> String {
        let response = self.ask(Some(who)).await;
        assert_eq!(
            response.status(),
            StatusCode::OK,
            "{:?}",
            response.headers()
        );
        format!("{} of {}", remaining(&response), quota(&response))
    }

    /// The `Retry-After` of one refused request.
    async fn wait(&self, who: &str) -> String {
        let response = self.ask(Some(who)).await;
        assert_eq!(
            response.status(),
            StatusCode::TOO_MANY_REQUESTS,
            "{:?}",
            response.headers()
        );
        field(&response, "retry-after")
    }
}

fn field(response: &Response<()>, name: &str) -> String {
    response.headers()[name].to_str().unwrap().to_owned()
}

/// The announced quota of the plan.
fn quota(response: &Response<()>) -> String {
    let policies = field(response, "ratelimit-policy");
    let own = policies
        .split(", ")
        .find(|policy| policy.starts_with("\"per-user\";"))
        .unwrap()
        .to_owned();
    own.split(';')
        .find_map(|parameter| parameter.strip_prefix("q="))
        .unwrap()
        .to_owned()
}

fn remaining(response: &Response<()>) -> String {
    let limits = field(response, "ratelimit");
    let own = limits
        .split(", ")
        .find(|policy| policy.starts_with("\"per-user\";"))
        .unwrap()
        .to_owned();
    own.split(';')
        .find_map(|parameter| parameter.strip_prefix("r="))
        .unwrap()
        .to_owned()
}

#[tokio::test]
async fn plan_of_another_tier_keeps_used_units() {
    for store in [memory(), redis()] {
        let table = Table::default();
        let server = Server::start(table.plans(), store.backend.clone()).await;
        assert_eq!(
            server.left("ada").await,
            "5 of 6",
            "an unknown identity is in the stated tier"
        );
        for left in ["4 of 6", "3 of 6", "2 of 6"] {
            assert_eq!(server.left("ada").await, left);
        }
        table.put("ada", "pro");
        assert_eq!(
            server.left("ada").await,
            "55 of 60",
            "the four that were used stay used"
        );
        table.put("ada", "free");
        assert_eq!(server.left("ada").await, "0 of 6", "and the fifth");
        assert_eq!(server.wait("ada").await, "10", "one each ten seconds");
        assert_eq!(
            server.left("bob").await,
            "5 of 6",
            "every other identity has a budget of its own"
        );
    }
}

#[tokio::test]
async fn failing_store_leaves_the_share_of_a_plan() {
    let table = Table::default();
    table.put("ada", "pro");
    let limits = table.plans().on_error(OnError::local(2));
    let server = Server::start(
        limits,
        crate::common::Remote::failing(BackendErrorKind::Unavailable),
    )
    .await;
    assert_eq!(
        server.left("ada").await,
        "29 of 60",
        "half of sixty is this process's"
    );
    assert_eq!(server.left("bob").await, "2 of 6", "half of six");
    let fields = field(&server.ask(Some("ada")).await, "ratelimit");
    assert_eq!(
        fields, "\"per-user\";r=28;t=56",
        "at half the pace of the tier"
    );
    table.put("ada", "free");
    assert_eq!(
        server.left("ada").await,
        "0 of 6",
        "the two that were used stay used"
    );
}

/// One a minute for all requests, beside plans that cache no tier.
fn behind_one_a_minute(table: &Table) -> [throttle_tower::LimitTree; 2] {
    let once = || {
        limit("per-ip", Gcra::new(Rate::per_minute(1)))
            .by(Constant)
            .on_error(OnError::Closed)
    };
    let plans = || table.plans();
    [
        all((once(), plans())).into_limit_tree(),
        all((plans(), once())).into_limit_tree(),
    ]
}

#[tokio::test]
async fn request_that_is_refused_whatever_its_tier_is_not_looked_up() {
    for (store, index, requests) in [
        (memory(), 0, 1_000),
        (memory(), 1, 1_000),
        (redis(), 0, 50),
        (redis(), 1, 50),
    ] {
        let table = Table::default();
        let limits = behind_one_a_minute(&table).into_iter().nth(index).unwrap();
        let server = Server::start(limits, store.backend.clone()).await;
        for n in 0..requests {
            let response = server.ask(Some(&format!("made-up-{n}"))).await;
            if n == 0 {
                assert_eq!(response.status(), StatusCode::OK);
                continue;
            }
            assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
            assert_eq!(
                field(&response, "retry-after"),
                "60",
                "exact, as if all had been asked"
            );
            assert_eq!(field(&response, "ratelimit"), "\"per-ip\";r=0;t=60");
        }
        assert_eq!(
            table.lookups.load(Ordering::SeqCst),
            1,
            "of the request that was admitted"
        );
        store.clock.advance(Duration::from_secs(60));
        assert_eq!(
            server.left("made-up-1").await,
            "5 of 6",
            "refused requests were charged nowhere"
        );
        assert_eq!(table.lookups.load(Ordering::SeqCst), 2);
    }
}

/// A member of an `any` with an unknown tier may admit, whatever the other members decide.
#[tokio::test]
async fn request_that_its_tier_may_still_admit_is_looked_up() {
    let one = |name: &str| {
        limit(name, Gcra::new(Rate::per_minute(1)))
            .by(Constant)
            .on_error(OnError::Closed)
    };
    for store in [memory(), redis()] {
        let table = Table::default();
        let either = any((one("pool"), table.plans()));
        let server = Server::start(either, store.backend.clone()).await;
        assert_eq!(
            server.ask(Some("ada")).await.status(),
            StatusCode::OK,
            "the pool pays"
        );
        assert_eq!(server.left("ada").await, "5 of 6");
        assert_eq!(table.lookups.load(Ordering::SeqCst), 2);

        // Both are certain to refuse: the pool is empty, and so is the limit beside the plan.
        let table = Table::default();
        let both = all((table.plans(), one("with-plan")));
        let limits = any((
            both,
            one("other-pool").when(|parts| parts.uri.path() != "/none"),
        ));
        let server = Server::start(limits, store.backend.clone()).await;
        for status in [
            StatusCode::OK,
            StatusCode::OK,
            StatusCode::TOO_MANY_REQUESTS,
            StatusCode::TOO_MANY_REQUESTS,
        ] {
            assert_eq!(server.ask(Some("bob")).await.status(), status);
        }
        assert_eq!(
            table.lookups.load(Ordering::SeqCst),
            2,
            "none of a request that is refused"
        );

        // The refusal names the limit that refuses, not the pool, because the plan may admit in its
        // place.
        let table = Table::default();
        let limits = all((one("all"), any((one("third-pool"), table.plans()))));
        let server = Server::start(limits, store.backend.clone()).await;
        assert_eq!(server.ask(Some("eve")).await.status(), StatusCode::OK);
        let refused = server.ask(Some("eve")).await;
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(field(&refused, "ratelimit"), "\"all\";r=0;t=60");
        assert_eq!(table.lookups.load(Ordering::SeqCst), 1);
    }
}

/// If attempts count, a refused attempt is charged to its plan.
#[tokio::test]
async fn request_that_is_refused_is_looked_up_where_attempts_count() {
    let (store, table) = (memory(), Table::default());
    let once = limit("per-ip", Gcra::new(Rate::per_second(1))).by(Constant);
    let counting = table.plans().charge_refused();
    let server = Server::start(all((once, counting)), store.backend.clone()).await;
    assert_eq!(server.left("ada").await, "5 of 6");
    for _ in 0..3 {
        assert_eq!(
            server.ask(Some("ada")).await.status(),
            StatusCode::TOO_MANY_REQUESTS
        );
    }
    assert_eq!(table.lookups.load(Ordering::SeqCst), 4);
    store.clock.advance(Duration::from_secs(1));
    assert_eq!(
        server.left("ada").await,
        "1 of 6",
        "two were admitted, and three attempts counted"
    );
}

/// A request that is refused before its lookup is admitted after its wait, and not earlier, if its
/// tier is still the last known one.
#[tokio::test]
async fn law_02_wait_before_a_lookup_counts_the_last_known_tier() {
    let one = |name: &str, rate| {
        limit(name, Gcra::new(rate).burst(1))
            .by(Constant)
            .on_error(OnError::Closed)
    };
    for store in [memory(), redis()] {
        for (has_pool, requests, expected) in [(false, 6, "4"), (true, 7, "3")] {
            let table = Table::default();
            let total = one("total", Rate::per_second(1));
            let pool = one("pool", Rate::new(1, Duration::from_secs(8)));
            let plan = table.plans();
            let limits = match has_pool {
                false => all((plan, total)).into_limit_tree(),
                true => all((any((plan, pool)), total)).into_limit_tree(),
            };
            let server = Server::start(limits, store.backend.clone()).await;
            // All of the plan and of the pool is used up.
            for _ in 0..requests {
                assert_eq!(server.ask(Some("ada")).await.status(), StatusCode::OK);
                store.clock.advance(Duration::from_secs(1));
            }
            assert_eq!(server.ask(Some("bob")).await.status(), StatusCode::OK);
            let lookups = table.lookups.load(Ordering::SeqCst);
            let wait = server.wait("ada").await;
            assert_eq!(table.lookups.load(Ordering::SeqCst), lookups, "none");
            assert_eq!(wait, expected);
            let wait = Duration::from_secs(wait.parse().unwrap());
            store.clock.advance(wait - Duration::from_micros(1));
            assert_eq!(
                server.ask(Some("ada")).await.status(),
                StatusCode::TOO_MANY_REQUESTS
            );
            store.clock.advance(Duration::from_micros(1));
            assert_eq!(server.ask(Some("ada")).await.status(), StatusCode::OK);
            store.clock.advance(Duration::from_secs(3_600));
        }
    }
}

/// Attempts count beside a plan whether or not its tier is remembered.
#[tokio::test]
async fn attempts_in_an_any_are_charged_before_a_lookup() {
    let hundred = || FixedWindow::new(Rate::per_hour(100));
    let attempts = limit("attempts", hundred()).by(Constant).charge_refused();
    let once = limit("total", FixedWindow::new(Rate::per_hour(1))).by(Constant);
    let (store, table) = (memory(), Table::default());
    let plan = table.remembered_for(Duration::from_secs(600));
    let limits = all((any((plan, attempts)), once));
    let server = Server::start(limits, store.backend.clone()).await;
    let policy = Policy::new("attempts", hundred()).unwrap();
    let limiter = Limiter::new(store.backend.clone(), PolicySet::new(policy).unwrap()).unwrap();
    let used = async || {
        100 - limiter
            .decide(&[Call::peek(Key::CONSTANT)])
            .await
            .unwrap()
            .remaining()
    };
    assert_eq!(server.ask(Some("ada")).await.status(), StatusCode::OK);
    assert_eq!(used().await, 0, "the plan pays");
    for (who, charged) in [("ada", 1), ("ada", 2), ("eve", 3), ("bob", 4)] {
        assert_eq!(
            server.ask(Some(who)).await.status(),
            StatusCode::TOO_MANY_REQUESTS
        );
        assert_eq!(used().await, charged, "{who}");
    }
    assert_eq!(table.lookups.load(Ordering::SeqCst), 1, "of the first");
}

/// A request that may wait is held, not refused by the peek.
#[tokio::test(start_paused = true)]
async fn request_that_can_be_held_is_looked_up_and_admitted() {
    let table = Table::default();
    let ten = limit("per-ip", Gcra::new(Rate::per_second(10)).burst(1)).by(Constant);
    let limits = all((ten.wait_up_to(Duration::from_millis(500)), table.plans()));
    let backend = MemoryBackend::builder()
        .clock(TokioClock::default())
        .build();
    let app = Router::new().route("/", get(tier)).layer(
        ThrottleLayer::builder(limits)
            .backend(backend)
            .build()
            .unwrap(),
    );
    for _ in 0..3 {
        let request = Request::get("/")
            .header("x-api-key", "ada")
            .body(axum::body::Body::empty())
            .unwrap();
        assert_eq!(
            app.clone().oneshot(request).await.unwrap().status(),
            StatusCode::OK
        );
    }
    assert_eq!(table.lookups.load(Ordering::SeqCst), 3);
}

/// Units that become free between the peek and the decision about the exact wait are given to the
/// request.
#[tokio::test]
async fn law_05_request_admitted_after_a_refusing_peek_is_charged_once() {
    /// Returns the times that the test has set.
    #[derive(Clone)]
    struct Script(Arc<Mutex<std::vec::IntoIter<i64>>>);
    impl throttle_core::Clock for Script {
        fn now(&self) -> Timestamp {
            let second = self
                .0
                .lock()
                .unwrap()
                .next()
                .expect("no more times than were written down");
            Timestamp::from_micros(1_790_000_000_000_000 + second * 1_000_000)
        }
    }
    // A peek and a decision; a peek, the peek for the wait, and the decision; both peeks.
    let times = Script(Arc::new(Mutex::new(
        vec![0, 0, 0, 60, 60, 60, 60].into_iter(),
    )));
    let table = Table::default();
    let limits = behind_one_a_minute(&table).into_iter().next().unwrap();
    let server = Server::start(
        limits,
        MemoryBackend::builder().clock(times.clone()).build(),
    )
    .await;
    for status in [
        StatusCode::OK,
        StatusCode::OK,
        StatusCode::TOO_MANY_REQUESTS,
    ] {
        assert_eq!(server.ask(Some("ada")).await.status(), status);
    }
    assert_eq!(
        (
            table.lookups.load(Ordering::SeqCst),
            times.0.lock().unwrap().len()
        ),
        (2, 0)
    );
}

/// Over a store: one decision if the tier is remembered, a peek before it if it is not, and no peek
/// for other keys.
#[tokio::test]
async fn store_is_asked_once_more_for_a_tier_that_is_not_remembered() {
    let (store, table) = (crate::common::Remote::faltering(false), Table::default());
    table.put("ada", "pro");
    let ten = limit("per-ip", Gcra::new(Rate::per_minute(10)))
        .by(Constant)
        .on_error(OnError::Closed);
    let remembering = table.remembered_for(Duration::from_secs(600));
    let server = Server::start(all((ten, remembering)), store.clone()).await;
    for asked in [2, 3, 4] {
        server.left("ada").await;
        assert_eq!(store.decisions.load(Ordering::SeqCst), asked);
    }

    let store = crate::common::Remote::faltering(false);
    let once = limit("per-ip", Gcra::new(Rate::per_minute(1)))
        .by(Constant)
        .on_error(OnError::Closed);
    let slow = limit("per-user", Gcra::new(Rate::per_minute(9))).by_async(|_| async {
        tokio::task::yield_now().await;
        Some("ada")
    });
    let server = Server::start(all((once, slow.on_error(OnError::Closed))), store.clone()).await;
    for asked in [1, 2] {
        server.ask(None).await;
        assert_eq!(store.decisions.load(Ordering::SeqCst), asked);
    }
}

/// There is nothing to peek at where no other limit applies; an async key changes nothing.
#[tokio::test]
async fn store_is_asked_before_a_lookup_only_about_limits_whose_keys_are_known() {
    let (store, table) = (crate::common::Remote::faltering(false), Table::default());
    let server = Server::start(table.plans(), store.clone()).await;
    for asked in [1, 2] {
        server.left("ada").await;
        assert_eq!(store.decisions.load(Ordering::SeqCst), asked);
    }

    let store = crate::common::Remote::faltering(false);
    let ten = limit("per-ip", Gcra::new(Rate::per_minute(10)))
        .by(Constant)
        .on_error(OnError::Closed);
    let slow = limit("slow", Gcra::new(Rate::per_minute(9))).by_async(|_| async {
        tokio::task::yield_now().await;
        Some("ada")
    });
    let limits = all((ten, slow.on_error(OnError::Closed), table.plans()));
    let server = Server::start(limits, store.clone()).await;
    server.left("ada").await;
    assert_eq!(store.decisions.load(Ordering::SeqCst), 2);
}

/// A failing store delays the request by one deadline only.
#[tokio::test]
async fn law_12_store_that_fails_at_the_peek_is_not_asked_again() {
    for (rule, status, lookups) in [
        (OnError::Open, StatusCode::OK, 1),
        (OnError::local(1), StatusCode::OK, 1),
        (OnError::Closed, StatusCode::SERVICE_UNAVAILABLE, 0),
    ] {
        let (store, table) = (
            crate::common::Remote::failing(BackendErrorKind::Timeout),
            Table::default(),
        );
        let ten = limit("per-ip", Gcra::new(Rate::per_minute(10)))
            .by(Constant)
            .on_error(rule);
        let server = Server::start(all((ten, table.plans().on_error(rule))), store.clone()).await;
        assert_eq!(server.ask(Some("ada")).await.status(), status);
        assert_eq!(
            (
                store.decisions.load(Ordering::SeqCst),
                table.lookups.load(Ordering::SeqCst)
            ),
            (1, lookups)
        );
    }
}

/// A lookup and an async key that never complete.
#[tokio::test(start_paused = true)]
async fn law_12_request_whose_lookup_or_key_hangs_is_answered_at_its_deadline() {
    let hanging = || {
        plans("per-user", [("free", Gcra::new(Rate::per_minute(6)))])
            .by(Header::new("x-api-key"))
            .lookup(|_| std::future::pending::<Option<&str>>())
    };
    let by_async = || {
        limit("keyed", Gcra::new(Rate::per_minute(6)))
            .by_async(|_| std::future::pending::<Option<u64>>())
    };
    let rejecting = || by_async().on_missing(OnMissing::Reject(StatusCode::UNAUTHORIZED));
    let [ok, unauthorized] = [StatusCode::OK, StatusCode::UNAUTHORIZED];
    let ms = Duration::from_millis;
    for (limits, status, waited) in [
        (hanging().unknown("free").into_limit_tree(), ok, ms(1_000)),
        (
            hanging()
                .lookups(1, ms(300))
                .unknown("free")
                .into_limit_tree(),
            ok,
            ms(300),
        ),
        (by_async().into_limit_tree(), ok, ms(1_000)),
        (
            by_async().key_deadline(ms(200)).into_limit_tree(),
            ok,
            ms(200),
        ),
        (
            rejecting().key_deadline(ms(200)).into_limit_tree(),
            unauthorized,
            ms(200),
        ),
        (
            all((
                hanging().lookups(1, ms(300)).unknown("free"),
                by_async().key_deadline(ms(200)),
            )),
            ok,
            ms(300),
        ),
    ] {
        let app = Router::new()
            .route("/", get(|| async {}))
            .layer(ThrottleLayer::new(limits).unwrap());
        let begun = tokio::time::Instant::now();
        let request = Request::get("/")
            .header("x-api-key", "ada")
            .body(axum::body::Body::empty())
            .unwrap();
        assert_eq!(app.oneshot(request).await.unwrap().status(), status);
        assert_eq!(begun.elapsed(), waited);
    }
}

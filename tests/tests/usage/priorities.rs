//! Classes of requests that share one budget, by the route that they ask for.

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use http::request::Parts;
use http::{Request, Response, StatusCode};
use throttle_core::{Backend, IntoAlgorithm, ManualClock};
use throttle_tower::limit::IntoLimitTree;
use throttle_tower::limit::{LimitKind, Rated};
use throttle_tower::{
    Constant, FixedWindow, Gcra, Header, InFlight, IntervalBucket, Limit, LimitReport,
    MemoryBackend, Permit, Rate, SlidingLog, ThrottleLayer, Usage, all, any, limit, plans,
};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tower::ServiceExt;

use crate::holding::{MS, paused};
use crate::store::{Store, budget};

const CLASSES: [(&str, u64); 3] = [("critical", 0), ("normal", 4), ("batch", 12)];

fn class_of(parts: &Parts) -> String {
    parts.uri.path()[1..].to_owned()
}

/// One limit of twenty units in three classes.
fn api(algorithm: impl LimitKind<Family = Rated>) -> Limit {
    limit("api", algorithm)
        .by(Constant)
        .priority(CLASSES, class_of)
}

fn smooth() -> Limit {
    api(Gcra::new(Rate::per_second(10)).burst(20))
}

fn app<B: Backend>(layer: ThrottleLayer<B>) -> Router {
    let handler = || get(|| async { "hello" });
    let router = CLASSES.iter().fold(Router::new(), |router, (class, _)| {
        router.route(&format!("/{class}"), handler())
    });
    router.route("/other", handler()).layer(layer)
}

fn on_clock(limits: impl IntoLimitTree) -> (Router, ManualClock) {
    let clock = ManualClock::default();
    let store = MemoryBackend::builder().clock(clock.clone()).build();
    (
        app(ThrottleLayer::builder(limits)
            .backend(store)
            .report_in(throttle_tower::ReportIn::Both)
            .build()
            .unwrap()),
        clock,
    )
}

fn send(app: &Router, class: &str) -> impl Future<Output = Response<Body>> + Send + use<> {
    let request = Request::get(format!("/{class}"))
        .header("x-user", "ada")
        .body(Body::empty())
        .unwrap();
    let response = app.clone().oneshot(request);
    async { response.await.unwrap() }
}

/// How many of a hundred requests are admitted, and the refusal.
async fn exhaust(app: &Router, class: &str) -> (usize, Response<Body>) {
    for admitted in 0..100 {
        let response = send(app, class).await;
        if response.status() != StatusCode::OK {
            return (admitted, response);
        }
    }
    panic!("{class} is not refused");
}

fn report(response: &Response<Body>) -> &LimitReport {
    response.extensions().get().unwrap()
}

fn header<'a>(response: &'a Response<Body>, name: &str) -> &'a str {
    response.headers()[name].to_str().unwrap()
}

#[tokio::test]
async fn law_02_request_that_waits_as_its_class_is_told_is_admitted() {
    let second = Duration::from_secs(1);
    let algorithms = [
        Gcra::new(Rate::per_second(10)).burst(20).into_algorithm(),
        FixedWindow::new(Rate::new(20, second)).into_algorithm(),
        SlidingLog::new(Rate::new(20, second)).into_algorithm(),
        IntervalBucket::new(20).refill(5, second).into_algorithm(),
    ];
    for algorithm in algorithms.map(Result::unwrap) {
        for (class, reserve) in CLASSES {
            let (app, clock) = on_clock(api(algorithm));
            clock.advance(250 * MS);
            let (admitted, refused) = exhaust(&app, class).await;
            assert_eq!(admitted as u64, 20 - reserve, "{class} of {algorithm:?}");
            assert_eq!(
                (refused.status(), report(&refused).class("api")),
                (StatusCode::TOO_MANY_REQUESTS, Some(class))
            );
            // What the higher classes take, the lower one waits for.
            assert_eq!(exhaust(&app, "critical").await.0 as u64, reserve);
            let refused = send(&app, class).await;
            let wait = report(&refused).decision().retry_after().unwrap();
            clock.advance(wait - Duration::from_micros(1));
            assert_eq!(
                send(&app, class).await.status(),
                StatusCode::TOO_MANY_REQUESTS,
                "{class} of {algorithm:?}"
            );
            clock.advance(Duration::from_micros(1));
            assert_eq!(
                send(&app, class).await.status(),
                StatusCode::OK,
                "{class} of {algorithm:?}"
            );
        }
    }
}

#[tokio::test]
async fn headers_state_what_the_class_has_and_what_it_gets_alone() {
    let minute = api(FixedWindow::new(Rate::per_minute(20)));
    for (limits, quotas) in [
        (smooth(), ["20;w=2", "20;w=2", "10;w=1"]),
        (minute, ["20;w=60", "16;w=60", "8;w=60"]),
    ] {
        let (app, _) = on_clock(limits);
        for ((class, _), (quota, left)) in
            CLASSES.into_iter().zip(quotas.into_iter().zip([19, 14, 5]))
        {
            let response = send(&app, class).await;
            assert_eq!(
                header(&response, "ratelimit-policy"),
                format!("\"api\";q={quota}")
            );
            assert!(
                header(&response, "ratelimit").starts_with(&format!("\"api\";r={left};t=")),
                "{response:?}"
            );
        }
        let (_, refused) = exhaust(&app, "batch").await;
        assert_eq!(
            header(&refused, "ratelimit-policy"),
            format!("\"api\";q={}", quotas[2])
        );
        assert!(
            header(&refused, "ratelimit").starts_with("\"api\";r=0;t="),
            "{refused:?}"
        );
    }
}

#[tokio::test]
async fn every_store_leaves_the_reserve_free() {
    for store in Store::both().await {
        let layer = crate::site::layer(&store, budget("budget", 20).priority(CLASSES, class_of));
        let app = app(layer);
        for (class, expected) in [("batch", 8), ("normal", 8), ("batch", 0), ("critical", 4)] {
            let (admitted, refused) = exhaust(&app, class).await;
            assert_eq!(
                (admitted, report(&refused).class("budget")),
                (expected, Some(class)),
                "{}",
                store.name
            );
        }
    }
}

/// The trap of a class that is never refused: the highest one has the whole budget and no more.
#[tokio::test]
async fn highest_class_is_refused_when_the_budget_is_used_up() {
    let (app, clock) = on_clock(smooth());
    for (class, admitted) in [
        ("batch", 8),
        ("normal", 8),
        ("batch", 0),
        ("critical", 4),
        ("normal", 0),
    ] {
        assert_eq!(exhaust(&app, class).await.0, admitted, "{class}");
    }
    let (_, refused) = exhaust(&app, "critical").await;
    assert_eq!(report(&refused).decision().retry_after(), Some(100 * MS));
    // At the rate, the highest class leaves nothing to the others.
    for _ in 0..50 {
        clock.advance(100 * MS);
        assert_eq!(
            send(&app, "batch").await.status(),
            StatusCode::TOO_MANY_REQUESTS
        );
        assert_eq!(send(&app, "critical").await.status(), StatusCode::OK);
    }
}

/// The trap of a reserve that no class uses: it is not lent out, and a bucket's whole rate is left.
#[tokio::test]
async fn lowest_class_alone_has_what_is_beyond_the_reserve_and_the_whole_rate() {
    let (app, clock) = on_clock(smooth());
    assert_eq!(exhaust(&app, "batch").await.0, 8);
    for _ in 0..10 {
        clock.advance(1_000 * MS);
        assert_eq!(exhaust(&app, "batch").await.0, 8, "the burst");
        for _ in 0..10 {
            clock.advance(100 * MS);
            assert_eq!(exhaust(&app, "batch").await.0, 1, "the rate");
        }
    }
    let (app, clock) = on_clock(api(FixedWindow::new(Rate::per_second(20))));
    for _ in 0..3 {
        assert_eq!(exhaust(&app, "batch").await.0, 8, "of each window");
        clock.advance(1_000 * MS);
    }
}

#[tokio::test]
async fn limit_without_classes_leaves_nothing_free() {
    let (app, _) = on_clock(limit("api", Gcra::new(Rate::per_second(10)).burst(20)).by(Constant));
    let (admitted, refused) = exhaust(&app, "batch").await;
    assert_eq!(
        (
            admitted,
            report(&refused).class("api"),
            header(&refused, "ratelimit-policy")
        ),
        (20, None, "\"api\";q=20;w=2")
    );
}

#[tokio::test]
async fn request_of_an_unknown_class_is_in_the_lowest_and_warned_of_once() {
    let warnings = Arc::new(Mutex::new(Vec::new()));
    let hook = Arc::clone(&warnings);
    let layer = ThrottleLayer::builder(all((
        smooth(),
        limit("in-flight", InFlight::new(20))
            .by(Constant)
            .priority(CLASSES, class_of),
    )))
    .report_in(throttle_tower::ReportIn::Both)
    .on_warning(move |warning| hook.lock().unwrap().push(warning.to_string()))
    .build()
    .unwrap();
    let app = app(layer);
    assert_eq!(send(&app, "batch").await.status(), StatusCode::OK);
    assert!(warnings.lock().unwrap().is_empty());
    let (admitted, refused) = exhaust(&app, "other").await;
    assert_eq!(
        (admitted, report(&refused).class("api")),
        (7, Some("batch"))
    );
    let warnings = warnings.lock().unwrap();
    for (warning, name) in warnings.iter().zip(["api", "in-flight"]) {
        let start = "the function that names the class of a request returned a name that no class \
            of the limit";
        assert!(
            warning.starts_with(&format!("{start} {name:?} has")),
            "{warning}"
        );
    }
    assert_eq!(warnings.len(), 2);
}

#[tokio::test]
async fn permits_are_taken_only_while_the_reserve_stays_free() {
    let layer = ThrottleLayer::new(
        limit("in-flight", InFlight::new(5))
            .by(Constant)
            .priority([("critical", 0), ("batch", 3)], class_of),
    )
    .unwrap();
    let held: Arc<Mutex<Vec<Permit>>> = Arc::default();
    let keep = Arc::clone(&held);
    let handler = move |permit: Permit| async move { keep.lock().unwrap().push(permit) };
    let app = Router::new()
        .route("/critical", get(handler.clone()))
        .route("/batch", get(handler))
        .layer(layer);
    let mut statuses = Vec::new();
    for class in [
        "batch", "batch", "batch", "critical", "critical", "critical", "critical",
    ] {
        statuses.push(send(&app, class).await.status().as_u16());
    }
    assert_eq!(statuses, [200, 200, 503, 200, 200, 200, 503]);
    for status in [503, 503, 503, 200] {
        assert!(held.lock().unwrap().pop().is_some());
        assert_eq!(send(&app, "batch").await.status(), status);
    }
}

/// Each class queues by itself, and is admitted when its own reserve is free.
#[tokio::test(start_paused = true)]
async fn held_request_of_a_higher_class_passes_those_of_lower_ones() {
    let app = app(paused(smooth().wait_up_to(Duration::from_secs(10))));
    let mut used = JoinSet::new();
    (0..20).for_each(|_| drop(used.spawn(send(&app, "critical"))));
    used.join_all().await;
    let (start, mut held) = (Instant::now(), JoinSet::new());
    for class in ["batch", "batch", "normal", "critical", "critical"] {
        let response = send(&app, class);
        held.spawn(async move { (class, response.await.status(), start.elapsed().as_millis()) });
        sleep(MS).await;
    }
    let mut left = held.join_all().await;
    left.sort_by_key(|(.., at)| *at);
    // 100 ms a unit: two for the highest class, then the fifth and the thirteenth that are free.
    let ok = StatusCode::OK;
    let classes: Vec<_> = left
        .iter()
        .map(|(class, status, _)| (*class, *status))
        .collect();
    assert_eq!(
        classes,
        [
            ("critical", ok),
            ("critical", ok),
            ("normal", ok),
            ("batch", ok),
            ("batch", ok)
        ]
    );
    for ((.., at), due) in left.iter().zip([100, 200, 700, 1_600, 1_700]) {
        assert!((due..due + 4).contains(at), "{left:?}");
    }
}

/// The bound of a lower class is its own longest wait, whatever passes it.
#[tokio::test(start_paused = true)]
async fn held_request_that_higher_classes_pass_is_refused_when_its_wait_is_over() {
    let app = app(paused(smooth().wait_up_to(Duration::from_secs(2))));
    assert_eq!(exhaust_at_once(&app, "critical").await, 20);
    let start = Instant::now();
    let batch = tokio::spawn(send(&app, "batch"));
    let critical = tokio::spawn({
        let app = app.clone();
        async move {
            for _ in 0..30 {
                assert_eq!(send(&app, "critical").await.status(), StatusCode::OK);
            }
        }
    });
    let refused = batch.await.unwrap();
    assert_eq!(
        (refused.status(), report(&refused).class("api")),
        (StatusCode::TOO_MANY_REQUESTS, Some("batch"))
    );
    assert!(
        start.elapsed() <= Duration::from_secs(2),
        "{:?}",
        start.elapsed()
    );
    let wait = report(&refused).decision().retry_after().unwrap();
    critical.await.unwrap();
    assert!(
        wait >= 1_200 * MS,
        "the reserve of twelve is to be filled: {wait:?}"
    );
}

async fn exhaust_at_once(app: &Router, class: &str) -> usize {
    let sending: JoinSet<_> = (0..20).map(|_| send(app, class)).collect();
    sending
        .join_all()
        .await
        .iter()
        .filter(|response| response.status() == StatusCode::OK)
        .count()
}

#[tokio::test]
async fn every_member_of_a_composition_goes_by_its_own_classes() {
    let pool = |name, burst| limit(name, Gcra::new(Rate::per_hour(1)).burst(burst)).by(Constant);
    let own = pool("own", 10).priority([("critical", 0), ("batch", 6)], class_of);
    let shared = pool("shared", 20).priority([("batch", 15)], |_: &Parts| "batch");
    let (app, _) = on_clock(any([own, shared]));
    let (admitted, refused) = exhaust(&app, "batch").await;
    assert_eq!(admitted, 4 + 5);
    assert_eq!(
        ["own", "shared"].map(|policy| report(&refused).class(policy)),
        [Some("batch"); 2]
    );
    let (admitted, refused) = exhaust(&app, "critical").await;
    assert_eq!(
        (admitted, report(&refused).class("own")),
        (6, Some("critical"))
    );
}

#[tokio::test]
async fn class_of_a_tier_has_the_tier_beyond_the_reserve() {
    let tiers = [("free", 10), ("pro", 30)]
        .map(|(tier, burst)| (tier, Gcra::new(Rate::per_minute(1)).burst(burst)));
    let plans = || {
        plans("plan", tiers)
            .by(Header::new("x-user"))
            .lookup(|_| async { Some("pro") })
    };
    let in_classes = |reserve| {
        plans()
            .unknown("free")
            .priority([("high", 0), ("low", reserve)], |_: &Parts| "low")
    };
    let (app, _) = on_clock(in_classes(9));
    let (admitted, refused) = exhaust(&app, "batch").await;
    assert_eq!(
        (admitted, report(&refused).class("plan")),
        (21, Some("low"))
    );
    assert_eq!(header(&refused, "ratelimit-policy"), "\"plan\";q=21;w=1260");
    let error = ThrottleLayer::new(in_classes(10)).unwrap_err();
    assert_eq!(
        (error.policy(), error.field(), error.value()),
        (Some("plan"), "reserve", "10 of \"low\"")
    );
    let error = ThrottleLayer::new(smooth().cost(9)).unwrap_err();
    assert_eq!(
        (error.policy(), error.value()),
        (Some("api"), "12 of \"batch\"")
    );
}

/// What a response uses while it streams is charged beyond the reserve, too.
#[tokio::test]
async fn running_charges_leave_the_reserve_free() {
    let uses = |usage: Usage| async move {
        let covered = (0..50).filter(|_| usage.add("api", 1) == Ok(true));
        covered.count().to_string()
    };
    let layer = ThrottleLayer::new(smooth().cost(1).settled_later()).unwrap();
    let response = send(
        &Router::new().route("/batch", get(uses)).layer(layer),
        "batch",
    )
    .await;
    assert_eq!(
        axum::body::to_bytes(response.into_body(), 99)
            .await
            .unwrap(),
        "8"
    );
}

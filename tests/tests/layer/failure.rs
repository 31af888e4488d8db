//! What the layer does when the store cannot decide.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Request, Response, StatusCode};
use throttle_core::{Backend, BackendErrorKind, BoxBackend, Policy, PolicySet};
use throttle_redis::RedisBackend;
use throttle_test_servers::Server;
use throttle_tower::headers::Problem;
use throttle_tower::{
    ConfigError, Constant, DecidedBy, FixedWindow, Gcra, Header, Limit, LimitReport, LimitTree,
    MemoryBackend, OnError, Rate, Reason, ThrottleLayer, all, any, limit,
};
use tower::{Layer, ServiceExt};

use crate::common::{Remote, Strict, Text, get, shared, text};

/// The errors of a store that is broken.
const BROKEN: [BackendErrorKind; 4] = [
    BackendErrorKind::Unavailable,
    BackendErrorKind::Protocol,
    BackendErrorKind::Suspended,
    BackendErrorKind::Unsupported,
];

fn down() -> Remote {
    Remote::failing(BackendErrorKind::Unavailable)
}

/// A layer on a store that is down.
fn broken(
    limits: impl Into<LimitTree>,
    rule: Option<OnError>,
) -> Result<ThrottleLayer<Remote>, ConfigError> {
    let builder = ThrottleLayer::builder(limits.into()).backend(down());
    match rule {
        Some(rule) => builder.on_error(rule),
        None => builder,
    }
    .build()
}

async fn answer(layer: ThrottleLayer<Remote>) -> StatusCode {
    let service = layer.layer(Strict::default());
    let status = service.clone().oneshot(get()).await.unwrap().status();
    assert_eq!(
        service.get_ref().calls(),
        usize::from(status == StatusCode::OK)
    );
    status
}

/// A limit that applies to requests for `/admin` only.
fn admin(name: &str) -> Limit {
    shared(name, 5).when(|parts| parts.uri.path() == "/admin")
}

#[tokio::test]
async fn attack_50_open_admits_and_only_the_handler_sees_why() {
    for kind in BROKEN {
        let layer = ThrottleLayer::builder(shared("p", 1).on_error(OnError::Open))
            .report_in(throttle_tower::ReportIn::Both)
            .backend(Remote::failing(kind))
            .build()
            .unwrap();
        let inner = tower::service_fn(move |request: Request<Text>| async move {
            let report = request
                .extensions()
                .get::<LimitReport>()
                .expect("the request has a report");
            assert_eq!(
                (
                    report.decision().decided_by(),
                    report.decision().remaining()
                ),
                (DecidedBy::Open(kind), u64::MAX)
            );
            assert_eq!((report.statuses().count(), report.binding()), (0, None));
            Ok::<_, std::convert::Infallible>(Response::new(Text::from("hello")))
        });
        let service = layer.layer(inner);
        for _ in 0..3 {
            let response = service.clone().oneshot(get()).await.unwrap();
            assert_eq!(response.status(), StatusCode::OK, "{kind:?}");
            assert!(
                response.headers().is_empty(),
                "{kind:?}: {:?}",
                response.headers()
            );
            assert_eq!(
                response
                    .extensions()
                    .get::<LimitReport>()
                    .unwrap()
                    .decision()
                    .degraded(),
                Some(kind)
            );
            assert_eq!(text(response).await, "hello");
        }
    }
}

#[tokio::test]
async fn attack_50_closed_answers_503_without_blaming_the_client() {
    for &kind in BackendErrorKind::ALL {
        let service = ThrottleLayer::builder(shared("p", 1).on_error(OnError::Closed))
            .backend(Remote::failing(kind))
            .build()
            .unwrap()
            .layer(Strict::default());
        let response = service.clone().oneshot(get()).await.unwrap();
        assert_eq!(
            response.status(),
            StatusCode::SERVICE_UNAVAILABLE,
            "{kind:?}"
        );
        let mut names: Vec<_> = response
            .headers()
            .keys()
            .map(http::HeaderName::as_str)
            .collect();
        names.sort_unstable();
        assert_eq!(
            names,
            ["cache-control", "content-type"],
            "no rate-limit fields, no Retry-After"
        );
        assert_eq!(response.headers()["cache-control"], "no-store");
        assert_eq!(response.headers()["content-type"], Problem::CONTENT_TYPE);
        assert!(response.extensions().get::<LimitReport>().is_none());
        let problem: serde_json::Value = serde_json::from_str(&text(response).await).unwrap();
        assert_eq!(
            problem["type"],
            "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
        );
        assert_eq!(
            (&problem["status"], &problem["violated-policies"]),
            (&503.into(), &["p"].as_slice().into())
        );
        assert_eq!(service.get_ref().calls(), 0);
    }
}

/// One closed limit closes the set, in any composition.
#[tokio::test]
async fn one_closed_limit_closes_a_set() {
    let open = |name| shared(name, 5).on_error(OnError::Open);
    let closed = |name| shared(name, 5).on_error(OnError::Closed);
    for (limits, status) in [
        (all([open("a"), open("b")]), StatusCode::OK),
        (
            all([open("a"), closed("b")]),
            StatusCode::SERVICE_UNAVAILABLE,
        ),
        (
            any([open("a"), closed("b")]),
            StatusCode::SERVICE_UNAVAILABLE,
        ),
        (
            all((any([open("a"), closed("b")]), open("c"))),
            StatusCode::SERVICE_UNAVAILABLE,
        ),
        (
            all((any([open("a"), open("b")]), open("c"))),
            StatusCode::OK,
        ),
    ] {
        assert_eq!(
            answer(broken(limits.clone(), None).unwrap()).await,
            status,
            "{limits:?}"
        );
    }
}

/// The problem document names the limits that caused the refusal, not the others.
#[tokio::test]
async fn only_closed_limits_that_apply_are_named() {
    let limits = all([
        shared("open", 5).on_error(OnError::Open),
        shared("closed", 5).on_error(OnError::Closed),
        admin("admin").on_error(OnError::Closed),
        limit("layers", Gcra::new(Rate::per_minute(1))).by(Constant),
    ]);
    let layer = broken(limits, Some(OnError::Closed)).unwrap();
    let response = layer.layer(Strict::default()).oneshot(get()).await.unwrap();
    let problem: serde_json::Value = serde_json::from_str(&text(response).await).unwrap();
    assert_eq!(
        problem["violated-policies"],
        serde_json::json!(["closed", "layers"])
    );
}

#[tokio::test]
async fn a_custom_response_learns_why() {
    let layer = ThrottleLayer::builder(shared("p", 1).on_error(OnError::Closed))
        .backend(down())
        .response(|refusal| {
            let Reason::Store(kind, policies) = refusal.reason else {
                panic!("{refusal:?}")
            };
            assert_eq!(
                (refusal.status, refusal.retry_after()),
                (StatusCode::SERVICE_UNAVAILABLE, None)
            );
            let text = format!("{kind:?} {}", policies[0].name());
            Response::builder()
                .status(599)
                .header("cache-control", "no-cache")
                .body(text.into())
                .unwrap()
        })
        .build()
        .unwrap();
    let response = layer.layer(Strict::default()).oneshot(get()).await.unwrap();
    assert_eq!(
        (
            response.status().as_u16(),
            &response.headers()["cache-control"]
        ),
        (599, &"no-cache".parse().unwrap())
    );
    assert_eq!(text(response).await, "Unavailable p");
}

#[test]
fn a_backend_that_can_fail_needs_an_error_rule() {
    let said = shared("said", 5).on_error(OnError::Open);
    let error = broken(all([said.clone(), shared("unsaid", 5)]), None)
        .map(drop)
        .unwrap_err();
    assert_eq!(
        (error.policy(), error.field(), error.value()),
        (Some("unsaid"), "on_error", "not set")
    );
    let message = error.to_string();
    for hint in [
        "policy \"unsaid\": on_error",
        ".on_error(OnError::local(n))",
        ".on_error(OnError::Open)",
        ".on_error(OnError::Closed)",
        "builder",
    ] {
        assert!(message.contains(hint), "{hint} is not in: {message}");
    }
    assert!(broken(said, None).is_ok());
    assert!(broken(shared("unsaid", 5), Some(OnError::Open)).is_ok());
}

#[test]
fn a_box_can_fail_if_what_is_in_it_can() {
    let unsaid = || ThrottleLayer::builder(shared("p", 5));
    assert!(
        unsaid()
            .backend(BoxBackend::new(crate::common::memory()))
            .build()
            .is_ok()
    );
    let error = unsaid()
        .backend(BoxBackend::new(down()))
        .build()
        .map(drop)
        .unwrap_err();
    assert_eq!((error.policy(), error.field()), (Some("p"), "on_error"));
}

/// A limit whose share is not kept would be closed or unlimited while the store is busy.
#[test]
fn law_13_store_that_cannot_hold_the_shares_is_an_error() {
    let full = MemoryBackend::new();
    let register = |number: usize| {
        let policy = Policy::new(&format!("policy-{number}"), Gcra::new(Rate::per_second(1)))?;
        full.prepare(PolicySet::new(policy)?)
    };
    assert!(
        (0..2_000).any(|number| register(number).is_err()),
        "a store holds so many policies"
    );
    for rule in [OnError::Open, OnError::local(2)] {
        let built = ThrottleLayer::builder(shared("p", 1).on_error(rule))
            .backend(down())
            .local_store(&full)
            .build();
        assert!(built.is_err(), "{rule:?}");
    }
    let built = ThrottleLayer::builder(shared("p", 1).on_error(OnError::Closed))
        .backend(down())
        .local_store(&full)
        .build();
    assert!(built.is_ok(), "a closed limit has no share");
}

/// Events, by their label and what decided.
type Counts = HashMap<(&'static str, Option<DecidedBy>), usize>;

/// Ten thousand requests at once are more than a connection carries in time on most machines, while
/// any machine carries some of them. That is no fault of the store, which answers: it admits the
/// limit, this process's share admits it once more, and no request is admitted because the limit is
/// open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn law_13_burst_of_ten_thousand_opens_no_limit() {
    const LIMIT: usize = 5;
    let server = tokio::task::spawn_blocking(Server::start).await.unwrap();
    let backend = RedisBackend::new(&server.url()).unwrap();
    let login =
        limit("login", FixedWindow::new(Rate::per_day(LIMIT as u64))).by(Header::new("x-user"));
    let heard: Arc<Mutex<Counts>> = Arc::default();
    let layer = ThrottleLayer::builder(login)
        .on_error(OnError::Open)
        .on_decision({
            let heard = Arc::clone(&heard);
            move |event| {
                *heard
                    .lock()
                    .unwrap()
                    .entry((event.outcome.label(), event.decided_by()))
                    .or_default() += 1;
            }
        })
        .backend(backend.clone())
        .build()
        .unwrap();
    let service = layer.layer(Strict::default());
    let ask = |user: &str| {
        Request::get("/")
            .header("x-user", user)
            .body(Text::default())
            .unwrap()
    };
    while !service
        .clone()
        .oneshot(ask("warm"))
        .await
        .unwrap()
        .headers()
        .contains_key("ratelimit")
    {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for requests in [10_000, 20_000, 40_000, 80_000, 160_000] {
        heard.lock().unwrap().clear();
        let mut burst = tokio::task::JoinSet::new();
        for _ in 0..requests {
            burst.spawn(
                service
                    .clone()
                    .oneshot(ask(&format!("victim of {requests}"))),
            );
        }
        let answers = burst.join_all().await;
        let admitted = answers
            .into_iter()
            .filter(|answer| answer.as_ref().unwrap().status() == 200)
            .count();
        let (heard, stats) = (heard.lock().unwrap(), backend.stats());
        assert_eq!(
            heard.keys().find(|(label, _)| label.starts_with("failed")),
            None,
            "{heard:?} {stats:?}"
        );
        assert!(
            (LIMIT..=2 * LIMIT).contains(&admitted),
            "{admitted}: {heard:?} {stats:?}"
        );
        if heard
            .keys()
            .any(|(_, decided_by)| matches!(decided_by, Some(DecidedBy::Local(_))))
        {
            return;
        }
    }
    panic!("no burst was large enough to show anything");
}

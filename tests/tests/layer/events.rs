//! What a hook and an outer layer see of a decision.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{HeaderMap, Request, StatusCode};
use proptest::prelude::*;
use throttle_core::backend::{Call, Exception, KeyStep, Treatment};
use throttle_core::{Algorithm, Backend, BackendErrorKind, Key, ManualClock, Policy, PolicySet};
use throttle_tower::usage::Settlements;
use throttle_tower::{
    Constant, DecidedBy, Event, FixedWindow, Gcra, Header, LimitReport, MemoryBackend, OnError,
    OnMissing, Outcome, Rate, SlidingLog, ThrottleBuilder, ThrottleLayer, all, limit,
};
use tower::{Layer, ServiceExt};

use crate::common::{Memory, Remote, Strict, Text, get, shared};

/// The parts of an event that can be kept.
#[derive(Debug, PartialEq)]
struct Heard {
    label: &'static str,
    error: Option<BackendErrorKind>,
    degraded: Option<BackendErrorKind>,
    decided_by: Option<DecidedBy>,
    binding: Option<String>,
    remaining: Option<u64>,
    limits: Vec<String>,
    path: String,
    debug: String,
}

type Log = Arc<Mutex<Vec<Heard>>>;

fn hear(log: &Log) -> impl Fn(&Event<'_>) + Send + Sync + 'static + use<> {
    let log = Arc::clone(log);
    move |event| {
        let error = match event.outcome {
            Outcome::FailedOpen(error) | Outcome::FailedClosed(error) => Some(error.kind()),
            _ => None,
        };
        log.lock().unwrap().push(Heard {
            label: event.outcome.label(),
            error,
            degraded: event.degraded(),
            decided_by: event.decided_by(),
            binding: event.binding().map(|limit| limit.info.name.to_string()),
            remaining: event.decision.map(|decision| decision.remaining()),
            limits: event
                .limits()
                .map(|limit| limit.info.name.to_string())
                .collect(),
            path: event.parts.uri.path().to_owned(),
            debug: format!("{event:?}"),
        });
    }
}

/// Sends requests one after another, and returns the events of each.
async fn heard<B: Backend>(
    builder: ThrottleBuilder<B>,
    requests: impl IntoIterator<Item = Request<Text>>,
) -> Vec<Heard> {
    let log = Log::default();
    let layer = builder.on_decision(hear(&log)).build().unwrap();
    let service = layer.layer(Strict::default());
    drop(layer);
    for request in requests {
        service.clone().oneshot(request).await.unwrap();
    }
    drop(service);
    Arc::into_inner(log)
        .expect("the layer let go of the hook")
        .into_inner()
        .unwrap()
}

fn heading_for(path: &str) -> Request<Text> {
    Request::get(path).body(Text::default()).unwrap()
}

fn labels(heard: &[Heard]) -> Vec<&'static str> {
    heard.iter().map(|event| event.label).collect()
}

#[tokio::test]
async fn one_event_for_each_decision() {
    let builder = ThrottleLayer::builder(all([shared("wide", 5), shared("tight", 2)]));
    let heard = heard(builder, ["/a", "/b", "/c"].map(heading_for)).await;
    assert_eq!(labels(&heard), ["admitted", "admitted", "refused"]);
    assert!(
        heard
            .iter()
            .all(|event| event.binding.as_deref() == Some("tight") && event.error.is_none()),
        "{heard:?}"
    );
    assert!(heard.iter().all(|event| event.limits == ["wide", "tight"]));
    assert!(
        heard
            .iter()
            .all(|event| (event.decided_by, event.degraded) == (Some(DecidedBy::Store), None))
    );
    assert_eq!(
        heard
            .iter()
            .map(|event| event.remaining)
            .collect::<Vec<_>>(),
        [Some(1), Some(0), Some(0)]
    );
    assert_eq!(
        heard
            .iter()
            .map(|event| event.path.as_str())
            .collect::<Vec<_>>(),
        ["/a", "/b", "/c"]
    );
}

#[tokio::test]
async fn one_event_also_where_the_decision_is_waited_for() {
    let builder = ThrottleLayer::builder(shared("p", 1)).backend(Remote::slow(9, 9));
    let heard = heard(builder, [get(), get()]).await;
    assert_eq!(labels(&heard), ["admitted", "refused"]);
    assert_eq!(heard[1].binding.as_deref(), Some("p"));
}

#[tokio::test]
async fn a_missing_key_is_an_event_without_a_decision() {
    let reject = OnMissing::Reject(StatusCode::UNAUTHORIZED);
    let at_once = limit("p", Gcra::new(Rate::per_minute(1)))
        .by(Header::new("x-api-key"))
        .on_missing(reject);
    let waited = limit("p", Gcra::new(Rate::per_minute(1)));
    let waited = waited
        .by_async(|_| std::future::ready(None::<u64>))
        .on_missing(reject);
    for limits in [at_once, waited] {
        let heard = heard(ThrottleLayer::builder(limits), [get()]).await;
        assert_eq!(labels(&heard), ["missing_key"]);
        assert_eq!(
            (&heard[0].binding, heard[0].remaining, heard[0].error),
            (&None, None, None)
        );
        assert_eq!((heard[0].decided_by, heard[0].degraded), (None, None));
    }
}

#[tokio::test]
async fn a_failure_is_an_event_with_its_error() {
    let kind = BackendErrorKind::Unavailable;
    for (rule, label, decided_by, remaining) in [
        (
            OnError::Open,
            "failed_open",
            Some(DecidedBy::Open(kind)),
            Some(u64::MAX),
        ),
        (OnError::Closed, "failed_closed", None, None),
    ] {
        let layer = ThrottleLayer::builder(shared("p", 1))
            .on_error(rule)
            .backend(Remote::failing(kind));
        let heard = heard(layer, [get(), get()]).await;
        assert_eq!(labels(&heard), [label, label]);
        assert_eq!(
            (heard[0].error, &heard[0].binding, heard[0].remaining),
            (Some(kind), &None, remaining)
        );
        assert_eq!(
            (heard[0].decided_by, heard[0].degraded),
            (decided_by, Some(kind))
        );
    }
}

/// The report of a response is the inner layer's: that layer either refused, or is nearer to the
/// handler.
#[tokio::test]
async fn report_of_the_inner_layer_stays_in_the_response() {
    let outer = ThrottleLayer::builder(shared("outer", 9))
        .report_in(throttle_tower::ReportIn::Both)
        .build()
        .unwrap();
    let inner = ThrottleLayer::builder(shared("inner", 1))
        .report_in(throttle_tower::ReportIn::Both)
        .build()
        .unwrap();
    let service = outer.layer(inner.layer(Strict::default()));
    for (status, violated) in [
        (StatusCode::OK, vec![]),
        (StatusCode::TOO_MANY_REQUESTS, vec!["inner"]),
    ] {
        let response = service.clone().oneshot(get()).await.unwrap();
        let report = response
            .extensions()
            .get::<LimitReport>()
            .expect("there is a report");
        assert_eq!(
            (response.status(), report.violated().collect::<Vec<_>>()),
            (status, violated)
        );
        assert_eq!(
            report
                .statuses()
                .map(|(policy, _)| policy.name())
                .collect::<Vec<_>>(),
            ["inner"]
        );
    }
    // If the outer layer refuses, there is no inner report.
    let outer = ThrottleLayer::builder(shared("outer", 1))
        .report_in(throttle_tower::ReportIn::Both)
        .build()
        .unwrap();
    let inner = ThrottleLayer::builder(shared("inner", 9))
        .report_in(throttle_tower::ReportIn::Both)
        .build()
        .unwrap();
    let service = outer.layer(inner.layer(Strict::default()));
    for (status, name) in [
        (StatusCode::OK, "inner"),
        (StatusCode::TOO_MANY_REQUESTS, "outer"),
    ] {
        let response = service.clone().oneshot(get()).await.unwrap();
        let report = response
            .extensions()
            .get::<LimitReport>()
            .expect("there is a report");
        assert_eq!(
            (
                response.status(),
                report.binding().map(throttle_core::Policy::name)
            ),
            (status, Some(name))
        );
    }
}

/// The responses to a stream of requests, and their questions to the store.
#[derive(Debug, PartialEq)]
struct Course {
    answers: Vec<(StatusCode, HeaderMap)>,
    questions: usize,
    left: [u64; 3],
    settlements: Settlements,
}

/// Sends the same requests to a store that sometimes fails, with and without observers.
async fn course(at_once: bool, is_observed: bool) -> (Course, u64) {
    let remote = Remote::faltering(at_once);
    let limits = all([
        shared("wide", 40)
            .refund_if(|_, headers| headers.contains_key("x-refund"))
            .on_error(OnError::Open),
        shared("tight", 12)
            .charge_refused()
            .on_error(OnError::local(2)),
        shared("later", 90)
            .cost(2)
            .settled_later()
            .on_error(OnError::local(3)),
        limit("keyed", Gcra::new(Rate::per_minute(1)).burst(200))
            .by(Header::new("x-none"))
            .on_error(OnError::Open),
    ]);
    let layer = ThrottleLayer::builder(limits)
        .local_store(&crate::common::memory())
        .backend(remote.clone());
    let looks = Arc::new(AtomicU64::new(0));
    let look = || {
        let looks = Arc::clone(&looks);
        move || {
            looks.fetch_add(1, Ordering::SeqCst);
        }
    };
    let layer = if is_observed {
        let (decision, warning, settling) = (look(), look(), look());
        layer
            .on_decision(move |event| {
                let _ = (
                    event.decided_by(),
                    event.binding(),
                    event.degraded(),
                    format!("{event:?}"),
                );
                decision();
            })
            .on_warning(move |_| warning())
            .on_settle_error(move |_| settling())
            .report_in(throttle_tower::ReportIn::Both)
    } else {
        layer
    };
    let layer = layer.build().unwrap();
    let read = look();
    let handler = tower::service_fn(move |request: Request<Text>| {
        let report = request
            .extensions()
            .get::<LimitReport>()
            .filter(|_| is_observed);
        if let Some(report) = report {
            let _ = (
                report.decision().remaining(),
                report.binding(),
                report.statuses().count(),
                format!("{report:?}"),
            );
            read();
        }
        let mut response = http::Response::new(Text::from("hello"));
        if request.uri().path() == "/refund" {
            response
                .headers_mut()
                .insert("x-refund", http::HeaderValue::from_static("yes"));
        }
        std::future::ready(Ok::<_, std::convert::Infallible>(response))
    });
    let service = layer.layer(handler);
    let mut answers = Vec::new();
    for n in 0..150 {
        remote.trouble(match n % 10 {
            3 => Some(BackendErrorKind::Timeout),
            4 => Some(BackendErrorKind::Unavailable),
            7 => Some(BackendErrorKind::Saturated),
            _ => None,
        });
        let path = if n % 3 == 0 { "/refund" } else { "/" };
        let response = service.clone().oneshot(heading_for(path)).await.unwrap();
        if is_observed && let Some(report) = response.extensions().get::<LimitReport>() {
            let _ = (report.violated().count(), report.decision().reset_after());
        }
        answers.push((response.status(), response.headers().clone()));
    }
    let left = [("wide", 40), ("tight", 12), ("later", 90)]
        .map(|(name, burst)| crate::common::left(&remote.memory, name, burst));
    let questions = remote.decisions.load(Ordering::SeqCst);
    (
        Course {
            answers,
            questions,
            left,
            settlements: layer.settlements(),
        },
        looks.load(Ordering::SeqCst),
    )
}

/// Hooks and readers of reports change no decision and cause no question to the store.
#[tokio::test]
async fn law_14_observers_change_nothing() {
    for at_once in [false, true] {
        let ((plain, none), (observed, looks)) =
            (course(at_once, false).await, course(at_once, true).await);
        assert_eq!(plain, observed);
        assert_eq!(none, 0);
        let admitted = plain
            .answers
            .iter()
            .filter(|(status, _)| *status == StatusCode::OK)
            .count();
        assert!(
            (10..140).contains(&admitted),
            "{admitted}: both are to be seen"
        );
        assert_eq!(
            looks,
            150 + admitted as u64 + 1,
            "each decision, each report in a handler, and one warning"
        );
    }
}

/// It has a status of each limit, and is announced none.
#[tokio::test]
async fn event_of_a_request_to_which_no_limit_applies_lists_none() {
    let never = |name| {
        limit(name, Gcra::new(Rate::per_hour(1)))
            .by(Header::new("x-api-key"))
            .when(|_: &_| false)
    };
    let listed = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&listed);
    let layer = ThrottleLayer::builder(all([never("one"), never("other")]))
        .on_decision(move |event| {
            let is_admitted = event.decision.map(|decision| decision.is_admitted());
            seen.lock()
                .unwrap()
                .push((is_admitted, event.limits().count()));
        })
        .build()
        .unwrap();
    let response = layer
        .layer(Strict::default())
        .oneshot(heading_for("/"))
        .await
        .unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert!(
        !response.headers().contains_key("ratelimit-policy"),
        "{:?}",
        response.headers()
    );
    assert_eq!(*listed.lock().unwrap(), [(Some(true), 0)]);
}

/// A limit with a class that leaves four units, and the requests that hooks and handlers hear of.
fn warned(
    algorithm: Algorithm,
    store: Memory,
    part: f64,
) -> (ThrottleLayer<Memory>, Arc<Mutex<Vec<String>>>) {
    let class = |parts: &http::request::Parts| {
        if parts.headers["class"] == "low" {
            "low"
        } else {
            "high"
        }
    };
    let cost =
        |parts: &http::request::Parts| parts.headers["cost"].to_str().unwrap().parse().unwrap();
    let limits = limit("p", algorithm)
        .by(Constant)
        .priority([("high", 0), ("low", 4)], class)
        .cost(cost);
    let other = limit("other", Gcra::new(Rate::per_second(1)).burst(1_000)).by(Constant);
    let heard = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&heard);
    let layer = ThrottleLayer::builder(all([other, limits.warn_at(part)])).backend(store);
    let hears = move |event: &Event<'_>| {
        log.lock()
            .unwrap()
            .extend(event.near().map(|limit| limit.info.name.to_string()));
    };
    let layer = layer
        .on_decision(hears)
        .report_in(throttle_tower::ReportIn::Both);
    (layer.build().unwrap(), heard)
}

proptest! {
    /// The charge that reaches the part is told of, and no other request, whatever came before it.
    #[test]
    fn near_is_the_request_whose_charge_reaches_the_part(
        kind in 0..3u8,
        count in 5..20u64,
        millionths in 1..1_000_000u64,
        steps in prop::collection::vec((0..300u64, 0..4u64, any::<bool>()), 1..60),
    ) {
        let algorithm = match kind {
            0 => Gcra::new(Rate::per_second(count)).burst(count).build(),
            1 => FixedWindow::new(Rate::per_second(count)).build(),
            _ => SlidingLog::new(Rate::per_second(count)).build(),
        }.unwrap();
        let clock = ManualClock::default();
        let store = MemoryBackend::builder().clock(clock.clone()).build();
        let (layer, heard) = warned(algorithm, store.clone(), format!("0.{millionths:06}").parse().unwrap());
        let set = PolicySet::new(Policy::new("p", algorithm).unwrap()).unwrap();
        let prepared = store.prepare(set).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for (after, cost, is_low) in steps {
            clock.advance(Duration::from_millis(after));
            let reserve = if is_low { 4 } else { 0 };
            let left = || store.decide_now(&prepared, &[Call::peek(Key::CONSTANT).reserving(reserve)]).remaining();
            let is_near = |left: u64| (count - reserve - left) * 1_000_000 >= (count - reserve) * millionths;
            let before = left();
            let mut request = get();
            request.headers_mut().insert("class", if is_low { "low" } else { "high" }.parse().unwrap());
            request.headers_mut().insert("cost", cost.into());
            let response = runtime.block_on(layer.layer(Strict::default()).oneshot(request)).unwrap();
            let is_told = response.status() == StatusCode::OK && !is_near(before) && is_near(left());
            let expected = if is_told { vec!["p".to_owned()] } else { Vec::new() };
            let report: &LimitReport = response.extensions().get().unwrap();
            prop_assert_eq!(report.near().map(|policy| policy.name().to_owned()).collect::<Vec<_>>(), expected.clone());
            prop_assert_eq!(std::mem::take(&mut *heard.lock().unwrap()), expected);
        }
    }
}

/// What the limit of an exception has left says nothing of the policy's own.
#[tokio::test]
async fn key_under_an_exception_is_not_near_the_end_of_the_limit() {
    let gcra = |burst| Gcra::new(Rate::per_day(burst)).burst(burst);
    let store = MemoryBackend::builder()
        .clock(ManualClock::default())
        .build();
    let (layer, heard) = warned(gcra(10).build().unwrap(), store.clone(), 0.8);
    let prepared = Arc::new(
        store
            .prepare(PolicySet::new(Policy::new("p", gcra(10)).unwrap()).unwrap())
            .unwrap(),
    );
    let treatment = Treatment::Limit(Arc::new(gcra(5).build().unwrap()));
    let until = throttle_core::Timestamp::from_micros(9_000_000);
    store
        .run(
            &prepared,
            0,
            KeyStep::Except(Key::CONSTANT, Some(Exception { treatment, until })),
        )
        .await
        .unwrap();
    for _ in 0..5 {
        let mut request = get();
        request
            .headers_mut()
            .insert("class", "high".parse().unwrap());
        request.headers_mut().insert("cost", 1.into());
        let response = layer
            .layer(Strict::default())
            .oneshot(request)
            .await
            .unwrap();
        assert_eq!(response.status(), StatusCode::OK);
    }
    assert_eq!(*heard.lock().unwrap(), Vec::<String>::new());
}

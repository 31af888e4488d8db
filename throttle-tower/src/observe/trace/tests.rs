use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::request::Parts;
use http::{Request, Response, StatusCode};
use throttle_core::{Backend, Gcra, Rate};
use tokio::time::advance;
use tower::{Layer, ServiceExt, service_fn};
use tracing::field::{Empty, Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Level, Subscriber, info_span};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

use super::event_budget::PER_SECOND;
use crate::failing_backend::FailingBackend;
use crate::{
    Audit, Constant, Header, InFlight, OnError, OnMissing, ThrottleLayer, Traces, all, limit,
};

type Fields = BTreeMap<&'static str, String>;

#[derive(Debug, PartialEq)]
struct Logged {
    level: Level,
    span: Option<&'static str>,
    fields: Fields,
}

/// What the layer logs and records on this thread.
#[derive(Clone, Default)]
struct Log {
    events: Arc<Mutex<Vec<Logged>>>,
    recorded: Arc<Mutex<Fields>>,
}

impl Log {
    fn capture() -> (Self, DefaultGuard) {
        let log = Self::default();
        let guard =
            tracing::subscriber::set_default(tracing_subscriber::registry().with(log.clone()));
        (log, guard)
    }

    fn events(&self) -> Vec<Logged> {
        std::mem::take(&mut self.events.lock().unwrap())
    }

    fn recorded(&self) -> Fields {
        std::mem::take(&mut self.recorded.lock().unwrap())
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> tracing_subscriber::Layer<S> for Log {
    fn on_event(&self, event: &tracing::Event<'_>, context: Context<'_, S>) {
        assert_eq!(event.metadata().target(), "throttle");
        let mut fields = Fields::new();
        event.record(&mut Texts(&mut fields));
        let span = context.event_span(event).map(|span| span.name());
        self.events.lock().unwrap().push(Logged {
            level: *event.metadata().level(),
            span,
            fields,
        });
    }

    fn on_new_span(&self, span: &Attributes<'_>, _: &Id, _: Context<'_, S>) {
        span.record(&mut Texts(&mut self.recorded.lock().unwrap()));
    }

    fn on_record(&self, _: &Id, values: &Record<'_>, _: Context<'_, S>) {
        values.record(&mut Texts(&mut self.recorded.lock().unwrap()));
    }
}

struct Texts<'a>(&'a mut Fields);

impl Visit for Texts<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(
            field.name(),
            format!("{value:?}").trim_matches('"').to_owned(),
        );
    }
}

fn fields<const N: usize>(fields: [(&'static str, &str); N]) -> Fields {
    fields.map(|(name, value)| (name, value.to_owned())).into()
}

fn per_key(name: &str, burst: u64) -> crate::Limit {
    limit(name, Gcra::new(Rate::per_hour(1)).burst(burst)).by(Header::new("x-api-key"))
}

fn down(on_error: OnError) -> ThrottleLayer<FailingBackend> {
    let limits = all([per_key("a", 8), per_key("b", 4)]);
    ThrottleLayer::builder(limits)
        .observe(Traces::new())
        .on_error(on_error)
        .backend(FailingBackend)
        .build()
        .unwrap()
}

async fn send<B: Backend>(layer: &ThrottleLayer<B>, key: Option<&str>) -> StatusCode {
    let inner = service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(())));
    let mut request = Request::new(());
    if let Some(key) = key {
        request
            .headers_mut()
            .insert("x-api-key", key.parse().unwrap());
    }
    layer.layer(inner).oneshot(request).await.unwrap().status()
}

#[tokio::test]
async fn refusal_of_a_class_is_logged_with_its_name() {
    let (log, _guard) = Log::capture();
    let in_class =
        |class| per_key("a", 9).priority([("high", 0), ("low", 8)], move |_: &Parts| class);
    let [high, low] = ["high", "low"].map(|class| {
        ThrottleLayer::builder(in_class(class))
            .observe(Traces::new())
            .build()
            .unwrap()
    });
    for (layer, class, admitted) in [(low, "low", 1), (high, "high", 9)] {
        for _ in 0..admitted {
            assert_eq!(send(&layer, Some("sk-wxyz")).await, StatusCode::OK);
        }
        assert_eq!(
            send(&layer, Some("sk-wxyz")).await,
            StatusCode::TOO_MANY_REQUESTS
        );
        assert!(
            log.events()
                .iter()
                .all(|logged| logged.fields["class"] == class),
            "{class}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn refusal_is_logged_with_its_policy_and_wait() {
    let (log, _guard) = Log::capture();
    let layer = ThrottleLayer::builder(all([per_key("a", 9), per_key("b", 1)]))
        .observe(Traces::new())
        .build()
        .unwrap();
    send(&layer, Some("sk-wxyz")).await;
    assert!(log.events().is_empty(), "an admitted request is not logged");

    let entered = info_span!("request").entered();
    assert_eq!(
        send(&layer, Some("sk-wxyz")).await,
        StatusCode::TOO_MANY_REQUESTS
    );
    drop(entered);
    let [mut logged] = <[Logged; 1]>::try_from(log.events()).unwrap();
    assert_eq!((logged.level, logged.span), (Level::INFO, Some("request")));
    let wait: u64 = logged
        .fields
        .remove("retry_after_ms")
        .unwrap()
        .parse()
        .unwrap();
    assert!((3_500_000..=3_600_000).contains(&wait), "{wait} ms");
    let expected = [
        ("decided_by", "store"),
        ("left_out", "0"),
        ("limit", "1"),
        ("message", "request refused"),
        ("outcome", "refused"),
        ("policy", "b"),
        ("remaining", "0"),
    ];
    assert_eq!(logged.fields, fields(expected));
}

#[tokio::test(start_paused = true)]
async fn layer_without_traces_logs_nothing() {
    let (log, _guard) = Log::capture();
    let layer = ThrottleLayer::new(per_key("a", 1)).unwrap();
    let span = info_span!("request", throttle.policy = Empty).entered();
    for _ in 0..2 {
        send(&layer, Some("ada")).await;
    }
    drop(span);
    assert_eq!((log.events(), log.recorded()), (vec![], Fields::new()));
}

#[tokio::test(start_paused = true)]
async fn refusals_without_a_decision_are_logged() {
    let (log, _guard) = Log::capture();
    let missing = per_key("a", 1).on_missing(OnMissing::Reject(StatusCode::UNAUTHORIZED));
    let layer = ThrottleLayer::builder(missing)
        .observe(Traces::new())
        .build()
        .unwrap();
    assert_eq!(send(&layer, None).await, StatusCode::UNAUTHORIZED);
    let layer = ThrottleLayer::builder(limit("full", InFlight::new(1)).by(Constant))
        .observe(Traces::new())
        .build()
        .unwrap();
    let inner = service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(())));
    let held = layer.layer(inner).oneshot(Request::new(())).await.unwrap();
    assert_eq!(send(&layer, None).await, StatusCode::SERVICE_UNAVAILABLE);
    drop(held);
    let expected = [
        fields([
            ("left_out", "0"),
            ("message", "request refused"),
            ("outcome", "missing_key"),
        ]),
        fields([
            ("left_out", "0"),
            ("message", "request refused"),
            ("outcome", "no_permit"),
            ("policy", "full"),
        ]),
    ];
    let logged = log.events();
    assert!(logged.iter().all(|logged| logged.level == Level::INFO));
    assert_eq!(
        logged
            .into_iter()
            .map(|logged| logged.fields)
            .collect::<Vec<_>>(),
        expected
    );
}

#[tokio::test(start_paused = true)]
async fn decisions_of_a_local_share_are_logged_as_degraded() {
    let (log, _guard) = Log::capture();
    let layer = down(OnError::local(4));
    assert_eq!(send(&layer, Some("sk-wxyz")).await, StatusCode::OK);
    assert_eq!(
        send(&layer, Some("sk-wxyz")).await,
        StatusCode::TOO_MANY_REQUESTS
    );
    let mut logged = log.events();
    assert!(logged[1].fields.remove("retry_after_ms").is_some());
    for (logged, outcome) in logged.into_iter().zip(["admitted", "refused"]) {
        let expected = [
            ("decided_by", "local"),
            ("left_out", "0"),
            ("limit", "4"),
            ("message", "decided without the store"),
            ("outcome", outcome),
            ("policy", "b"),
            ("remaining", "0"),
            ("why", "unavailable"),
        ];
        assert_eq!(
            (logged.level, logged.fields),
            (Level::WARN, fields(expected))
        );
    }
}

#[tokio::test(start_paused = true)]
async fn open_and_closed_limits_are_logged_as_degraded() {
    let cases = [
        (OnError::Open, StatusCode::OK, "failed_open", "open"),
        (
            OnError::Closed,
            StatusCode::SERVICE_UNAVAILABLE,
            "failed_closed",
            "closed",
        ),
    ];
    for (on_error, status, outcome, decided_by) in cases {
        let (log, _guard) = Log::capture();
        let layer = down(on_error);
        assert_eq!(send(&layer, Some("ada")).await, status);
        let expected = [
            ("decided_by", decided_by),
            ("left_out", "0"),
            ("message", "decided without the store"),
            ("outcome", outcome),
            ("why", "unavailable"),
        ];
        let [logged] = <[Logged; 1]>::try_from(log.events()).unwrap();
        assert_eq!(
            (logged.level, logged.fields),
            (Level::WARN, fields(expected))
        );
    }
}

#[tokio::test(start_paused = true)]
async fn degraded_decisions_and_refusals_are_bounded_apart() {
    let (log, _guard) = Log::capture();
    let limited = per_key("a", 1).on_missing(OnMissing::Reject(StatusCode::UNAUTHORIZED));
    let layer = ThrottleLayer::builder(limited)
        .on_error(OnError::Open)
        .backend(FailingBackend)
        .observe(Traces::new())
        .on_error(OnError::Open)
        .backend(FailingBackend)
        .build()
        .unwrap();
    for _ in 0..100 {
        send(&layer, Some("ada")).await;
        send(&layer, None).await;
    }
    let logged = log.events();
    for level in [Level::INFO, Level::WARN] {
        assert_eq!(
            logged.iter().filter(|logged| logged.level == level).count() as u64,
            PER_SECOND,
            "{level}"
        );
    }
    advance(Duration::from_secs(1)).await;
    for key in [Some("ada"), None] {
        send(&layer, key).await;
        assert_eq!(log.events()[0].fields["left_out"], "90");
    }
}

#[tokio::test(start_paused = true)]
async fn policy_and_remaining_are_recorded_where_the_span_declares_them() {
    let (log, _guard) = Log::capture();
    let layer = ThrottleLayer::builder(all([per_key("a", 9), per_key("b", 2)]))
        .observe(Traces::new())
        .build()
        .unwrap();
    for remaining in ["1", "0", "0"] {
        let entered = info_span!(
            "request",
            throttle.policy = Empty,
            throttle.remaining = Empty
        )
        .entered();
        send(&layer, Some("ada")).await;
        drop(entered);
        assert_eq!(
            log.recorded(),
            fields([("throttle.policy", "b"), ("throttle.remaining", remaining)])
        );
    }
    let entered = info_span!("request", throttle.remaining = Empty, other = 7).entered();
    send(&layer, Some("ada")).await;
    drop(entered);
    assert_eq!(
        log.recorded(),
        fields([("other", "7"), ("throttle.remaining", "0")])
    );
}

#[tokio::test(start_paused = true)]
async fn law_11_no_event_or_span_field_contains_a_key() {
    let (log, _guard) = Log::capture();
    let limited = ThrottleLayer::builder(per_key("a", 1))
        .observe(Traces::new())
        .build()
        .unwrap();
    let (down, entered) = (
        down(OnError::local(1)),
        info_span!("request", throttle.policy = Empty).entered(),
    );
    for _ in 0..12 {
        send(&limited, Some("sk-wxyz")).await;
        send(&down, Some("sk-wxyz")).await;
    }
    drop(entered);
    let logged = format!("{:?} {:?}", log.events(), log.recorded());
    assert!(
        logged.contains("request refused") && logged.contains("throttle.policy"),
        "{logged}"
    );
    assert!(!logged.contains("wxyz"), "{logged}");
}

#[tokio::test(start_paused = true)]
async fn subscriber_of_warnings_gets_degraded_decisions_alone() {
    let limited = ThrottleLayer::builder(per_key("a", 1))
        .observe(Traces::new())
        .build()
        .unwrap();
    let down = down(OnError::Open);
    for _ in 0..50 {
        send(&down, Some("ada")).await;
    }
    let log = Log::default();
    let warnings = tracing_subscriber::registry()
        .with(tracing_subscriber::filter::LevelFilter::WARN)
        .with(log.clone());
    let guard = tracing::subscriber::set_default(warnings);
    for _ in 0..50 {
        send(&limited, Some("ada")).await;
    }
    assert!(log.events().is_empty(), "refusals are no warnings");
    send(&down, Some("ada")).await;
    assert_eq!(
        log.events()[0].fields["left_out"],
        "0",
        "what no subscriber read was not left out"
    );
    drop(guard);
    let (log, _guard) = Log::capture();
    send(&limited, Some("ada")).await;
    assert_eq!(log.events()[0].fields["left_out"], "0");
}

#[tokio::test(start_paused = true)]
async fn wait_is_logged_in_milliseconds_rounded_up() {
    for (micros, logged) in [(1, "1"), (2_000, "2"), (2_001, "3"), (2_999, "3")] {
        let (log, _guard) = Log::capture();
        let rate = Rate::new(1, Duration::from_micros(micros));
        let limited = limit("a", Gcra::new(rate).burst(1)).by(Header::new("x-api-key"));
        let clock = throttle_core::ManualClock::new(throttle_core::Timestamp::from_micros(
            1_790_000_000_000_000,
        ));
        let memory = throttle_core::MemoryBackend::builder().clock(clock).build();
        let layer = ThrottleLayer::builder(limited)
            .observe(Traces::new())
            .backend(memory)
            .build()
            .unwrap();
        for _ in 0..2 {
            send(&layer, Some("ada")).await;
        }
        assert_eq!(
            log.events()[0].fields["retry_after_ms"],
            logged,
            "{micros} µs"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_that_no_wait_ends_has_no_wait() {
    let (log, _guard) = Log::capture();
    let layer = ThrottleLayer::builder(per_key("a", 1).cost(|_: &Parts| 2))
        .observe(Traces::new())
        .build()
        .unwrap();
    assert_eq!(
        send(&layer, Some("ada")).await,
        StatusCode::TOO_MANY_REQUESTS
    );
    let logged = log.events();
    assert!(logged[0].fields["policy"] == "a" && !logged[0].fields.contains_key("retry_after_ms"));
}

#[tokio::test(start_paused = true)]
async fn of_several_limits_without_a_permit_the_first_is_named() {
    let (log, _guard) = Log::capture();
    let limits = all(["a", "b", "c"]
        .map(|name| limit(name, InFlight::new(if name == "a" { 2 } else { 1 })).by(Constant)));
    let layer = ThrottleLayer::builder(limits)
        .observe(Traces::new())
        .build()
        .unwrap();
    let inner = service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(())));
    let held = layer.layer(inner).oneshot(Request::new(())).await.unwrap();
    assert_eq!(send(&layer, None).await, StatusCode::SERVICE_UNAVAILABLE);
    drop(held);
    assert_eq!(log.events()[0].fields["policy"], "b", "a has one more");
}

/// The other limit is nowhere near its end, and later requests have found this one there.
#[tokio::test]
async fn request_that_brings_a_limit_near_its_end_is_logged_once() {
    let (log, _guard) = Log::capture();
    let near = per_key("a", 5)
        .priority([("high", 0), ("low", 1)], |_: &Parts| "low")
        .warn_at(0.5);
    let layer = ThrottleLayer::builder(all([per_key("b", 9).warn_at(0.9), near]))
        .observe(Traces::new())
        .build()
        .unwrap();
    for _ in 0..4 {
        assert_eq!(send(&layer, Some("sk-wxyz")).await, StatusCode::OK);
    }
    let message = ("message", "limit nearly used up");
    let fields = fields([
        message,
        ("outcome", "admitted"),
        ("decided_by", "store"),
        ("policy", "a"),
        ("class", "low"),
        ("limit", "5"),
        ("remaining", "2"),
        ("left_out", "0"),
    ]);
    assert_eq!(
        log.events(),
        [Logged {
            level: Level::INFO,
            span: None,
            fields
        }]
    );
}

#[tokio::test]
async fn audited_limit_logs_what_it_would_refuse() {
    let (log, _guard) = Log::capture();
    let limits = all([
        per_key("strict", 1).audit(Audit::Silent),
        per_key("wide", 2),
    ]);
    let layer = ThrottleLayer::builder(limits)
        .observe(Traces::new())
        .build()
        .unwrap();
    for (status, events) in [
        (StatusCode::OK, &[][..]),
        (StatusCode::OK, &["request would be refused"]),
        (
            StatusCode::TOO_MANY_REQUESTS,
            &["request refused", "request would be refused"],
        ),
    ] {
        assert_eq!(send(&layer, Some("ada")).await, status);
        let logged = log.events();
        let messages: Vec<&str> = logged
            .iter()
            .map(|event| &*event.fields["message"])
            .collect();
        assert_eq!(messages, events);
        for audited in logged
            .iter()
            .filter(|event| event.fields["policy"] == "strict")
        {
            assert_eq!(audited.level, Level::INFO);
            let wait: u64 = audited.fields["retry_after_ms"].parse().unwrap();
            assert!((3_590_000..=3_600_000).contains(&wait), "{wait}");
            assert_eq!(
                (&*audited.fields["limit"], &*audited.fields["remaining"]),
                ("1", "0")
            );
        }
    }
}

//! What a layer counts through the `metrics` facade.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use metrics_util::MetricKind;
use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use throttle_core::{Backend, BackendErrorKind, ManualClock};
use throttle_rules::{Registry, Rules};
use throttle_tower::limit::Ban;
use throttle_tower::usage::Usage;
use throttle_tower::{
    Candidate, Constant, Gcra, Header, InFlight, LimitTree, MemoryBackend, Metrics, OnError,
    OnMissing, Pace, Rate, ShapeLayer, ThrottleBuilder, ThrottleLayer, all, any, limit, plans,
};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::common::{Remote, Strict, Text, get, keyed, memory, send_each, shared, take};

/// The series of a recorder: `name{label="value"}` and what it has counted. Of a histogram, how
/// many values.
type Series = BTreeMap<String, f64>;

/// Runs something with a recorder of its own, and returns what that has counted.
async fn metered<T>(work: impl Future<Output = T>) -> Series {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    // The tests' runtime has one thread.
    let installed = metrics::set_default_local_recorder(&recorder);
    work.await;
    drop(installed);
    let series = snapshotter
        .snapshot()
        .into_vec()
        .into_iter()
        .map(|(key, _, _, value)| {
            let labels: BTreeSet<String> = key
                .key()
                .labels()
                .map(|label| format!("{}={:?}", label.key(), label.value()))
                .collect();
            let labels: Vec<String> = labels.into_iter().collect();
            let value = match value {
                DebugValue::Counter(count) => count as f64,
                DebugValue::Gauge(level) => level.into_inner(),
                DebugValue::Histogram(values) => values.len() as f64,
            };
            (
                format!("{}{{{}}}", key.key().name(), labels.join(",")),
                value,
            )
        });
    series.collect()
}

/// The series that are not zero.
fn counted(series: &Series) -> Vec<(&str, f64)> {
    series
        .iter()
        .filter(|(_, value)| **value != 0.0)
        .map(|(name, value)| (name.as_str(), *value))
        .collect()
}

fn per_key(burst: u64) -> throttle_tower::Limit {
    limit("per-key", Gcra::new(Rate::per_day(burst))).by(Header::new("x-api-key"))
}

#[tokio::test(start_paused = true)]
async fn each_request_counts_once_and_each_policy_says_what_it_decided() {
    let series = metered(async {
        let limits = all([shared("all", 9), per_key(10).on_missing(OnMissing::Skip)]);
        let layer = ThrottleLayer::builder(limits)
            .backend(memory())
            .observe(Metrics::new("api"))
            .build()
            .unwrap();
        // After the eighth charge at least four fifths of nine are used.
        send_each(
            &layer,
            (0..3).map(|_| get()).chain((0..9).map(|_| keyed("ada"))),
        )
        .await;
    });
    assert_eq!(
        counted(&series.await),
        [
            (r#"throttle_binding_total{layer="api",policy="all"}"#, 3.0),
            (
                r#"throttle_decisions_total{layer="api",policy="all",result="admitted"}"#,
                7.0
            ),
            (
                r#"throttle_decisions_total{layer="api",policy="all",result="near"}"#,
                2.0
            ),
            (
                r#"throttle_decisions_total{layer="api",policy="all",result="refused"}"#,
                3.0
            ),
            (
                r#"throttle_decisions_total{layer="api",policy="per-key",result="admitted"}"#,
                9.0
            ),
            (r#"throttle_keys{layer="api"}"#, 2.0),
            (
                r#"throttle_requests_total{layer="api",outcome="admitted"}"#,
                9.0
            ),
            (
                r#"throttle_requests_total{layer="api",outcome="refused"}"#,
                3.0
            ),
            (
                r#"throttle_units_total{kind="charged",layer="api",policy="all"}"#,
                9.0
            ),
            (
                r#"throttle_units_total{kind="charged",layer="api",policy="per-key"}"#,
                6.0
            ),
        ]
    );
}

/// The names of a layer's series and of their labels.
async fn registered<B: Backend>(builder: ThrottleBuilder<B>) -> Vec<String> {
    let series = metered(async {
        let layer = builder.observe(Metrics::new("api")).build().unwrap();
        send_each(&layer, [get()]).await;
    });
    series.await.into_keys().collect()
}

#[tokio::test(start_paused = true)]
async fn series_that_can_never_count_is_not_registered() {
    let counts = |series: &[String], of: &str| series.iter().any(|name| name.contains(of));
    let layer = |limits: LimitTree| ThrottleLayer::builder(limits).backend(memory());
    let plain = registered(layer(all([shared("p", 9)]))).await;
    assert_eq!(
        plain,
        [
            r#"throttle_binding_total{layer="api",policy="p"}"#,
            r#"throttle_decisions_total{layer="api",policy="p",result="admitted"}"#,
            r#"throttle_decisions_total{layer="api",policy="p",result="near"}"#,
            r#"throttle_decisions_total{layer="api",policy="p",result="refused"}"#,
            r#"throttle_keys{layer="api"}"#,
            r#"throttle_overflow_total{layer="api",policy="p"}"#,
            r#"throttle_requests_total{layer="api",outcome="admitted"}"#,
            r#"throttle_requests_total{layer="api",outcome="refused"}"#,
            r#"throttle_units_total{kind="charged",layer="api",policy="p"}"#,
        ]
    );
    for (limits, expected) in [
        (
            all([shared("p", 9).settled_later()]),
            &["refunded", "settled_short"][..],
        ),
        (
            all([shared("p", 9).refund_if(limit::failed)]),
            &["refunded"],
        ),
        (
            all([shared("p", 9).wait_up_to(Duration::from_secs(1))]),
            &["throttle_queued_requests"],
        ),
        (
            all([per_key(9).on_missing(OnMissing::Reject(StatusCode::UNAUTHORIZED))]),
            &["missing_key"],
        ),
        (
            all((shared("p", 9), limit("jobs", InFlight::new(1)).by(Constant))),
            &["no_permit", "refunded", "throttle_in_flight"],
        ),
    ] {
        let series = registered(layer(limits)).await;
        for of in expected {
            assert!(counts(&series, of), "{of}: {series:?}");
            assert!(!counts(&plain, of), "{of}");
        }
    }
    let on_store = ThrottleLayer::builder(all([shared("p", 9)]))
        .on_error(OnError::Closed)
        .backend(Remote::faltering(true));
    let on_store = registered(on_store).await;
    for of in ["failed_open", "failed_closed", "throttle_degraded_total"] {
        assert!(
            counts(&on_store, of) && !counts(&plain, of),
            "{of}: {on_store:?}"
        );
    }
    assert!(!counts(&on_store, "throttle_keys"), "the store holds them");
}

/// What refuses is counted under its own name, whatever stands before it.
#[tokio::test(start_paused = true)]
async fn limit_whose_condition_does_not_hold_is_not_counted() {
    let series = metered(async {
        let for_key = |name: &str, key: &'static str| {
            shared(name, 2).when(move |parts: &Parts| {
                parts.headers.get("x-api-key").is_some_and(|own| own == key)
            })
        };
        let limits = all([
            for_key("first", "ada"),
            for_key("second", "bob").refund_if(limit::successful),
            for_key("none", "-"),
        ]);
        let layer = ThrottleLayer::builder(limits)
            .backend(memory())
            .observe(Metrics::new("api"))
            .build()
            .unwrap();
        send_each(
            &layer,
            ["ada", "bob", "bob", "ada", "ada", "eve"].map(keyed),
        )
        .await;
    });
    assert_eq!(
        counted(&series.await),
        [
            (r#"throttle_binding_total{layer="api",policy="first"}"#, 1.0),
            (
                r#"throttle_decisions_total{layer="api",policy="first",result="admitted"}"#,
                1.0
            ),
            (
                r#"throttle_decisions_total{layer="api",policy="first",result="near"}"#,
                1.0
            ),
            (
                r#"throttle_decisions_total{layer="api",policy="first",result="refused"}"#,
                1.0
            ),
            (
                r#"throttle_decisions_total{layer="api",policy="second",result="admitted"}"#,
                2.0
            ),
            (r#"throttle_keys{layer="api"}"#, 2.0),
            (
                r#"throttle_requests_total{layer="api",outcome="admitted"}"#,
                5.0
            ),
            (
                r#"throttle_requests_total{layer="api",outcome="refused"}"#,
                1.0
            ),
            (
                r#"throttle_units_total{kind="charged",layer="api",policy="first"}"#,
                2.0
            ),
            (
                r#"throttle_units_total{kind="charged",layer="api",policy="second"}"#,
                2.0
            ),
            (
                r#"throttle_units_total{kind="refunded",layer="api",policy="second"}"#,
                2.0
            ),
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn near_is_at_most_a_fifth_of_the_capacity_in_the_tier_of_the_request() {
    let per_user = plans(
        "per-user",
        [
            ("free", Gcra::new(Rate::per_day(5))),
            ("pro", Gcra::new(Rate::per_day(50))),
        ],
    )
    .by(Header::new("x-api-key"))
    .lookup(|key: String| async move { Some(if key == "pro" { "pro" } else { "free" }) })
    .unknown("free");
    let series = metered(async {
        let layer = ThrottleLayer::builder(per_user)
            .backend(memory())
            .observe(Metrics::new("api"))
            .build()
            .unwrap();
        send_each(
            &layer,
            (0..5)
                .map(|_| keyed("free"))
                .chain((0..50).map(|_| keyed("pro"))),
        )
        .await;
    })
    .await;
    let of = |result| {
        series[&format!(
            r#"throttle_decisions_total{{layer="api",policy="per-user",result="{result}"}}"#
        )]
    };
    assert_eq!((of("admitted"), of("near")), (3.0 + 39.0, 2.0 + 11.0));
    let lookups = |how| {
        series[&format!(
            r#"throttle_plan_lookups_total{{layer="api",policy="per-user",result="{how}"}}"#
        )]
    };
    assert_eq!(
        (lookups("found"), lookups("remembered"), lookups("failed")),
        (2.0, 53.0, 0.0)
    );
}

/// Each class has its series from the start, and a limit without classes has no such label.
#[tokio::test(start_paused = true)]
async fn decisions_are_counted_by_class_where_a_limit_has_classes() {
    let class =
        |parts: &http::request::Parts| parts.headers["x-class"].to_str().unwrap().to_owned();
    let of = |name: &str, classes: &[(&'static str, u64)]| {
        let limit = limit(name, Gcra::new(Rate::per_day(10)))
            .by(Constant)
            .when(|parts| parts.uri.path() != "/free");
        limit.priority(classes.iter().copied(), class)
    };
    let classed = all((
        of("zero", &[("critical", 0), ("normal", 4), ("batch", 8)]),
        of("more", &[("critical", 1), ("normal", 2), ("batch", 3)]),
        limit("plain", Gcra::new(Rate::per_day(99))).by(Constant),
    ));
    let layer = ThrottleLayer::builder(classed)
        .backend(memory())
        .observe(Metrics::new("api"))
        .build()
        .unwrap();
    let service = layer.layer(service_fn(async |_: Request<Text>| {
        Ok::<_, Infallible>(Response::new(()))
    }));
    let series = metered(async {
        for (path, class, times) in [
            ("/", "critical", 2),
            ("/", "batch", 1),
            ("/", "normal", 4),
            ("/", "unknown", 2),
            ("/free", "batch", 3),
        ] {
            for _ in 0..times {
                let request = Request::get(path)
                    .header("x-class", class)
                    .body(Text::default())
                    .unwrap();
                drop(service.clone().oneshot(request).await);
            }
        }
    })
    .await;
    let decisions: BTreeMap<_, _> = series
        .iter()
        .filter_map(|(name, count)| {
            Some((
                name.strip_prefix("throttle_decisions_total{")?
                    .replace("layer=\"api\",", ""),
                *count,
            ))
        })
        .collect();
    let mut expected = BTreeMap::new();
    let mut expect = |labels: String, counts: [f64; 3]| {
        for (result, count) in ["admitted", "near", "refused"].into_iter().zip(counts) {
            expected.insert(format!("{labels},result=\"{result}\"}}"), count);
        }
    };
    expect(
        "class=\"critical\",policy=\"zero\"".to_owned(),
        [2.0, 0.0, 0.0],
    );
    expect(
        "class=\"normal\",policy=\"zero\"".to_owned(),
        [2.0, 2.0, 0.0],
    );
    expect(
        "class=\"batch\",policy=\"zero\"".to_owned(),
        [0.0, 0.0, 3.0],
    );
    expect(
        "class=\"critical\",policy=\"more\"".to_owned(),
        [2.0, 0.0, 0.0],
    );
    expect(
        "class=\"normal\",policy=\"more\"".to_owned(),
        [4.0, 0.0, 0.0],
    );
    expect(
        "class=\"batch\",policy=\"more\"".to_owned(),
        [1.0, 2.0, 0.0],
    );
    expect("policy=\"plain\"".to_owned(), [12.0, 0.0, 0.0]);
    assert_eq!(decisions, expected);
}

#[tokio::test(start_paused = true)]
async fn lookups_say_how_they_ended() {
    let per_user = plans("per-user", [("free", Gcra::new(Rate::per_day(99)))])
        .by(Header::new("x-api-key"))
        .lookup(|key: String| async move {
            match key.as_str() {
                "known" => Ok(Some("free")),
                "stranger" => Ok(None),
                "slow" => pending().await,
                _ => Err(std::io::Error::other("the database is down")),
            }
        })
        .lookups(1, Duration::from_millis(100))
        .unknown("free");
    let series = metered(async {
        // The first limit has no lookup, so the lookups counted belong to the second.
        let layer = ThrottleLayer::builder(all((shared("all", 99), per_user)))
            .backend(memory())
            .observe(Metrics::new("api"))
            .build()
            .unwrap();
        let service = layer.layer(Strict::default());
        let slow = tokio::spawn(service.clone().oneshot(keyed("slow")));
        tokio::task::yield_now().await;
        send_each(&layer, ["turned", "away"].map(keyed)).await;
        slow.await.unwrap().unwrap();
        send_each(
            &layer,
            ["known", "known", "stranger", "stranger", "faulty"].map(keyed),
        )
        .await;
    })
    .await;
    let lookups = |how| {
        series[&format!(
            r#"throttle_plan_lookups_total{{layer="api",policy="per-user",result="{how}"}}"#
        )]
    };
    let results = [
        "remembered",
        "found",
        "unknown",
        "failed",
        "invalid",
        "turned_away",
    ];
    assert_eq!(results.map(lookups), [2.0, 1.0, 1.0, 2.0, 0.0, 2.0]);
}

#[tokio::test(start_paused = true)]
async fn recorder_that_is_installed_late_counts_from_then_on_and_has_all_levels() {
    let layer = ThrottleLayer::builder(all((
        shared("all", 3),
        limit("jobs", InFlight::new(9)).by(Constant),
    )))
    .backend(memory())
    .observe(Metrics::new("api"))
    .build()
    .unwrap();
    let gate = Arc::new(Semaphore::new(0));
    let service = layer.layer(service_fn({
        let gate = Arc::clone(&gate);
        move |_: Request<Text>| {
            let gate = Arc::clone(&gate);
            async move {
                gate.acquire().await.unwrap().forget();
                Ok::<_, Infallible>(Response::new(()))
            }
        }
    }));
    let call = || tokio::spawn(service.clone().oneshot(get()));
    let before = call();
    tokio::task::yield_now().await;
    let series = metered(async {
        let after = [call(), call(), call()];
        tokio::task::yield_now().await;
        gate.add_permits(1);
        drop(before.await.unwrap());
        drop(after);
    })
    .await;
    assert_eq!(
        series[r#"throttle_requests_total{layer="api",outcome="admitted"}"#], 2.0,
        "not the one before"
    );
    assert_eq!(
        series[r#"throttle_requests_total{layer="api",outcome="refused"}"#],
        1.0
    );
    assert_eq!(
        series[r#"throttle_in_flight{layer="api",name="jobs"}"#], 2.0,
        "one of three has returned its permit"
    );
}

#[tokio::test(start_paused = true)]
async fn permits_in_flight_and_saturation_are_shown() {
    let gate = Arc::new(Semaphore::new(0));
    let series = metered(async {
        let limits = all((
            limit("all", InFlight::new(3)).by(Constant),
            limit("jobs", InFlight::new(2)).by(Constant),
        ));
        let layer = ThrottleLayer::builder(limits)
            .observe(Metrics::new("api"))
            .build()
            .unwrap();
        let service = layer.layer(service_fn(async |_: Request<Text>| {
            pending::<()>().await;
            Ok::<_, Infallible>(Response::new(()))
        }));
        let held = [service.clone().call(get()), service.clone().call(get())];
        let full = service.clone().oneshot(get()).await.unwrap();
        assert_eq!(full.status(), StatusCode::SERVICE_UNAVAILABLE);
        let [first, second] = held;
        drop(first);
        std::mem::forget(second);
    })
    .await;
    drop(gate);
    assert_eq!(
        counted(&series),
        [
            (r#"throttle_in_flight{layer="api",name="all"}"#, 1.0),
            (r#"throttle_in_flight{layer="api",name="jobs"}"#, 1.0),
            (
                r#"throttle_requests_total{layer="api",outcome="admitted"}"#,
                2.0
            ),
            (
                r#"throttle_requests_total{layer="api",outcome="no_permit"}"#,
                1.0
            ),
        ]
    );
}

/// Sends a request for each number of tokens; the handler settles it.
async fn settle_each(layer: &ThrottleLayer<impl Backend>, used: [&str; 3]) {
    let service = layer.layer(service_fn(async |request: Request<Text>| {
        let used: u64 = request.headers()["x-used"]
            .to_str()
            .unwrap()
            .parse()
            .unwrap();
        request
            .extensions()
            .get::<Usage>()
            .unwrap()
            .settle("tokens", used)
            .unwrap();
        Ok::<_, Infallible>(Response::new(()))
    }));
    for used in used {
        let mut request = keyed("ada");
        request
            .headers_mut()
            .insert("x-used", used.parse().unwrap());
        service.clone().oneshot(request).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn units_given_back_and_used_beyond_what_was_left_are_counted() {
    let series = metered(async {
        let tokens = || limit("tokens", Gcra::new(Rate::per_day(100))).by(Header::new("x-api-key"));
        let layer = ThrottleLayer::builder(tokens().cost(40).settled_later())
            .backend(memory())
            .observe(Metrics::new("llm"))
            .build()
            .unwrap();
        settle_each(&layer, ["10", "50", "90"]).await;
    })
    .await;
    let units = |kind| {
        series[&format!(r#"throttle_units_total{{kind="{kind}",layer="llm",policy="tokens"}}"#)]
    };
    assert_eq!(
        (units("charged"), units("refunded"), units("settled_short")),
        (3.0 * 40.0, 30.0, 10.0 + 50.0)
    );
}

/// An estimate of 0 counts as 1, and an attempt takes no more than there is.
#[tokio::test(start_paused = true)]
async fn units_charged_afterwards_are_counted() {
    let series = metered(async {
        let tokens = limit("tokens", Gcra::new(Rate::per_day(100)))
            .by(Header::new("x-api-key"))
            .cost(0)
            .settled_later();
        let layer = ThrottleLayer::builder(tokens)
            .backend(memory())
            .observe(Metrics::new("llm"))
            .build()
            .unwrap();
        settle_each(&layer, ["0", "90", "50"]).await;
        let attempts = shared("attempts", 10).cost(4).charge_refused();
        let layer = ThrottleLayer::builder(attempts)
            .backend(memory())
            .observe(Metrics::new("site"))
            .build()
            .unwrap();
        send_each(&layer, (0..5).map(|_| get())).await;
        // Others take a unit before each attempt is charged.
        let store = Remote::faltering(true);
        let others = store.memory.clone();
        store.before_each(move || _ = take(&others, "attempts", 10, 1));
        let attempts = shared("attempts", 10)
            .cost(4)
            .charge_refused()
            .on_error(OnError::Closed);
        let layer = ThrottleLayer::builder(attempts)
            .backend(store.clone())
            .observe(Metrics::new("raced"))
            .build()
            .unwrap();
        send_each(&layer, (0..3).map(|_| get())).await;
        sleep(Duration::from_millis(10)).await;
        send_each(&layer, [get()]).await;
        let (decided, charged) = (4, 2);
        assert_eq!(
            store.decisions.load(Ordering::SeqCst),
            decided + charged,
            "no charge where nothing is left"
        );
    })
    .await;
    let units = |layer, policy| {
        let kinds = ["charged", "refunded", "settled_short"];
        let of = |kind| {
            format!(r#"throttle_units_total{{kind="{kind}",layer="{layer}",policy="{policy}"}}"#)
        };
        kinds.map(|kind| series.get(&of(kind)).copied())
    };
    let tokens = [3.0, 1.0, 89.0 + 49.0].map(Some);
    assert_eq!(units("llm", "tokens"), tokens);
    // Attempts are not given back.
    assert_eq!(
        units("site", "attempts"),
        [Some(2.0 * 4.0 + 2.0), None, None]
    );
    assert_eq!(units("raced", "attempts"), [Some(2.0 * 4.0), None, None]);
}

#[tokio::test(start_paused = true)]
async fn charge_that_is_given_back_because_permits_ran_out_was_charged() {
    let series = metered(async {
        let remote = Remote::slow(0, 0);
        let rates = ["first", "second"].map(|name| shared(name, 9).on_error(OnError::Closed));
        let limits = all((all(rates), limit("jobs", InFlight::new(1)).by(Constant)));
        let layer = ThrottleLayer::builder(limits)
            .backend(remote.clone())
            .observe(Metrics::new("api"))
            .build()
            .unwrap();
        let service = layer.layer(service_fn(async |_: Request<Text>| {
            pending::<()>().await;
            Ok::<_, Infallible>(Response::new(()))
        }));
        // Both find a permit before the store decides.
        let calls = [
            service.clone().oneshot(get()),
            service.clone().oneshot(get()),
        ]
        .map(tokio::spawn);
        for _ in &calls {
            tokio::task::yield_now().await;
            remote.let_in();
            remote.let_out();
        }
        let [_first, second] = calls;
        assert_eq!(
            second.await.unwrap().unwrap().status(),
            StatusCode::SERVICE_UNAVAILABLE
        );
    })
    .await;
    for policy in ["first", "second"] {
        let units = |kind| {
            series
                [&format!(r#"throttle_units_total{{kind="{kind}",layer="api",policy="{policy}"}}"#)]
        };
        assert_eq!(
            (units("charged"), units("refunded")),
            (2.0, 1.0),
            "{policy}"
        );
    }
    assert_eq!(
        series[r#"throttle_requests_total{layer="api",outcome="no_permit"}"#],
        1.0
    );
}

#[tokio::test(start_paused = true)]
async fn store_that_fails_is_timed_and_says_who_decided_instead() {
    use BackendErrorKind::{Timeout, Unavailable};
    let series = metered(async {
        for (name, on_error) in [
            ("open", OnError::Open),
            ("closed", OnError::Closed),
            ("local", OnError::Local { processes: 1 }),
        ] {
            let remote = Remote::faltering(false);
            let layer = ThrottleLayer::builder(shared("all", 9).on_error(on_error))
                .backend(remote.clone())
                .observe(Metrics::new(name))
                .build()
                .unwrap();
            send_each(&layer, [get()]).await;
            remote.trouble(Some(Unavailable));
            send_each(&layer, [get(), get()]).await;
            remote.trouble(Some(Timeout));
            send_each(&layer, [get()]).await;
        }
    })
    .await;
    for (layer, decided_by, outcome) in [
        ("open", "open", "failed_open"),
        ("closed", "closed", "failed_closed"),
        ("local", "local", "admitted"),
    ] {
        let degraded = |why| {
            series[&format!(
                r#"throttle_degraded_total{{decided_by="{decided_by}",layer="{layer}",why="{why}"}}"#
            )]
        };
        // While the store is only busy, a limit that would open is decided by this process.
        if layer != "open" {
            assert_eq!(
                (degraded("unavailable"), degraded("timeout")),
                (2.0, 1.0),
                "{layer}"
            );
        }
        assert_eq!(degraded("unavailable"), 2.0, "{layer}");
        let outcomes =
            series[&format!(r#"throttle_requests_total{{layer="{layer}",outcome="{outcome}"}}"#)];
        assert!(outcomes >= 2.0, "{layer}: {outcomes}");
        let timed = |result, why| {
            series[&format!(
                r#"throttle_store_seconds{{layer="{layer}",result="{result}",why="{why}"}}"#
            )]
        };
        let failed = ["unavailable", "timeout"].map(|why| timed("failed", why));
        assert_eq!(
            (timed("decided", "none"), failed),
            (1.0, [2.0, 1.0]),
            "{layer}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn queue_shows_who_waits_and_how_long_each_waited() {
    let series = metered(async {
        let queued = limit("all", Gcra::new(Rate::per_second(2)).burst(1)).by(Constant);
        let clock = throttle_tower::shape::TokioClock::new();
        let layer = ThrottleLayer::builder(queued.wait_up_to(Duration::from_secs(5)))
            .backend(MemoryBackend::builder().clock(clock).build())
            .observe(Metrics::new("api"))
            .build()
            .unwrap();
        let service = layer.layer(Strict::default());
        let calls: Vec<_> = (0..4)
            .map(|_| tokio::spawn(service.clone().oneshot(get())))
            .collect();
        tokio::task::yield_now().await;
        let gives_up = timeout(Duration::from_millis(10), service.clone().oneshot(get()));
        assert!(gives_up.await.is_err());
        for call in calls {
            assert_eq!(call.await.unwrap().unwrap().status(), StatusCode::OK);
        }
        let late = [
            service.clone().oneshot(get()),
            service.clone().oneshot(get()),
        ]
        .map(tokio::spawn);
        sleep(Duration::from_millis(1)).await;
        std::mem::forget(late);
    })
    .await;
    assert_eq!(
        series[r#"throttle_queue_seconds{layer="api",policy="all"}"#], 4.0,
        "three waited, and one gave up"
    );
    assert_eq!(
        series[r#"throttle_queued_requests{layer="api",policy="all"}"#],
        2.0
    );
}

#[tokio::test(start_paused = true)]
async fn hostile_keys_paths_and_methods_add_no_series() {
    let limits = || {
        all([
            per_key(3),
            limit("per-route", Gcra::new(Rate::per_day(9))).by(throttle_tower::extract::Method),
        ])
    };
    let layer = |name: &str| {
        ThrottleLayer::builder(limits())
            .backend(memory())
            .observe(Metrics::new(name))
            .build()
            .unwrap()
    };
    let once = metered(async { send_each(&layer("api"), [get()]).await }).await;
    let hostile = metered(async {
        let layer = layer("api");
        let service = layer.layer(Strict::default());
        for n in 0..20_000 {
            let mut request = get();
            *request.uri_mut() = format!("/{n}%7f?throttle={n}").parse().unwrap();
            *request.method_mut() = format!("M{n}").parse().unwrap();
            request
                .headers_mut()
                .insert("x-api-key", format!("key{n}").parse().unwrap());
            service.clone().oneshot(request).await.unwrap();
        }
    })
    .await;
    assert_eq!(
        once.keys().collect::<Vec<_>>(),
        hostile.keys().collect::<Vec<_>>()
    );
}

#[tokio::test(start_paused = true)]
async fn calls_that_are_delayed_are_counted_by_what_became_of_them() {
    let series = metered(async {
        let pace = Pace::new(Rate::per_second(2)).max_wait(Duration::from_millis(1_250));
        let layer: ShapeLayer<(), ()> = ShapeLayer::new(pace).unwrap().metrics("upstream");
        let service = layer.layer(service_fn(async |()| Ok::<_, std::io::Error>(())));
        let calls: Vec<_> = (0..4)
            .map(|_| tokio::spawn(service.clone().oneshot(())))
            .collect();
        sleep(Duration::from_millis(750)).await;
        calls[2].abort();
        sleep(Duration::from_secs(5)).await;
        let waits = [service.clone().oneshot(()), service.clone().oneshot(())].map(tokio::spawn);
        sleep(Duration::from_millis(1)).await;
        std::mem::forget(waits);
    })
    .await;
    let calls = |outcome| {
        series[&format!(r#"throttle_shape_calls_total{{layer="upstream",outcome="{outcome}"}}"#)]
    };
    assert_eq!(
        (calls("sent"), calls("refused"), calls("cancelled")),
        (3.0, 1.0, 1.0)
    );
    assert_eq!(
        series[r#"throttle_shape_waiting_calls{layer="upstream"}"#],
        1.0
    );
    assert_eq!(
        series[r#"throttle_shape_wait_seconds{layer="upstream"}"#],
        2.0
    );
}

#[tokio::test(start_paused = true)]
async fn refusals_of_an_upstream_and_their_pauses_are_counted() {
    let series = metered(async {
        let pace = Pace::new(Rate::per_second(2)).max_wait(Duration::from_secs(1));
        let layer: ShapeLayer<(), ()> = ShapeLayer::new(pace).unwrap().metrics("upstream");
        let shaper = layer.shaper();
        let headers = |lines: &[(&'static str, &'static str)]| {
            let line = |(name, value): &(&'static str, &'static str)| {
                (
                    HeaderName::from_static(name),
                    HeaderValue::from_static(value),
                )
            };
            lines.iter().map(line).collect::<HeaderMap>()
        };
        for (key, lines) in [
            ("wait", &[("retry-after", "60")][..]),
            (
                "reset",
                &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "60")],
            ),
            ("nothing", &[]),
        ] {
            let left = tokio::time::Instant::now();
            shaper.obey(key, left, StatusCode::TOO_MANY_REQUESTS, &headers(lines));
        }
        assert!(shaper.schedule("wait", 1).await.is_err());
        // The pause without a time is over.
        shaper.schedule("nothing", 1).await.unwrap();
    })
    .await;
    for told in ["wait", "reset", "nothing"] {
        let refusals =
            format!(r#"throttle_shape_refusals_total{{layer="upstream",told="{told}"}}"#);
        assert_eq!(series[&refusals], 1.0, "{told}");
    }
    let calls = |outcome| {
        series[&format!(r#"throttle_shape_calls_total{{layer="upstream",outcome="{outcome}"}}"#)]
    };
    assert_eq!(
        (calls("sent"), calls("refused"), calls("paused")),
        (1.0, 0.0, 1.0)
    );
    assert_eq!(
        series[r#"throttle_shape_paused_keys{layer="upstream"}"#],
        2.0
    );
}

/// The rows of the tables in the docs: a metric's name, its type, and its labels beside `layer`.
fn documented() -> BTreeMap<String, (String, BTreeSet<String>)> {
    let docs = include_str!("../../../throttle-tower/src/observe/metrics/mod.rs");
    let rows = docs
        .lines()
        .filter_map(|line| line.strip_prefix("//! | `throttle_"));
    rows.map(|row| {
        let cells: Vec<&str> = row.split('|').collect();
        let name = format!("throttle_{}", cells[0].trim().trim_end_matches('`'));
        let kind = cells[1].split(',').next().unwrap().trim().to_owned();
        // Values of a label are in brackets.
        let labels = cells[2].split('(').flat_map(|part| part.rsplit(')').next());
        let labels = labels
            .flat_map(|part| part.split('`').skip(1).step_by(2))
            .map(str::to_owned);
        (name, (kind, labels.chain(["layer".to_owned()]).collect()))
    })
    .collect()
}

#[tokio::test(start_paused = true)]
async fn docs_list_every_metric_with_its_type_and_its_labels() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let installed = metrics::set_default_local_recorder(&recorder);
    let per_user = plans("per-user", [("free", Gcra::new(Rate::per_day(5)))])
        .by(Header::new("x-api-key"))
        .lookup(|_| async { Some("free") })
        .unknown("free");
    let banning = shared("banning", 9).ban(Ban::after(5).even_if_spoofable());
    let limits = all((
        per_user,
        banning,
        any([
            shared("a", 1).priority([("class", 0)], |_| "class"),
            shared("b", 1).wait_up_to(Duration::from_secs(1)),
        ]),
        limit("in-flight", InFlight::new(2)).by(Constant),
    ));
    let candidate = Candidate::in_memory("v2", shared("a", 1)).unwrap();
    let layer = ThrottleLayer::builder(limits)
        .observe(candidate.metrics("api"))
        .observe(Metrics::new("api"))
        .build()
        .unwrap();
    send_each(&layer, [keyed("ada")]).await;
    let remote = ThrottleLayer::builder(shared("p", 1))
        .on_error(OnError::Closed)
        .backend(Remote::faltering(true));
    let remote = remote.observe(Metrics::new("remote")).build().unwrap();
    send_each(&remote, [get()]).await;
    let layer: ShapeLayer<(), ()> = ShapeLayer::new(Pace::new(Rate::per_second(10)))
        .unwrap()
        .metrics("upstream");
    layer
        .layer(service_fn(async |()| Ok::<_, std::io::Error>(())))
        .oneshot(())
        .await
        .unwrap();
    drop(installed);
    let mut reported: BTreeMap<String, (String, BTreeSet<String>)> = BTreeMap::new();
    for (key, unit, help, _) in snapshotter.snapshot().into_vec() {
        assert!(
            unit.is_some() && help.is_some(),
            "{key:?} has a unit and a description"
        );
        let kind = match key.kind() {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        };
        let labels = key.key().labels().map(|label| label.key().to_owned());
        reported
            .entry(key.key().name().to_owned())
            .or_insert((kind.to_owned(), BTreeSet::new()))
            .1
            .extend(labels);
    }
    assert_eq!(documented(), reported);
}

#[tokio::test(start_paused = true)]
async fn full_store_in_memory_is_shown_with_the_keys_that_share_a_bucket() {
    let series = metered(async {
        let small = MemoryBackend::builder()
            .clock(ManualClock::default())
            .max_keys(100)
            .build();
        let layer = ThrottleLayer::builder(per_key(10))
            .backend(small.clone())
            .observe(Metrics::new("api"))
            .build()
            .unwrap();
        send_each(&layer, (0..400).map(|n| keyed(&format!("key{n}")))).await;
        assert!(small.keys() <= 100);
    })
    .await;
    let overflow = series[r#"throttle_overflow_total{layer="api",policy="per-key"}"#];
    let held = series[r#"throttle_keys{layer="api"}"#];
    assert_eq!(
        overflow + held,
        400.0,
        "each key is held or shares a bucket"
    );
}

/// Also after a reload, by which other metrics begin: each comparison is counted once.
#[tokio::test]
async fn candidate_is_counted_by_its_results_and_once() {
    let text = |burst| {
        let limit = format!("gcra = {{ rate = \"1/hour\", burst = {burst} }}\nby = \"constant\"\n");
        format!("version = 1\n[[limit]]\nname = \"p\"\n{limit}")
    };
    let series = metered(async {
        let rules = Rules::from_str("rules.toml", &text(2), Registry::new()).unwrap();
        let candidate = ThrottleLayer::builder(shared("p", 1)).observe(Metrics::new("next"));
        let candidate = Candidate::of("v2", candidate.build().unwrap()).unwrap();
        let program = ThrottleLayer::builder(()).observe(candidate.metrics("api"));
        let (live, file) = rules.layer_with(program).unwrap();
        send_each(&live, [get(), get()]).await;
        sleep(Duration::from_millis(500)).await;
        file.replace(&text(4)).unwrap();
        send_each(&live, [get(), get(), get()]).await;
        sleep(Duration::from_millis(250)).await;
    })
    .await;
    let of = |result| {
        series[&format!(
            r#"throttle_candidate_total{{candidate="v2",layer="api",result="{result}"}}"#
        )]
    };
    let results = [
        "both_admit",
        "both_refuse",
        "would_refuse",
        "would_admit",
        "not_decided",
    ];
    assert_eq!(results.map(of), [1.0, 1.0, 3.0, 0.0, 0.0]);
    let own = |outcome| {
        series[&format!(r#"throttle_requests_total{{layer="next",outcome="{outcome}"}}"#)]
    };
    assert_eq!(
        ["admitted", "refused"].map(own),
        [1.0, 4.0],
        "its own metrics"
    );
}

//! What a layer says would happen to a request, charged nothing.

use std::sync::atomic::Ordering;
use std::time::Duration;

use http::request::Parts;
use http::{Request, StatusCode};
use throttle_core::{Backend, BackendErrorKind, DecidedBy, ManualClock, MemoryBackend};
use throttle_tower::{
    Audit, Constant, FixedWindow, Gcra, Header, InFlight, LimitReport, LimitState, OnError,
    OnMissing, Rate, SlidingLog, ThrottleLayer, all, any, limit, plans,
};
use tower::{Layer, ServiceExt};

use crate::common::{Remote, Strict, get, memory, shared};

fn head(user: Option<&str>, cost: u64) -> Parts {
    let request = Request::get("/").header("x-cost", cost);
    let request = match user {
        Some(user) => request.header("x-user", user),
        None => request,
    };
    request.body(()).unwrap().into_parts().0
}

fn cost(parts: &Parts) -> u64 {
    parts.headers["x-cost"].to_str().unwrap().parse().unwrap()
}

async fn peek<B: Backend>(layer: &ThrottleLayer<B>, parts: &Parts) -> LimitReport {
    layer.peek(parts).await.unwrap().expect("the layer applies")
}

/// What a peek says of each limit, in a word.
fn said(report: &LimitReport) -> Vec<(&str, &'static str)> {
    let word = |state: LimitState<'_>| match state {
        LimitState::Units(_) => "units",
        LimitState::Permits { .. } => "permits",
        LimitState::NoKey(None) => "skipped",
        LimitState::NoKey(Some(_)) => "refused",
        LimitState::Open(_) => "open",
        LimitState::DoesNotApply => "does not apply",
        _ => panic!("a new state"),
    };
    let limits = report.limits();
    limits
        .map(|limit| (limit.info.name.as_str(), word(limit.state)))
        .collect()
}

/// The class and the reserve of each limit on a rate that applies.
fn classes(report: &LimitReport) -> Vec<(usize, Option<&str>, u64)> {
    let units = report.limits().filter_map(|limit| match limit.state {
        LimitState::Units(units) => Some((limit.index, limit.class(), units.reserve)),
        _ => None,
    });
    units.collect()
}

/// The verdict and the wait of a peek are those that the request then gets, whatever it costs and
/// whatever limits it meets, and peeks charge nothing.
#[tokio::test]
async fn law_01_02_peek_of_a_layer_answers_as_the_request() {
    let clock = ManualClock::default();
    let store = MemoryBackend::builder().clock(clock.clone()).build();
    let of_user = || Header::new("x-user");
    let own = plans("own", [("free", FixedWindow::new(Rate::per_minute(9)))])
        .by(of_user())
        .lookup(async |_| Some("free"))
        .unknown("free")
        .cost(cost);
    let pool = limit("pool", SlidingLog::new(Rate::per_minute(12)))
        .by(Constant)
        .cost(cost);
    let class = |parts: &Parts| {
        if cost(parts) > 2 {
            "batch"
        } else {
            "interactive"
        }
    };
    let fast = limit("fast", Gcra::new(Rate::per_second(1)).burst(8))
        .by(of_user())
        .cost(cost)
        .priority([("interactive", 0), ("batch", 3)], class);
    let audited = limit("audited", Gcra::new(Rate::per_hour(1)).burst(1))
        .by(Constant)
        .audit(Audit::Silent);
    let layer = ThrottleLayer::builder(all((any((own, pool)), fast, audited)))
        .report_in(throttle_tower::ReportIn::Both)
        .backend(store)
        .build()
        .unwrap();
    let (mut admitted, mut refused) = (0, 0);
    for n in 0_u64..200 {
        clock.advance(Duration::from_millis(n * 7_919 % 2_300));
        let user = ["ada", "eve"][n as usize % 2];
        let parts = head(Some(user), 1 + n * 13 % 7);
        let report = peek(&layer, &parts).await;
        let again = peek(&layer, &parts).await;
        assert_eq!(
            again.decision(),
            report.decision(),
            "a peek charges nothing"
        );
        let request = Request::from_parts(parts, crate::common::Text::default());
        let response = layer
            .layer(Strict::default())
            .oneshot(request)
            .await
            .unwrap();
        assert_eq!(report.is_admitted(), response.status() == 200, "{report:?}");
        let of_request: &LimitReport = response.extensions().get().unwrap();
        assert_eq!(report.retry_after(), of_request.retry_after());
        if report.is_admitted() {
            admitted += 1;
        } else {
            refused += 1;
            let [peeked, decided] = [&report, of_request]
                .map(|report| report.violated().map(str::to_owned).collect::<Vec<_>>());
            assert_eq!(peeked, decided);
        }
        assert_eq!(classes(&report), classes(of_request));
    }
    assert!(admitted > 30 && refused > 30, "{admitted} and {refused}");
}

#[tokio::test]
async fn peek_has_the_state_of_each_limit_also_where_it_does_not_apply() {
    let of = |name: &str| limit(name, Gcra::new(Rate::per_hour(9)).burst(9));
    let of_user = |name: &str| of(name).by(Header::new("x-user"));
    let layer = ThrottleLayer::new(all((
        of_user("user").cost(cost).on_missing(OnMissing::Skip),
        of("never").by(Constant).when(|_: &Parts| false),
        of("shared").by_async(|parts: &Parts| {
            let user = parts.headers.contains_key("x-user");
            async move { user.then_some("a user") }
        }),
        limit("in-flight", InFlight::new(5))
            .by(Header::new("x-user"))
            .on_missing(OnMissing::Reject(StatusCode::UNAUTHORIZED)),
    )))
    .unwrap();
    let report = peek(&layer, &head(Some("ada"), 4)).await;
    assert!(report.is_admitted());
    let expected = [
        ("user", "units"),
        ("never", "does not apply"),
        ("shared", "units"),
        ("in-flight", "permits"),
    ];
    assert_eq!(said(&report), expected);
    let limits: Vec<_> = report.limits().collect();
    let units = limits[0].units().unwrap();
    let counts = (units.cost, units.capacity, units.status.remaining());
    assert_eq!(counts, (4, 9, 9));
    let LimitState::Permits {
        needed,
        free,
        most,
        key: of_permits,
    } = limits[3].state
    else {
        panic!("{:?}", limits[3])
    };
    assert_eq!(
        (needed, free, most, of_permits),
        (1, 5, 5, units.key.unwrap())
    );

    let report = peek(&layer, &head(None, 4)).await;
    let expected = [
        ("user", "skipped"),
        ("never", "does not apply"),
        ("shared", "units"),
        ("in-flight", "refused"),
    ];
    assert_eq!(said(&report), expected);
    assert!(report.decision().is_admitted(), "by the limits on rates");
    assert_eq!((report.is_admitted(), report.retry_after()), (false, None));
}

#[tokio::test]
async fn peek_counts_permits_that_are_taken() {
    let limits = all((
        shared("p", 9),
        limit("in-flight", InFlight::new(1)).by(Constant),
    ));
    let layer = ThrottleLayer::new(limits).unwrap();
    let (parts, ()) = Request::new(()).into_parts();
    assert!(peek(&layer, &parts).await.is_admitted());
    let response = layer.layer(Strict::default()).oneshot(get()).await.unwrap();
    let report = peek(&layer, &parts).await;
    assert_eq!((report.is_admitted(), report.retry_after()), (false, None));
    drop(response);
    assert!(peek(&layer, &parts).await.is_admitted());
}

#[tokio::test]
async fn peek_is_none_where_the_layer_does_not_apply() {
    let layer = ThrottleLayer::builder(shared("p", 1))
        .when(|parts: &Parts| parts.headers.contains_key("x-user"))
        .build()
        .unwrap();
    assert!(layer.peek(&head(Some("ada"), 1)).await.unwrap().is_some());
    assert!(layer.peek(&head(None, 1)).await.unwrap().is_none());
}

#[tokio::test]
async fn peek_says_how_long_a_request_would_be_held() {
    let slow = |wait| shared("p", 1).wait_up_to(Duration::from_secs(wait));
    for (longest, held_for) in [(59, None), (60, Some(Duration::from_secs(60)))] {
        let layer = ThrottleLayer::builder(slow(longest))
            .backend(memory())
            .build()
            .unwrap();
        let (parts, ()) = Request::new(()).into_parts();
        assert_eq!(
            peek(&layer, &parts).await.held_for(),
            None,
            "it is admitted"
        );
        let _ = layer.layer(Strict::default()).oneshot(get()).await.unwrap();
        let report = peek(&layer, &parts).await;
        assert_eq!(report.held_for(), held_for, "{longest}");
        assert!(!report.is_admitted());
        assert_eq!(report.retry_after(), Some(Duration::from_secs(60)));
    }
}

/// It fails as the request would, and what this process decides answers.
#[tokio::test]
async fn peek_on_a_store_that_fails_answers_as_the_request() {
    let local = OnError::local(1);
    for (rule, expected) in [
        (OnError::Closed, None),
        (OnError::Open, Some("open")),
        (local, Some("units")),
    ] {
        let remote = Remote::failing(BackendErrorKind::Unavailable);
        let layer = ThrottleLayer::builder(shared("p", 1).on_error(rule))
            .backend(remote.clone())
            .build()
            .unwrap();
        let (parts, ()) = Request::new(()).into_parts();
        for asked in [1, 2] {
            let answer = layer.peek(&parts).await;
            assert_eq!(
                remote.decisions.load(Ordering::SeqCst),
                asked,
                "one question"
            );
            let Some(expected) = expected else {
                assert_eq!(answer.unwrap_err().kind(), BackendErrorKind::Unavailable);
                continue;
            };
            let report = answer.unwrap().unwrap();
            assert_eq!(said(&report), [("p", expected)]);
            assert!(
                report.is_admitted(),
                "also the second time: nothing is charged"
            );
            let decided_by = report.decision().decided_by();
            assert_eq!(matches!(decided_by, DecidedBy::Local(_)), rule == local);
        }
    }
}

/// What applies to the request, with what it was charged.
#[tokio::test]
async fn report_of_a_request_lists_the_limits_that_apply() {
    let of = |name: &str| limit(name, Gcra::new(Rate::per_hour(9)).burst(9)).by(Constant);
    let layer = ThrottleLayer::builder(all((
        of("never").when(|_: &Parts| false),
        of("p")
            .cost(3)
            .priority([("high", 0), ("low", 4)], |_: &Parts| "low"),
        limit("in-flight", InFlight::new(5)).by(Constant),
    )))
    .report_in(throttle_tower::ReportIn::Both)
    .build()
    .unwrap();
    for charged in [3, 0] {
        let response = layer.layer(Strict::default()).oneshot(get()).await.unwrap();
        let report: &LimitReport = response.extensions().get().unwrap();
        let limits: Vec<_> = report.limits().collect();
        assert_eq!(limits.len(), 1, "{limits:?}");
        let units = limits[0].units().unwrap();
        assert_eq!((limits[0].index, limits[0].class()), (1, Some("low")));
        assert_eq!((units.cost, units.reserve, units.capacity), (charged, 4, 9));
        assert_eq!(report.is_admitted(), charged > 0);
    }
}

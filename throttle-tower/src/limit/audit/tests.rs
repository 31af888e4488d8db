use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::request::Parts;
use http::{Request, Response, StatusCode};
use throttle_core::{
    Backend, Clock, DecidedBy, FixedWindow, Gcra, ManualClock, MemoryBackend, Rate, Status,
    Timestamp,
};
use tokio::time::Instant;
use tower::{Layer, ServiceExt, service_fn};

use crate::failing_backend::FailingBackend;
use crate::limit::Ban;
use crate::{
    Audit, Constant, Limit, LimitReport, LimitTree, OnError, OnMissing, ThrottleBuilder,
    ThrottleLayer, Usage, all, any, limit,
};

fn daily(name: &str, units: u64) -> Limit {
    limit(name, FixedWindow::new(Rate::per_day(units))).by(Constant)
}

type Memory = MemoryBackend<ManualClock>;

fn layer(limits: impl Into<LimitTree>) -> ThrottleLayer<Memory> {
    builder(limits).build().unwrap()
}

fn builder(limits: impl Into<LimitTree>) -> ThrottleBuilder<Memory> {
    let memory = MemoryBackend::builder()
        .clock(ManualClock::default())
        .build();
    ThrottleLayer::builder(limits.into())
        .backend(memory)
        .report_in(crate::ReportIn::Both)
}

async fn send<B: Backend>(layer: &ThrottleLayer<B>) -> Response<()> {
    let inner = service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(())));
    layer
        .layer(inner)
        .oneshot(Request::new(()))
        .await
        .unwrap()
        .map(drop)
}

fn report(response: &Response<()>) -> &LimitReport {
    response.extensions().get().expect("a decision was made")
}

const DAY: Duration = Duration::from_secs(86_400);

#[tokio::test]
async fn audited_limit_refuses_nobody_and_says_what_it_would_do() {
    let seen = Arc::new(Mutex::new(Vec::<Vec<String>>::new()));
    let events = Arc::clone(&seen);
    let builder = builder(all([daily("new", 1).audit(Audit::Silent), daily("old", 3)]));
    let layer = builder.on_decision(move |event| {
        events.lock().unwrap().push(
            event
                .would_refuse()
                .map(|limit| limit.info.name.to_string())
                .collect(),
        );
    });
    let layer = layer.build().unwrap();
    let would_refuse = [vec![], vec!["new"], vec!["new"], vec!["new"]];
    for (n, expected) in would_refuse.iter().enumerate() {
        let response = send(&layer).await;
        let (report, is_first, is_last) = (report(&response), n == 0, n == 3);
        assert_eq!(
            response.status(),
            if is_last {
                StatusCode::TOO_MANY_REQUESTS
            } else {
                StatusCode::OK
            }
        );
        let told = report
            .would_refuse()
            .map(|(policy, status)| (policy.name(), status.retry_after()));
        assert_eq!(
            told.collect::<Vec<_>>(),
            expected
                .iter()
                .map(|name| (*name, Some(DAY)))
                .collect::<Vec<_>>()
        );
        assert_eq!(report.binding().map(|policy| policy.name()), Some("old"));
        assert!(report.violated().eq(is_last.then_some("old")));
        let charged = report.decision().statuses().iter().map(Status::charged);
        assert_eq!(
            charged.collect::<Vec<_>>(),
            [u64::from(is_first), u64::from(!is_last)]
        );
    }
    assert_eq!(*seen.lock().unwrap(), would_refuse);
}

#[tokio::test]
async fn headers_list_an_audited_limit_only_if_it_is_announced() {
    let (new, old) = (|| daily("new", 1), || daily("old", 3));
    let both = r#""new";r=0;t=86400, "old";r=2;t=86400"#;
    for (limits, header) in [
        (
            all([new().audit(Audit::Silent), old()]),
            Some(r#""old";r=2;t=86400"#),
        ),
        (all([new().audit(Audit::Announced), old()]), Some(both)),
        (new().audit(Audit::Silent).into(), None),
        (
            new().audit(Audit::Announced).into(),
            Some(r#""new";r=0;t=86400"#),
        ),
    ] {
        let shown = format!("{limits:?}");
        let response = send(&layer(limits)).await;
        assert_eq!(
            response
                .headers()
                .get("ratelimit")
                .map(|value| value.to_str().unwrap()),
            header,
            "{shown}"
        );
        assert_eq!(
            response.headers().contains_key("ratelimit-policy"),
            header.is_some()
        );
    }
}

#[test]
fn limit_that_cannot_be_audited_does_not_build() {
    let new = || daily("new", 1).audit(Audit::Silent);
    let error = |limits: LimitTree| {
        ThrottleLayer::new(limits)
            .map(drop)
            .unwrap_err()
            .to_string()
    };
    let in_any = "policy \"new\": audit is inside an any: an audited limit refuses nothing, so \
        that no other member \
                  would be asked; audit it beside the any, or enforce it";
    let nested = any((all([daily("a", 1), new()]), daily("b", 1)));
    for (limits, text) in [
        (any([new(), daily("old", 1)]), in_any),
        (nested, in_any),
        (
            new().wait_up_to(Duration::from_secs(1)).into(),
            "policy \"new\": wait_up_to is 1s: an audited limit delays no request, so that what \
                it would do for those \
             that wait is not known; set it when the limit is enforced",
        ),
        (
            new()
                .on_missing(OnMissing::Reject(StatusCode::UNAUTHORIZED))
                .into(),
            "policy \"new\": on_missing is 401: an audited limit refuses no request; share or \
                skip requests without a \
             key until it is enforced",
        ),
        (
            new().ban(Ban::after(9).even_if_spoofable()).into(),
            "policy \"new\": ban is on an audited limit: an audited limit refuses no request, and \
                a ban does; enforce \
             the limit, or audit it first without the ban",
        ),
    ] {
        assert_eq!(error(limits), text);
    }
}

/// A queued request asks the other limits when it is due, and takes of the audited one what it then
/// has.
#[tokio::test(start_paused = true)]
async fn request_that_another_limit_holds_is_not_held_up_by_an_audited_one() {
    #[derive(Clone, Debug)]
    struct PausedClock(Instant);

    impl Clock for PausedClock {
        fn now(&self) -> Timestamp {
            Timestamp::EPOCH + self.0.elapsed()
        }
    }

    let slow = limit("slow", Gcra::new(Rate::per_second(10)).burst(1)).by(Constant);
    let limits = all([
        slow.wait_up_to(Duration::from_secs(1)),
        daily("new", 1).audit(Audit::Silent),
    ]);
    let memory = MemoryBackend::builder()
        .clock(PausedClock(Instant::now()))
        .build();
    let layer = ThrottleLayer::builder(limits)
        .backend(memory)
        .build()
        .unwrap();
    let began = Instant::now();
    for millis in [0, 100, 200] {
        assert_eq!(send(&layer).await.status(), StatusCode::OK);
        assert_eq!(began.elapsed().as_millis() / 10 * 10, millis);
    }
}

/// A limit that refuses whatever the unknown key is saves its lookup; an audited one that is used
/// up does not.
#[tokio::test]
async fn lookup_is_saved_by_limits_that_refuse_and_not_by_audited_ones() {
    for (known, polls) in [
        (daily("known", 1), 1),
        (daily("known", 1).audit(Audit::Silent), 2),
    ] {
        let polled = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&polled);
        let looked_up =
            limit("later", FixedWindow::new(Rate::per_day(9))).by_async(move |_: &Parts| {
                let count = Arc::clone(&count);
                async move {
                    count.fetch_add(1, Ordering::Relaxed);
                    Some(7)
                }
            });
        let layer = layer(all([known, looked_up]));
        let statuses = [send(&layer).await.status(), send(&layer).await.status()];
        assert_eq!(
            (
                statuses[1] == StatusCode::OK,
                polled.load(Ordering::Relaxed)
            ),
            (polls == 2, polls)
        );
    }
}

#[tokio::test]
async fn audited_limit_refuses_nobody_while_the_store_fails() {
    let closed = |name| daily(name, 1).on_error(OnError::Closed);
    let local = |name| daily(name, 1).on_error(OnError::local(1));
    for (limits, is_open, admits) in [
        (
            LimitTree::from(closed("new").audit(Audit::Silent)),
            true,
            [true, true],
        ),
        (
            all([
                closed("new").audit(Audit::Silent),
                daily("old", 9).on_error(OnError::Open),
            ]),
            true,
            [true, true],
        ),
        (
            all([closed("new").audit(Audit::Silent), local("old")]),
            false,
            [true, false],
        ),
        (
            all([
                local("new").audit(Audit::Silent),
                closed("old").audit(Audit::Silent),
            ]),
            false,
            [true, true],
        ),
        (
            all([local("new").audit(Audit::Silent), local("old")]),
            false,
            [true, false],
        ),
        (
            all([local("new").audit(Audit::Silent), closed("old")]),
            true,
            [false, false],
        ),
    ] {
        let shown = format!("{limits:?}");
        let layer = ThrottleLayer::builder(limits)
            .backend(FailingBackend)
            .report_in(crate::ReportIn::Both)
            .build()
            .unwrap();
        for admits in admits {
            let response = send(&layer).await;
            assert_eq!(response.status().is_success(), admits, "{shown}");
            let decided_by = response
                .extensions()
                .get()
                .map(|report: &LimitReport| report.decision().decided_by());
            assert!(
                is_open || matches!(decided_by, Some(DecidedBy::Local(_))),
                "{shown}"
            );
        }
    }
}

/// The first request uses all that is left of the audited limit, and the second one is charged
/// nothing.
#[tokio::test]
async fn usage_is_charged_as_far_as_an_audited_limit_has_units() {
    let layer = layer(
        daily("tokens", 10)
            .cost(4)
            .settled_later()
            .audit(Audit::Silent),
    );
    let inner = service_fn(async |request: Request<()>| {
        let usage: &Usage = request
            .extensions()
            .get()
            .expect("a limit is settled later");
        let is_covered = [
            usage.add("tokens", 7).unwrap(),
            usage.add("tokens", 20).unwrap(),
        ];
        let mut response = Response::new(());
        response
            .extensions_mut()
            .insert((is_covered, usage.taken("tokens")));
        Ok::<_, Infallible>(response)
    });
    for taken in [10_u64, 0] {
        let response = layer.layer(inner).oneshot(Request::new(())).await.unwrap();
        assert_eq!(
            (response.status(), response.extensions().get()),
            (StatusCode::OK, Some(&([true, true], taken)))
        );
    }
}

#[tokio::test]
async fn audited_limit_of_attempts_is_charged_what_other_limits_refuse() {
    let layer = layer(all([
        daily("old", 1),
        daily("attempts", 3).charge_refused().audit(Audit::Silent),
    ]));
    let mut left = Vec::new();
    for _ in 0..5 {
        let response = send(&layer).await;
        let status = report(&response).decision().statuses()[1];
        left.push((status.remaining(), status.would_refuse()));
    }
    assert_eq!(
        left,
        [(2, false), (2, false), (1, false), (0, true), (0, true)]
    );
}

#[tokio::test]
async fn share_of_an_audited_limit_hides_no_limit_that_failed_open() {
    let outcomes = Arc::new(Mutex::new(Vec::new()));
    for old in [OnError::Open, OnError::local(1)] {
        let limits = all([
            daily("old", 9).on_error(old),
            daily("new", 9)
                .audit(Audit::Silent)
                .on_error(OnError::local(1)),
        ]);
        let seen = Arc::clone(&outcomes);
        let layer = ThrottleLayer::builder(limits)
            .backend(FailingBackend)
            .on_decision(move |event| seen.lock().unwrap().push(event.outcome.label()))
            .build()
            .unwrap();
        send(&layer).await;
    }
    assert_eq!(*outcomes.lock().unwrap(), ["failed_open", "admitted"]);
}

//! Decisions of this process when the store cannot decide.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use http::{HeaderMap, Request, Response, StatusCode};
use throttle_core::{Backend, BackendErrorKind, Clock};
use throttle_tower::{
    Constant, DecidedBy, Gcra, Header, Limit, LimitReport, LimitTree, MemoryBackend, OnError,
    OnMissing, Rate, Throttle, ThrottleBody, ThrottleBuilder, ThrottleLayer, all, any, limit,
};
use tower::{Layer, ServiceExt};

use crate::common::{Memory, Remote, Strict, Text, get, memory, shared, text};

const DOWN: BackendErrorKind = BackendErrorKind::Unavailable;
const LATE: BackendErrorKind = BackendErrorKind::Timeout;

type Answered = Response<ThrottleBody<Text>>;
/// Outcome, error, decided_by: of one event each.
type Log = Arc<Mutex<Vec<(&'static str, Option<BackendErrorKind>, Option<DecidedBy>)>>>;

/// One process of several: a layer on a store that fails at times, and the events of its hook.
struct Process {
    remote: Remote,
    service: Throttle<Strict, Remote>,
    heard: Log,
}

impl Process {
    fn new(limits: impl Into<LimitTree>) -> Self {
        Self::on(Remote::faltering(false), &memory(), limits)
    }

    fn on<C: Clock>(
        remote: Remote,
        store: &MemoryBackend<C>,
        limits: impl Into<LimitTree>,
    ) -> Self {
        let heard = Log::default();
        let log = Arc::clone(&heard);
        let layer = ThrottleLayer::builder(limits.into())
            .local_store(store)
            .backend(remote.clone())
            .report_in(throttle_tower::ReportIn::Both)
            .on_decision(move |event| {
                log.lock().unwrap().push((
                    event.outcome.label(),
                    event.degraded(),
                    event.decided_by(),
                ));
            })
            .build()
            .unwrap();
        Self {
            remote,
            service: layer.layer(Strict::default()),
            heard,
        }
    }

    async fn answer(&self, request: Request<Text>) -> Answered {
        self.service.clone().oneshot(request).await.unwrap()
    }

    /// The statuses of `count` requests.
    async fn statuses(&self, count: usize) -> Vec<u16> {
        let mut statuses = Vec::new();
        for _ in 0..count {
            statuses.push(self.answer(get()).await.status().as_u16());
        }
        statuses
    }

    fn heard(&self) -> Vec<(&'static str, Option<BackendErrorKind>, Option<DecidedBy>)> {
        std::mem::take(&mut *self.heard.lock().unwrap())
    }
}

fn local(name: &str, burst: u64, processes: u32) -> Limit {
    shared(name, burst).on_error(OnError::local(processes))
}

fn field<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers
        .get(name)
        .map_or("", |value| value.to_str().unwrap())
}

fn deciders(response: &Answered) -> Vec<DecidedBy> {
    let report = response
        .extensions()
        .get::<LimitReport>()
        .expect("there is a report");
    report
        .decision()
        .statuses()
        .iter()
        .map(|status| status.decided_by())
        .collect()
}

/// The remaining units of each limit.
fn remaining(response: &Answered) -> Vec<u64> {
    let report = response
        .extensions()
        .get::<LimitReport>()
        .expect("there is a report");
    report
        .statuses()
        .map(|(_, status)| status.remaining())
        .collect()
}

/// Half of seven units, rounded up.
#[tokio::test]
async fn the_share_leaves_its_part_of_a_reserve_free() {
    let (remote, store) = (Remote::faltering(false), memory());
    let of_class = |class: &'static str| {
        let limit = local("p", 20, 2).priority(
            [("high", 0), ("low", 7)],
            move |_: &http::request::Parts| class,
        );
        Process::on(remote.clone(), &store, limit)
    };
    let [high, low] = ["high", "low"].map(of_class);
    remote.trouble(Some(DOWN));
    assert_eq!(low.statuses(7).await, [200, 200, 200, 200, 200, 200, 429]);
    assert_eq!(high.statuses(5).await, [200, 200, 200, 200, 429]);
    remote.trouble(None);
    assert_eq!(
        low.statuses(14).await[12..],
        [200, 429],
        "the store leaves all of it free"
    );
}

/// The policy header announces the limit itself, which stays the same while the store is down; the
/// remaining units and the reset are the share's.
#[tokio::test]
async fn fields_are_of_the_share() {
    let process = Process::new(local("p", 9, 3));
    process.remote.trouble(Some(LATE));
    let admitted = process.answer(get()).await;
    assert_eq!(
        field(admitted.headers(), "ratelimit-policy"),
        r#""p";q=9;w=540"#
    );
    // Two units at a third of one a minute.
    assert_eq!(field(admitted.headers(), "ratelimit"), r#""p";r=2;t=360"#);
    assert_eq!(deciders(&admitted), [DecidedBy::Local(LATE)]);
    process.statuses(2).await;
    let refused = process.answer(get()).await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(
        field(refused.headers(), "ratelimit-policy"),
        r#""p";q=9;w=540"#
    );
    assert_eq!(field(refused.headers(), "ratelimit"), r#""p";r=0;t=180"#);
    assert_eq!(field(refused.headers(), "retry-after"), "180");
    assert_eq!(field(refused.headers(), "cache-control"), "no-store");
    assert_eq!(deciders(&refused), [DecidedBy::Local(LATE)]);
    let problem: serde_json::Value = serde_json::from_str(&text(refused).await).unwrap();
    assert_eq!(problem["violated-policies"], serde_json::json!(["p"]));
}

#[tokio::test]
async fn the_share_is_warm_when_it_is_needed() {
    for at_once in [false, true] {
        let process = Process::on(Remote::faltering(at_once), &memory(), local("p", 12, 3));
        assert_eq!(process.statuses(3).await, [200; 3]);
        process.remote.trouble(Some(DOWN));
        assert_eq!(
            process.statuses(2).await,
            [200, 429],
            "three of four were used at the store, at once: {at_once}"
        );
        process.remote.trouble(None);
        assert_eq!(
            process.statuses(10).await[8..],
            [200, 429],
            "what the share admitted the store does not know"
        );
    }
}

/// Open limits are skipped, and neither announced nor charged; the local limit decides.
#[tokio::test]
async fn open_beside_local_is_as_if_it_did_not_apply() {
    let limits = || {
        [
            shared("open", 1).on_error(OnError::Open),
            local("here", 4, 2),
        ]
    };
    for limits in [all(limits()), any(limits())] {
        let process = Process::new(limits);
        process.remote.trouble(Some(DOWN));
        let first = process.answer(get()).await;
        assert_eq!(
            field(first.headers(), "ratelimit-policy"),
            r#""here";q=4;w=240"#
        );
        assert_eq!(
            deciders(&first),
            [DecidedBy::Open(DOWN), DecidedBy::Local(DOWN)]
        );
        assert_eq!(process.statuses(2).await, [200, 429]);
        assert!(
            process
                .heard()
                .iter()
                .all(|event| event.1 == Some(DOWN) && event.2 == Some(DecidedBy::Local(DOWN)))
        );
    }
}

#[tokio::test]
async fn closed_beside_local_is_closed() {
    let admin = shared("admin", 5)
        .when(|parts| parts.uri.path() == "/admin")
        .on_error(OnError::Closed);
    let process = Process::new(all([local("here", 4, 2), admin]));
    process.remote.trouble(Some(DOWN));
    assert_eq!(process.statuses(1).await, [200], "it does not apply");
    let admin = process
        .answer(Request::get("/admin").body(Text::default()).unwrap())
        .await;
    assert_eq!(admin.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(admin.extensions().get::<LimitReport>().is_none());
    let problem: serde_json::Value = serde_json::from_str(&text(admin).await).unwrap();
    assert_eq!(problem["violated-policies"], serde_json::json!(["admin"]));
    assert_eq!(
        process.heard(),
        [
            ("admitted", Some(DOWN), Some(DecidedBy::Local(DOWN))),
            ("failed_closed", Some(DOWN), None)
        ]
    );
    assert_eq!(
        process.statuses(2).await,
        [200, 429],
        "what was refused was not charged"
    );
}

/// If the local limit does not apply, no share decides.
#[tokio::test]
async fn only_open_limits_that_apply_are_open() {
    let keyed = limit("keyed", Gcra::new(Rate::per_minute(1)))
        .by(Header::new("x-api-key"))
        .on_missing(OnMissing::Skip)
        .on_error(OnError::local(1));
    let process = Process::new(all([shared("open", 1).on_error(OnError::Open), keyed]));
    process.remote.trouble(Some(DOWN));
    let response = process.answer(get()).await;
    assert_eq!(
        (response.status(), deciders(&response)),
        (
            StatusCode::OK,
            vec![DecidedBy::Open(DOWN), DecidedBy::Store]
        )
    );
    assert!(response.headers().is_empty(), "{:?}", response.headers());
    assert_eq!(
        process.heard(),
        [("failed_open", Some(DOWN), Some(DecidedBy::Open(DOWN)))]
    );
}

#[tokio::test]
async fn the_layers_rule_is_for_limits_without_one() {
    let remote = Remote::faltering(false);
    remote.trouble(Some(DOWN));
    let builder = ThrottleLayer::builder(all([shared("p", 6), local("q", 90, 1)]))
        .local_store(&memory())
        .on_error(OnError::local(3))
        .backend(remote.clone());
    let statuses = |builder: ThrottleBuilder<Remote>| async move {
        let service = builder.build().unwrap().layer(Strict::default());
        let mut statuses = Vec::new();
        for _ in 0..3 {
            statuses.push(
                service
                    .clone()
                    .oneshot(get())
                    .await
                    .unwrap()
                    .status()
                    .as_u16(),
            );
        }
        statuses
    };
    assert_eq!(statuses(builder.clone()).await, [200, 200, 429]);
    // The share of p is one, and used up.
    assert_eq!(
        statuses(builder.clone().on_error(OnError::local(6))).await,
        [429, 429, 429]
    );
    assert_eq!(
        statuses(
            builder
                .clone()
                .local_store(&memory())
                .on_error(OnError::local(2))
        )
        .await,
        [200, 200, 200]
    );
    assert_eq!(
        statuses(builder.clone().on_error(OnError::Closed)).await,
        [503, 503, 503]
    );
    assert_eq!(
        statuses(builder.on_error(OnError::Open)).await,
        [200, 200, 200]
    );
}

#[test]
fn no_processes_is_an_error() {
    for (own, layers) in [
        (Some(OnError::local(0)), OnError::Open),
        (None, OnError::local(0)),
    ] {
        let limit = shared("p", 5);
        let limit = own.into_iter().fold(limit, Limit::on_error);
        let built = ThrottleLayer::builder(limit)
            .on_error(layers)
            .backend(Remote::faltering(false))
            .build();
        let error = built.map(drop).unwrap_err();
        assert_eq!(
            (error.policy(), error.field(), error.value()),
            (Some("p"), "processes of on_error", "0")
        );
    }
}

/// Two layers with the same limit share one share if they keep it in one store.
#[tokio::test]
async fn layers_can_have_one_share() {
    let store: Memory = memory();
    let admitted = |one: Process, other: Process| async move {
        for process in [&one, &other] {
            process.remote.trouble(Some(DOWN));
        }
        [one.statuses(3).await, other.statuses(3).await]
            .concat()
            .iter()
            .filter(|status| **status == 200)
            .count()
    };
    let on = |store: &Memory| Process::on(Remote::faltering(false), store, local("p", 4, 2));
    assert_eq!(admitted(on(&store), on(&store)).await, 2);
    assert_eq!(admitted(on(&memory()), on(&memory())).await, 4);
}

/// A layer without a local store keeps the share itself, together with its clones.
#[tokio::test]
async fn a_layer_has_a_store_for_its_share() {
    let remote = Remote::faltering(false);
    remote.trouble(Some(DOWN));
    let daily = limit("p", Gcra::new(Rate::per_day(1)).burst(2))
        .by(Constant)
        .on_error(OnError::local(1));
    let layer = ThrottleLayer::builder(daily)
        .backend(remote)
        .build()
        .unwrap();
    let mut statuses = Vec::new();
    for _ in 0..3 {
        statuses.push(
            layer
                .clone()
                .layer(Strict::default())
                .oneshot(get())
                .await
                .unwrap()
                .status()
                .as_u16(),
        );
    }
    assert_eq!(statuses, [200, 200, 429]);
}

/// A backend that cannot fail needs no share, and the layer builds without one.
#[tokio::test]
async fn what_cannot_fail_is_not_shared() {
    let store = memory();
    let layer = ThrottleLayer::builder(local("p", 2, 2))
        .local_store(&store)
        .backend(memory())
        .build()
        .unwrap();
    assert!(!memory().can_fail());
    let response = layer.layer(Strict::default()).oneshot(get()).await.unwrap();
    assert_eq!((response.status(), store.keys()), (StatusCode::OK, 0));
}

/// The errors of a store that may be healthy: it is overloaded, or its answer is not known yet.
const BUSY: [BackendErrorKind; 2] = [BackendErrorKind::Saturated, LATE];

fn open(name: &str, burst: u64) -> Limit {
    shared(name, burst).on_error(OnError::Open)
}

#[tokio::test]
async fn law_13_busy_store_leaves_an_open_limit_to_the_whole_share() {
    for kind in BUSY {
        let process = Process::new(open("p", 3));
        process.remote.trouble(Some(kind));
        let admitted = process.answer(get()).await;
        assert_eq!(
            (admitted.status(), deciders(&admitted)),
            (StatusCode::OK, vec![DecidedBy::Local(kind)])
        );
        assert_eq!(field(admitted.headers(), "ratelimit"), r#""p";r=2;t=120"#);
        assert_eq!(process.statuses(2).await, [200; 2]);
        let refused = process.answer(get()).await;
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(
            (field(refused.headers(), "retry-after"), deciders(&refused)),
            ("60", vec![DecidedBy::Local(kind)])
        );
        let here = Some(DecidedBy::Local(kind));
        let admitted = ("admitted", Some(kind), here);
        assert_eq!(
            process.heard(),
            [admitted, admitted, admitted, ("refused", Some(kind), here)]
        );
        assert_eq!(
            crate::common::left(&process.remote.memory, "p", 3),
            3,
            "nothing is charged at the store"
        );
    }
}

/// The share of an open limit is charged by its own decisions only: neither the admissions of the
/// store nor those of a broken store count there.
#[tokio::test]
async fn law_13_share_of_an_open_limit_is_not_kept_warm() {
    let store = memory();
    let process = Process::on(Remote::faltering(false), &store, open("p", 3));
    assert_eq!(
        process.statuses(4).await,
        [200, 200, 200, 429],
        "by the store"
    );
    process.remote.trouble(Some(DOWN));
    assert_eq!(process.statuses(9).await, [200; 9], "open");
    assert_eq!(store.keys(), 0);
    process.remote.trouble(Some(LATE));
    assert_eq!(
        process.statuses(4).await,
        [200, 200, 200, 429],
        "by the share"
    );
    process.remote.trouble(Some(DOWN));
    assert_eq!(
        process.statuses(2).await,
        [200; 2],
        "a share that is used up closes nothing"
    );
}

/// The same beside a limit whose share is kept warm.
#[tokio::test]
async fn law_13_share_of_an_open_limit_is_not_kept_warm_beside_a_local_one() {
    let process = Process::new(all([open("open", 9), local("local", 9, 1)]));
    assert_eq!(process.statuses(3).await, [200; 3], "by the store");
    process.remote.trouble(Some(LATE));
    assert_eq!(remaining(&process.answer(get()).await), [8, 5]);
}

/// A charge behind a refusal is recorded in the share like the charge of an admitted request.
#[tokio::test]
async fn attempts_that_the_store_has_charged_keep_the_share_warm() {
    let process = Process::new(all([
        local("attempts", 9, 1).charge_refused(),
        local("tight", 1, 1),
    ]));
    assert_eq!(process.statuses(3).await, [200, 429, 429]);
    assert_eq!(
        crate::common::left(&process.remote.memory, "attempts", 9),
        6
    );
    process.remote.trouble(Some(DOWN));
    let refused = process.answer(get()).await;
    assert_eq!(
        (refused.status(), remaining(&refused)),
        (StatusCode::TOO_MANY_REQUESTS, vec![6, 0])
    );
}

/// What the share refuses is charged in the share, and the store is not asked about it.
#[tokio::test]
async fn attempts_that_the_share_refuses_are_charged_in_the_share() {
    let process = Process::new(all([
        local("attempts", 9, 1).charge_refused(),
        local("tight", 1, 1),
    ]));
    process.remote.trouble(Some(DOWN));
    assert_eq!(process.statuses(3).await, [200, 429, 429]);
    assert_eq!(
        process.remote.decisions.load(Ordering::SeqCst),
        3,
        "one question for each request"
    );
    let settlements = process.service.to_layer().settlements();
    assert_eq!((settlements.settled, settlements.failed), (2, 0));
    assert_eq!(remaining(&process.answer(get()).await), [6, 0]);
}

/// The share makes a running charge that the store fails at; the failure is counted.
#[tokio::test]
async fn running_charge_that_the_store_fails_is_made_in_the_share_and_counted() {
    let remote = Remote::faltering(false);
    let limits = local("tokens", 9, 1).settled_later();
    let layer = ThrottleLayer::builder(limits)
        .local_store(&memory())
        .backend(remote.clone())
        .build()
        .unwrap();
    let failing = remote.clone();
    let service = layer.layer(tower::service_fn(move |request: Request<Text>| {
        failing.trouble(Some(DOWN));
        let usage = request
            .extensions()
            .get::<throttle_tower::Usage>()
            .expect("it is settled later");
        assert_eq!(
            usage.add("tokens", 5),
            Ok(true),
            "one from the store, and four from the share"
        );
        assert_eq!(usage.taken("tokens"), 5);
        std::future::ready(Ok::<_, std::convert::Infallible>(Response::new(
            Text::default(),
        )))
    }));
    drop(service.clone().oneshot(get()).await.unwrap());
    assert_eq!(
        (
            layer.settlements().failed,
            crate::common::left(&remote.memory, "tokens", 9)
        ),
        (1, 8)
    );
}

/// One atomic decision covers the shares of all limits that apply, each with its own fraction.
#[tokio::test]
async fn law_13_composition_keeps_its_meaning_while_the_store_is_busy() {
    for kind in BUSY {
        let process = Process::new(all([open("wide", 8), local("tight", 4, 2)]));
        process.remote.trouble(Some(kind));
        assert_eq!(process.statuses(4).await, [200, 200, 429, 429]);
        let refused = process.answer(get()).await;
        let report = refused.extensions().get::<LimitReport>().unwrap();
        assert_eq!(
            report
                .statuses()
                .map(|(_, status)| status.remaining())
                .collect::<Vec<_>>(),
            [6, 0],
            "all or nothing"
        );
        assert_eq!(
            (report.violated().collect::<Vec<_>>(), deciders(&refused)),
            (vec!["tight"], vec![DecidedBy::Local(kind); 2])
        );
        process.remote.trouble(Some(DOWN));
        assert_eq!(
            process.statuses(1).await,
            [429],
            "the local one refuses without the open one too"
        );

        let process = Process::new(any([open("own", 2), local("pool", 4, 2)]));
        process.remote.trouble(Some(kind));
        assert_eq!(
            process.statuses(5).await,
            [200, 200, 200, 200, 429],
            "the first that admits pays"
        );

        let process = Process::new(all([
            open("a", 8),
            shared("b", 8).on_error(OnError::Closed),
        ]));
        process.remote.trouble(Some(kind));
        assert_eq!(process.statuses(2).await, [503; 2], "closed is closed");
        assert_eq!(process.heard()[0], ("failed_closed", Some(kind), None));
    }
}

/// A charge of the share is refunded to the share, and a charge of the store is not.
#[tokio::test]
async fn law_13_refund_goes_back_to_what_was_charged() {
    let refunds = Arc::new(AtomicBool::new(true));
    let asked = Arc::clone(&refunds);
    let process = Process::new(open("p", 2).refund_if(move |_, _| asked.load(Ordering::SeqCst)));
    process.remote.trouble(Some(LATE));
    assert_eq!(
        process.statuses(5).await,
        [200; 5],
        "each is given back before the next"
    );
    refunds.store(false, Ordering::SeqCst);
    assert_eq!(process.statuses(3).await, [200, 200, 429]);
    process.remote.trouble(None);
    refunds.store(true, Ordering::SeqCst);
    assert_eq!(process.statuses(5).await, [200; 5]);
    process.remote.trouble(Some(LATE));
    assert_eq!(
        process.statuses(1).await,
        [429],
        "the share gets nothing back that the store took"
    );
}

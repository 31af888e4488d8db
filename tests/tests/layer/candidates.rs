//! A candidate beside a live layer: what it decides, what it counts, and that the live layer does
//! not notice it.
//!
//! `PROPTEST_CASES=100000 cargo test -p throttle-tests --test candidates
//! law_14` draws more histories, also on Redis.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Request, StatusCode};
use proptest::prelude::*;
use throttle_core::{Algorithm, Backend, BackendErrorKind, ManualClock, Timestamp};
use throttle_redis::{RedisBackend, Single};
use throttle_rules::{Registry, Rules};
use throttle_test_servers::Server;
use throttle_tower::candidate::Flips;
use throttle_tower::limit::Ban;
use throttle_tower::{
    Candidate, Constant, Decision, FixedWindow, Gcra, Header, InFlight, LimitReport, LimitTree,
    MemoryBackend, OnError, OnMissing, Rate, SlidingLog, ThrottleBuilder, ThrottleLayer, all,
    limit,
};
use tower::{Layer, ServiceExt};

use crate::common::{Remote, Strict, Text, get, keyed, memory, shared};

/// What is sent: after so many milliseconds, with one of a few keys, at a cost.
type Step = (u64, u8, u64);
type Log = Arc<Mutex<Vec<Option<Decision>>>>;

fn algorithm() -> impl Strategy<Value = Algorithm> {
    let built = |(kind, count, burst): (u8, u64, u64)| match kind {
        0 => Gcra::new(Rate::per_second(count)).burst(burst).build(),
        1 => FixedWindow::new(Rate::per_second(count)).build(),
        _ => SlidingLog::new(Rate::per_second(count)).build(),
    };
    (0..3u8, 1..6u64, 1..6u64)
        .prop_map(built)
        .prop_filter_map("it can be built", Result::ok)
}

fn history() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec((0..400u64, 0..3u8, 0..3u64), 1..30)
}

fn limits(algorithms: &[Algorithm]) -> throttle_tower::LimitTree {
    let cost =
        |parts: &http::request::Parts| parts.headers["cost"].to_str().unwrap().parse().unwrap();
    let one = |(place, algorithm): (usize, &Algorithm)| {
        let by = limit(["a", "b"][place], *algorithm).by(Header::new("x-api-key"));
        by.cost(cost).on_error(OnError::Closed)
    };
    all(algorithms.iter().enumerate().map(one).collect::<Vec<_>>())
}

fn logged<B: Backend>(builder: ThrottleBuilder<B>) -> (ThrottleLayer<B>, Log) {
    let log = Log::default();
    let heard = Arc::clone(&log);
    let builder =
        builder.on_decision(move |event| heard.lock().unwrap().push(event.decision.cloned()));
    (builder.build().unwrap(), log)
}

fn request((_, key, cost): Step) -> Request<Text> {
    let mut request = keyed(&key.to_string());
    request.headers_mut().insert("cost", cost.into());
    request
}

/// Sends a history through a layer, and waits after each step until nothing is decided in the
/// background.
async fn send<B: Backend>(
    layer: &ThrottleLayer<B>,
    clock: &ManualClock,
    steps: &[Step],
    pending: impl Fn() -> u64,
) {
    for step in steps {
        clock.advance(Duration::from_millis(step.0));
        layer
            .layer(Strict::default())
            .oneshot(request(*step))
            .await
            .unwrap();
        while pending() > 0 {
            tokio::time::sleep(Duration::from_micros(100)).await;
        }
    }
}

/// The stores are those of the candidate and its live layer, of a layer alone, and of the
/// candidate's limits alone. The clocks are those of the three.
async fn compare<B: Backend>(
    [candidate, observed, plain, other_alone]: [B; 4],
    [now, alone, alone_too]: &[ManualClock; 3],
    (live, other): (&[Algorithm], &[Algorithm]),
    steps: &[Step],
) -> Result<(), TestCaseError> {
    let layer = |store, algorithms| logged(builder(store, limits(algorithms)));
    let (candidate, asked) = layer(candidate, other);
    let v2 = Candidate::of("v2", candidate.clone()).unwrap();
    let observed = builder(observed, limits(live)).observe(v2.clone());
    let (observed, observed_log) = logged(observed);
    let (plain, plain_log) = layer(plain, live);
    let (other, other_log) = layer(other_alone, other);
    send(&observed, now, steps, || candidate.settlements().pending).await;
    send(&plain, alone, steps, || 0).await;
    send(&other, alone_too, steps, || 0).await;

    let [asked, observed_log, plain_log, other_log] = [asked, observed_log, plain_log, other_log]
        .map(|log| std::mem::take(&mut *log.lock().unwrap()));
    prop_assert_eq!(&observed_log, &plain_log, "the live layer");
    prop_assert_eq!(&asked, &other_log, "the candidate");
    let admitted = |log: &[Option<Decision>]| {
        log.iter()
            .map(|one| one.as_ref().unwrap().is_admitted())
            .collect()
    };
    let (live, other): (Vec<bool>, Vec<bool>) = (admitted(&plain_log), admitted(&other_log));
    let count = |a, b| {
        live.iter()
            .zip(&other)
            .filter(|pair| *pair == (&a, &b))
            .count() as u64
    };
    let flips = v2.flips();
    let expected =
        [(true, true), (false, false), (true, false), (false, true)].map(|(a, b)| count(a, b));
    prop_assert_eq!(
        results(&flips),
        [expected[0], expected[1], expected[2], expected[3], 0]
    );
    let by_policy = flips
        .by_policy
        .iter()
        .map(|policy| policy.would_refuse + policy.would_admit)
        .sum::<u64>();
    prop_assert_eq!(by_policy, flips.would_refuse + flips.would_admit);
    Ok(())
}

fn results(flips: &Flips) -> [u64; 5] {
    [
        flips.both_admit,
        flips.both_refuse,
        flips.would_refuse,
        flips.would_admit,
        flips.not_decided,
    ]
}

fn trees() -> impl Strategy<Value = (Vec<Algorithm>, Vec<Algorithm>)> {
    let tree = || prop::collection::vec(algorithm(), 1..3);
    (tree(), tree())
}

fn clocks() -> [ManualClock; 3] {
    [(); 3].map(|()| ManualClock::new(Timestamp::from_micros(1_000_000)))
}

proptest! {
    #[test]
    fn law_14_candidate_decides_as_if_live_and_changes_no_decision((live, other) in trees(), steps in history()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let clocks = clocks();
        let stores = [0, 0, 1, 2].map(|clock| MemoryBackend::builder().clock(clocks[clock].clone()).build());
        runtime.block_on(compare(stores, &clocks, (&live, &other), &steps))?;
    }
}

/// The same over a store, by which the candidate is decided in the background.
#[test]
fn law_14_candidate_on_redis_changes_no_decision() {
    let (server, runtime, clocks) = (
        Server::start(),
        tokio::runtime::Runtime::new().unwrap(),
        clocks(),
    );
    let _guard = runtime.enter();
    let stores = [
        ("candidate", 0),
        ("observed", 0),
        ("plain", 1),
        ("other", 2),
    ]
    .map(|(prefix, clock)| {
        let redis =
            RedisBackend::builder(Single::new(&server.url()).unwrap()).clock(clocks[clock].clone());
        // A machine that is busy fails no decision.
        redis
            .prefix(prefix)
            .deadline(Duration::from_secs(10))
            .build()
            .unwrap()
    });
    proptest!(ProptestConfig::with_cases(25), |((live, other) in trees(), steps in history())| {
        clocks.iter().for_each(|clock| clock.set(Timestamp::from_micros(1_000_000)));
        server.command(&["FLUSHALL"]);
        runtime.block_on(compare(stores.clone(), &clocks, (&live, &other), &steps))?;
    });
}

fn on<B: Backend>(
    backend: B,
    limits: impl throttle_tower::limit::IntoLimitTree,
) -> ThrottleLayer<B> {
    builder(backend, limits).build().unwrap()
}

fn builder<B: Backend>(
    backend: B,
    limits: impl throttle_tower::limit::IntoLimitTree,
) -> ThrottleBuilder<B> {
    ThrottleLayer::builder(limits).backend(backend)
}

/// A layer that a candidate observes.
fn beside<B: Backend, C: Backend>(
    live: ThrottleBuilder<B>,
    candidate: ThrottleLayer<C>,
) -> (ThrottleLayer<B>, Candidate<C>) {
    let candidate = Candidate::of("v2", candidate).unwrap();
    let live = live.observe(candidate.clone()).build().unwrap();
    (live, candidate)
}

async fn status<B: Backend>(layer: &ThrottleLayer<B>, request: Request<Text>) -> StatusCode {
    layer
        .layer(Strict::default())
        .oneshot(request)
        .await
        .unwrap()
        .status()
}

/// The results of a candidate after so many requests to a live layer that admits two.
async fn after<B: Backend>(requests: u32, candidate: ThrottleLayer<B>) -> [u64; 5] {
    let (live, v2) = beside(builder(memory(), shared("live", 2)), candidate);
    for n in 0..requests {
        let expected = if n < 2 {
            StatusCode::OK
        } else {
            StatusCode::TOO_MANY_REQUESTS
        };
        assert_eq!(status(&live, get()).await, expected);
    }
    results(&v2.flips())
}

/// Of one store no question is read, and of the other no answer comes.
#[tokio::test]
async fn law_14_no_response_waits_for_a_store_that_hangs() {
    for store in [Remote::slow(0, 0), Remote::slow(2, 0)] {
        let hanging = builder(store.clone(), shared("candidate", 9))
            .max_waiting(2)
            .build()
            .unwrap();
        let (live, v2) = beside(builder(memory(), shared("live", 2)), hanging.clone());
        for _ in 0..4 {
            let mut response = live.layer(Strict::default()).oneshot(get());
            assert!(crate::common::poll(&mut response).is_ready());
        }
        let counted = results(&v2.flips());
        assert_eq!(
            (counted, hanging.settlements().pending),
            ([0, 0, 0, 0, 2], 2),
            "two are under way"
        );
        for _ in 0..2 {
            store.let_in();
            store.let_out();
        }
        while hanging.settlements().pending > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(
            results(&v2.flips()),
            [2, 0, 0, 0, 2],
            "the store has decided those two"
        );
    }
}

#[test]
fn decision_that_its_runtime_does_not_end_is_counted_as_not_decided() {
    let hanging = on(Remote::slow(0, 0), shared("candidate", 9));
    let (live, v2) = beside(builder(memory(), shared("live", 2)), hanging);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    assert_eq!(runtime.block_on(status(&live, get())), StatusCode::OK);
    assert_eq!(results(&v2.flips()), [0; 5]);
    drop(runtime);
    assert_eq!(results(&v2.flips()), [0, 0, 0, 0, 1]);
}

#[tokio::test]
async fn store_that_fails_decides_nothing_whatever_on_error_says() {
    for rule in [OnError::Open, OnError::Closed, OnError::local(1)] {
        for kind in [BackendErrorKind::Unavailable, BackendErrorKind::Saturated] {
            let candidate = on(Remote::failing(kind), shared("candidate", 1).on_error(rule));
            assert_eq!(
                after(3, candidate).await,
                [0, 0, 0, 0, 3],
                "{rule:?} {kind:?}"
            );
        }
    }
}

#[tokio::test]
async fn request_that_is_dropped_before_it_is_decided_is_not_compared() {
    let store = Remote::slow(0, 0);
    let candidate = ThrottleLayer::new(shared("candidate", 9)).unwrap();
    let (live, v2) = beside(builder(store, shared("live", 2)), candidate);
    let mut response = live.layer(Strict::default()).oneshot(get());
    assert!(crate::common::poll(&mut response).is_pending());
    drop(response);
    assert_eq!(results(&v2.flips()), [0; 5]);
}

/// A million new keys would fill it; here it has room for one.
#[tokio::test]
async fn law_14_full_store_of_a_candidate_changes_no_live_decision() {
    let of =
        |name| limit(name, Gcra::new(Rate::per_minute(1)).burst(2)).by(Header::new("x-api-key"));
    let store = MemoryBackend::builder()
        .max_keys(1)
        .clock(ManualClock::default())
        .build();
    let live = builder(memory(), of("live")).report_in(throttle_tower::ReportIn::Both);
    let (live, v2) = beside(live, on(store.clone(), of("candidate")));
    for n in 0..300 {
        for left in [1, 0] {
            let response = live
                .layer(Strict::default())
                .oneshot(keyed(&n.to_string()))
                .await
                .unwrap();
            let report: &LimitReport = response.extensions().get().unwrap();
            let shown = report
                .statuses()
                .map(|(_, status)| (status.remaining(), status.is_overflow()));
            assert_eq!(shown.collect::<Vec<_>>(), [(left, false)]);
        }
    }
    let flips = v2.flips();
    assert!(
        store.keys() <= 2 && flips.would_refuse > 500,
        "its keys share budgets: {flips:?}"
    );
}

/// What a candidate cannot be asked at once is decided in the background, and counted once it is.
#[tokio::test]
async fn lookups_and_waits_of_a_candidate_are_its_own() {
    let looked_up = limit("p", Gcra::new(Rate::per_minute(1)).burst(1)).by_async(|_| async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        Some(1)
    });
    let held = limit("p", Gcra::new(Rate::per_second(1)).burst(1))
        .by(Constant)
        .wait_up_to(Duration::from_millis(1_500));
    for (candidate, expected) in [(looked_up, [1, 1, 1, 0, 0]), (held, [2, 1, 0, 0, 0])] {
        let candidate = ThrottleLayer::new(candidate).unwrap();
        let (live, v2) = beside(builder(memory(), shared("live", 2)), candidate.clone());
        let started = std::time::Instant::now();
        for _ in 0..3 {
            status(&live, get()).await;
        }
        assert!(
            started.elapsed() < Duration::from_millis(500),
            "no request waits"
        );
        assert!(candidate.settlements().pending > 0);
        while candidate.settlements().pending > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(results(&v2.flips()), expected);
    }
}

#[tokio::test]
async fn candidate_that_waits_for_nothing_is_decided_at_once() {
    assert_eq!(
        after(
            3,
            ThrottleLayer::builder(shared("p", 1))
                .max_waiting(0)
                .build()
                .unwrap()
        )
        .await,
        [1, 1, 1, 0, 0]
    );
}

/// Also if no observer needs the request's head.
#[tokio::test]
async fn class_beside_a_key_that_a_candidate_looks_up_is_that_of_the_request() {
    let class = |parts: &http::request::Parts| {
        if parts.headers.contains_key("x-api-key") {
            "low"
        } else {
            "high"
        }
    };
    let looked_up =
        limit("p", Gcra::new(Rate::per_hour(2)).burst(2)).by_async(|_| async { Some(1) });
    let candidate =
        ThrottleLayer::new(looked_up.priority([("high", 0), ("low", 1)], class)).unwrap();
    let (live, v2) = beside(builder(memory(), shared("live", 2)), candidate.clone());
    for _ in 0..2 {
        status(&live, keyed("ada")).await;
    }
    while candidate.settlements().pending > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(results(&v2.flips()), [1, 0, 1, 0, 0]);
}

#[tokio::test]
async fn request_without_a_required_key_is_one_that_the_candidate_refuses() {
    let keyed = |rule| {
        limit("p", Gcra::new(Rate::per_hour(9)))
            .by(Header::new("x-api-key"))
            .on_missing(rule)
    };
    let reject = ThrottleLayer::new(keyed(OnMissing::Reject(StatusCode::UNAUTHORIZED))).unwrap();
    assert_eq!(after(3, reject).await, [0, 1, 2, 0, 0]);
    assert_eq!(
        after(3, ThrottleLayer::new(keyed(OnMissing::Skip)).unwrap()).await,
        [2, 0, 0, 1, 0]
    );
    let nothing = ThrottleLayer::builder(shared("p", 1))
        .when(|_: &http::request::Parts| false)
        .build()
        .unwrap();
    assert_eq!(
        after(3, nothing).await,
        [2, 0, 0, 1, 0],
        "it applies to no request"
    );
}

#[tokio::test]
async fn panic_of_a_candidate_is_not_one_of_the_request() {
    let wrong = shared("p", 1)
        .cost(|_: &http::request::Parts| -> u64 { panic!("a mistake in the next version") });
    assert_eq!(
        after(3, ThrottleLayer::new(wrong).unwrap()).await,
        [0, 0, 0, 0, 3]
    );
}

/// Refused requests are charged by the candidate, too: the second one is charged what is left.
#[tokio::test]
async fn candidate_charges_refused_requests_if_it_says_so() {
    let store = memory();
    let candidate = on(store.clone(), shared("p", 5).cost(3).charge_refused());
    assert_eq!(after(2, candidate).await, [1, 0, 1, 0, 0]);
    assert_eq!(crate::common::left(&store, "p", 5), 0);
}

#[test]
fn candidate_without_an_honest_meaning_does_not_build() {
    let starts = "candidate is a limit that acts on responses: InFlight, refunds, strike_if \
        and settled_later do, and";
    let starts = |limit| format!("policy \"{limit}\": {starts}");
    let with = |limits: LimitTree| Candidate::in_memory("v2", limits).unwrap_err().to_string();
    for limits in [
        shared("q", 1).refund_if(limit::failed),
        shared("q", 1).settled_later(),
        shared("q", 1).refund_aborted(),
    ] {
        let error = with(all([shared("p", 1), limits]));
        assert!(error.starts_with(&starts("q")), "{error}");
    }
    let error = with(limit("c", InFlight::new(1)).by(Constant).into());
    assert!(error.starts_with(&starts("c")), "{error}");
}

#[tokio::test]
async fn candidates_of_a_layer_count_apart_and_name_the_policies() {
    let strict = all([shared("both", 1), shared("wide", 9)]);
    let live = builder(memory(), all([shared("both", 2), shared("live", 3)]));
    let strict = Candidate::in_memory("v2", strict).unwrap();
    let live = live.observe(strict.clone());
    let (live, lax) = beside(live, ThrottleLayer::new(shared("lax", 9)).unwrap());
    for _ in 0..4 {
        status(&live, get()).await;
    }
    let by_policy = |flips: Flips| {
        let rows = flips
            .by_policy
            .iter()
            .map(|row| (row.policy.to_string(), row.would_refuse, row.would_admit));
        (results(&flips), rows.collect::<Vec<_>>())
    };
    let expected = ([1, 2, 1, 0, 0], vec![("both".to_owned(), 1, 0)]);
    assert_eq!(by_policy(strict.flips()), expected);
    let expected = ([2, 0, 0, 2, 0], vec![("both".to_owned(), 0, 2)]);
    assert_eq!(by_policy(lax.flips()), expected);
    let inside = live.with_limits(shared("inside", 1)).unwrap();
    status(&inside, get()).await;
    assert_eq!(by_policy(lax.flips()), expected, "it observes one layer");
}

#[tokio::test]
async fn candidate_of_several_layers_counts_their_requests_together() {
    let v2 = Candidate::in_memory("v2", shared("p", 3)).unwrap();
    let layers = [1, 9].map(|burst| {
        let live = builder(memory(), shared("p", burst)).observe(v2.clone());
        live.build().unwrap()
    });
    for layer in &layers {
        for _ in 0..2 {
            status(layer, get()).await;
        }
    }
    assert_eq!(results(&v2.flips()), [2, 0, 1, 1, 0]);
}

/// A reload of either file keeps the counts. One that brings a limit that cannot be a candidate
/// decides nothing.
#[tokio::test]
async fn rule_file_is_a_candidate_that_is_reloaded() {
    let text = |burst: u64, more: &str| {
        let limit =
            format!("gcra = {{ rate = \"1/hour\", burst = {burst} }}\nby = \"constant\"\n{more}");
        format!("version = 1\n[[limit]]\nname = \"p\"\n{limit}")
    };
    let rules = |burst| Rules::from_str("rules.toml", &text(burst, ""), Registry::new()).unwrap();
    let (next, next_file) = rules(1).layer(MemoryBackend::new()).unwrap();
    let next = Candidate::of("v2", next).unwrap();
    let program = ThrottleLayer::builder(()).observe(next.clone());
    let (live, now_file) = rules(9).layer_with(program).unwrap();
    let ask = async |times: u32| {
        for _ in 0..times {
            status(&live, get()).await;
        }
        results(&next.flips())
    };
    assert_eq!(ask(2).await, [1, 0, 1, 0, 0]);
    next_file.replace(&text(9, "")).unwrap();
    assert_eq!(ask(2).await, [3, 0, 1, 0, 0], "the new burst");
    next_file.replace(&text(9, "refund = \"failed\"")).unwrap();
    assert_eq!(ask(2).await, [3, 0, 1, 0, 2]);
    next_file.replace(&text(9, "")).unwrap();
    now_file.replace(&text(1, "")).unwrap();
    assert_eq!(ask(1).await, [3, 0, 1, 1, 2]);
}

/// As it would if it was live. Without its ban it would admit the third request.
#[tokio::test]
async fn candidate_bans_keys_by_what_it_would_refuse() {
    let clock = ManualClock::default();
    let next = MemoryBackend::builder().clock(clock.clone()).build();
    let ban = Ban::after(1).lasting(Duration::from_secs(60));
    let tight = limit("p", Gcra::new(Rate::per_second(1)).burst(1))
        .by(Constant)
        .ban(ban.even_if_spoofable());
    let (layer, v2) = beside(builder(memory(), shared("p", 9)), on(next, tight));
    for _ in 0..2 {
        status(&layer, get()).await;
    }
    clock.advance(Duration::from_secs(9));
    assert_eq!(status(&layer, get()).await, StatusCode::OK);
    let flips = v2.flips();
    assert_eq!((flips.both_admit, flips.would_refuse), (1, 2));
}

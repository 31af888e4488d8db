//! A candidate beside a live layer: what it decides, what it counts, and that the live layer does
//! not notice it.
//!
//! `PROPTEST_CASES=100000 cargo test -p throttle-tests --test candidates
//! law_14` draws more histories, also on Redis.

use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Request, StatusCode};
use proptest::prelude::*;
use throttle_core::{
    Algorithm, Backend, BackendErrorKind, LocalShareBackend, ManualClock, Timestamp,
};
use throttle_redis::{RedisBackend, Single};
use throttle_test_servers::Server;
use throttle_tower::candidate::Flips;
use throttle_tower::limit::Ban;
use throttle_tower::rules::{Registry, Rules};
use throttle_tower::{
    Constant, Decision, FixedWindow, Gcra, Header, InFlight, Limit, LimitReport, MemoryBackend,
    OnError, OnMissing, Rate, SlidingLog, ThrottleBuilder, ThrottleLayer, all, limit,
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
    let (observed, observed_log) = layer(observed, live);
    let observed = observed.candidate("v2", candidate.clone()).unwrap();
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
    let flips = observed.flips("v2").unwrap();
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
    let live = on(memory(), shared("live", 2))
        .candidate("v2", candidate)
        .unwrap();
    for n in 0..requests {
        let expected = if n < 2 {
            StatusCode::OK
        } else {
            StatusCode::TOO_MANY_REQUESTS
        };
        assert_eq!(status(&live, get()).await, expected);
    }
    results(&live.flips("v2").unwrap())
}

/// Of one store no question is read, and of the other no answer comes.
#[tokio::test]
async fn law_14_no_response_waits_for_a_store_that_hangs() {
    for store in [Remote::slow(0, 0), Remote::slow(2, 0)] {
        let hanging = ThrottleLayer::builder(shared("candidate", 9))
            .backend(store.clone())
            .max_waiting(2)
            .build()
            .unwrap();
        let live = on(memory(), shared("live", 2))
            .candidate("v2", hanging.clone())
            .unwrap();
        for _ in 0..4 {
            let mut response = live.layer(Strict::default()).oneshot(get());
            assert!(crate::common::poll(&mut response).is_ready());
        }
        let counted = results(&live.flips("v2").unwrap());
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
            results(&live.flips("v2").unwrap()),
            [2, 0, 0, 0, 2],
            "the store has decided those two"
        );
    }
}

#[test]
fn decision_that_its_runtime_does_not_end_is_counted_as_not_decided() {
    let hanging = on(Remote::slow(0, 0), shared("candidate", 9));
    let live = on(memory(), shared("live", 2))
        .candidate("v2", hanging)
        .unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    assert_eq!(runtime.block_on(status(&live, get())), StatusCode::OK);
    assert_eq!(results(&live.flips("v2").unwrap()), [0; 5]);
    drop(runtime);
    assert_eq!(results(&live.flips("v2").unwrap()), [0, 0, 0, 0, 1]);
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
    let live = on(store, shared("live", 2))
        .candidate("v2", candidate)
        .unwrap();
    let mut response = live.layer(Strict::default()).oneshot(get());
    assert!(crate::common::poll(&mut response).is_pending());
    drop(response);
    assert_eq!(results(&live.flips("v2").unwrap()), [0; 5]);
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
    let live = ThrottleLayer::builder(of("live"))
        .backend(memory())
        .report_in_response(true)
        .build()
        .unwrap()
        .candidate("v2", on(store.clone(), of("candidate")))
        .unwrap();
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
    let flips = live.flips("v2").unwrap();
    assert!(
        store.keys() <= 2 && flips.would_refuse > 500,
        "its keys share budgets: {flips:?}"
    );
}

/// What a candidate cannot be asked at once is decided in the background, and counted once it is.
#[tokio::test]
async fn lookups_and_waits_of_a_candidate_are_its_own() {
    let looked_up = limit("p", Gcra::new(Rate::per_minute(1)).burst(1)).by_async(|_| async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        Some(1)
    });
    let held = limit("p", Gcra::new(Rate::per_second(10)).burst(1))
        .by(Constant)
        .wait_up_to(Duration::from_millis(150));
    for (candidate, expected) in [(looked_up, [1, 1, 1, 0, 0]), (held, [2, 1, 0, 0, 0])] {
        let candidate = ThrottleLayer::new(candidate).unwrap();
        let live = on(memory(), shared("live", 2))
            .candidate("v2", candidate.clone())
            .unwrap();
        let started = std::time::Instant::now();
        for _ in 0..3 {
            status(&live, get()).await;
        }
        assert!(
            started.elapsed() < Duration::from_millis(100),
            "no request waits"
        );
        assert!(candidate.settlements().pending > 0);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(results(&live.flips("v2").unwrap()), expected);
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
    let live = on(memory(), shared("live", 2))
        .candidate("v2", candidate.clone())
        .unwrap();
    for _ in 0..2 {
        status(&live, keyed("ada")).await;
    }
    while candidate.settlements().pending > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(results(&live.flips("v2").unwrap()), [1, 0, 1, 0, 0]);
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

fn refused(result: Result<ThrottleLayer<impl Backend>, throttle_tower::ConfigError>) -> String {
    result.map(drop).unwrap_err().to_string()
}

#[test]
fn candidate_without_an_honest_meaning_does_not_build() {
    let live = |store: &crate::common::Memory| on(store.clone(), shared("p", 2));
    let (store, own) = (memory(), memory());
    let with =
        |limits: Limit| refused(live(&store).candidate("v2", ThrottleLayer::new(limits).unwrap()));
    let starts = "candidate is a limit that acts on responses: InFlight, refunds, strike_if \
        and settled_later do, and";
    for limits in [
        shared("q", 1).refund_failed(),
        shared("q", 1).settled_later(),
        shared("q", 1).refund_aborted(),
    ] {
        let error = with(limits);
        assert!(
            error.starts_with(&format!("policy \"q\": {starts}")),
            "{error}"
        );
    }
    let permits = ThrottleLayer::new(limit("c", InFlight::new(1)).by(Constant)).unwrap();
    let error = refused(live(&store).candidate("v2", permits));
    assert!(
        error.starts_with(&format!("policy \"c\": {starts}")),
        "{error}"
    );
    let twice = live(&store)
        .candidate("v2", live(&own))
        .unwrap()
        .candidate("v2", live(&memory()));
    assert!(refused(twice).starts_with("candidate is \"v2\" twice: "));
    let shares = "candidate is \"v2\" on the store of the live layer: it would charge the budgets \
        of the live limits; ";
    assert!(refused(live(&store).candidate("v2", live(&store))).starts_with(shares));
    let with_candidate = live(&store).candidate("v2", live(&own)).unwrap();
    let moved = with_candidate.replace_with(builder(own.clone(), shared("p", 2)));
    assert!(
        moved.unwrap_err().to_string().starts_with(shares),
        "moved to the store of the candidate later"
    );
    let boxed = |store: &crate::common::Memory| {
        on(
            throttle_core::BoxBackend::new(store.clone()),
            shared("p", 2),
        )
    };
    assert!(refused(boxed(&store).candidate("v2", boxed(&store))).starts_with(shares));
    assert!(boxed(&store).candidate("v2", boxed(&own)).is_ok());
    let share = |store: &crate::common::Memory| {
        on(
            LocalShareBackend::new(store.clone(), NonZeroU32::MIN),
            shared("p", 2),
        )
    };
    assert!(refused(share(&store).candidate("v2", share(&store))).starts_with(shares));
    let redis = |prefix: &str| {
        let redis = RedisBackend::builder(Single::new("redis://127.0.0.1:1").unwrap())
            .prefix(prefix)
            .build()
            .unwrap();
        on(redis, shared("p", 2).on_error(OnError::Open))
    };
    assert!(refused(redis("a:").candidate("v2", redis("a:"))).starts_with(shares));
    assert!(redis("a:").candidate("v2", redis("b:")).is_ok());
    // A backend that does not implement `shares_keys_with` cannot tell whether the two share keys.
    let remote = || on(Remote::slow(0, 0), shared("p", 2));
    assert!(refused(remote().candidate("v2", remote())).starts_with(shares));
}

#[tokio::test]
async fn flips_are_those_of_the_candidate_of_a_name_and_name_the_policies() {
    let strict = all([shared("both", 1), shared("wide", 9)]);
    let live = on(memory(), all([shared("both", 2), shared("live", 3)]));
    let live = live
        .candidate("strict", ThrottleLayer::new(strict).unwrap())
        .unwrap();
    let live = live
        .candidate("lax", ThrottleLayer::new(shared("lax", 9)).unwrap())
        .unwrap();
    for _ in 0..4 {
        status(&live, get()).await;
    }
    let by_policy = |name| {
        let flips = live.flips(name).unwrap();
        let rows = flips
            .by_policy
            .iter()
            .map(|row| (row.policy.to_string(), row.would_refuse, row.would_admit));
        (results(&flips), rows.collect::<Vec<_>>())
    };
    assert_eq!(
        by_policy("strict"),
        ([1, 2, 1, 0, 0], vec![("both".to_owned(), 1, 0)])
    );
    assert_eq!(
        by_policy("lax"),
        ([2, 0, 0, 2, 0], vec![("both".to_owned(), 0, 2)])
    );
    assert_eq!(live.flips("other"), None);
    assert_eq!(
        live.with_limits(shared("inside", 1))
            .unwrap()
            .flips("strict"),
        None,
        "it observes one layer"
    );
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
    let layer = |burst| {
        let rules = Rules::from_str("rules.toml", &text(burst, ""), Registry::new()).unwrap();
        rules.layer(MemoryBackend::new()).unwrap()
    };
    let ((now, now_file), (next, next_file)) = (layer(9), layer(1));
    let live = now.candidate("next", next).unwrap();
    let ask = async |times: u32| {
        for _ in 0..times {
            status(&live, get()).await;
        }
        results(&live.flips("next").unwrap())
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
        .ban_even_if_spoofable(ban);
    let layer = on(memory(), shared("p", 9))
        .candidate("v2", on(next, tight))
        .unwrap();
    for _ in 0..2 {
        status(&layer, get()).await;
    }
    clock.advance(Duration::from_secs(9));
    assert_eq!(status(&layer, get()).await, StatusCode::OK);
    let flips = layer.flips("v2").unwrap();
    assert_eq!((flips.both_admit, flips.would_refuse), (1, 2));
}

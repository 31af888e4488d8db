//! Attacks on arithmetic and time: absurd costs and rates, clocks that jump, false waits.

use std::collections::HashMap;
use std::time::Duration;

use crate::support::{
    Site, builder, field, from, list, ok, parameter, retry_after, send, three_by,
};
use axum::Router;
use axum::body::Body;
use axum::routing::any;
use http::request::{Builder, Parts};
use http::{Response, StatusCode};
use proptest::prelude::*;
use throttle_core::Algorithm;
use throttle_tower::ClientIp;
use throttle_tower::extract::Extension;
use throttle_tower::headers::{Dialect, ResetFormat};
use throttle_tower::{
    CalendarQuota, ConfigError, Constant, FixedWindow, Gcra, IntervalBucket, LeakyMeter, Limit,
    LimitReport, LimitTree, Rate, SlidingLog, SlidingWindow, ThrottleLayer, TokenBucket, all,
    any as any_of, limit,
};

const MOST: u64 = (1 << 53) - 1;

/// The cost of a request, as an extension, so that a test can choose it.
#[derive(Clone, Copy)]
struct Price(u64);

fn price(parts: &Parts) -> u64 {
    parts.extensions.get::<Price>().map_or(1, |price| price.0)
}

fn costing(units: u64) -> Builder {
    from("203.0.113.9").extension(Price(units))
}

/// The remaining units, by the decision.
fn remaining(response: &Response<Body>) -> u64 {
    response
        .extensions()
        .get::<LimitReport>()
        .unwrap()
        .decision()
        .remaining()
}

/// Every algorithm that refuses, with `count` units per `period`.
fn algorithms(count: u64, period: Duration) -> Vec<(&'static str, Limit)> {
    let rate = Rate::new(count, period);
    macro_rules! named {
        ($($name:literal $algorithm:expr),+ $(,)?) => {
            vec![$(($name, limit($name, $algorithm).by(ClientIp::peer()).cost(price))),+]
        };
    }
    named![
        "gcra" Gcra::new(rate),
        "token-bucket" TokenBucket::new(rate),
        "leaky-meter" LeakyMeter::new(rate),
        "interval-bucket" IntervalBucket::new(count).refill(count.div_ceil(2), period),
        "interval-bucket-aligned" IntervalBucket::new(count).refill(count, period).aligned(),
        "fixed-window" FixedWindow::new(rate),
        "sliding-window" SlidingWindow::new(rate),
        "sliding-window-1" SlidingWindow::new(rate).buckets(1),
        "sliding-log" SlidingLog::new(rate),
        "quota-daily" CalendarQuota::daily(count),
        "quota-rolling" CalendarQuota::rolling(count, period),
    ]
}

#[tokio::test]
async fn attack_38_absurd_costs_are_refused_for_good_and_change_nothing() {
    for (name, limit) in algorithms(3, Duration::from_secs(60)) {
        let site = Site::new(limit);
        assert_eq!(site.status(costing(1)).await, StatusCode::OK, "{name}");
        for cost in [4, 1 << 32, MOST, MOST + 1, i64::MAX as u64, u64::MAX] {
            let refused = site.send(costing(cost)).await;
            assert_eq!(
                refused.status(),
                StatusCode::TOO_MANY_REQUESTS,
                "{name} {cost}"
            );
            // No wait helps, so there is no `Retry-After`.
            assert_eq!(retry_after(&refused), None, "{name} {cost}");
            assert_eq!(
                parameter(&refused, "ratelimit", name, "r"),
                Some(2),
                "{name} {cost}"
            );
        }
        // Cost 0 is not free units either: such a request is a peek, and changes nothing.
        for _ in 0..5 {
            let peeked = site.send(costing(0)).await;
            assert_eq!(
                (peeked.status(), remaining(&peeked)),
                (StatusCode::OK, 2),
                "{name}"
            );
        }
        assert_eq!(site.admitted((0..3).map(|_| costing(1))).await, 2, "{name}");
        assert_eq!(site.status(costing(0)).await, StatusCode::OK, "{name}");
    }
}

#[test]
fn attack_39_impossible_rate_is_refused_by_field_value_and_bound() {
    fn error(limit: Limit) -> ConfigError {
        ThrottleLayer::new(limit).unwrap_err()
    }
    let second = Duration::from_secs(1);
    let by = |algorithm: Gcra| error(limit("absurd", algorithm).by(Constant));
    let cases = [
        (by(Gcra::new(Rate::per_second(0))), "rate count", "0"),
        (
            by(Gcra::new(Rate::per_second(u64::MAX))),
            "rate count",
            "18446744073709551615",
        ),
        (
            by(Gcra::new(Rate::per_second(MOST + 1))),
            "rate count",
            "9007199254740992",
        ),
        (
            by(Gcra::new(Rate::new(1, Duration::ZERO))),
            "rate period in microseconds",
            "0",
        ),
        (
            by(Gcra::new(Rate::new(1, Duration::MAX))),
            "rate period in microseconds",
            "18446744073709551615",
        ),
        (by(Gcra::new(Rate::per_second(1)).burst(0)), "burst", "0"),
        (
            by(Gcra::new(Rate::per_second(1)).burst(u64::MAX)),
            "burst",
            "18446744073709551615",
        ),
        (
            error(limit("absurd", FixedWindow::new(Rate::per_second(0))).by(Constant)),
            "rate count",
            "0",
        ),
        (
            error(limit("absurd", SlidingLog::new(Rate::per_second(0))).by(Constant)),
            "rate count",
            "0",
        ),
        (
            error(limit("absurd", SlidingWindow::new(Rate::per_second(1)).buckets(0)).by(Constant)),
            "buckets",
            "0",
        ),
        (
            error(limit("absurd", SlidingWindow::new(Rate::per_second(1)).buckets(7)).by(Constant)),
            "buckets",
            "7",
        ),
    ];
    for (error, field, value) in cases {
        assert_eq!(
            (error.policy(), error.field(), error.value()),
            (Some("absurd"), field, value),
            "{error}"
        );
        let text = error.to_string();
        let (_, rule) = text.split_once(": ").unwrap();
        let bound = rule.replacen(value, "", 1);
        assert!(
            text.contains("\"absurd\"")
                && text.contains(field)
                && bound.contains(|c: char| c.is_ascii_digit()),
            "{text}"
        );
    }
    let name = error(limit("", Gcra::new(Rate::new(1, second))).by(Constant));
    assert_eq!((name.field(), name.value()), ("policy name", "\"\""));
    for text in [
        "1e18/s",
        "-1/s",
        "0/s",
        "1/0s",
        "18446744073709551616/s",
        "1.5/s",
        "NaN/s",
    ] {
        let error = text.parse::<Rate>().unwrap_err();
        assert!(
            error.to_string().contains(text) || error.value() == "0",
            "{error}"
        );
    }
}

/// The headers of one response: the quota, its window if there is one, and the remaining units.
fn announced(response: &Response<Body>, dialect: Dialect) -> (u64, Option<u64>, u64) {
    let number = |text: &str| text.parse::<u64>().unwrap();
    let own = |name: &str| number(field(response, name).unwrap());
    // `10;w=60`, as the only policy.
    let window = |policy: &str| {
        policy
            .split_once(";w=")
            .map(|(quota, w)| (number(quota), number(w)))
            .unwrap()
    };
    let same = |limit: u64, policy: &str, remaining: u64| {
        let (quota, w) = window(policy);
        assert_eq!(quota, limit, "the limit is the quota");
        (limit, Some(w), remaining)
    };
    match dialect {
        Dialect::Draft11 => {
            let policy = |key| {
                list(response, "ratelimit-policy")[0]
                    .1
                    .iter()
                    .find(|(name, _)| name == key)
                    .unwrap()
                    .1
            };
            let remaining = list(response, "ratelimit")[0].1[0].1;
            (
                policy("q").unsigned_abs(),
                Some(policy("w").unsigned_abs()),
                remaining.try_into().unwrap(),
            )
        }
        Dialect::Draft07 => {
            let stated: HashMap<_, _> = field(response, "ratelimit")
                .unwrap()
                .split(", ")
                .filter_map(|part| part.split_once('='))
                .collect();
            same(
                number(stated["limit"]),
                field(response, "ratelimit-policy").unwrap(),
                number(stated["remaining"]),
            )
        }
        Dialect::Draft06 => same(
            own("ratelimit-limit"),
            field(response, "ratelimit-policy").unwrap(),
            own("ratelimit-remaining"),
        ),
        Dialect::Draft03 => {
            let (limit, policy) = field(response, "ratelimit-limit")
                .unwrap()
                .split_once(", ")
                .unwrap();
            same(number(limit), policy, own("ratelimit-remaining"))
        }
        _ => (own("x-ratelimit-limit"), None, own("x-ratelimit-remaining")),
    }
}

proptest! {
    #![proptest_config(crate::support::cases(60))]

    /// For every configuration, no more remains than the quota, every dialect states the same
    /// quota, and the stated rate is no faster than the limit.
    #[test]
    fn headers_agree_with_themselves_for_every_algorithm_and_dialect(
        count in 1..40_u64, millis in prop_oneof![1..3_000_u64, (1..100_u64).prop_map(|seconds| seconds * 1_000)],
        burst in 1..80_u64, steps in proptest::collection::vec((0..5_000_u64, 0..6_u64), 1..5),
    ) {
        let period = Duration::from_millis(millis);
        let rate = Rate::new(count, period);
        let by = |name, algorithm: Algorithm| (name, limit(name, algorithm).by(ClientIp::peer()).cost(price));
        let bursts = [
            by("gcra-burst", Gcra::new(rate).burst(burst).build().unwrap()),
            by("token-bucket-burst", TokenBucket::new(rate).burst(burst).build().unwrap()),
            by("leaky-meter-burst", LeakyMeter::new(rate).capacity(burst).build().unwrap()),
            by("interval-bucket-burst", IntervalBucket::new(burst).refill(count, period).build().unwrap()),
        ];
        for (name, limit) in algorithms(count, period).into_iter().chain(bursts) {
            let mut quotas = Vec::new();
            for dialect in [
                Dialect::Draft11,
                Dialect::Draft07,
                Dialect::Draft06,
                Dialect::Draft03,
                Dialect::XRateLimit(ResetFormat::DeltaSeconds),
            ] {
                let site = Site::built(limit.clone(), |builder| {
                    Router::new().route("/", any(ok)).layer(builder.headers(dialect).build().unwrap())
                });
                for (idle, cost) in &steps {
                    site.clock.advance(Duration::from_millis(*idle));
                    let response = run(site.send(costing(*cost)));
                    let what = format!("{name}, {rate}, burst {burst}: {dialect:?} {:?}", response.headers());
                    let (quota, window, left) = announced(&response, dialect);
                    assert!(left <= quota, "{what}");
                    assert_eq!(left, remaining(&response), "{what}");
                    let report = response.extensions().get::<LimitReport>().unwrap();
                    if let Dialect::XRateLimit(_) = dialect {
                        // Without a window, it is the most that can remain.
                        assert_eq!(quota, report.statuses().next().unwrap().0.algorithm().capacity(), "{what}");
                        continue;
                    }
                    quotas.push(quota);
                    let Some(window) = window else { continue };
                    let rate = report.statuses().next().unwrap().0.algorithm().rate();
                    let truth = rate.count() * window * 1_000_000;
                    assert!(quota * rate.period_micros() <= truth, "{what}");
                    assert!((quota + 1) * rate.period_micros() > truth, "{what}");
                }
            }
            quotas.dedup();
            assert_eq!(quotas.len(), 1, "{name}, {rate}, burst {burst}");
        }
    }
}

#[tokio::test]
async fn attack_40_a_rate_is_a_count_and_says_so() {
    // Four thousand a second, not one in four thousand seconds.
    let site = Site::new(limit("busy", Gcra::new(Rate::per_second(4000))).by(ClientIp::peer()));
    assert_eq!(
        site.admitted((0..4001).map(|_| from("203.0.113.9"))).await,
        4000
    );
    let refused = site.send(from("203.0.113.9")).await;
    assert_eq!(
        field(&refused, "ratelimit-policy"),
        Some("\"busy\";q=4000;w=1")
    );
    site.clock.advance(Duration::from_micros(250));
    assert_eq!(site.admitted((0..2).map(|_| from("203.0.113.9"))).await, 1);
    site.clock.advance(Duration::from_secs(1));
    assert_eq!(
        site.admitted((0..4001).map(|_| from("203.0.113.9"))).await,
        4000
    );

    for (rate, text) in [
        (Rate::per_second(4000), "4000/second"),
        (Rate::per_minute(10), "10/minute"),
        (Rate::new(100, Duration::from_secs(900)), "100/15m"),
    ] {
        assert_eq!((rate.to_string().as_str(), text.parse()), (text, Ok(rate)));
    }
}

#[tokio::test]
async fn attack_43_jitter_spreads_the_return_and_shortens_no_wait() {
    const KEYS: usize = 10_000;
    // The true wait is 20 seconds.
    let by_number = || Extension::by(|key: &u64| *key);
    let (builder, clock, _) = builder(three_by(by_number()));
    let app = |percent| {
        let layer = builder.clone().retry_jitter(percent).build().unwrap();
        Router::new().route("/", any(ok)).layer(layer)
    };
    let (plain, jittered) = (app(0), app(50));
    let ask =
        async |app: &Router, key: usize| send(app, from("203.0.113.9").extension(key as u64)).await;

    let mut spread = HashMap::new();
    for key in 0..KEYS {
        for _ in 0..3 {
            assert_eq!(ask(&jittered, key).await.status(), StatusCode::OK);
        }
        let refused = ask(&jittered, key).await;
        let wait = retry_after(&refused).unwrap();
        // No wait is shorter than the true one, and none is longer than the stated maximum.
        assert!((20..=30).contains(&wait), "{wait}");
        let window = parameter(&refused, "ratelimit", "three", "t").unwrap();
        assert_eq!(u64::try_from(window), Ok(wait));
        *spread.entry(wait).or_insert(0) += 1;
        // The same key gets the same wait again: a repeated request draws no other.
        assert_eq!(retry_after(&ask(&jittered, key).await), Some(wait));
        assert_eq!(retry_after(&ask(&plain, key).await), Some(20));
    }
    // Seconds 21 to 30 are equally likely.
    assert!(
        (21..=30).all(|wait| (700..1300).contains(&spread[&wait])),
        "{spread:?}"
    );
    clock.advance(Duration::from_secs(20));
    assert_eq!(ask(&jittered, 0).await.status(), StatusCode::OK);
}

/// One request of a client: the idle time before it, in milliseconds, and its cost.
type Step = (u64, u64);

fn limits() -> impl Strategy<Value = LimitTree> {
    let names = 0..algorithms(1, Duration::from_secs(1)).len();
    let one = move || {
        (names.clone(), 1..20_u64, 100..100_000_u64).prop_map(|(index, count, millis)| {
            let (_, limit) = algorithms(count, Duration::from_millis(millis)).swap_remove(index);
            limit
        })
    };
    let apart = |one: Limit, other: Limit| [LimitTree::from(one), LimitTree::from(other)];
    let two = (one(), one()).prop_filter("two names", |(one, other)| {
        ThrottleLayer::new(all([one.clone(), other.clone()])).is_ok()
    });
    prop_oneof![
        3 => one().prop_map(LimitTree::from),
        1 => two.clone().prop_map(move |(a, b)| all(apart(a, b))),
        1 => two.prop_map(move |(a, b)| any_of(apart(a, b))),
    ]
}

proptest! {
    #![proptest_config(crate::support::cases(2_000))]

    #[test]
    fn attack_44_a_client_that_waits_exactly_retry_after_is_admitted(
        limits in limits(),
        steps in proptest::collection::vec((0..30_000_u64, 1..25_u64), 1..40),
    ) {
        run(async {
            let site = Site::new(limits);
            for step in steps {
                obey(&site, step).await;
            }
        });
    }
}

async fn obey(site: &Site, (idle, cost): Step) {
    site.clock.advance(Duration::from_millis(idle));
    let response = site.send(costing(cost)).await;
    if response.status() == StatusCode::OK {
        assert_eq!(field(&response, "retry-after"), None);
        return;
    }
    let decision = response
        .extensions()
        .get::<LimitReport>()
        .unwrap()
        .decision()
        .clone();
    let stated = field(&response, "retry-after");
    assert_eq!(stated.is_some(), decision.retry_after().is_some());
    let Some(stated) = stated else { return };
    assert!(stated.bytes().all(|b| b.is_ascii_digit()), "{stated}");
    let wait: u64 = stated.parse().unwrap();
    assert!(wait > 0);
    // No listed window ends later than the wait.
    for (name, parameters) in list(&response, "ratelimit") {
        let t = parameters.iter().find(|(key, _)| key == "t").unwrap().1;
        assert!(t.unsigned_abs() <= wait, "{name}: {t} and {wait}");
    }
    // The wait is no longer than necessary: a second earlier is too early.
    if wait > 1 {
        site.clock.advance(Duration::from_secs(wait - 1));
        assert_eq!(
            site.status(costing(cost)).await,
            StatusCode::TOO_MANY_REQUESTS
        );
        site.clock.advance(Duration::from_secs(1));
    } else {
        site.clock.advance(Duration::from_secs(wait));
    }
    assert_eq!(
        site.status(costing(cost)).await,
        StatusCode::OK,
        "after {wait} s"
    );
}

fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap()
        .block_on(test)
}

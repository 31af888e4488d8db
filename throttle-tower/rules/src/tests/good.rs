//! What a file says equals what the builders say.

use std::convert::Infallible;
use std::time::Duration;

use http::request::{Builder, Parts};
use http::{HeaderMap, Request, Response, StatusCode};
use throttle_core::backend::Call;
use throttle_core::{
    Algorithm, Backend, CalendarQuota, FixedWindow, Gcra, IntervalBucket, IntoAlgorithm, Key,
    LeakyMeter, ManualClock, MemoryBackend, Policy, Rate, SlidingLog, SlidingWindow, TokenBucket,
};
use tokio::time::Instant;
use tower::{Layer, Service, ServiceExt, service_fn};

use super::bad::registry;
use super::requests::Fallible;
use crate::{Registry, Rules};
use throttle_tower::{Constant, LimitState, ThrottleLayer};

pub(crate) const EVERYTHING: &str = include_str!("good/everything.toml");

const BOUNDS: &str = include_str!("good/bounds.toml");

type Memory = MemoryBackend<ManualClock>;

fn rules(text: &str) -> Rules {
    Rules::from_str("f.toml", text, registry()).unwrap_or_else(|error| panic!("{error}"))
}

fn policies(text: &str) -> Vec<Policy> {
    rules(text).tree().policies().unwrap()
}

fn names(text: &str) -> Vec<String> {
    let policies = policies(text);
    policies
        .iter()
        .map(|policy| policy.name().to_owned())
        .collect()
}

/// A limit that all requests share, and what else the file says of it.
fn one_limit(rest: &str) -> String {
    format!("version = 1\n[[limit]]\nname = \"p\"\nby = \"constant\"\n{rest}\n")
}

/// The layer of a file, on a clock that the test moves.
fn layer(rules: &Rules) -> (ThrottleLayer<Memory>, ManualClock) {
    let clock = ManualClock::default();
    let memory = MemoryBackend::builder().clock(clock.clone()).build();
    (rules.layer(memory).unwrap().0, clock)
}

fn head(request: Builder) -> Parts {
    request.body(()).unwrap().into_parts().0
}

/// What a limit says about a request.
async fn asked<B: Backend, T>(
    layer: &ThrottleLayer<B>,
    limit: &str,
    parts: &Parts,
    read: impl FnOnce(LimitState<'_>) -> T,
) -> T {
    let report = layer.peek(parts).await.unwrap().unwrap();
    let limit = report
        .limits()
        .find(|status| status.info.name.as_str() == limit);
    read(limit.unwrap().state)
}

/// The units that are left in a limit.
async fn left(layer: &ThrottleLayer<Memory>, limit: &str) -> u64 {
    let left = |state: LimitState<'_>| match state {
        LimitState::Units(units) => units.status.remaining(),
        state => panic!("{state:?}"),
    };
    asked(layer, limit, &head(Request::get("/")), left).await
}

/// The status of a request that a handler answers with this status and these headers.
async fn send<B: Backend>(
    layer: &ThrottleLayer<B>,
    status: StatusCode,
    headers: &HeaderMap,
) -> StatusCode {
    let handler = service_fn(async |_: Request<()>| {
        let mut response = Response::new(());
        *response.status_mut() = status;
        response.headers_mut().clone_from(headers);
        Ok::<_, Infallible>(response)
    });
    let response = layer
        .layer(handler)
        .oneshot(Request::new(()))
        .await
        .unwrap();
    while layer.settlements().pending > 0 {
        tokio::task::yield_now().await;
    }
    response.status()
}

async fn send_ok<B: Backend>(layer: &ThrottleLayer<B>) -> StatusCode {
    send(layer, StatusCode::OK, &HeaderMap::new()).await
}

fn built(algorithm: impl IntoAlgorithm) -> Algorithm {
    algorithm.into_algorithm().unwrap()
}

#[test]
fn number_at_its_bound_is_accepted() {
    let limits = BOUNDS.matches("[[limit]]").count() + 1;
    assert_eq!(policies(BOUNDS).len(), limits);
}

#[test]
fn algorithms_equal_the_built_ones() {
    let days = |days: u64| Duration::from_secs(days * 86_400);
    let expected = [
        ("gcra", built(Gcra::new(Rate::per_second(10)).burst(20))),
        (
            "bucket",
            built(TokenBucket::new(Rate::per_second(10)).burst(32)),
        ),
        (
            "meter",
            built(LeakyMeter::new(Rate::per_second(10)).capacity(5)),
        ),
        (
            "interval",
            built(
                IntervalBucket::new(100)
                    .refill(10, Duration::from_secs(3_600))
                    .aligned(),
            ),
        ),
        (
            "fixed",
            built(
                FixedWindow::new(Rate::new(100, Duration::from_secs(900)))
                    .offset_micros(-1_800_000_000),
            ),
        ),
        (
            "sliding",
            built(SlidingWindow::new(Rate::per_minute(100)).buckets(6)),
        ),
        (
            "log",
            built(SlidingLog::new(Rate::new(5, Duration::from_secs(900)))),
        ),
        (
            "day",
            built(CalendarQuota::daily(7).utc_offset_minutes(-210)),
        ),
        ("week", built(CalendarQuota::weekly(7))),
        (
            "ten-days",
            built(CalendarQuota::fixed(7, days(10)).utc_offset_minutes(60)),
        ),
        ("thirty-days", built(CalendarQuota::rolling(7, days(30)))),
        ("session", built(Gcra::new(Rate::per_second(5)))),
        ("per-user", built(Gcra::new(Rate::per_minute(600)))),
    ];
    let policies = policies(EVERYTHING);
    let found: Vec<_> = policies
        .iter()
        .map(|policy| (policy.name(), *policy.algorithm()))
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn defaults_of_algorithms_are_those_of_the_builders() {
    let per_second = Rate::per_second(10);
    for (text, expected) in [
        ("gcra = { rate = \"10/s\" }", built(Gcra::new(per_second))),
        (
            "token-bucket = { rate = \"10/s\" }",
            built(TokenBucket::new(per_second)),
        ),
        (
            "leaky-meter = { rate = \"10/s\" }",
            built(LeakyMeter::new(per_second)),
        ),
        (
            "fixed-window = { rate = \"10/s\" }",
            built(FixedWindow::new(per_second)),
        ),
        (
            "sliding-window = { rate = \"10/s\" }",
            built(SlidingWindow::new(per_second)),
        ),
        (
            "interval-bucket = { capacity = 5, refill = 5, interval = \"1s\" }",
            built(IntervalBucket::new(5).refill(5, Duration::from_secs(1))),
        ),
        (
            "interval-bucket = { capacity = 5, refill = 5, interval = \"1s\", aligned = false }",
            built(IntervalBucket::new(5).refill(5, Duration::from_secs(1))),
        ),
        (
            "fixed-window = { rate = \"10/s\", offset = \"500ms\" }",
            built(FixedWindow::new(per_second).offset_micros(500_000)),
        ),
        (
            "calendar-quota = { count = 5, per = \"month\" }",
            built(CalendarQuota::monthly(5)),
        ),
        (
            "calendar-quota = { count = 5, per = \"month\", anchor-day = 15, anchor-hour = 6 }",
            built(CalendarQuota::monthly(5).anchor_day(15).anchor_hour(6)),
        ),
        (
            "calendar-quota = { count = 5, per = \"month\", anchor-day = \"last\" }",
            built(CalendarQuota::monthly(5).anchor_last_day()),
        ),
        (
            "calendar-quota = { count = 5, per = \"week\", anchor-day = 7 }",
            built(CalendarQuota::weekly(5).anchor_day(7)),
        ),
    ] {
        let policies = policies(&one_limit(text));
        assert_eq!(*policies[0].algorithm(), expected, "{text}");
    }
}

#[tokio::test]
async fn options_equal_the_built_ones() {
    let rules = rules(EVERYTHING);
    let (layer, _) = layer(&rules);
    let info = layer.info();
    let of = |name: &str| {
        let limit = info
            .limits()
            .iter()
            .find(|limit| limit.name.as_str() == name);
        limit.unwrap()
    };
    let gcra = of("gcra");
    assert_eq!(gcra.wait_up_to, Some(Duration::from_millis(500)));
    assert_eq!(gcra.warn_at_millionths, Some(750_000));
    assert!(gcra.corrects && !gcra.settled_later && !gcra.bans);
    let classes = [("critical", 0), ("normal", 4), ("batch", 12)];
    let classes = classes.map(|(class, reserve)| (class.to_owned(), reserve));
    assert_eq!(*gcra.classes, classes, "the least reserve is the highest");
    assert_eq!(gcra.policy.as_ref().unwrap().unit(), Some("content-bytes"));
    let known =
        Request::get("/").extension(throttle_tower::extract::PeerAddr([192, 0, 2, 1].into()));
    let costs = |state: LimitState<'_>| match state {
        LimitState::Units(units) => Some((units.cost, units.reserve)),
        _ => None,
    };
    assert_eq!(
        asked(&layer, "gcra", &head(known), costs).await,
        Some((3, 4))
    );
    let missing = |state: LimitState<'_>| match state {
        LimitState::NoKey(status) => Some(status),
        _ => None,
    };
    let unknown = head(Request::get("/"));
    let status = asked(&layer, "gcra", &unknown, missing).await;
    assert_eq!(status, Some(Some(StatusCode::UNAUTHORIZED)));
    let default = asked(&layer, "sliding", &unknown, missing).await;
    assert_eq!(default, Some(None), "as the file says for all");
    assert!(of("log").bans && of("session").settled_later);
    assert!(of("per-user").corrects && of("per-user").looks_up);
    let permits = info
        .limits()
        .iter()
        .filter_map(|limit| Some((limit.name.as_str(), limit.permits?)));
    assert_eq!(
        permits.collect::<Vec<_>>(),
        [("in-flight", 200), ("uploads", 4)]
    );
}

#[tokio::test]
async fn ban_and_its_strikes_are_those_of_the_file() {
    let ban = "ban = { after = 2, lasting = \"5m\", growing = 3, even-if-spoofable = true }\nstrike-if = [401, 403]";
    let rules = rules(&one_limit(&format!(
        "fixed-window = {{ rate = \"99/m\" }}\n{ban}"
    )));
    let (layer, clock) = layer(&rules);
    let wait = async || {
        layer
            .peek(&head(Request::get("/")))
            .await
            .unwrap()
            .unwrap()
            .retry_after()
    };
    let answer = async |statuses: [u16; 2]| {
        for status in statuses {
            let status = StatusCode::from_u16(status).unwrap();
            assert_eq!(send(&layer, status, &HeaderMap::new()).await, status);
        }
    };
    answer([400, 401]).await;
    assert_eq!(wait().await, Some(Duration::ZERO), "one strike");
    answer([200, 403]).await;
    assert_eq!(wait().await, Some(Duration::from_secs(300)));
    clock.advance(Duration::from_secs(300));
    answer([401, 401]).await;
    assert_eq!(
        wait().await,
        Some(Duration::from_secs(900)),
        "three times as long"
    );
}

#[tokio::test(start_paused = true)]
async fn future_of_a_key_has_the_deadline_of_the_file() {
    for (deadline, millis) in [("", 1_000), ("key-deadline = \"200ms\"", 200)] {
        let registry = Registry::new().key_async("slow", |_| std::future::pending::<Option<u64>>());
        let limit =
            "version = 1\n[[limit]]\nname = \"p\"\nby = \"slow\"\ngcra = { rate = \"1/s\" }";
        let rules = Rules::from_str("f", &format!("{limit}\n{deadline}"), registry).unwrap();
        let (layer, _) = layer(&rules);
        let start = Instant::now();
        layer.peek(&head(Request::get("/"))).await.unwrap();
        assert_eq!(start.elapsed().as_millis(), millis, "{deadline}");
    }
}

#[test]
fn tiers_keep_the_order_of_the_file() {
    let policies = policies(EVERYTHING);
    let users = policies.iter().find(|policy| policy.is_tiered()).unwrap();
    assert_eq!(
        (users.tier_name(0), users.tier_name(1)),
        (Some("pro"), Some("free"))
    );
}

#[tokio::test]
async fn composition_decides_as_the_file_nests_it() {
    let limit = |name| {
        format!(
            "[[limit]]\nname = \"{name}\"\nby = \"constant\"\nfixed-window = {{ rate = \"9/m\" }}\n"
        )
    };
    let limits: String = ["a", "b", "c", "d", "e"].map(limit).concat();
    for (charge, first) in [
        ("", "a b e"),
        (", charge = \"first\"", "a b e"),
        (", charge = \"every-admitting\"", "a b c d e"),
    ] {
        for (used_up, charged) in [
            ("", first),
            ("b", "a c d e"),
            ("c", "a b e"),
            ("b d", ""),
            ("a", ""),
            ("e", ""),
        ] {
            let any = format!("{{ any = [\"b\", {{ all = [\"c\", \"d\"] }}]{charge} }}");
            let rules = rules(&format!(
                "version = 1\ncompose = [\"a\", {any}, {{ all = [\"e\"] }}]\n{limits}"
            ));
            let (layer, _) = layer(&rules);
            for name in used_up.split_whitespace() {
                assert!(layer.drain(name, &Call::from(Key::CONSTANT)).await.unwrap());
            }
            let status = send_ok(&layer).await;
            assert_eq!(
                status.is_success(),
                !charged.is_empty(),
                "without {used_up}{charge}"
            );
            let mut found = Vec::new();
            for name in ["a", "b", "c", "d", "e"] {
                if left(&layer, name).await == 8 {
                    found.push(name);
                }
            }
            assert_eq!(found.join(" "), charged, "without {used_up}{charge}");
        }
    }
}

#[test]
fn limits_of_all_kinds_keep_the_order_of_the_file_without_compose() {
    let limit = |name| {
        format!("[[limit]]\nname = \"{name}\"\nby = \"constant\"\ngcra = {{ rate = \"1/s\" }}\n")
    };
    let plans = "[[plans]]\nname = \"b\"\nby = \"constant\"\nlookup = \"plan-of\"\nunknown \
        = \"free\"\n\
                 tiers = { free = { gcra = { rate = \"1/s\" } } }\n";
    let text = format!("version = 1\n{}{plans}{}", limit("a"), limit("c"));
    assert_eq!(names(&text), ["a", "b", "c"]);
}

#[test]
fn path_of_no_regular_file_is_refused() {
    let error = Rules::from_path(std::env::temp_dir(), registry()).unwrap_err();
    assert!(error.to_string().contains("not a regular file"), "{error}");
    #[cfg(unix)]
    assert!(
        Rules::from_path("/dev/null", registry())
            .unwrap_err()
            .to_string()
            .contains("not a regular file")
    );
}

#[test]
fn client_ip_is_that_of_the_file() {
    let rules = Rules::from_str(
        "f",
        "version = 1\nlimit = []\nclient-ip.source = \"fly-io\"",
        registry(),
    )
    .unwrap();
    assert_eq!(*rules.client_ip(), throttle_tower::ClientIp::fly_io());
}

#[tokio::test]
async fn flags_that_are_false_are_as_if_they_were_absent() {
    for flags in ["", "charge-refused = false\nsettled-later = false"] {
        let rules = rules(&one_limit(&format!("gcra = {{ rate = \"1/m\" }}\n{flags}")));
        let (layer, _) = layer(&rules);
        let info = layer.info();
        let limit = &info.limits()[0];
        assert!(!limit.corrects && !limit.settled_later && !limit.bans && !limit.looks_up);
        assert_eq!(
            (
                limit.wait_up_to,
                limit.warn_at_millionths,
                limit.classes.len()
            ),
            (None, None, 0)
        );
        assert_eq!(limit.policy.as_ref().unwrap().unit(), None);
        let cost = |state: LimitState<'_>| match state {
            LimitState::Units(units) => units.cost,
            state => panic!("{state:?}"),
        };
        assert_eq!(asked(&layer, "p", &head(Request::get("/")), cost).await, 1);
    }
}

#[tokio::test]
async fn refused_requests_are_charged_if_the_file_says_so() {
    for (rest, is_charged) in [
        ("", false),
        ("charge-refused = false", false),
        ("charge-refused = true", true),
    ] {
        let other = "[[limit]]\nname = \"q\"\nby = \"constant\"\nfixed-window = { rate = \"1/m\" }";
        let limit = one_limit(&format!("fixed-window = {{ rate = \"9/m\" }}\n{rest}"));
        let (layer, _) = layer(&rules(&(limit + other)));
        assert_eq!(send_ok(&layer).await, StatusCode::OK);
        assert_eq!(send_ok(&layer).await, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(left(&layer, "p").await, 8 - u64::from(is_charged), "{rest}");
    }
}

#[tokio::test]
async fn each_refund_gives_back_what_it_is_named_after() {
    for (refund, refunded, is_aborted) in [
        ("successful", [true, true, false, false], false),
        ("failed", [false, false, true, true], false),
        ("server-errors", [false, false, false, true], false),
        ("aborted", [false; 4], true),
        ("cached", [false; 4], false),
    ] {
        let rules = rules(&one_limit(&format!(
            "fixed-window = {{ rate = \"9/m\" }}\nrefund = \"{refund}\""
        )));
        for (status, is_refunded) in [200, 302, 404, 503].into_iter().zip(refunded) {
            let (layer, _) = layer(&rules);
            send(
                &layer,
                StatusCode::from_u16(status).unwrap(),
                &HeaderMap::new(),
            )
            .await;
            assert_eq!(
                left(&layer, "p").await,
                8 + u64::from(is_refunded),
                "{refund} {status}"
            );
        }
        let (layer, _) = layer(&rules);
        let handler =
            service_fn(|_: Request<()>| std::future::pending::<Result<Response<()>, Infallible>>());
        let aborted = tokio::spawn(layer.layer(handler).call(Request::new(())));
        while left(&layer, "p").await == 9 {
            tokio::task::yield_now().await;
        }
        aborted.abort();
        assert!(aborted.await.is_err());
        while layer.settlements().pending > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(
            left(&layer, "p").await,
            8 + u64::from(is_aborted),
            "{refund}"
        );
    }
}

#[tokio::test]
async fn registered_refund_reads_the_status_and_the_headers() {
    let registry = Registry::new().refund("hit", |status, headers| {
        status == 304 || headers.get("x-cache").is_some()
    });
    let text = one_limit("fixed-window = { rate = \"9/m\" }\nrefund = \"hit\"");
    let rules = Rules::from_str("f", &text, registry).unwrap();
    let (none, mut hit) = (HeaderMap::new(), HeaderMap::new());
    hit.insert("x-cache", "hit".parse().unwrap());
    for (status, headers, expected) in [
        (StatusCode::NOT_MODIFIED, &none, 9),
        (StatusCode::OK, &hit, 9),
        (StatusCode::OK, &none, 8),
    ] {
        let (layer, _) = layer(&rules);
        send(&layer, status, headers).await;
        assert_eq!(left(&layer, "p").await, expected, "{status} {headers:?}");
    }
}

#[tokio::test]
async fn estimate_of_zero_counts_as_one() {
    let rules = rules(&one_limit(
        "fixed-window = { rate = \"9/m\" }\ncost = 0\nsettled-later = true",
    ));
    let (layer, _) = layer(&rules);
    send_ok(&layer).await;
    assert_eq!(left(&layer, "p").await, 8);
}

#[tokio::test]
async fn missing_key_has_the_rule_of_its_limit_or_of_the_file() {
    // For a limit on a rate and for one on requests in flight.
    for limit in [
        "[[limit]]\nname = \"p\"\nby = \"header:x-user\"\ngcra = { rate = \"1/s\" }",
        "[[concurrency]]\nname = \"p\"\nby = \"header:x-user\"\nmost = 2",
    ] {
        for (defaults, rest, expected) in [
            ("", "", Err("shared")),
            ("on-missing = \"skip\"", "", Ok(None)),
            (
                "on-missing = \"skip\"",
                "on-missing = \"share\"",
                Err("shared"),
            ),
            ("", "on-missing = { reject = 400 }", Ok(Some(400))),
            ("", "on-missing = { reject = 599 }", Ok(Some(599))),
        ] {
            let text = format!("version = 1\n[defaults]\n{defaults}\n{limit}\n{rest}");
            let (layer, _) = layer(&rules(&text));
            let rule = |state: LimitState<'_>| match state {
                LimitState::NoKey(status) => Ok(status.map(|status| status.as_u16())),
                LimitState::Units(units) if units.key == Some(&Key::missing()) => Err("shared"),
                LimitState::Permits { key, .. } if *key == Key::missing() => Err("shared"),
                _ => Err("another state"),
            };
            let found = asked(&layer, "p", &head(Request::get("/")), rule).await;
            assert_eq!(found, expected, "{text}");
        }
    }
}

#[tokio::test]
async fn failing_store_has_the_rule_of_the_limit_or_of_the_file() {
    for (defaults, rest, expected) in [
        ("on-error = \"open\"", "", [200, 200, 200]),
        ("on-error = \"closed\"", "", [503, 503, 503]),
        (
            "on-error = \"open\"",
            "on-error = \"closed\"",
            [503, 503, 503],
        ),
        (
            "on-error = \"open\"",
            "on-error = \"local/4\"",
            [200, 200, 429],
        ),
        (
            "on-error = \"closed\"",
            "on-error = \"local/8\"",
            [200, 429, 429],
        ),
    ] {
        let limit = one_limit("fixed-window = { rate = \"8/day\" }");
        let rules = rules(&format!("{limit}{rest}\n[defaults]\n{defaults}"));
        let mut backend = Fallible::new(
            MemoryBackend::builder()
                .clock(ManualClock::default())
                .build(),
        );
        backend.fails = true;
        let (layer, _) = rules.layer(backend).unwrap();
        let mut statuses = [0; 3];
        for status in &mut statuses {
            *status = send_ok(&layer).await.as_u16();
        }
        assert_eq!(statuses, expected, "{defaults} {rest}");
    }
}

#[tokio::test]
async fn permits_are_asked_for_as_the_file_says() {
    let parts = |method: &str, peer: Option<[u8; 4]>| {
        let request = Request::builder().method(method);
        head(match peer {
            Some(peer) => request.extension(throttle_tower::extract::PeerAddr(peer.into())),
            None => request,
        })
    };
    let (layer, _) = layer(&rules(EVERYTHING));
    let needed = |state: LimitState<'_>| match state {
        LimitState::Permits { needed, key, .. } => Some((key.clone(), needed)),
        _ => None,
    };
    let asked = async |limit, parts: Parts| asked(&layer, limit, &parts, needed).await;
    let all = asked("in-flight", parts("GET", None)).await;
    assert_eq!(all, Some((Key::CONSTANT, 1)));
    assert_eq!(
        asked("uploads", parts("GET", None)).await,
        None,
        "it is for PUT"
    );
    let unknown = asked("uploads", parts("PUT", None)).await;
    assert_eq!(unknown, Some((Key::missing(), 2)));
    let of = async |client| asked("uploads", parts("PUT", Some([192, 0, 2, client]))).await;
    let (first, second) = (of(1).await, of(2).await);
    assert!(first != second && first == of(1).await && first.is_some());
}

#[test]
fn every_permit_may_be_taken_by_one_request() {
    let (layer, _) = layer(&rules("version = 1\n[[concurrency]]\nmost = 2\ncost = 2"));
    let info = layer.info();
    let limit = &info.limits()[0];
    assert_eq!((limit.name.as_str(), limit.permits), ("in-flight", Some(2)));
}

#[test]
fn composition_is_bounded_in_an_any_alone() {
    let count = |kind: &str, count: usize| {
        let names: Vec<String> = (0..count).map(|n| format!("\"{n}\"")).collect();
        let limit = |n| {
            format!("[[limit]]\nname = \"{n}\"\nby = \"constant\"\ngcra = {{ rate = \"1/s\" }}\n")
        };
        let limits: String = (0..count).map(limit).collect();
        let text = format!(
            "version = 1\ncompose = {{ {kind} = [{}] }}\n{limits}",
            names.join(", ")
        );
        policies(&text).len()
    };
    assert_eq!((count("any", 16), count("all", 17)), (16, 17));
    let one = one_limit("gcra = { rate = \"1/s\" }");
    assert_eq!(names(&one.replace("[[", "compose = \"p\"\n[[")), ["p"]);
}

/// The places of the limits in the composition are those of `compose`, not those of the file.
#[test]
fn compose_puts_each_limit_where_it_is_named() {
    let limit = |name| {
        format!("[[limit]]\nname = \"{name}\"\nby = \"constant\"\ngcra = {{ rate = \"1/s\" }}\n")
    };
    let permits = "[[concurrency]]\nname = \"d\"\nmost = 5\n";
    let text = format!(
        "version = 1\ncompose = [\"c\", \"d\", \"a\", \"b\"]\n{permits}{}{}{}",
        limit("a"),
        limit("b"),
        limit("c")
    );
    assert_eq!(names(&text), ["c", "a", "b"]);
}

#[test]
fn prefixes_are_accepted_at_both_ends() {
    for prefix in ["ipv4 = 1", "ipv4 = 32", "ipv6 = 1", "ipv6 = 128", ""] {
        let text = format!(
            "version = 1\n[[limit]]\nname = \"p\"\ngcra = {{ rate = \"1/s\" }}\nby = {{ client-ip \
                = {{ {prefix} }} }}"
        );
        assert_eq!(policies(&text).len(), 1, "{prefix}");
    }
}

#[test]
fn error_of_a_path_begins_with_the_path() {
    let path = std::env::temp_dir().join(format!(
        "throttle-rules-missing-{}.toml",
        std::process::id()
    ));
    let error = Rules::from_path(&path, Registry::new()).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with(&format!("{}: the file cannot be read: ", path.display())),
        "{error}"
    );
    assert_eq!((error.problems().len(), error.more()), (1, 0));
    std::fs::write(&path, "version = 2\nlimit = []").unwrap();
    let error = Rules::from_path(&path, Registry::new()).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with(&format!("{}:1:11: version is 2: ", path.display())),
        "{error}"
    );
    std::fs::remove_file(&path).unwrap();
}

/// Not all systems have such names.
#[cfg(target_os = "linux")]
#[test]
fn file_whose_name_is_no_text_is_read_again() {
    use std::os::unix::ffi::OsStrExt as _;

    let name = [
        &b"throttle-rules-\xff\xe9-"[..],
        std::process::id().to_string().as_bytes(),
    ]
    .concat();
    let path = std::env::temp_dir().join(std::ffi::OsStr::from_bytes(&name));
    std::fs::write(&path, "version = 1\nlimit = []").unwrap();
    let (_layer, handle) = Rules::from_path(&path, Registry::new())
        .unwrap()
        .layer(MemoryBackend::new())
        .unwrap();
    std::fs::write(&path, "version = 1\nlimit = []\nlayer.max-waiting = 7").unwrap();
    assert_eq!(handle.reload().unwrap().revision, 2);
    std::fs::remove_file(&path).unwrap();
    assert!(
        handle
            .reload()
            .unwrap_err()
            .to_string()
            .contains("throttle-rules-\u{fffd}\u{fffd}-")
    );
}

#[test]
fn file_has_at_most_a_mebibyte() {
    let path =
        std::env::temp_dir().join(format!("throttle-rules-long-{}.toml", std::process::id()));
    let limits = "version = 1\nlimit = []\n#";
    let read = |length: usize| {
        std::fs::write(
            &path,
            limits.to_owned() + &"x".repeat(length - limits.len()),
        )
        .unwrap();
        Rules::from_path(&path, Registry::new())
    };
    assert!(read(1 << 20).is_ok());
    for length in [(1 << 20) + 1, (1 << 20) + 2] {
        let error = read(length).unwrap_err();
        let rule = "the file is too long: it can have at most 1048576 bytes (1 MiB)";
        assert_eq!(
            (error.problems()[0].message(), error.problems()[0].line()),
            (rule, None)
        );
    }
    // As a text, too.
    let error = Rules::from_str("f", &"#".repeat((1 << 20) + 1), Registry::new()).unwrap_err();
    assert_eq!(
        (error.problems().len(), error.problems()[0].line()),
        (1, None)
    );
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn line_that_is_no_text_is_counted_from_one() {
    let path =
        std::env::temp_dir().join(format!("throttle-rules-bytes-{}.toml", std::process::id()));
    for (bytes, line) in [(&b"\xff"[..], 1), (b"# a\n# b\n\n# \xe9\n", 4)] {
        std::fs::write(&path, bytes).unwrap();
        let error = Rules::from_path(&path, Registry::new()).unwrap_err();
        let rule = format!(
            "the file is not UTF-8: line {line} has bytes of another encoding; save it as UTF-8"
        );
        assert_eq!(
            (error.problems()[0].message(), error.problems()[0].column()),
            (&*rule, None)
        );
    }
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn registered_names_that_are_refused_say_what_they_name() {
    let key = || Registry::new().key("k", Constant);
    let cost = || Registry::new().cost("k", |_| 1);
    let condition = || Registry::new().condition("k", |_| true);
    let lookup = || Registry::new().lookup("k", |_| async { Some("free") });
    let refund = || Registry::new().refund("k", |_, _| true);
    let classes = || Registry::new().classes("k", |_| "low");
    for (registry, what) in [
        (key().key_async("k", |_| async { Some(1) }), "key"),
        (cost().cost("k", |_| 1), "cost"),
        (condition().condition("k", |_| true), "condition"),
        (lookup().lookup("k", |_| async { Some("free") }), "lookup"),
        (refund().refund("k", |_, _| true), "refund"),
        (classes().classes("k", |_| "low"), "classes"),
    ] {
        let error = Rules::from_str("f", "version = 1\nlimit = []", registry).unwrap_err();
        let text = format!(
            "f: the {what} \"k\" is registered twice: register one of them under another name"
        );
        assert_eq!(error.to_string(), text);
    }
    let built_in = |what: &str, name: &str| {
        let rule = "has the name of one that is built in: register it under another name";
        format!("f: the registered {what} {name:?} {rule}")
    };
    let error = |registry| {
        Rules::from_str("f", "version = 1\nlimit = []", registry)
            .unwrap_err()
            .to_string()
    };
    for name in [
        "client-ip",
        "constant",
        "host",
        "method",
        "route",
        "header:",
    ] {
        assert_eq!(
            error(Registry::new().key(name, Constant)),
            built_in("key", name)
        );
    }
    assert_eq!(
        error(Registry::new().condition("preflight", |_| true)),
        built_in("condition", "preflight")
    );
    for name in ["successful", "failed", "server-errors", "aborted"] {
        assert_eq!(
            error(Registry::new().refund(name, |_, _| true)),
            built_in("refund", name)
        );
    }
    // A name of one kind is free for the others.
    let registry = key()
        .cost("k", |_| 1)
        .condition("k", |_| true)
        .refund("k", |_, _| true)
        .cost("route", |_| 1);
    assert!(Rules::from_str("f", "version = 1\nlimit = []", registry).is_ok());
}

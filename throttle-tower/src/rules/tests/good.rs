//! What a file says equals what the builders say.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use throttle_core::{
    Algorithm, AnyCharge, CalendarQuota, Carry, FixedWindow, Gcra, IntervalBucket, IntoAlgorithm, LeakyMeter,
    MemoryBackend, PolicyNode, Rate, SlidingLog, SlidingWindow, TokenBucket,
};

use super::bad::registry;
use crate::limit::{Applied, Compiled};
use crate::rules::{Registry, Rules};
use crate::{OnError, OnMissing};

const EVERYTHING: &str = include_str!("good/everything.toml");

fn compiled(text: &str) -> Compiled {
    let rules = Rules::from_str("f.toml", text, registry()).unwrap_or_else(|error| panic!("{error}"));
    rules.tree().compile().unwrap()
}

fn built(algorithm: impl IntoAlgorithm) -> Algorithm {
    algorithm.into_algorithm().unwrap()
}

#[test]
fn algorithms_equal_the_built_ones() {
    let days = |days: u64| Duration::from_secs(days * 86_400);
    let expected = [
        ("gcra", built(Gcra::new(Rate::per_second(10)).burst(20))),
        ("bucket", built(TokenBucket::new(Rate::per_second(10)).burst(32))),
        ("meter", built(LeakyMeter::new(Rate::per_second(10)).capacity(5))),
        ("interval", built(IntervalBucket::new(100).refill(10, Duration::from_secs(3_600)).aligned())),
        ("fixed", built(FixedWindow::new(Rate::new(100, Duration::from_secs(900))).offset_micros(-1_800_000_000))),
        ("sliding", built(SlidingWindow::new(Rate::per_minute(100)).buckets(6))),
        ("log", built(SlidingLog::new(Rate::new(5, Duration::from_secs(900))))),
        ("day", built(CalendarQuota::daily(7).utc_offset_minutes(-210))),
        ("week", built(CalendarQuota::weekly(7))),
        ("ten-days", built(CalendarQuota::fixed(7, days(10)).utc_offset_minutes(60))),
        ("thirty-days", built(CalendarQuota::rolling(7, days(30)))),
        ("session", built(Gcra::new(Rate::per_second(5)))),
        ("per-user", built(Gcra::new(Rate::per_minute(600)))),
    ];
    let compiled = compiled(EVERYTHING);
    let policies = compiled.set.policies();
    let found: Vec<_> = policies.iter().map(|policy| (policy.name(), *policy.algorithm())).collect();
    assert_eq!(found, expected);
}

#[test]
fn defaults_of_algorithms_are_those_of_the_builders() {
    let per_second = Rate::per_second(10);
    for (text, expected) in [
        ("gcra = { rate = \"10/s\" }", built(Gcra::new(per_second))),
        ("token-bucket = { rate = \"10/s\" }", built(TokenBucket::new(per_second))),
        ("leaky-meter = { rate = \"10/s\" }", built(LeakyMeter::new(per_second))),
        ("fixed-window = { rate = \"10/s\" }", built(FixedWindow::new(per_second))),
        ("sliding-window = { rate = \"10/s\" }", built(SlidingWindow::new(per_second))),
        (
            "interval-bucket = { capacity = 5, refill = 5, interval = \"1s\" }",
            built(IntervalBucket::new(5).refill(5, Duration::from_secs(1))),
        ),
        ("calendar-quota = { count = 5, per = \"month\" }", built(CalendarQuota::monthly(5))),
    ] {
        let text = format!("version = 1\n[[limit]]\nname = \"p\"\nby = \"constant\"\n{text}\n");
        assert_eq!(*compiled(&text).set.policies()[0].algorithm(), expected, "{text}");
    }
}

#[test]
fn options_equal_the_built_ones() {
    let compiled = compiled(EVERYTHING);
    let of = |name: &str| -> &Applied {
        let place = compiled.set.policies().iter().position(|policy| policy.name() == name).unwrap();
        &compiled.applied[place]
    };
    let (parts, ()) = http::Request::new(()).into_parts();
    let gcra = of("gcra");
    assert_eq!(gcra.cost.as_ref().map(|cost| cost(&parts)), Some(3));
    assert_eq!(gcra.on_missing, OnMissing::Reject(StatusCode::UNAUTHORIZED));
    assert_eq!((gcra.on_error, gcra.wait_up_to), (Some(OnError::Open), Some(Duration::from_millis(500))));
    assert!(gcra.charge_rules.charge_refused && gcra.charge_rules.refund_aborted && !gcra.charge_rules.settled_later);
    let refunds = |status| gcra.charge_rules.refunds(status, &http::HeaderMap::new());
    assert!(refunds(StatusCode::NOT_FOUND) && refunds(StatusCode::BAD_GATEWAY) && !refunds(StatusCode::OK));
    let session = of("session");
    assert!(session.charge_rules.settled_later);
    assert_eq!(session.key_deadline, Duration::from_millis(200));
    // The defaults of the file.
    assert_eq!((session.on_missing, session.on_error), (OnMissing::Skip, Some(OnError::Closed)));
    let users = of("per-user");
    assert_eq!(users.on_error, Some(OnError::local(4)));
    assert!(users.charge_rules.refunds(StatusCode::OK, &http::HeaderMap::new()));
    let policies = compiled.set.policies();
    assert_eq!(policies[0].unit(), Some("content-bytes"));
    assert!(policies.iter().all(|policy| policy.replaces_existing() == (policy.name() == "thirty-days")));
}

#[test]
fn tiers_keep_the_order_of_the_file() {
    let compiled = compiled(EVERYTHING);
    let users = compiled.set.policies().iter().find(|policy| policy.is_tiered()).unwrap();
    assert_eq!((users.tier_name(0), users.tier_name(1)), (Some("pro"), Some("free")));
    assert_eq!(users.carry(), Carry::Proportional);
}

#[test]
fn composition_has_the_shape_of_the_file() {
    use PolicyNode::{All, Any, Policy};
    let compiled = compiled(EVERYTHING);
    let shape: Vec<PolicyNode> = compiled.set.tree().map(|(node, _)| node).collect();
    let start = [All, Policy(0), Any(AnyCharge::EveryAdmitting), Policy(1), All, Policy(2), Policy(3), All, Policy(4)];
    assert_eq!(shape[..start.len()], start);
    let names: Vec<_> = compiled.concurrency.iter().map(|(name, limit)| (name.as_str(), limit.most)).collect();
    assert_eq!(names, [("in-flight", 200), ("uploads", 4)]);
}

#[test]
fn limits_of_all_kinds_keep_the_order_of_the_file_without_compose() {
    let limit = |name| format!("[[limit]]\nname = \"{name}\"\nby = \"constant\"\ngcra = {{ rate = \"1/s\" }}\n");
    let plans = "[[plans]]\nname = \"b\"\nby = \"constant\"\nlookup = \"plan-of\"\nunknown = \"free\"\n\
                 tiers = { free = { gcra = { rate = \"1/s\" } } }\n";
    let text = format!("version = 1\n{}{plans}{}", limit("a"), limit("c"));
    let names: Vec<_> = compiled(&text).set.policies().iter().map(|policy| policy.name().to_owned()).collect();
    assert_eq!(names, ["a", "b", "c"]);
}

#[test]
fn file_that_says_that_there_is_no_limit_admits_everything() {
    let rules = Rules::from_str("f", "version = 1\nlimit = []", Registry::new()).unwrap();
    assert!(rules.layer(MemoryBackend::new()).is_ok());
    assert!(rules.tree().compile().unwrap().set.policies().is_empty());
}

#[test]
fn registered_name_must_not_hide_a_built_in_one() {
    let registry = Registry::new()
        .key("client-ip", crate::Constant)
        .key("header:x", crate::Constant)
        .condition("preflight", |_| true)
        .refund("failed", |_, _| true);
    let error = Rules::from_str("f", "version = 1\nlimit = []", registry).unwrap_err();
    assert_eq!(error.problems().len(), 4);
    assert!(error.problems().iter().all(|problem| problem.line().is_none()));
    let first =
        "f: the registered key \"client-ip\" has the name of one that is built in: register it under another name";
    assert_eq!(error.problems()[0].to_string(), first);
}

#[test]
fn name_that_is_registered_twice_is_refused() {
    let registry = registry()
        .key("api-key", crate::Constant)
        .key_async("session", |_| async { Some(8) })
        .cost("tokens", |_| 2)
        .condition("internal", |_| true)
        .lookup("plan-of", |_| async { Some("pro") })
        .refund("cached", |_, _| true);
    let error = Rules::from_str("f", "version = 1\nlimit = []", registry).unwrap_err();
    assert_eq!(error.problems().len(), 6);
    assert!(error.problems().iter().all(|problem| problem.message().contains("is registered twice")), "{error}");
}

#[test]
fn defaults_replace_limits_in_use() {
    let limit = |name: &str, rest: &str| {
        format!("[[limit]]\nname = \"{name}\"\nby = \"constant\"\ngcra = {{ rate = \"1/s\" }}\n{rest}\n")
    };
    let text = "version = 1\ndefaults = { replace-existing = true }\n".to_owned()
        + &limit("a", "")
        + &limit("b", "replace-existing = false");
    let compiled = compiled(&text);
    let replaces: Vec<bool> = compiled.set.policies().iter().map(|policy| policy.replaces_existing()).collect();
    assert_eq!(replaces, [true, false]);
}

#[test]
fn path_of_no_regular_file_is_refused() {
    let error = Rules::from_path(std::env::temp_dir(), registry()).unwrap_err();
    assert!(error.to_string().contains("not a regular file"), "{error}");
    #[cfg(unix)]
    assert!(Rules::from_path("/dev/null", registry()).unwrap_err().to_string().contains("not a regular file"));
}

#[test]
fn client_ip_is_that_of_the_file() {
    let rules = Rules::from_str("f", "version = 1\nlimit = []\nclient-ip.source = \"fly-io\"", registry()).unwrap();
    assert_eq!(*rules.client_ip(), crate::ClientIp::fly_io());
}

#[test]
fn file_is_read_again_with_the_same_registry() {
    let path = std::env::temp_dir().join(format!("throttle-rules-{}.toml", std::process::id()));
    std::fs::write(&path, EVERYTHING).unwrap();
    let rules = Rules::from_path(&path, registry()).unwrap_or_else(|error| panic!("{error}"));
    std::fs::write(&path, "version = 1\nlimit = []").unwrap();
    let again = rules.read_again().unwrap();
    assert_eq!(again.tree().compile().unwrap().set.policies().len(), 0);
    assert_eq!(rules.tree().compile().unwrap().set.policies().len(), 13, "the former rules stay as they are");
    std::fs::write(&path, b"version = 1\n# \xff").unwrap();
    assert!(rules.read_again().unwrap_err().to_string().contains("not UTF-8: line 2"));
    std::fs::remove_file(&path).unwrap();
    let error = rules.read_again().unwrap_err();
    assert!(error.to_string().contains("cannot be read"), "{error}");
    assert_eq!(error.problems()[0].line(), None);
    let source = std::error::Error::source(&error).and_then(|source| source.downcast_ref::<std::io::Error>());
    assert_eq!(source.map(std::io::Error::kind), Some(std::io::ErrorKind::NotFound));
    let text = Rules::from_str("f", EVERYTHING, registry()).unwrap();
    assert!(Arc::ptr_eq(&text.text, &text.read_again().unwrap().text));
}

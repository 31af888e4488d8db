//! What a file says equals what the builders say.

use std::time::Duration;

use http::{HeaderMap, StatusCode};
use throttle_core::{
    Algorithm, AnyCharge, CalendarQuota, FixedWindow, Gcra, IntervalBucket, IntoAlgorithm, Key,
    LeakyMeter, MemoryBackend, PolicyNode, Rate, SlidingLog, SlidingWindow, TokenBucket,
};

use super::bad::registry;
use crate::limit::{Applied, Ban, Compiled, PermitLimit, WarnAt, select};
use crate::rules::{Registry, Rules};
use crate::{OnError, OnMissing};

pub(in crate::rules) const EVERYTHING: &str = include_str!("good/everything.toml");

const BOUNDS: &str = include_str!("good/bounds.toml");

fn compiled(text: &str) -> Compiled {
    let rules =
        Rules::from_str("f.toml", text, registry()).unwrap_or_else(|error| panic!("{error}"));
    rules.tree().compile().unwrap()
}

fn built(algorithm: impl IntoAlgorithm) -> Algorithm {
    algorithm.into_algorithm().unwrap()
}

#[test]
fn number_at_its_bound_is_accepted() {
    let policies = compiled(BOUNDS).set.policies().len();
    assert_eq!(policies, BOUNDS.matches("[[limit]]").count() + 1);
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
    let compiled = compiled(EVERYTHING);
    let policies = compiled.set.policies();
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
        let text = format!("version = 1\n[[limit]]\nname = \"p\"\nby = \"constant\"\n{text}\n");
        assert_eq!(
            *compiled(&text).set.policies()[0].algorithm(),
            expected,
            "{text}"
        );
    }
}

#[test]
fn options_equal_the_built_ones() {
    let compiled = compiled(EVERYTHING);
    let of = |name: &str| -> &Applied {
        let place = compiled
            .set
            .policies()
            .iter()
            .position(|policy| policy.name() == name)
            .unwrap();
        &compiled.applied[place]
    };
    let (parts, ()) = http::Request::new(()).into_parts();
    let gcra = of("gcra");
    assert_eq!(gcra.cost.as_ref().map(|cost| cost(&parts)), Some(3));
    assert_eq!(gcra.on_missing, OnMissing::Reject(StatusCode::UNAUTHORIZED));
    assert_eq!(
        (gcra.on_error, gcra.wait_up_to),
        (Some(OnError::Open), Some(Duration::from_millis(500)))
    );
    assert_eq!(gcra.warn_at, Some(WarnAt::of(0.75).unwrap()));
    assert!(
        gcra.charge_rules.charge_refused
            && gcra.charge_rules.refund_aborted
            && !gcra.charge_rules.settled_later
    );
    let refunds = |status| gcra.charge_rules.refunds(status, &HeaderMap::new());
    assert!(
        refunds(StatusCode::NOT_FOUND)
            && refunds(StatusCode::BAD_GATEWAY)
            && !refunds(StatusCode::OK)
    );
    let priority = gcra.priority.as_ref().unwrap();
    let classes = [("critical", 0), ("normal", 4), ("batch", 12)]
        .map(|(class, reserve)| (class.to_owned(), reserve));
    assert_eq!(
        (priority.classes(), priority.reserve(&parts)),
        (&classes[..], 4),
        "the least reserve is the highest"
    );
    let log = &of("log").charge_rules;
    assert_eq!(
        log.ban,
        Some(Ban::after(5).growing(3)),
        "the others are the defaults"
    );
    let strikes = [400, 401, 403]
        .map(|status| log.strikes(StatusCode::from_u16(status).unwrap(), &HeaderMap::new()));
    assert_eq!(strikes, [false, true, true]);
    let session = of("session");
    assert!(session.charge_rules.settled_later);
    assert_eq!(session.key_deadline, Duration::from_millis(200));
    // The defaults of the file.
    assert_eq!(
        (session.on_missing, session.on_error),
        (OnMissing::Skip, Some(OnError::Closed))
    );
    let users = of("per-user");
    assert_eq!(users.on_error, Some(OnError::local(4)));
    assert!(
        users
            .charge_rules
            .refunds(StatusCode::OK, &HeaderMap::new())
    );
    let policies = compiled.set.policies();
    assert_eq!(policies[0].unit(), Some("content-bytes"));
}

#[test]
fn tiers_keep_the_order_of_the_file() {
    let compiled = compiled(EVERYTHING);
    let users = compiled
        .set
        .policies()
        .iter()
        .find(|policy| policy.is_tiered())
        .unwrap();
    assert_eq!(
        (users.tier_name(0), users.tier_name(1)),
        (Some("pro"), Some("free"))
    );
}

#[test]
fn composition_has_the_shape_of_the_file() {
    use PolicyNode::{All, Any, Policy};
    let compiled = compiled(EVERYTHING);
    let shape: Vec<PolicyNode> = compiled.set.tree().map(|(node, _)| node).collect();
    let start = [
        All,
        Policy(0),
        Any(AnyCharge::EveryAdmitting),
        Policy(1),
        All,
        Policy(2),
        Policy(3),
        All,
        Policy(4),
    ];
    assert_eq!(shape[..start.len()], start);
    let names: Vec<_> = compiled
        .permits
        .limits
        .iter()
        .map(|limit| (limit.name.as_str(), limit.most))
        .collect();
    assert_eq!(names, [("in-flight", 200), ("uploads", 4)]);
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
    let names: Vec<_> = compiled(&text)
        .set
        .policies()
        .iter()
        .map(|policy| policy.name().to_owned())
        .collect();
    assert_eq!(names, ["a", "b", "c"]);
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
    assert_eq!(*rules.client_ip(), crate::ClientIp::fly_io());
}

/// A limit of a document of its own, and what the file says of it.
fn one_limit(rest: &str) -> Compiled {
    compiled(&format!(
        "version = 1\n[[limit]]\nname = \"p\"\nby = \"constant\"\n{rest}\n"
    ))
}

#[test]
fn flags_that_are_false_are_as_if_they_were_absent() {
    for flags in ["", "charge-refused = false\nsettled-later = false"] {
        let compiled = one_limit(&format!("gcra = {{ rate = \"1/s\" }}\n{flags}"));
        let (limit, policy) = (&compiled.applied[0], &compiled.set.policies()[0]);
        let rules = &limit.charge_rules;
        assert!(
            !rules.charge_refused
                && !rules.settled_later
                && !rules.refund_aborted
                && !rules.may_change()
        );
        assert!(policy.unit().is_none());
        assert!(limit.cost.is_none() && limit.when.is_none() && limit.wait_up_to.is_none());
        assert_eq!((limit.on_missing, limit.on_error), (OnMissing::Share, None));
        assert_eq!(limit.key_deadline, Duration::from_secs(1));
    }
}

#[test]
fn each_refund_gives_back_what_it_is_named_after() {
    for (refund, refunded, is_aborted) in [
        ("successful", [true, true, false, false], false),
        ("failed", [false, false, true, true], false),
        ("server-errors", [false, false, false, true], false),
        ("aborted", [false; 4], true),
        ("cached", [false; 4], false),
    ] {
        let compiled = one_limit(&format!(
            "gcra = {{ rate = \"1/s\" }}\nrefund = \"{refund}\""
        ));
        let rules = &compiled.applied[0].charge_rules;
        let refunds = [200, 302, 404, 503].map(|status| {
            let status = StatusCode::from_u16(status).unwrap();
            rules.refunds(status, &HeaderMap::new())
        });
        assert_eq!(
            (refunds, rules.refund_aborted),
            (refunded, is_aborted),
            "{refund}"
        );
        assert!(!rules.charge_refused && !rules.settled_later, "{refund}");
    }
}

#[test]
fn registered_refund_reads_the_status_and_the_headers() {
    let registry = Registry::new().refund("hit", |status, headers| {
        status == 304 || headers.get("x-cache").is_some()
    });
    let text = "version = 1\n[[limit]]\nname = \"p\"\nby = \"constant\"\ngcra = { rate = \"1/s\" \
        }\nrefund = \"hit\"";
    let compiled = Rules::from_str("f", text, registry)
        .unwrap()
        .tree()
        .compile()
        .unwrap();
    let refunds = |status, headers: &http::HeaderMap| {
        compiled.applied[0].charge_rules.refunds(status, headers)
    };
    let (none, hit) = (
        http::HeaderMap::new(),
        [(
            http::HeaderName::from_static("x-cache"),
            "hit".parse().unwrap(),
        )],
    );
    assert!(
        refunds(StatusCode::NOT_MODIFIED, &none)
            && refunds(StatusCode::OK, &hit.into_iter().collect())
    );
    assert!(!refunds(StatusCode::OK, &none));
}

#[test]
fn estimate_of_zero_counts_as_one_and_the_status_of_a_rejection_is_at_either_end() {
    let (parts, ()) = http::Request::new(()).into_parts();
    let compiled = one_limit("gcra = { rate = \"1/s\" }\ncost = 0\nsettled-later = true");
    assert_eq!(
        compiled.applied[0].cost.as_ref().map(|cost| cost(&parts)),
        Some(1)
    );
    for status in [400, 599] {
        let rest = format!("on-missing = {{ reject = {status} }}");
        let limit =
            "version = 1\n[[limit]]\nname = \"p\"\nby = \"client-ip\"\ngcra = { rate = \"1/s\" }";
        let compiled = self::compiled(&format!("{limit}\n{rest}"));
        assert_eq!(
            compiled.applied[0].on_missing,
            OnMissing::Reject(StatusCode::from_u16(status).unwrap())
        );
    }
}

#[test]
fn rule_of_a_limit_comes_before_that_of_the_file() {
    let limit = |rest: &str| {
        let defaults = "defaults = { on-missing = \"skip\", on-error = \"open\" }";
        let limit = "[[limit]]\nname = \"p\"\nby = \"client-ip\"\ngcra = { rate = \"1/s\" }";
        let compiled = compiled(&format!("version = 1\n{defaults}\n{limit}\n{rest}"));
        (compiled.applied[0].on_missing, compiled.applied[0].on_error)
    };
    assert_eq!(limit(""), (OnMissing::Skip, Some(OnError::Open)));
    assert_eq!(
        limit("on-missing = \"share\""),
        (OnMissing::Share, Some(OnError::Open))
    );
    assert_eq!(
        limit("on-error = \"local/1\""),
        (OnMissing::Skip, Some(OnError::local(1)))
    );
    assert_eq!(
        limit("on-error = \"closed\""),
        (OnMissing::Skip, Some(OnError::Closed))
    );
}

#[test]
fn permits_are_asked_for_as_the_file_says() {
    let parts = |method: &str, peer: Option<[u8; 4]>| {
        let request = http::Request::builder().method(method);
        let request = match peer {
            Some(peer) => request.extension(crate::extract::PeerAddr(peer.into())),
            None => request,
        };
        request.body(()).unwrap().into_parts().0
    };
    let compiled = compiled(EVERYTHING);
    let [in_flight, uploads] = [0, 1].map(|index| &compiled.permits.limits[index]);
    assert_eq!(
        needed(in_flight, &parts("GET", None)),
        Some((Some(Key::CONSTANT), 1))
    );
    assert_eq!(needed(uploads, &parts("GET", None)), None, "it is for PUT");
    assert_eq!(needed(uploads, &parts("PUT", None)), Some((None, 2)));
    assert_eq!(uploads.applied.on_missing, OnMissing::Share);
    let keys = [[192, 0, 2, 1], [192, 0, 2, 2], [192, 0, 2, 1]]
        .map(|peer| needed(uploads, &parts("PUT", Some(peer))));
    assert!(keys[0] != keys[1] && keys[0] == keys[2], "{keys:?}");
    assert!(
        keys.iter().all(|need| matches!(need, Some((Some(_), 2)))),
        "{keys:?}"
    );
}

/// The key and the permits of a request to which a limit applies.
fn needed(limit: &PermitLimit, parts: &http::request::Parts) -> Option<(Option<Key>, u64)> {
    let Applied { cost, keying, .. } = &limit.applied;
    let selections: Vec<_> = limit.applied.selection.clone().into_iter().collect();
    let applies = limit.applied.applies(&select(&selections, parts), parts);
    let cost = cost.as_ref().map_or(1, |cost| cost(parts));
    let key = keying.extractor().and_then(|key| key.extract(parts));
    applies.then_some((key, cost))
}

#[test]
fn requests_without_a_key_take_permits_by_the_rule_of_the_file() {
    let reject = OnMissing::Reject(StatusCode::UNAUTHORIZED);
    for (defaults, rest, expected) in [
        ("", "", OnMissing::Share),
        ("on-missing = \"skip\"", "", OnMissing::Skip),
        (
            "on-missing = \"skip\"",
            "on-missing = \"share\"",
            OnMissing::Share,
        ),
        ("", "on-missing = { reject = 401 }", reject),
    ] {
        let limit = format!("[[concurrency]]\nmost = 2\nby = \"header:x-user\"\n{rest}");
        let compiled = compiled(&format!("version = 1\n[defaults]\n{defaults}\n{limit}"));
        assert_eq!(
            compiled.permits.limits[0].applied.on_missing, expected,
            "{defaults} {rest}"
        );
    }
}

#[test]
fn every_permit_may_be_taken_by_one_request() {
    let compiled = compiled("version = 1\n[[concurrency]]\nmost = 2\ncost = 2");
    let limit = &compiled.permits.limits[0];
    assert_eq!((limit.name.as_str(), limit.most), ("in-flight", 2));
}

#[test]
fn composition_is_bounded_in_an_any_alone() {
    use PolicyNode::{All, Any, Policy};
    let names = |count: usize| {
        (0..count)
            .map(|n| format!("\"{n}\""))
            .collect::<Vec<_>>()
            .join(", ")
    };
    let shape = |compose: &str, count| {
        let limit = |n| {
            format!("[[limit]]\nname = \"{n}\"\nby = \"constant\"\ngcra = {{ rate = \"1/s\" }}\n")
        };
        let limits: String = (0..count).map(limit).collect();
        let compiled = compiled(&format!("version = 1\ncompose = {compose}\n{limits}"));
        compiled
            .set
            .tree()
            .map(|(node, _)| node)
            .collect::<Vec<_>>()
    };
    assert_eq!(shape(&format!("{{ any = [{}] }}", names(16)), 16).len(), 17);
    assert_eq!(shape(&format!("{{ all = [{}] }}", names(17)), 17).len(), 18);
    assert_eq!(shape("\"0\"", 1), [Policy(0)]);
    for (charge, expected) in [
        ("", AnyCharge::First),
        (", charge = \"first\"", AnyCharge::First),
        (", charge = \"every-admitting\"", AnyCharge::EveryAdmitting),
    ] {
        let any = shape(&format!("[\"2\", {{ any = [\"1\", \"0\"]{charge} }}]"), 3);
        assert_eq!(
            any,
            [All, Policy(0), Any(expected), Policy(1), Policy(2)],
            "{charge}"
        );
    }
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
    let names: Vec<_> = compiled(&text)
        .set
        .policies()
        .iter()
        .map(|policy| policy.name().to_owned())
        .collect();
    assert_eq!(names, ["c", "a", "b"]);
}

#[test]
fn prefixes_are_accepted_at_both_ends() {
    for prefix in ["ipv4 = 1", "ipv4 = 32", "ipv6 = 1", "ipv6 = 128", ""] {
        let text = format!(
            "version = 1\n[[limit]]\nname = \"p\"\ngcra = {{ rate = \"1/s\" }}\nby = {{ client-ip \
                = {{ {prefix} }} }}"
        );
        assert_eq!(compiled(&text).set.policies().len(), 1, "{prefix}");
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
    let key = || Registry::new().key("k", crate::Constant);
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
            error(Registry::new().key(name, crate::Constant)),
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

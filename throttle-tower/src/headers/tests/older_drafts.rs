use sfv::Dictionary;

use super::*;

fn two_policies() -> [PolicyStatus<'static>; 2] {
    [
        open(terms("per-ip", 10, 1), 7, 400_000),
        open(terms("per-user-day", 1000, 86_400), 640, 55_296_000_000),
    ]
}

fn written(dialect: Dialect, lines: &[PolicyStatus<'_>]) -> Vec<(String, String)> {
    let mut headers = HeaderMap::new();
    answer(&mut headers, dialect, lines);
    fields(&headers)
}

#[test]
fn draft_07() {
    let expected = [
        ("ratelimit", "limit=10, remaining=7, reset=1"),
        ("ratelimit-policy", "10;w=1, 1000;w=86400"),
    ];
    assert_eq!(written(Dialect::Draft07, &two_policies()), owned(expected));
}

#[test]
fn draft_06() {
    let expected = [
        ("ratelimit-limit", "10"),
        ("ratelimit-policy", "10;w=1, 1000;w=86400"),
        ("ratelimit-remaining", "7"),
        ("ratelimit-reset", "1"),
    ];
    assert_eq!(written(Dialect::Draft06, &two_policies()), owned(expected));
}

#[test]
fn draft_03() {
    let expected = [
        ("ratelimit-limit", "10, 10;w=1, 1000;w=86400"),
        ("ratelimit-remaining", "7"),
        ("ratelimit-reset", "1"),
    ];
    assert_eq!(written(Dialect::Draft03, &two_policies()), owned(expected));
}

#[test]
fn x_ratelimit() {
    for (format, reset) in [
        (ResetFormat::DeltaSeconds, "1"),
        (ResetFormat::EpochSeconds, "1795167175"),
    ] {
        let expected = [
            ("x-ratelimit-limit", "10"),
            ("x-ratelimit-remaining", "7"),
            ("x-ratelimit-reset", reset),
        ];
        assert_eq!(
            written(Dialect::XRateLimit(format), &two_policies()),
            owned(expected)
        );
    }
}

#[test]
fn dialect_none_still_sends_retry_after() {
    assert_eq!(written(Dialect::None, &two_policies()), []);
    assert_eq!(
        written(Dialect::None, &[shut(terms("a", 1, 1), 1)]),
        owned([("retry-after", "1")])
    );
}

/// Another layer or a gate refused: the older dialects cannot say that, and a quota alone would
/// mislead.
#[test]
fn refusal_by_none_of_the_policies_carries_no_quota() {
    let one_policy = |dialect: &Dialect| *dialect != Dialect::Draft11;
    for dialect in Dialect::ALL.iter().copied().filter(one_policy) {
        let mut headers = HeaderMap::new();
        let lines = two_policies();
        let policies = (dialect, (dialect.form().policies)(&lines));
        let retry_after = Some(RetryAfter::from_micros(5_000_000));
        let report = HeaderContent {
            policies: &lines,
            admitted: false,
            retry_after,
            now_unix_us: NOW_US,
        };
        write(&mut headers, &policies, &report);
        assert_eq!(
            fields(&headers),
            owned([("retry-after", "5")]),
            "{dialect:?}"
        );
    }
}

/// Each part rounded up by itself would be a second late.
#[test]
fn instant_of_a_reset_is_rounded_once() {
    let lines = [open(terms("a", 10, 60), 3, 1_400_000)];
    let dialect = Dialect::XRateLimit(ResetFormat::EpochSeconds);
    for (now_unix_us, reset) in [(500_000, "2"), (600_000, "2"), (600_001, "3")] {
        let mut headers = HeaderMap::new();
        let report = HeaderContent {
            policies: &lines,
            admitted: true,
            retry_after: None,
            now_unix_us,
        };
        write(&mut headers, &(dialect, None), &report);
        assert_eq!(
            combined(&headers, "x-ratelimit-reset"),
            reset.as_bytes(),
            "{now_unix_us}"
        );
    }
}

/// Neither the policy with the least remaining nor the one that resets last, if another one has the
/// longer wait.
#[test]
fn refusal_states_the_longest_wait_whatever_remains_or_resets() {
    let longest = PolicyStatus {
        remaining: 5,
        reset_us: 40_000_000,
        ..shut(terms("large", 10, 60), 30_000_000)
    };
    let least = PolicyStatus {
        reset_us: 3_600_000_000,
        ..shut(terms("small", 4, 60), 1_000_000)
    };
    for lines in [[longest, least], [least, longest]] {
        assert_eq!(
            written(Dialect::Draft07, &lines)[0].1,
            "limit=10, remaining=5, reset=30"
        );
        let trio = written(Dialect::Draft06, &lines);
        for told in [
            ("ratelimit-limit", "10"),
            ("ratelimit-remaining", "5"),
            ("ratelimit-reset", "30"),
        ] {
            assert!(trio.contains(&(told.0.into(), told.1.into())), "{trio:?}");
        }
        let own = written(Dialect::XRateLimit(ResetFormat::DeltaSeconds), &lines);
        for told in [
            ("x-ratelimit-limit", "10"),
            ("x-ratelimit-remaining", "5"),
            ("x-ratelimit-reset", "40"),
        ] {
            assert!(own.contains(&(told.0.into(), told.1.into())), "{own:?}");
        }
    }
}

#[test]
fn refusal_that_no_wait_helps_is_the_one_described() {
    let never = PolicyStatus {
        retry_us: None,
        ..shut(terms("never", 5, 1), 7_000_000)
    };
    let lines = [shut(terms("ip", 10, 1), 420_000), never];
    let expected = [
        ("ratelimit", "limit=5, remaining=0, reset=7"),
        ("ratelimit-policy", "10;w=1, 5;w=1"),
    ];
    assert_eq!(written(Dialect::Draft07, &lines), owned(expected));
}

/// A throttle that did not refuse the response describes its own window, whatever its decision
/// would have asked for.
#[test]
fn reset_of_an_admitted_response_is_not_the_wait() {
    let mut headers = HeaderMap::new();
    let lines = [open(terms("a", 10, 60), 3, 20_000_000)];
    let policies = (Dialect::Draft03, (Dialect::Draft03.form().policies)(&lines));
    let retry_after = Some(RetryAfter::from_micros(5_000_000));
    write(
        &mut headers,
        &policies,
        &HeaderContent {
            policies: &lines,
            admitted: true,
            retry_after,
            now_unix_us: NOW_US,
        },
    );
    assert_eq!(combined(&headers, "ratelimit-reset"), b"20");
    assert!(!headers.contains_key("retry-after"));
}

#[test]
fn least_remaining_is_described_if_the_waits_are_equal() {
    let lines = [2, 1, 3].map(|left| PolicyStatus {
        remaining: left,
        ..shut(terms("a", 10 + left, 60), 5_000_000)
    });
    assert_eq!(
        written(Dialect::Draft07, &lines)[0].1,
        "limit=11, remaining=1, reset=5"
    );
}

#[test]
fn later_reset_is_described_if_as_much_remains() {
    let lines = [
        open(terms("a", 10, 1), 3, 1_000_000),
        open(terms("b", 20, 60), 3, 9_000_000),
    ];
    assert_eq!(
        written(Dialect::Draft07, &lines)[0].1,
        "limit=20, remaining=3, reset=9"
    );
}

#[test]
fn reset_is_never_before_the_wait() {
    let line = PolicyStatus {
        reset_us: 1,
        ..shut(terms("a", 10, 1), 4_000_000)
    };
    let written = written(Dialect::XRateLimit(ResetFormat::DeltaSeconds), &[line]);
    assert!(
        written.contains(&("x-ratelimit-reset".into(), "4".into())),
        "{written:?}"
    );
}

#[test]
fn equal_quotas_are_announced_once_with_the_longest_window() {
    let lines = [
        open(terms("s", 10, 1), 1, 1),
        open(terms("m", 10, 60), 1, 1),
        open(terms("s2", 10, 1), 1, 1),
    ];
    let announced = |lines| {
        let written = written(Dialect::Draft06, lines);
        written
            .into_iter()
            .find_map(|(name, value)| (name == "ratelimit-policy").then_some(value))
            .unwrap()
    };
    assert_eq!(announced(&lines), "10;w=60");
    // Of equal ones the first, in the order of the configuration.
    let equal = [
        open(terms("a", 10, 60), 1, 1),
        open(terms("b", 5, 1), 1, 1),
        open(terms("c", 10, 60), 1, 1),
    ];
    assert_eq!(announced(&equal), "10;w=60, 5;w=1");
}

proptest! {
    #[test]
    fn attack_53_every_older_field_parses(
        described in prop::collection::vec((any_name(), any_numbers()), 1..5),
        admitted: bool,
        now_unix_us in any_number(),
    ) {
        let lines: Vec<PolicyStatus<'_>> = described.iter().map(|(name, numbers)| line_of(name, *numbers)).collect();
        let binding = lines.iter().map(|line| line.r()).min().unwrap();
        for &dialect in Dialect::ALL {
            let policies = (dialect, (dialect.form().policies)(&lines));
            let retry_after = longest_wait(&lines);
            let report = HeaderContent { policies: &lines, admitted, retry_after, now_unix_us };
            let mut headers = HeaderMap::new();
            write(&mut headers, &policies, &report);

            let number = |name: &str| {
                let item: Item = parsed(&combined(&headers, name));
                u64::try_from(i64::from(item.bare_item.as_integer().unwrap())).unwrap()
            };
            for name in ["ratelimit-remaining", "ratelimit-reset", "x-ratelimit-remaining", "x-ratelimit-reset"] {
                if headers.contains_key(name) {
                    number(name);
                }
            }
            if admitted && matches!(dialect, Dialect::XRateLimit(_)) {
                prop_assert_eq!(number("x-ratelimit-remaining"), binding);
            }
            if admitted && matches!(dialect, Dialect::Draft06 | Dialect::Draft03) {
                prop_assert_eq!(number("ratelimit-remaining"), binding);
            }
            if dialect == Dialect::Draft07 {
                parsed::<Dictionary>(&combined(&headers, "ratelimit"));
            }
            if matches!(dialect, Dialect::Draft07 | Dialect::Draft06) {
                let list: List = parsed(&combined(&headers, "ratelimit-policy"));
                let mut quotas: Vec<_> = list.iter().map(|entry| item(entry).bare_item.as_integer().unwrap()).collect();
                quotas.sort();
                let all = quotas.len();
                quotas.dedup();
                prop_assert_eq!(quotas.len(), all);
            }
            parsed::<List>(&combined(&headers, "ratelimit-limit"));
        }
    }
}

/// Of a policy that is not announced, draft -03 states the limit alone.
#[test]
fn limit_stands_alone_where_no_policy_is_announced() {
    let lines = [open(terms("a", 10, 60), 3, 1_000_000)];
    for dialect in [Dialect::Draft03, Dialect::Draft06] {
        let mut headers = HeaderMap::new();
        let report = HeaderContent {
            policies: &lines,
            admitted: true,
            retry_after: None,
            now_unix_us: NOW_US,
        };
        write(&mut headers, &(dialect, None), &report);
        let expected = [
            ("ratelimit-limit", "10"),
            ("ratelimit-remaining", "3"),
            ("ratelimit-reset", "1"),
        ];
        assert_eq!(fields(&headers), owned(expected), "{dialect:?}");
    }
}

#[test]
fn instant_of_a_reset_is_not_before_the_wait_of_a_refusal() {
    let line = PolicyStatus {
        reset_us: 1,
        ..shut(terms("a", 10, 60), 6_000_000)
    };
    let later = PolicyStatus {
        reset_us: 60_000_000,
        ..line
    };
    for (line, reset) in [(line, "1795167180"), (later, "1795167234")] {
        let written = written(Dialect::XRateLimit(ResetFormat::EpochSeconds), &[line]);
        let expected = [
            ("retry-after", "6"),
            ("x-ratelimit-limit", "10"),
            ("x-ratelimit-remaining", "0"),
            ("x-ratelimit-reset", reset),
        ];
        assert_eq!(written, owned(expected));
    }
}

#[test]
fn defaults_are_the_latest_draft_and_seconds_from_now() {
    assert_eq!(
        (Dialect::default(), ResetFormat::default()),
        (Dialect::Draft11, ResetFormat::DeltaSeconds)
    );
}

/// What a page has to be shown is what a refusal writes.
#[test]
fn exposed_names_are_those_of_a_refusal() {
    for &dialect in Dialect::ALL {
        let mut exposed: Vec<&str> = dialect
            .exposed_names()
            .iter()
            .map(HeaderName::as_str)
            .collect();
        exposed.sort_unstable();
        let tokens = PolicyTerms {
            unit: Some("tokens".into()),
            ..terms("b", 10, 60)
        };
        let written = written(
            dialect,
            &[shut(terms("a", 10, 60), 6_000_000), shut(tokens, 6_000_000)],
        );
        assert_eq!(
            written.iter().map(|(name, _)| name).collect::<Vec<_>>(),
            exposed,
            "{dialect:?}"
        );
    }
}

/// One unit per 90 ms with a burst of 2 is scaled up to 100 in 9 s, of which no window says
/// anything here.
#[test]
fn limit_without_a_window_is_the_most_that_can_remain() {
    let algorithm = throttle_core::Gcra::new(throttle_core::Rate::new(
        1,
        std::time::Duration::from_millis(90),
    ))
    .burst(2);
    let algorithm = throttle_core::IntoAlgorithm::into_algorithm(algorithm).unwrap();
    let scaled = QuotaWindow::of(&algorithm, 0);
    assert_eq!(
        scaled,
        QuotaWindow {
            q: 100,
            w: 9,
            most: 2
        }
    );
    for (dialect, name, expected) in [
        (
            Dialect::XRateLimit(ResetFormat::DeltaSeconds),
            "x-ratelimit-limit",
            "2",
        ),
        (
            Dialect::XRateLimit(ResetFormat::EpochSeconds),
            "x-ratelimit-limit",
            "2",
        ),
        (Dialect::OpenAi, "x-ratelimit-limit-requests", "2"),
        (Dialect::Draft06, "ratelimit-limit", "100"),
    ] {
        for remaining in [0, 1, 2, 9] {
            let mut headers = HeaderMap::new();
            let terms = PolicyTerms {
                quota: scaled,
                ..terms("p", 1, 1)
            };
            answer(&mut headers, dialect, &[open(terms, remaining, 90_000)]);
            let told = |name: &str| headers[name].to_str().unwrap().parse::<u64>().unwrap();
            assert_eq!(headers[name], expected, "{dialect:?}");
            assert!(
                told(&name.replace("limit-limit", "limit-remaining")) <= told(name),
                "{dialect:?}"
            );
        }
    }
}

use super::*;
use crate::headers::read_upstream::go_duration;

fn of_unit(unit: &str, terms: PolicyTerms) -> PolicyTerms {
    PolicyTerms {
        unit: Some(unit.into()),
        ..terms
    }
}

fn requests(remaining: u64, us: u64) -> PolicyStatus<'static> {
    open(terms("requests", 60, 60), remaining, us)
}

fn tokens(remaining: u64, us: u64) -> PolicyStatus<'static> {
    open(
        of_unit("tokens", terms("tokens", 150_000, 60)),
        remaining,
        us,
    )
}

fn after<const N: usize>(
    existing: [(&'static str, &str); N],
    lines: &[PolicyStatus<'_>],
) -> Vec<(String, String)> {
    let mut headers = with(existing);
    answer(&mut headers, Dialect::OpenAi, lines);
    fields(&headers)
}

fn written(lines: &[PolicyStatus<'_>]) -> Vec<(String, String)> {
    after([], lines)
}

/// The numbers are those of OpenAI's own example.
#[test]
fn requests_and_tokens_are_described_apart() {
    let expected = owned([
        ("x-ratelimit-limit-requests", "60"),
        ("x-ratelimit-limit-tokens", "150000"),
        ("x-ratelimit-remaining-requests", "59"),
        ("x-ratelimit-remaining-tokens", "149984"),
        ("x-ratelimit-reset-requests", "1s"),
        ("x-ratelimit-reset-tokens", "6m0s"),
    ]);
    assert_eq!(
        written(&[requests(59, 1_000_000), tokens(149_984, 360_000_000)]),
        expected
    );
    let named = PolicyStatus {
        terms: leaked(of_unit("requests", terms("named", 60, 60))),
        ..requests(59, 1_000_000)
    };
    assert_eq!(written(&[tokens(149_984, 360_000_000), named]), expected);
}

#[test]
fn units_without_a_policy_and_units_without_a_header_are_left_out() {
    let bytes = PolicyStatus {
        terms: leaked(of_unit("bytes", terms("bytes", 9, 1))),
        ..tokens(0, 1)
    };
    assert_eq!(written(&[bytes]), []);
    let expected = [
        ("x-ratelimit-limit-tokens", "150000"),
        ("x-ratelimit-remaining-tokens", "7"),
        ("x-ratelimit-reset-tokens", "17ms"),
    ];
    assert_eq!(written(&[bytes, tokens(7, 16_001)]), owned(expected));
}

#[test]
fn of_a_unit_the_policy_with_the_least_remaining_is_described() {
    let day = PolicyStatus {
        terms: leaked(of_unit("tokens", terms("day", 1_000_000, 86_400))),
        ..tokens(40, 3_600_000_000)
    };
    for lines in [[day, tokens(50, 1_000)], [tokens(50, 1_000), day]] {
        let expected = [
            ("x-ratelimit-limit-tokens", "1000000"),
            ("x-ratelimit-remaining-tokens", "40"),
            ("x-ratelimit-reset-tokens", "1h0m0s"),
        ];
        assert_eq!(written(&lines), owned(expected));
    }
}

/// The layer's own reset of 16.001 ms is written as 17ms.
#[test]
fn existing_reset_counts_as_whole_milliseconds_rounded_up() {
    for (reset, stays) in [
        ("16.001ms", true),
        ("16.5ms", true),
        ("17ms", true),
        ("16ms", false),
        ("15.999ms", false),
    ] {
        let theirs = [
            ("x-ratelimit-limit-tokens", "9"),
            ("x-ratelimit-remaining-tokens", "7"),
            ("x-ratelimit-reset-tokens", reset),
        ];
        assert_eq!(
            after(theirs, &[tokens(7, 16_001)]) == owned(theirs),
            stays,
            "{reset}"
        );
    }
}

/// The other unit is described as it stands.
#[test]
fn refusal_describes_the_longest_wait_of_each_unit_that_refused() {
    let minute = PolicyStatus {
        remaining: 3,
        reset_us: 5_000_000,
        ..tokens(0, 0)
    };
    let minute = PolicyStatus {
        violated: true,
        retry_us: Some(2_000_000),
        ..minute
    };
    let day = PolicyStatus {
        terms: leaked(of_unit("tokens", terms("day", 1_000_000, 86_400))),
        ..minute
    };
    let day = PolicyStatus {
        remaining: 9,
        retry_us: Some(30_000_000),
        ..day
    };
    let idle = PolicyStatus {
        remaining: 0,
        ..tokens(0, 0)
    };
    let expected = [
        ("retry-after", "30"),
        ("x-ratelimit-limit-requests", "60"),
        ("x-ratelimit-limit-tokens", "1000000"),
        ("x-ratelimit-remaining-requests", "12"),
        ("x-ratelimit-remaining-tokens", "9"),
        ("x-ratelimit-reset-requests", "8.64s"),
        // Not sooner than the wait.
        ("x-ratelimit-reset-tokens", "30s"),
    ];
    assert_eq!(
        written(&[minute, day, idle, requests(12, 8_640_000)]),
        owned(expected)
    );
}

#[test]
fn durations_are_written_as_go_does() {
    for (us, text) in [
        (0, "0s"),
        (1, "1ms"),
        (999_000, "999ms"),
        (999_001, "1s"),
        (1_500_000, "1.5s"),
        (59_990_000, "59.99s"),
        (60_001_000, "1m0.001s"),
        (3_599_999_001, "1h0m0s"),
        (90_061_020_000, "25h1m1.02s"),
    ] {
        assert!(
            written(&[requests(1, us)])
                .contains(&("x-ratelimit-reset-requests".into(), text.into())),
            "{us}"
        );
    }
}

proptest! {
    #[test]
    fn reset_is_read_back_and_never_early(us in any_number()) {
        let mut headers = HeaderMap::new();
        answer(&mut headers, Dialect::OpenAi, &[requests(1, us)]);
        let read = go_duration(headers["x-ratelimit-reset-requests"].as_bytes()).unwrap();
        let exact = u128::from(us.div_ceil(1_000)) * 1_000_000;
        // Beyond 584 years the reader does not count exactly.
        let most = u128::from(u64::MAX);
        let is_read = read.as_nanos() == exact || read.as_nanos().min(exact) >= most;
        prop_assert!(is_read, "{read:?}");
    }
}

const THEIRS: [&str; 3] = [
    "x-ratelimit-limit-tokens",
    "x-ratelimit-remaining-tokens",
    "x-ratelimit-reset-tokens",
];

/// Ours: 5 left, the whole quota in 3 seconds.
fn beside(remaining: &str, reset: &str) -> Vec<(String, String)> {
    let [limit, left, whole] = THEIRS;
    after(
        [(limit, "9"), (left, remaining), (whole, reset)],
        &[tokens(5, 3_000_000)],
    )
}

#[test]
fn stricter_headers_of_a_unit_stay_together() {
    let [limit, left, whole] = THEIRS;
    for (remaining, reset) in [
        ("4", "1s"),
        ("5", "3s"),
        ("5", "3000.001ms"),
        ("5", "soon"),
        ("0", "1ms"),
    ] {
        assert_eq!(
            beside(remaining, reset),
            owned([(limit, "9"), (left, remaining), (whole, reset)])
        );
    }
}

#[test]
fn looser_or_unreadable_headers_of_a_unit_are_replaced_together() {
    let [limit, left, whole] = THEIRS;
    for (remaining, reset) in [
        ("6", "9h"),
        ("5", "2.999s"),
        ("5", "2999ms"),
        ("-1", "9h"),
        ("many", "9h"),
    ] {
        assert_eq!(
            beside(remaining, reset),
            owned([(limit, "150000"), (left, "5"), (whole, "3s")]),
            "{remaining}"
        );
    }
}

#[test]
fn headers_of_the_other_unit_stay() {
    let [limit, left, whole] = THEIRS;
    let expected = [
        (limit, "9"),
        ("x-ratelimit-limit-requests", "60"),
        (left, "8"),
        ("x-ratelimit-remaining-requests", "59"),
        (whole, "7s"),
        ("x-ratelimit-reset-requests", "1s"),
    ];
    let mut expected = owned(expected);
    expected.sort();
    assert_eq!(
        after(
            [(limit, "9"), (left, "8"), (whole, "7s")],
            &[requests(59, 1_000_000)]
        ),
        expected
    );
}

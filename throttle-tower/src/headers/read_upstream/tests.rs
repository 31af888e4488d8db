//! What the documented responses of providers mean to a shaper.

use std::time::Duration;

use base64::Engine as _;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use proptest::prelude::*;

use super::refusal::wait;
use super::{Allowance, refusal, stated};
use crate::grpc::BASE64;

/// The clock of each response that has no other date.
const NOW: (&str, &str) = ("date", "Sat, 21 Nov 2026 12:00:00 GMT");

fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
    [NOW]
        .iter()
        .chain(lines)
        .map(|(name, value)| {
            (
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )
        })
        .collect()
}

/// Whether it is a refusal, the wait that it asks for, and what remains for how long: in
/// milliseconds.
fn read(
    status: u16,
    lines: &[(&'static str, &'static str)],
) -> (bool, Option<u128>, Option<(u64, u128)>) {
    let (status, headers) = (StatusCode::from_u16(status).unwrap(), headers(lines));
    let stated = stated(&headers);
    let used_up = stated.used_up.map(|within| Allowance {
        remaining: 0,
        within,
    });
    let allowance = stated.allowance.or(used_up);
    (
        refusal(status, &headers, false).0,
        wait(&headers).map(|wait| wait.as_millis()),
        allowance.map(|Allowance { remaining, within }| (remaining, within.as_millis())),
    )
}

#[test]
fn upstream_retry_after_is_seconds_milliseconds_or_a_date() {
    let told = |lines: &[(&'static str, &'static str)]| read(429, lines).1;
    assert_eq!(told(&[("retry-after", "120")]), Some(120_000));
    assert_eq!(told(&[("retry-after", " 120\t")]), Some(120_000));
    assert_eq!(
        told(&[("retry-after", "Sat, 21 Nov 2026 12:00:30 GMT")]),
        Some(30_000)
    );
    assert_eq!(told(&[("retry-after-ms", "250")]), Some(250));
    assert_eq!(
        told(&[("retry-after", "1"), ("retry-after-ms", "250")]),
        Some(250),
        "one wait, rounded up in seconds"
    );
    assert_eq!(
        told(&[("retry-after", "2"), ("retry-after-ms", "2000")]),
        Some(2_000)
    );
    assert_eq!(
        told(&[("retry-after", "2"), ("retry-after-ms", "1000")]),
        Some(2_000),
        "the stricter"
    );
    assert_eq!(
        told(&[("retry-after", "1"), ("retry-after-ms", "1250")]),
        Some(1_250),
        "the stricter"
    );
    assert_eq!(
        told(&[("retry-after", "1"), ("retry-after", "5")]),
        Some(5_000),
        "the stricter"
    );
    assert_eq!(
        told(&[("retry-after", "5"), ("retry-after", "1")]),
        Some(5_000),
        "the stricter"
    );
    for [one, other] in [
        ["100", "5000"],
        ["5000", "100"],
        ["soon", "5000"],
        ["5000", "soon"],
    ] {
        let lines = [("retry-after-ms", one), ("retry-after-ms", other)];
        assert_eq!(
            told(&lines),
            Some(5_000),
            "the stricter of {one} and {other}"
        );
        assert_eq!(
            told(&[&lines[..], &[("retry-after", "5")]].concat()),
            Some(5_000)
        );
        assert_eq!(
            told(&[&lines[..], &[("retry-after", "6")]].concat()),
            Some(6_000),
            "stricter than both"
        );
    }
    for many in ["99999999999999999999", "36893488147419103240"] {
        let longest = told(&[("retry-after", many)]);
        assert!(longest > Some(1 << 50), "{longest:?}");
    }
}

#[test]
fn upstream_retry_after_that_says_nothing_is_none() {
    for value in ["0", "soon", "", "-1", "Sat, 21 Nov 2026 11:00:00 GMT"] {
        assert_eq!(
            read(429, &[("retry-after", value)]),
            (true, None, None),
            "{value:?}"
        );
    }
    assert_eq!(read(429, &[("retry-after-ms", "0")]), (true, None, None));
    assert_eq!(read(429, &[]), (true, None, None));
}

/// developers.openai.com, "Rate limits in headers": the reset is the time until a limit is in its
/// initial state.
#[test]
fn upstream_openai() {
    let documented = [
        ("x-ratelimit-limit-requests", "60"),
        ("x-ratelimit-limit-tokens", "150000"),
        ("x-ratelimit-remaining-requests", "59"),
        ("x-ratelimit-remaining-tokens", "149984"),
        ("x-ratelimit-reset-requests", "1s"),
        ("x-ratelimit-reset-tokens", "6m0s"),
    ];
    assert_eq!(
        read(200, &documented),
        (false, None, None),
        "something is left of both"
    );
    let no_request = [
        ("x-ratelimit-limit-requests", "60"),
        ("x-ratelimit-remaining-requests", "0"),
        ("x-ratelimit-reset-requests", "1m0s"),
    ];
    assert_eq!(
        read(200, &no_request).2,
        Some((0, 1_000)),
        "the sixtieth part of a minute"
    );
    assert_eq!(
        read(200, &no_request[1..]).2,
        Some((0, 60_000)),
        "without the limit all of it"
    );
    let no_token = [
        ("x-ratelimit-remaining-tokens", "0"),
        ("x-ratelimit-reset-tokens", "17ms"),
    ];
    assert_eq!(read(200, &no_token).2, Some((0, 17)));
    assert_eq!(
        read(429, &[&no_request[..], &no_token].concat()),
        (true, None, Some((0, 1_000))),
        "the stricter"
    );
    let tokens = [
        ("x-ratelimit-limit-tokens", "150000"),
        no_token[0],
        ("x-ratelimit-reset-tokens", "6m0s"),
    ];
    assert_eq!(
        read(200, &tokens).2,
        Some((0, 360_000)),
        "a call may take all of them"
    );
    assert_eq!(
        read(200, &[&no_request[..], &tokens].concat()).2,
        Some((0, 360_000)),
        "the stricter"
    );
}

/// docs.anthropic.com, "Rate limits", "Response headers": the reset is when a limit is fully
/// replenished.
#[test]
fn upstream_anthropic() {
    let quota = |remaining, reset| {
        [
            ("anthropic-ratelimit-requests-limit", "50"),
            ("anthropic-ratelimit-requests-remaining", remaining),
            ("anthropic-ratelimit-requests-reset", reset),
        ]
    };
    assert_eq!(read(200, &quota("49", "2026-11-21T12:00:01Z")).2, None);
    assert_eq!(
        read(200, &quota("0", "2026-11-21T12:01:00Z")).2,
        Some((0, 1_200))
    );
    assert_eq!(
        read(200, &quota("0", "2026-11-21T11:59:59Z")).2,
        None,
        "captured: a second ago"
    );
    for unit in ["tokens", "input-tokens", "output-tokens"] {
        let names = ["remaining", "reset"].map(|part| format!("anthropic-ratelimit-{unit}-{part}"));
        let values = ["0", "2026-11-21T12:00:07.5Z"].map(HeaderValue::from_static);
        let mut headers: HeaderMap = names
            .iter()
            .map(|name| name.parse().unwrap())
            .zip(values)
            .collect();
        headers.insert(NOW.0, HeaderValue::from_static(NOW.1));
        assert_eq!(
            stated(&headers).used_up,
            Some(Duration::from_millis(7_500)),
            "{unit}"
        );
    }
    assert_eq!(read(529, &[]), (true, None, None), "overloaded");
}

/// Each API's headers as its documentation or its clients' issues show them, after the last call of
/// a quota, behind the time that the next call waits in milliseconds.
#[test]
fn upstream_quota_that_is_used_up_is_waited_for_whatever_the_api() {
    for line in include_str!("apis.txt").lines() {
        let mut parts = line.split(" | ");
        let (wait, api) = parts.next().unwrap().split_once(' ').unwrap();
        let lines: Vec<_> = parts
            .map(|header| header.split_once(": ").unwrap())
            .collect();
        assert_eq!(
            read(200, &lines).2,
            Some((0, wait.parse().unwrap())),
            "{api}"
        );
        let left = lines.iter().map(|(name, value)| {
            (
                *name,
                match *value {
                    "0" | "0.0" => "7",
                    "40/40" => "33/40",
                    "0;w=21600" => "7;w=21600",
                    r#""default";r=0;t=30"# => r#""default";r=7;t=30"#,
                    other => other,
                },
            )
        });
        let paused = read(200, &left.collect::<Vec<_>>())
            .2
            .filter(|(remaining, _)| *remaining == 0);
        assert_eq!(paused, None, "{api}: something is left");
    }
}

/// What is left of a quota is known until its reset. Tokens and a period that may end at any time
/// state nothing of the next requests.
#[test]
fn upstream_quota_with_something_left_lasts_until_its_end() {
    for (lines, expected) in [
        (
            &[
                ("x-ratelimit-remaining", "598.0"),
                ("x-ratelimit-reset", "57"),
            ][..],
            Some((598, 57_000)),
        ),
        (
            &[
                ("x-rate-limit-remaining", "7"),
                ("x-rate-limit-reset", "1795262460"),
            ],
            Some((7, 60_000)),
        ),
        (
            &[
                ("x-rate-limit-requests-left", "7"),
                ("x-rate-limit-time-reset-ms", "1250"),
            ],
            Some((7, 1_250)),
        ),
        (
            &[("ratelimit-remaining", "7;w=60"), ("ratelimit-reset", "5")],
            Some((7, 5_000)),
        ),
        (&[("ratelimit-remaining", "76;w=21600")], None),
        (
            &[
                ("x-ratelimit-remaining", "7"),
                ("x-ratelimit-interval-seconds", "7"),
            ],
            None,
        ),
        (&[("x-minlimit-remaining", "7")], None),
        (&[("x-shopify-shop-api-call-limit", "39/40")], None),
        (
            &[
                ("x-ratelimit-complexity-remaining", "7"),
                ("x-ratelimit-complexity-reset", "1795262490000"),
            ],
            None,
        ),
    ] {
        assert_eq!(read(200, lines).2, expected, "{lines:?}");
    }
}

#[test]
fn upstream_refusal_says_how_long_to_wait_whatever_the_api() {
    for (api, lines, wait) in [
        (
            "Shopify",
            [
                ("retry-after", "2.0"),
                ("x-shopify-shop-api-call-limit", "40/40"),
            ],
            2_000,
        ),
        (
            "Docker Hub",
            [("retry-after", "1795262438"), ("x-ratelimit-limit", "180")],
            38_000,
        ),
        (
            "Azure Cosmos DB",
            [
                ("x-ms-retry-after-ms", "100"),
                ("x-ms-request-charge", "2.1"),
            ],
            100,
        ),
        (
            "Azure OpenAI",
            [("x-ms-retry-after-ms", "1500"), ("retry-after", "2")],
            1_500,
        ),
        (
            "OpenSky, Bucket4j",
            [
                ("x-rate-limit-retry-after-seconds", "120"),
                ("x-rate-limit-remaining", "0"),
            ],
            120_000,
        ),
        (
            "MailerLite",
            [
                ("x-ratelimit-retry-after", "59"),
                ("x-ratelimit-remaining", "0"),
            ],
            59_000,
        ),
        (
            "Lark",
            [
                ("x-ogw-ratelimit-limit", "50"),
                ("x-ogw-ratelimit-reset", "2.5"),
            ],
            2_500,
        ),
    ] {
        assert_eq!(read(429, &lines).1, Some(wait), "{api}");
    }
    let longest_of_a_server = [("retry-after", "1000000000")];
    assert_eq!(
        read(429, &longest_of_a_server).1,
        Some(1_000_000_000_000),
        "an instant long ago is none"
    );
}

/// docs.github.com, "Rate limits for the REST API": a refusal is 403 or 429; the reset is an
/// instant.
#[test]
fn upstream_github() {
    let lines = |remaining| {
        [
            ("x-ratelimit-limit", "60"),
            ("x-ratelimit-remaining", remaining),
            ("x-ratelimit-reset", "1795264200"),
            ("x-ratelimit-used", "60"),
            ("x-ratelimit-resource", "core"),
        ]
    };
    assert_eq!(
        read(403, &lines("0")),
        (true, None, Some((0, 1_800_000))),
        "the primary limit"
    );
    assert_eq!(
        read(403, &[("retry-after", "60")]),
        (true, Some(60_000), None),
        "a secondary limit"
    );
    assert!(read(403, &lines("0.0")).0, "whatever the spelling");
    assert!(read(403, &[("x-rate-limit-remaining", "0")]).0);
    assert!(!read(403, &lines("59")).0, "no right to see it");
    assert!(!read(403, &[]).0);
}

/// Captured from api.mistral.ai: no header says when the minute is over.
#[test]
fn upstream_mistral() {
    let lines = |requests, tokens| {
        [
            ("x-ratelimit-limit-req-minute", "60"),
            ("x-ratelimit-remaining-req-minute", requests),
            ("x-ratelimit-limit-tokens-minute", "50000"),
            ("x-ratelimit-remaining-tokens-minute", tokens),
        ]
    };
    assert_eq!(read(200, &lines("59", "47196")).2, None);
    assert_eq!(read(200, &lines("0", "47196")).2, Some((0, 60_000)));
    assert_eq!(
        read(429, &lines("59", "0")),
        (true, None, Some((0, 60_000)))
    );
}

#[test]
fn upstream_quota_of_a_provider_that_cannot_be_read_is_ignored() {
    for (remaining, reset) in [
        ("-1", "1s"),
        ("none", "1s"),
        ("0", "soon"),
        ("0", "1x"),
        ("", "1s"),
    ] {
        let lines = [
            ("x-ratelimit-remaining-requests", remaining),
            ("x-ratelimit-reset-requests", reset),
        ];
        assert_eq!(read(200, &lines).2, None, "{remaining:?} {reset:?}");
    }
    assert_eq!(read(200, &[("x-ratelimit-remaining-tokens", "0")]).2, None);
}

/// A message of `google.rpc`, with one field of bytes in it.
fn message(number: u8, bytes: &[u8]) -> Vec<u8> {
    [
        &[number << 3 | 2, u8::try_from(bytes.len()).unwrap()][..],
        bytes,
    ]
    .concat()
}

fn details(type_url: &str, seconds: u8, nanos: &[u8]) -> String {
    let delay = [&[1 << 3, seconds][..], nanos].concat();
    let any = [
        message(1, type_url.as_bytes()),
        message(2, &message(1, &delay)),
    ]
    .concat();
    let other = [
        message(1, b"type.googleapis.com/google.rpc.QuotaFailure"),
        message(2, b"??"),
    ]
    .concat();
    let status = [
        &[1 << 3, 8][..],
        &message(2, b"slow down"),
        &message(3, &other),
        &message(3, &any),
    ]
    .concat();
    BASE64.encode(status)
}

#[test]
fn upstream_grpc() {
    let read = |lines: &[(&'static str, &str)]| {
        let headers: HeaderMap = lines
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()))
            .collect();
        (refusal(StatusCode::OK, &headers, false).0, wait(&headers))
    };
    let ms = Duration::from_millis;
    assert_eq!(read(&[("grpc-status", "0")]), (false, None));
    assert_eq!(read(&[("grpc-status", "5")]), (false, None), "not found");
    for status in ["8", "14"] {
        assert_eq!(read(&[("grpc-status", status)]), (true, None));
        assert_eq!(
            read(&[("grpc-status", status), ("grpc-retry-pushback-ms", "1500")]),
            (true, Some(ms(1_500)))
        );
    }
    assert_eq!(
        read(&[("grpc-status", "8"), ("grpc-retry-pushback-ms", "-1")]),
        (true, None),
        "no time is told"
    );
    let retry_info = "type.googleapis.com/google.rpc.RetryInfo";
    // 500,000,000 ns.
    let half = [2 << 3, 0x80, 0xca, 0xb5, 0xee, 0x01];
    let told = |details: &str| read(&[("grpc-status", "8"), ("grpc-status-details-bin", details)]);
    assert_eq!(
        told(&details(retry_info, 7, &half)),
        (true, Some(ms(7_500)))
    );
    assert_eq!(told(&details(retry_info, 7, &[])), (true, Some(ms(7_000))));
    assert_eq!(
        told(&details("type.googleapis.com/google.rpc.Other", 7, &half)),
        (true, None)
    );
    let both = details(retry_info, 7, &half);
    let lines = |pushback| {
        [
            ("grpc-status", "8"),
            ("grpc-retry-pushback-ms", pushback),
            ("grpc-status-details-bin", &*both),
        ]
    };
    assert_eq!(
        read(&lines("9000")),
        (true, Some(ms(9_000))),
        "the stricter"
    );
    assert_eq!(read(&lines("100")), (true, Some(ms(7_500))), "the stricter");
}

/// Later versions of the messages may have fields of other kinds before those that are read.
#[test]
fn upstream_grpc_fields_of_each_width_are_passed_over() {
    let ahead = [&[9 << 3 | 1][..], &[0xff; 8], &[10 << 3 | 5], &[0xff; 4]].concat();
    let behind = |fields: &[u8]| [&ahead, fields].concat();
    let info = behind(&message(1, &behind(&[1 << 3, 7])));
    let name = message(1, b"type.googleapis.com/google.rpc.RetryInfo");
    let any = behind(&[name, message(2, &info)].concat());
    let status = BASE64.encode(behind(&message(3, &any)));
    let details = HeaderValue::from_str(&status).unwrap();
    let headers =
        HeaderMap::from_iter([(HeaderName::from_static("grpc-status-details-bin"), details)]);
    assert_eq!(wait(&headers), Some(Duration::from_secs(7)));
}

proptest! {
    /// Whatever an upstream says, it is read without a panic, and no wait is shorter than one of
    /// its statements, but for the seconds that are rounded up.
    #[test]
    fn upstream_hostile_values_are_read(
        lines in prop::collection::vec((0..NAMES.len(), "[ \
            -~\u{80}-\u{ff}]{0,40}|[0-9.]{1,30}[a-z]{0,2}|-?[0-9]{1,25}"), 0..12),
        status in 100_u16..1_000,
    ) {
        let lines = lines.iter().filter_map(|(name, value)| {
            Some((HeaderName::from_static(NAMES[*name]), HeaderValue::from_bytes(value.as_bytes()).ok()?))
        });
        let mut headers = HeaderMap::new();
        lines.for_each(|(name, value)| _ = headers.append(name, value));
        let _ = refusal(StatusCode::from_u16(status).unwrap(), &headers, false);
        let all = wait(&headers).map(|wait| wait.saturating_add(Duration::from_secs(1)));
        for (name, value) in &headers {
            let alone = HeaderMap::from_iter([(name.clone(), value.clone())]);
            // Of several pushbacks the first counts.
            if name.as_str().contains("retry-after") {
                prop_assert!(wait(&alone) <= all, "{name}: {value:?}");
            }
        }
        let _ = stated(&headers);
    }
}

const NAMES: [&str; 29] = [
    "retry-after",
    "retry-after-ms",
    "x-ms-retry-after-ms",
    "x-rate-limit-retry-after-seconds",
    "ratelimit",
    "ratelimit-limit",
    "ratelimit-remaining",
    "ratelimit-reset",
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
    "x-ratelimit-reset-after",
    "x-rate-limit-remaining",
    "x-rate-limit-reset",
    "x-hubspot-ratelimit-remaining",
    "x-hubspot-ratelimit-interval-milliseconds",
    "x-shopify-shop-api-call-limit",
    "x-minlimit-remaining",
    "x-ratelimit-limit-requests",
    "x-ratelimit-remaining-requests",
    "x-ratelimit-reset-requests",
    "x-ratelimit-remaining-tokens",
    "x-ratelimit-reset-tokens",
    "anthropic-ratelimit-requests-remaining",
    "anthropic-ratelimit-requests-reset",
    "x-ratelimit-remaining-req-minute",
    "grpc-status",
    "grpc-retry-pushback-ms",
    "grpc-status-details-bin",
];

//! Reads how long an upstream wants its clients to wait, from any headers: no call waits for longer
//! than the longest pause, and one that an upstream has told in a known form waits as long as that
//! form says.

#![no_main]

use std::sync::LazyLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use throttle_tower::shape::Shaper;
use throttle_tower::{Pace, Rate};
use tokio::runtime::{Builder, Runtime};
use tokio::time::Instant;
use tonic_types::{ErrorDetails, StatusExt};

/// The longest pause, unless something else is set.
const LONGEST: Duration = Duration::from_secs(3_600);
/// What the pace, the timers and the clock of the system add.
const SLACK: Duration = Duration::from_millis(1_500);

const NAMES: [&str; 26] = [
    "retry-after",
    "retry-after-ms",
    "x-ms-retry-after-ms",
    "x-ratelimit-retry-after",
    "x-amz-retry-after",
    "date",
    "ratelimit",
    "ratelimit-policy",
    "ratelimit-remaining",
    "ratelimit-reset",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
    "x-ratelimit-reset-after",
    "x-ratelimit-remaining-requests",
    "x-ratelimit-reset-requests",
    "x-ratelimit-limit-requests",
    "x-ratelimit-remaining-tokens",
    "x-ratelimit-reset-tokens",
    "anthropic-ratelimit-requests-remaining",
    "anthropic-ratelimit-requests-reset",
    "anthropic-ratelimit-requests-limit",
    "x-shopify-shop-api-call-limit",
    "x-hubspot-ratelimit-interval-milliseconds",
    "grpc-status",
    "grpc-retry-pushback-ms",
    "grpc-status-details-bin",
];

/// What header values are made of.
const PARTS: [&str; 22] = [
    "0",
    "1",
    "7",
    "59",
    "1795262460",
    "1795262460500",
    "99999999999999999999",
    ".5",
    "-",
    "s",
    "ms",
    "m",
    "h",
    "\u{b5}s",
    "\"a\";r=",
    ";t=",
    ";w=60",
    ", ",
    "limit=10, remaining=0, reset=",
    "2026-11-21T12:00:00Z",
    "/40",
    "Sun, 06 Nov 2094 08:49:37 GMT",
];

fn text(of: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    for _ in 0..of.int_in_range(1..=5_u8)? {
        if of.ratio(1, 8)? {
            text.extend(of.arbitrary::<[u8; 2]>()?);
        } else {
            text.extend(of.choose(&PARTS)?.bytes());
        }
    }
    Ok(text)
}

fn put(headers: &mut HeaderMap, name: &'static str, value: &[u8]) {
    if let Ok(value) = HeaderValue::from_bytes(value) {
        headers.append(HeaderName::from_static(name), value);
    }
}

/// Headers of any contents.
fn hostile(of: &mut Unstructured<'_>) -> Result<(StatusCode, HeaderMap)> {
    let mut headers = HeaderMap::new();
    for _ in 0..of.int_in_range(0..=6_u8)? {
        put(&mut headers, *of.choose(&NAMES)?, &text(of)?);
    }
    let status = *of.choose(&[200, 202, 429, 503, 403, 418, 529, 500])?;
    Ok((StatusCode::from_u16(status).expect("a status"), headers))
}

/// A wait in one of the known forms, written with some freedom, and the wait.
fn known(of: &mut Unstructured<'_>) -> Result<(StatusCode, HeaderMap, Duration)> {
    let mut headers = HeaderMap::new();
    let millis = of.int_in_range(1_000..=100_000_u64)?;
    let (mut wait, whole) = (Duration::from_millis(millis), millis / 1_000);
    let zeros = "0".repeat(of.int_in_range(0..=3)?);
    let spaced = |text: String, of: &mut Unstructured<'_>| -> Result<String> {
        Ok(of.choose(&["", " ", "\t"])?.to_string() + &text)
    };
    let at = SystemTime::now() + wait;
    let since_1970 = at.duration_since(UNIX_EPOCH).expect("after 1970");
    let go = format!("{}m{}.{:03}s", whole / 60, whole % 60, millis % 1_000);
    let mut status = StatusCode::TOO_MANY_REQUESTS;
    let mut said = |name: &'static str, value: String| put(&mut headers, name, value.as_bytes());
    match of.int_in_range(0..=9_u8)? {
        0 => said(
            "retry-after",
            spaced(format!("{zeros}{whole}.{:03}", millis % 1_000), of)?,
        ),
        1 => said("retry-after", spaced(httpdate(at), of)?),
        2 => said("retry-after", format!("{}", since_1970.as_secs())),
        3 => said("retry-after-ms", spaced(format!("{zeros}{millis}"), of)?),
        4 => {
            said("x-ratelimit-remaining-requests", "0".into());
            said("x-ratelimit-reset-requests", go);
            // Such a quota refills, and when its next request comes back is not stated.
            wait = Duration::from_secs(1);
        }
        5 => {
            said("x-ratelimit-remaining", format!("{zeros}0"));
            said("x-ratelimit-reset", format!("{}", since_1970.as_millis()));
            status = StatusCode::FORBIDDEN;
        }
        6 => {
            let t = if of.arbitrary()? {
                format!("t={}", whole + 1)
            } else {
                format!("x=\"a,\\\"\";t={}", whole + 1)
            };
            said("ratelimit", format!("\"a\";r=0;{t}, \"b\";r=5;t=1"));
        }
        7 => said(
            "ratelimit",
            format!("limit=10, remaining=0, reset={}", whole + 1),
        ),
        8 => {
            said("grpc-status", "8".into());
            said("grpc-retry-pushback-ms", format!("{millis}"));
            status = StatusCode::OK;
        }
        // As tonic writes it.
        _ => {
            let mut details = ErrorDetails::with_retry_info(Some(wait));
            details.set_debug_info(vec![zeros.clone()], go);
            let refused =
                tonic::Status::with_error_details(tonic::Code::Unavailable, zeros, details);
            refused.add_header(&mut headers).expect("headers");
            status = StatusCode::OK;
        }
    }
    Ok((status, headers, wait))
}

/// A date of HTTP, by the days of another calendar than the library's.
fn httpdate(at: SystemTime) -> String {
    let seconds = at.duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
    let (mut days, mut year) = (seconds / 86_400, 1970);
    let is_leap = |year: u64| year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let weekday = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"][days as usize % 7];
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let lengths = [
        31,
        28 + u64::from(is_leap(year)),
        31,
        30,
        31,
        30,
        31,
        31,
        30,
        31,
        30,
        31,
    ];
    let names = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let mut month = 0;
    while days >= lengths[month] {
        days -= lengths[month];
        month += 1;
    }
    let (hour, minute, second) = (seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60);
    format!(
        "{weekday}, {:02} {} {year} {hour:02}:{minute:02}:{second:02} GMT",
        days + 1,
        names[month]
    )
}

/// How long the call after a response waits.
async fn waits(shaper: &Shaper, status: StatusCode, headers: &HeaderMap) -> Duration {
    let left = Instant::now();
    shaper.obey("upstream", left, status, headers);
    shaper
        .schedule("upstream", 1)
        .await
        .expect("a pause is shorter than the longest wait");
    left.elapsed()
}

async fn check(of: &mut Unstructured<'_>) -> Result<()> {
    let pace = Pace::new(Rate::per_second(1_000)).max_wait(Duration::from_secs(7_200));
    let shaper = Shaper::new(pace).expect("a pace");
    shaper
        .schedule("upstream", 1)
        .await
        .expect("the first call");
    if of.ratio(1, 2)? {
        let (status, headers, wait) = known(of)?;
        let (waited, expected) = (waits(&shaper, status, &headers).await, wait.min(LONGEST));
        let difference = waited.abs_diff(expected);
        assert!(
            difference < SLACK,
            "waited {waited:?}, not {expected:?}: {status} {headers:?}"
        );
        return Ok(());
    }
    for _ in 0..of.int_in_range(1..=4_u8)? {
        let (status, headers) = hostile(of)?;
        let waited = waits(&shaper, status, &headers).await;
        assert!(
            waited <= LONGEST + SLACK,
            "waited {waited:?}: {status} {headers:?}"
        );
    }
    // What was said is over some time. No key is kept for ever.
    tokio::time::sleep(Duration::from_secs(86_400 + 120)).await;
    assert_eq!((shaper.stats().paused, shaper.stats().waiting), (0, 0));
    Ok(())
}

/// The clock of a runtime that is a thread's own is gone before it is.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime")
});

fuzz_target!(|bytes: &[u8]| {
    let mut of = Unstructured::new(bytes);
    let _ = RUNTIME.block_on(check(&mut of));
});

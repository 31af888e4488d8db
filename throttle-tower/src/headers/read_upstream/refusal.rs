use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderMap, StatusCode};

use super::quota::UpstreamQuota;
use super::time_text::longest;
use super::{grpc, time_text};

/// The status by which Anthropic's API says that it is overloaded; no registry has it.
const OVERLOADED: u16 = 529;

/// Returns whether the upstream refused a call because of its limits or its load, so that a later
/// call may succeed, and the wait that the response states. `is_refused` is set if the program
/// knows that it did.
///
/// An error with a stated wait is such a refusal, whatever its status. A success with one is not:
/// it may state when the client should ask again for a result.
pub(crate) fn refusal(
    status: StatusCode,
    headers: &HeaderMap,
    is_refused: bool,
) -> (bool, Option<Duration>) {
    let refuses = is_refused
        || match status {
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => true,
            // GitHub's limits. If requests are left and no wait is stated, the client has no right
            // to what it asked for.
            StatusCode::FORBIDDEN => nothing_remains(headers),
            StatusCode::OK => grpc::is_refusal(headers),
            other => other.as_u16() == OVERLOADED,
        };
    let may_refuse = refuses || status.is_client_error() || status.is_server_error();
    let wait = if may_refuse { wait(headers) } else { None };
    (refuses || wait.is_some(), wait)
}

/// Headers that state a wait, as `Retry-After` does.
const IN_SECONDS: [&str; 3] = [
    "x-ratelimit-retry-after",
    "x-rate-limit-retry-after-seconds",
    "x-ogw-ratelimit-reset",
];
const IN_MILLIS: [&str; 3] = ["retry-after-ms", "x-ms-retry-after-ms", "x-amz-retry-after"];

/// How long a refusal asks to wait, by the longest of its statements; `None` if it states none,
/// or 0.
pub(super) fn wait(headers: &HeaderMap) -> Option<Duration> {
    let seconds = |text: &[u8]| time_text::retry_after(text, headers);
    let in_seconds = std::iter::once(RETRY_AFTER.as_str()).chain(IN_SECONDS);
    let seconds = in_seconds
        .filter_map(|name| longest(headers, name, seconds))
        .max();
    let in_millis = IN_MILLIS.iter();
    let millis = in_millis
        .filter_map(|name| longest(headers, name, time_text::millis))
        .max();
    let stated = match (seconds, millis) {
        // Both state one wait, which one of them can only round up.
        (Some(seconds), Some(millis)) if is_rounded_up(millis, seconds) => Some(millis),
        _ => seconds.max(millis),
    };
    stated
        .max(grpc::wait(headers))
        .filter(|wait| !wait.is_zero())
}

fn is_rounded_up(exact: Duration, seconds: Duration) -> bool {
    exact <= seconds && seconds - exact < Duration::from_secs(1)
}

fn nothing_remains(headers: &HeaderMap) -> bool {
    headers
        .iter()
        .filter_map(|(name, value)| UpstreamQuota::read(name, value))
        .any(|quota| quota.is_used_up())
}

use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderMap, StatusCode};

use super::{grpc, time_text};
use crate::headers::retry_after::wait_micros;
use crate::headers::{names, structured};

/// The status by which Anthropic's API says that it is overloaded; no registry has it.
const OVERLOADED: u16 = 529;

/// Whether the upstream refused a call because of its limits or its load, so that a later call may succeed.
pub(crate) fn is_refusal(status: StatusCode, headers: &HeaderMap) -> bool {
    match status {
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => true,
        // GitHub's limits. If requests are left and no wait is stated, the client has no right to what it asked for.
        StatusCode::FORBIDDEN => headers.contains_key(RETRY_AFTER) || nothing_remains(headers),
        StatusCode::OK => grpc::is_refusal(headers),
        other => other.as_u16() == OVERLOADED,
    }
}

/// How long a refusal asks to wait, by the longest of its statements; `None` if it states none, or 0.
pub(crate) fn wait(headers: &HeaderMap, now_unix_us: u64) -> Option<Duration> {
    let seconds = headers.get_all(RETRY_AFTER).into_iter().filter_map(|value| wait_micros(value, now_unix_us));
    let seconds = seconds.max().map(Duration::from_micros);
    let millis = headers.get_all(&names::RETRY_AFTER_MS).into_iter();
    let millis = millis.filter_map(|value| time_text::millis(value.as_bytes())).max();
    let told = match (seconds, millis) {
        // Both state one wait, which one of them can only round up.
        (Some(seconds), Some(millis)) if is_rounded_up(millis, seconds) => Some(millis),
        _ => seconds.max(millis),
    };
    told.max(grpc::wait(headers)).filter(|wait| !wait.is_zero())
}

fn is_rounded_up(exact: Duration, seconds: Duration) -> bool {
    exact <= seconds && seconds - exact < Duration::from_secs(1)
}

fn nothing_remains(headers: &HeaderMap) -> bool {
    headers.get(&names::X.remaining).and_then(|value| structured::single_count(value.as_bytes())) == Some(0)
}

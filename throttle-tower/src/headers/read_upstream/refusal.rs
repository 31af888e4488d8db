use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderName, StatusCode};

use super::{grpc, time_text};
use crate::headers::retry_after::wait_micros;
use crate::headers::{names, structured};

static RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");

/// Anthropic's status for an overloaded service; it is in no registry.
const OVERLOADED: u16 = 529;

/// Whether the upstream refused a call because of its limits or its load, so that a later call may succeed.
pub(crate) fn is_refusal(status: StatusCode, headers: &HeaderMap) -> bool {
    match status {
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => true,
        // GitHub's: other refusals of access have no wait, and something left.
        StatusCode::FORBIDDEN => headers.contains_key(RETRY_AFTER) || nothing_remains(headers),
        StatusCode::OK => grpc::is_refusal(headers),
        other => other.as_u16() == OVERLOADED,
    }
}

/// How long a refusal asks to wait: the longest of all its statements, and none that is not longer than nothing.
pub(crate) fn wait(headers: &HeaderMap, now_unix_us: u64) -> Option<Duration> {
    let seconds = headers.get_all(RETRY_AFTER).into_iter().filter_map(|value| wait_micros(value, now_unix_us));
    let seconds = seconds.map(Duration::from_micros);
    let millis = headers.get_all(&RETRY_AFTER_MS).into_iter().filter_map(|value| time_text::millis(value.as_bytes()));
    seconds.chain(millis).chain(grpc::wait(headers)).max().filter(|wait| !wait.is_zero())
}

fn nothing_remains(headers: &HeaderMap) -> bool {
    headers.get(&names::X.remaining).and_then(|value| structured::single_count(value.as_bytes())) == Some(0)
}

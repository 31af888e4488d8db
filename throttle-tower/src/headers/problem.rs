use bytes::Bytes;
use http::{HeaderValue, StatusCode};

use crate::json::{escape, escaped_len};

/// Why a request was refused: a problem document (RFC 9457) of the types that the rate-limit drafts
/// register.
///
/// ```
/// use throttle_tower::headers::Problem;
///
/// assert_eq!(Problem::QuotaExceeded.status(), 429);
/// assert_eq!(Problem::TemporaryReducedCapacity.status(), 503);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Problem {
    /// The client has used up its quota: status 429.
    QuotaExceeded,
    /// The service has less capacity than usual, so the client is not to blame: status 503.
    TemporaryReducedCapacity,
}

impl Problem {
    /// The `Content-Type` of [`body`](Self::body).
    pub const CONTENT_TYPE: HeaderValue = HeaderValue::from_static("application/problem+json");

    /// The status of the response, which the body repeats and must not contradict.
    #[must_use]
    pub const fn status(self) -> StatusCode {
        match self {
            Self::QuotaExceeded => StatusCode::TOO_MANY_REQUESTS,
            Self::TemporaryReducedCapacity => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// The body: a JSON object that names the policies in `violated`. Clients read those names.
    ///
    /// ```
    /// use throttle_tower::headers::Problem;
    ///
    /// let body = Problem::QuotaExceeded.body(["per-ip"]);
    /// assert!(body.ends_with(br#""status":429,"violated-policies":["per-ip"]}"#));
    /// ```
    #[must_use]
    pub fn body<'a, I>(self, violated: I) -> Bytes
    where
        I: IntoIterator<Item = &'a str>,
        I::IntoIter: Clone,
    {
        let violated = violated.into_iter();
        let head = self.head();
        // Quotes around each name and a comma before each but the first. The sum is exact, because
        // a vector with spare capacity would be reallocated when it becomes `Bytes`.
        let names: usize = violated.clone().map(|name| escaped_len(name) + 3).sum();
        let length = head.len() + names.saturating_sub(1) + TAIL.len();
        let mut body = Vec::with_capacity(length);
        body.extend_from_slice(head.as_bytes());
        for (index, name) in violated.enumerate() {
            body.extend_from_slice(if index == 0 { b"\"" } else { b",\"" });
            escape(&mut body, name);
            body.push(b'"');
        }
        body.extend_from_slice(TAIL);
        debug_assert_eq!(body.len(), length);
        Bytes::from(body)
    }

    const fn head(self) -> &'static str {
        match self {
            Self::QuotaExceeded => concat!(
                r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","#,
                r#""title":"Quota Exceeded","status":429,"violated-policies":["#
            ),
            Self::TemporaryReducedCapacity => concat!(
                r#"{"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity","#,
                r#""title":"Temporary Reduced Capacity","status":503,"violated-policies":["#
            ),
        }
    }
}

const TAIL: &[u8] = b"]}";

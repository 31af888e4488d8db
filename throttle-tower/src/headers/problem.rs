use bytes::Bytes;
use http::{HeaderValue, StatusCode};

use crate::json::quoted;

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
    {
        let (kind, title) = match self {
            Self::QuotaExceeded => ("quota-exceeded", "Quota Exceeded"),
            Self::TemporaryReducedCapacity => {
                ("temporary-reduced-capacity", "Temporary Reduced Capacity")
            }
        };
        let status = self.status().as_u16();
        let violated: Vec<_> = violated.into_iter().map(quoted).collect();
        let violated = violated.join(",");
        let head = format!(r#""type":"{TYPES}#{kind}","title":"{title}","status":{status}"#);
        Bytes::from(format!(r#"{{{head},"violated-policies":[{violated}]}}"#))
    }
}

const TYPES: &str = "https://iana.org/assignments/http-problem-types";

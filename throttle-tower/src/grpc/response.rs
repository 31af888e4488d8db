use std::time::Duration;

use base64::Engine as _;
use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response, StatusCode};

use super::details::{self, QuotaDetails};
use super::text::{BASE64, percent_encoded};
use crate::uncached::uncached;

/// The status codes of refusals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Code {
    InvalidArgument = 3,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    Unavailable = 14,
    Unauthenticated = 16,
}

/// When a client may retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retry {
    After(Duration),
    /// No wait helps.
    Never,
    /// The client has to find out.
    Unknown,
}

impl Retry {
    /// The wait in ms, rounded up; -1 asks a client not to retry. Clients read an `i32`, so a wait
    /// of more than 24 days becomes -1 too.
    fn pushback(self) -> Option<i32> {
        match self {
            Self::After(wait) => {
                Some(i32::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(-1))
            }
            Self::Never => Some(-1),
            Self::Unknown => None,
        }
    }

    fn wait(self) -> Option<Duration> {
        if let Self::After(wait) = self {
            Some(wait)
        } else {
            None
        }
    }
}

/// A refusal as a gRPC client reads it.
pub(crate) struct GrpcRefusal<'a> {
    pub(crate) code: Code,
    pub(crate) message: &'a str,
    pub(crate) retry: Retry,
    pub(crate) quota: Option<QuotaDetails<'a>>,
}

pub(crate) static STATUS: HeaderName = HeaderName::from_static("grpc-status");
static MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
/// A `google.rpc.Status`, in base64.
pub(crate) static DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
/// Milliseconds, or a negative number: do not call again (gRPC proposal A6).
pub(crate) static PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

impl GrpcRefusal<'_> {
    /// The response: status 200, no body.
    pub(crate) fn response(&self, content_type: HeaderValue) -> Response<Bytes> {
        let code = self.code as u8;
        let mut response = uncached(StatusCode::OK, content_type, Bytes::new());
        let headers = response.headers_mut();
        headers.insert(&STATUS, u16::from(code).into());
        let mut insert = |name: &HeaderName, text: Vec<u8>| {
            // The text is ASCII, so it is a header's value.
            if let Ok(value) = HeaderValue::from_maybe_shared(Bytes::from(text)) {
                headers.insert(name, value);
            }
        };
        insert(&MESSAGE, percent_encoded(self.message));
        if let Some(quota) = &self.quota {
            insert(
                &DETAILS,
                BASE64
                    .encode(details::status(
                        code,
                        self.message,
                        self.retry.wait(),
                        quota,
                    ))
                    .into(),
            );
        }
        if let Some(pushback) = self.retry.pushback() {
            headers.insert(&PUSHBACK, pushback.into());
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pushback_is_never_early_and_an_i32() {
        let after = |wait| Retry::After(wait).pushback();
        let millis = |millis| Duration::from_millis(millis);
        assert_eq!(after(Duration::ZERO), Some(0));
        assert_eq!(after(Duration::from_micros(1)), Some(1));
        assert_eq!(after(millis(1)), Some(1));
        assert_eq!(after(millis(1) + Duration::from_micros(1)), Some(2));
        assert_eq!(after(millis(2_147_483_647)), Some(i32::MAX));
        assert_eq!(after(millis(2_147_483_648)), Some(-1));
        assert_eq!(
            (
                after(Duration::MAX),
                Retry::Never.pushback(),
                Retry::Unknown.pushback()
            ),
            (Some(-1), Some(-1), None)
        );
    }
}

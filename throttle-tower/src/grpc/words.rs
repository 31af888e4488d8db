//! What a refusal says to gRPC clients.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode};

use super::details::{QuotaDetails, Violation};
use super::response::{Code, GrpcRefusal, Retry};

/// Most policies that a refusal names. Many clients read no more than 8 KiB of headers.
const MOST_NAMED: usize = 8;

/// The policies named `names` have refused the request. `binding` is the policy that decided, with
/// its announced quota.
pub(crate) fn quota_exceeded<'a>(
    names: impl Iterator<Item = &'a str>,
    violations: impl Iterator<Item = Violation<'a>>,
    binding: Option<(&'a str, Option<u64>)>,
    wait: Option<Duration>,
    content_type: HeaderValue,
) -> Response<Bytes> {
    let violations: Vec<_> = violations.take(MOST_NAMED).collect();
    let message = listed("quota exceeded: ", names);
    let quota = Some(QuotaDetails {
        violations: &violations,
        binding,
    });
    let retry = wait.map_or(Retry::Never, Retry::After);
    GrpcRefusal {
        code: Code::ResourceExhausted,
        message: &message,
        retry,
        quota,
    }
    .response(content_type)
}

/// The policies named `names` refuse the request for a reason of which it is not known how long it
/// lasts.
pub(crate) fn reduced_capacity<'a>(
    names: impl Iterator<Item = &'a str>,
    wait: Option<Duration>,
    content_type: HeaderValue,
) -> Response<Bytes> {
    let message = listed("temporarily reduced capacity: ", names);
    let retry = wait.map_or(Retry::Unknown, Retry::After);
    GrpcRefusal {
        code: Code::Unavailable,
        message: &message,
        retry,
        quota: None,
    }
    .response(content_type)
}

/// The request lacks a key. `status` is what another client than gRPC's would get.
pub(crate) fn missing_key(status: StatusCode, content_type: HeaderValue) -> Response<Bytes> {
    let (code, retry) = code_of_missing_key(status);
    GrpcRefusal {
        code,
        message: "the rate limit needs a key",
        retry,
        quota: None,
    }
    .response(content_type)
}

/// As gRPC maps the statuses of HTTP, but for those that it takes for errors of a proxy.
fn code_of_missing_key(status: StatusCode) -> (Code, Retry) {
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::PROXY_AUTHENTICATION_REQUIRED => {
            (Code::Unauthenticated, Retry::Never)
        }
        StatusCode::FORBIDDEN => (Code::PermissionDenied, Retry::Never),
        StatusCode::TOO_MANY_REQUESTS => (Code::ResourceExhausted, Retry::Unknown),
        status if status.is_server_error() => (Code::Unavailable, Retry::Unknown),
        _ => (Code::InvalidArgument, Retry::Never),
    }
}

fn listed<'a>(start: &str, names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.take(MOST_NAMED).collect();
    format!("{start}{}", names.join(", "))
}

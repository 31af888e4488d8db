use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Response, StatusCode};

/// Caches must not store a 429 (RFC 6585), and the other refusals are not true for long.
pub(crate) const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

/// A response that no cache stores.
#[inline]
pub(crate) fn uncached<B>(status: StatusCode, content_type: HeaderValue, body: B) -> Response<B> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, content_type);
    headers.insert(CACHE_CONTROL, NO_STORE);
    response
}

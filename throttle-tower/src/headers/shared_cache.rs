use http::HeaderMap;
use http::header::CACHE_CONTROL;

/// Returns whether shared caches may store a response: `Cache-Control` with `public` or `s-maxage`.
///
/// The rate-limit headers of such a response would reach other clients, so omit them. In doubt, as
/// on a malformed `Cache-Control`, the result is `true`, because omitting the headers does no harm.
/// Only explicit directives count. A cache may store other responses too, so a handler whose
/// responses differ per client should send `private`.
///
/// ```
/// use http::{HeaderMap, HeaderValue, header::CACHE_CONTROL};
/// use throttle_tower::headers::is_public;
///
/// let mut headers = HeaderMap::new();
/// headers.insert(CACHE_CONTROL, HeaderValue::from_static("max-age=60, S-MaxAge=3600"));
/// assert!(is_public(&headers));
/// headers.insert(CACHE_CONTROL, HeaderValue::from_static("private=\"x, public\", max-age=60"));
/// assert!(!is_public(&headers));
/// ```
#[must_use]
pub fn is_public(headers: &HeaderMap) -> bool {
    headers
        .get_all(CACHE_CONTROL)
        .into_iter()
        .any(|line| offers_sharing(line.as_bytes()))
}

fn offers_sharing(mut line: &[u8]) -> bool {
    loop {
        let end = directive_end(line);
        let (directive, rest) = line.split_at_checked(end).unwrap_or((line, b""));
        let name = directive
            .split(|b| *b == b'=')
            .next()
            .unwrap_or_default()
            .trim_ascii();
        if name.eq_ignore_ascii_case(b"public") || name.eq_ignore_ascii_case(b"s-maxage") {
            return true;
        }
        let Some((_comma, rest)) = rest.split_first() else {
            return false;
        };
        line = rest;
    }
}

/// The end of the first directive: the first comma outside quotes. If the quotes do not close, it
/// is the first comma of all: caches differ on such a line, and one that ignores the quotes may
/// find a `public` after them.
fn directive_end(line: &[u8]) -> usize {
    let mut quoted = false;
    let mut escaped = false;
    for (at, byte) in line.iter().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b',' if !quoted => return at,
            _ => {}
        }
    }
    let first_comma = if quoted {
        line.iter().position(|b| *b == b',')
    } else {
        None
    };
    first_comma.unwrap_or(line.len())
}

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Method};

/// The families, the longer names first.
const FAMILIES: [&str; 3] = ["application/grpc-web-text", "application/grpc-web", GRPC];
const GRPC: &str = "application/grpc";

/// The content type of the response to a request: its own, without parameters. `None` if the
/// request is not gRPC's, which are all POST. By another method a client could have a status 200
/// put into a cache.
#[inline]
pub(crate) fn response_type(method: &Method, headers: &HeaderMap) -> Option<HeaderValue> {
    if method == Method::POST {
        respond_to(headers.get(CONTENT_TYPE)?.as_bytes())
    } else {
        None
    }
}

fn respond_to(asked: &[u8]) -> Option<HeaderValue> {
    let begins_with = |family: &&str| {
        let start = asked.get(..family.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(family.as_bytes()))
    };
    let family = FAMILIES.into_iter().find(begins_with)?;
    // Whatever begins with the name of gRPC-Web is of its family, but gRPC's own is a word of its
    // own.
    let is_word = || {
        asked
            .get(GRPC.len())
            .is_none_or(|next| matches!(next, b'+' | b';' | b' ' | b'\t'))
    };
    if family == GRPC && !is_word() {
        return None;
    }
    let end = asked
        .iter()
        .position(|byte| matches!(byte, b';' | b' ' | b'\t'))
        .unwrap_or(asked.len());
    let kept = asked
        .get(..end)
        .filter(|kept| is_codec(&kept[family.len()..]));
    Some(
        kept.and_then(|kept| HeaderValue::from_bytes(kept).ok())
            .unwrap_or(HeaderValue::from_static(family)),
    )
}

/// Whether the rest of a content type names a codec, as `+proto` does, or nothing. Some clients
/// want the codec of the request in the answer; nothing else of what a client writes is repeated.
fn is_codec(rest: &[u8]) -> bool {
    match rest.split_first() {
        None => true,
        Some((b'+', name)) => {
            (1..=32).contains(&name.len())
                && name
                    .iter()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(byte))
        }
        Some(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(asked: &str) -> Option<String> {
        let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_str(asked).unwrap())]);
        response_type(&Method::POST, &headers).map(|answer| answer.to_str().unwrap().to_owned())
    }

    #[test]
    fn answer_is_of_the_same_family_and_codec() {
        for (asked, expected) in [
            ("application/grpc", "application/grpc"),
            ("application/grpc+proto", "application/grpc+proto"),
            (
                "application/grpc+json; charset=utf-8",
                "application/grpc+json",
            ),
            ("application/grpc;x", "application/grpc"),
            ("Application/gRPC", "Application/gRPC"),
            ("application/grpc-web", "application/grpc-web"),
            ("application/grpc-web+proto", "application/grpc-web+proto"),
            ("application/grpc-web-text", "application/grpc-web-text"),
            (
                "application/grpc-web-text+proto",
                "application/grpc-web-text+proto",
            ),
            ("application/grpc-web-textual", "application/grpc-web-text"),
            ("application/grpc-webx", "application/grpc-web"),
            ("application/grpc x", "application/grpc"),
            ("application/grpc+", "application/grpc"),
            ("application/grpc+a<b>", "application/grpc"),
            ("application/grpc+proto,text/html", "application/grpc"),
        ] {
            assert_eq!(answer(asked).as_deref(), Some(expected), "{asked}");
        }
        assert_eq!(
            answer(&format!("application/grpc+{}", "a".repeat(33))).as_deref(),
            Some("application/grpc")
        );
        for other in [
            "",
            "application/json",
            "application/grp",
            "application/grpcfoo",
            "application/grpc-foo",
            "application/grpc.v2",
            "application/grpc,text/html",
            "text/plain; application/grpc",
            " application/grpc",
        ] {
            assert_eq!(answer(other), None, "{other}");
        }
        assert_eq!(response_type(&Method::POST, &HeaderMap::new()), None);
        let headers =
            HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("application/grpc"))]);
        for method in [Method::GET, Method::HEAD, Method::OPTIONS, Method::PUT] {
            assert_eq!(response_type(&method, &headers), None, "{method}");
        }
    }
}

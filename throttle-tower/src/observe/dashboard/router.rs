use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use bytes::Bytes;
use futures_util::stream;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderValue, Response};
use tokio::time::{MissedTickBehavior, interval};

use super::rendered::PageData;

/// The page, its data and its events. All paths are relative to where the router is nested.
pub(super) fn router<S: Clone + Send + Sync + 'static>(rendered: PageData) -> Router<S> {
    let (rendered, page) = (Arc::new(rendered), document());
    let streamed = Arc::clone(&rendered);
    Router::new()
        .route("/", get(async move || of_page(page.into())))
        .route(
            "/data.json",
            get(async move || of_data("application/json", rendered.json().into())),
        )
        .route(
            "/events",
            get(async move || of_data("text/event-stream", events(streamed))),
        )
}

fn of_page(body: Body) -> Response<Body> {
    respond("text/html; charset=utf-8", POLICY, body)
}

/// Opened on its own, it is text.
fn of_data(content_type: &'static str, body: Body) -> Response<Body> {
    respond(
        content_type,
        "default-src 'none'; frame-ancestors 'none'",
        body,
    )
}

fn respond(content_type: &'static str, policy: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    for (name, value) in [
        (CONTENT_TYPE, content_type),
        (CONTENT_SECURITY_POLICY, policy),
        (CACHE_CONTROL, "no-store"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (
            HeaderName::from_static("cross-origin-resource-policy"),
            "same-origin",
        ),
        // nginx would hold events back until a buffer is full.
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

const EVENTS: u32 = 15;

/// An event a second. A reader that is too slow for that gets fewer, and never old ones.
///
/// It ends after a while and the browser comes back: a server that shuts down waits for its
/// responses to end, and a page that somebody has left open must not keep it running.
fn events(rendered: Arc<PageData>) -> Body {
    let mut seconds = interval(Duration::from_secs(1));
    seconds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    Body::from_stream(stream::unfold(
        (seconds, EVENTS),
        move |(mut seconds, left)| {
            let rendered = Arc::clone(&rendered);
            async move {
                let left = left.checked_sub(1)?;
                seconds.tick().await;
                Some((Ok::<_, Infallible>(rendered.event()), (seconds, left)))
            }
        },
    ))
}

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// The content security policy of the page: its own style and script by their hashes, its own
/// server, nothing else. Text never becomes markup. A test compares the hashes with the files, and
/// prints the right ones.
const POLICY: &str = concat!(
    "default-src 'none'; style-src 'sha256-DWGWxZTWe8Hj4ow8LAtod/2ucQ/Uf+R5wPJXbTuoiEE='; ",
    "script-src 'sha256-v8mWwkFEgMfzF7lpWpWDeidfPlfCduuJzg3igRh09OA='; img-src data:; connect-src \
        'self'; ",
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for \
        'script'; trusted-types 'none'"
);

/// The page, in one document.
fn document() -> Bytes {
    PAGE.replace("@style@", STYLE)
        .replace("@script@", SCRIPT)
        .into()
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::*;

    fn base64(bytes: &[u8]) -> String {
        let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let of_three = |three: &[u8]| {
            let bits = three
                .iter()
                .fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte))
                << (8 * (3 - three.len()));
            let digit = |n: usize| char::from(digits[(bits >> (18 - 6 * n)) as usize & 63]);
            (0..4)
                .map(|n| if n <= three.len() { digit(n) } else { '=' })
                .collect::<String>()
        };
        bytes.chunks(3).map(of_three).collect()
    }

    #[test]
    fn policy_allows_one_style_and_one_script_by_their_hashes() {
        for (directive, text) in [("style-src", STYLE), ("script-src", SCRIPT)] {
            let expected = format!("{directive} 'sha256-{}';", base64(&Sha256::digest(text)));
            assert!(POLICY.contains(&expected), "{expected} is missing");
        }
        assert!(POLICY.starts_with("default-src 'none'; "));
        assert!(!POLICY.contains("unsafe") && !POLICY.contains('*'));
    }

    #[test]
    fn document_has_its_style_and_script_and_names_nothing_outside() {
        let page = String::from_utf8(document().to_vec()).unwrap();
        assert!(
            page.contains(&format!("<style>{STYLE}</style>"))
                && page.contains(&format!("<script>{SCRIPT}</script>"))
        );
        for outside in [
            "http:", "https:", "ws:", "url(", "@import", "src=", "srcset", "@style@", "@script@",
        ] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert_eq!(page.matches("<link").count(), 1);
        assert!(page.contains(r#"<link rel="icon" href="data:image/png;base64,"#));
        assert_eq!(
            (
                page.matches("<style").count(),
                page.matches("<script").count()
            ),
            (1, 1)
        );
    }

    /// The policy would block them, and they would be the way in for text that a client wrote.
    #[test]
    fn text_never_becomes_markup() {
        for sink in [
            "innerHTML",
            "outerHTML",
            "insertAdjacent",
            "document.write",
            "eval(",
            "Function(",
            "DOMParser",
        ] {
            assert!(!SCRIPT.contains(sink), "{sink}");
        }
        let mut words = PAGE.split_whitespace().filter(|word| word.contains('='));
        let in_attribute = words.find(|word| word.starts_with("style=") || word.starts_with("on"));
        assert_eq!(
            in_attribute, None,
            "neither a style nor a handler is in an attribute"
        );
    }
}

//! Reads each file of the page for people who use another limiter, and checks what the page says of
//! it.

use http::request::Parts;
use http::{Method, Request};
use throttle_core::{Key, ManualClock, MemoryBackend};

use crate::{Handle, Registry, Rules, Verdict};
use throttle_tower::extract::{MatchedRoute, PeerAddr, from_fn};
use throttle_tower::{Header, ThrottleLayer};

const PAGE: &str = include_str!("../coming_from.md");

/// The names that the files of the page use. A user is known by a header, which is enough here.
fn registry() -> Registry {
    let known = |kind: &'static str, name: &'static str| {
        from_fn(move |parts: &Parts| {
            let value = parts.headers.get(name)?.to_str().ok()?;
            Some(Key::builder().text(kind).text(value).finish())
        })
    };
    Registry::new()
        .key("user", known("user", "x-user"))
        .key("org", known("org", "x-org"))
        .key("order", known("order", "x-order"))
        .key("post", known("post", "x-post"))
        .key("api-key", Header::new("x-api-key"))
        .condition("items", |parts| parts.uri.path() == "/items")
        .condition("health", |parts| parts.uri.path() == "/health")
        .condition("public", |parts| parts.uri.path() == "/api/public")
        .condition("allowlisted", |_| false)
        .lookup("plan-of", |user: String| async move {
            (user == "user,2").then_some("pro")
        })
}

/// The files of the page, each with the text before it.
fn files() -> Vec<(&'static str, &'static str)> {
    let blocks = PAGE.split("```toml\n").collect::<Vec<_>>();
    let texts = blocks[1..]
        .iter()
        .map(|block| block.split_once("```").expect("an end of the block"));
    let before = std::iter::once(blocks[0]).chain(texts.clone().map(|(_, after)| after));
    before.zip(texts.map(|(file, _)| file)).collect()
}

/// A handle explains what its layer does, for as long as there is one.
type Live = (ThrottleLayer<MemoryBackend<ManualClock>>, Handle);

fn live(text: &str) -> Live {
    let rules = Rules::from_str("page.toml", text, registry())
        .unwrap_or_else(|error| panic!("{error}\n{text}"));
    let memory = MemoryBackend::builder()
        .clock(ManualClock::default())
        .build();
    rules
        .layer(memory)
        .unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// The file behind the paragraph that begins with these words.
fn file(words: &str) -> Live {
    let found: Vec<_> = files()
        .into_iter()
        .filter(|(before, _)| before.contains(words))
        .collect();
    assert_eq!(found.len(), 1, "{words}");
    live(found[0].1)
}

fn head(method: Method, path: &str, user: &str) -> Parts {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("x-user", user);
    let peer = PeerAddr([192, 0, 2, 1].into());
    request
        .extension(MatchedRoute(path.into()))
        .extension(peer)
        .body(())
        .unwrap()
        .into_parts()
        .0
}

/// The limits that apply to a request, with what they have for an unused key.
async fn applied(handle: &Handle, method: Method, path: &str) -> Vec<(String, u64)> {
    let explained = handle.explain(&head(method, path, "7")).await.unwrap();
    let limits = explained
        .limits
        .into_iter()
        .filter(|limit| limit.verdict == Verdict::Admits);
    limits
        .map(|limit| (limit.name, limit.left.unwrap().of))
        .collect()
}

fn limits(names: &[(&str, u64)]) -> Vec<(String, u64)> {
    names
        .iter()
        .map(|(name, units)| ((*name).to_owned(), *units))
        .collect()
}

#[test]
fn every_file_of_the_page_is_read() {
    let files = files();
    assert_eq!(files.len(), PAGE.matches("version = 1\n\n").count());
    assert!(files.len() >= 16, "{}", files.len());
    files.iter().for_each(|(_, text)| drop(live(text)));
}

#[tokio::test]
async fn condition_gives_a_path_its_own_limit_as_a_priority_does() {
    let (_layer, handle) = file("**A default, and more for one path**");
    for (method, path, expected) in [
        (Method::GET, "/items", ("items", 10)),
        (Method::POST, "/items", ("items", 10)),
        (Method::GET, "/users", ("default", 5)),
    ] {
        assert_eq!(
            applied(&handle, method, path).await,
            limits(&[expected]),
            "{path}"
        );
    }
    let (_layer, handle) = file("**A route with more than the others**");
    assert_eq!(
        applied(&handle, Method::GET, "/api/public").await,
        limits(&[("public", 1_000)])
    );
    assert_eq!(
        applied(&handle, Method::GET, "/api/other").await,
        limits(&[("default", 100)])
    );
}

#[tokio::test]
async fn stricter_limits_apply_beside_the_general_one() {
    let (_layer, handle) = file("**A conflict**");
    assert_eq!(
        applied(&handle, Method::GET, "/api/users").await,
        limits(&[("api", 100), ("api-users", 10)])
    );
    let (_layer, handle) = file("**A limit for all, and a stricter one for the login**");
    assert_eq!(
        applied(&handle, Method::POST, "/api/login").await,
        limits(&[("global", 100), ("login", 5)])
    );
    assert_eq!(
        applied(&handle, Method::GET, "/api/login").await,
        limits(&[("global", 100)])
    );
    let (_layer, handle) = file("**Limits by route, a key of user and route");
    assert_eq!(
        applied(&handle, Method::GET, "/api/admin").await,
        limits(&[("default", 100), ("admin", 20)])
    );
    assert_eq!(applied(&handle, Method::GET, "/health").await, []);
}

#[tokio::test]
async fn wildcard_of_the_page_is_one_segment() {
    let (_layer, handle) = file("**Wildcards and methods**");
    for (path, expected) in [
        ("/items/1", true),
        ("/items/abc", true),
        ("/items/1/edit", false),
        ("/items", false),
    ] {
        assert_eq!(
            !applied(&handle, Method::GET, path).await.is_empty(),
            expected,
            "{path}"
        );
    }
    assert_eq!(applied(&handle, Method::POST, "/items/1").await, []);
}

#[tokio::test]
async fn user_has_the_rate_of_the_plan_or_of_the_rule() {
    let (_layer, handle) = file("**Plans**");
    for (user, units) in [("2", 100), ("3", 10)] {
        let explained = handle
            .explain(&head(Method::GET, "/items", user))
            .await
            .unwrap();
        assert_eq!(
            explained.limits[0].left.map(|left| left.of),
            Some(units),
            "user {user}"
        );
    }
}

#[test]
fn rates_of_the_page_are_read() {
    let start = PAGE.find("**Rates** are written alike").unwrap();
    let sentence = PAGE[start..].split_once(".\n").unwrap().0;
    let rates: Vec<_> = sentence.split('`').skip(1).step_by(2).collect();
    assert_eq!(rates.len(), 9);
    for rate in rates {
        assert!(rate.parse::<throttle_core::Rate>().is_ok(), "{rate}");
    }
}

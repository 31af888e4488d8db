//! Paths that a router of axum serves are those that patterns match, however they are spelled.

use std::cell::Cell;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use http::{Request, StatusCode, Uri};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tower::ServiceExt;

use crate::{Handle, Registry, Rules, Verdict};
use throttle_tower::MemoryBackend;

const FILE: &str = r#"
version = 1

[[limit]]
name = "rate"
gcra = { rate = "1/hour" }
by = "constant"
match = { paths = [PATTERN] }

[[concurrency]]
name = "in-flight"
most = 1
match = { paths = [PATTERN] }

[[plans]]
name = "plan"
tiers = { free = { gcra = { rate = "1/hour" } } }
by = "constant"
lookup = "plan-of"
unknown = "free"
match = { paths = [PATTERN] }
"#;

fn limited(pattern: &str) -> Handle {
    let registry = Registry::new().lookup("plan-of", |_| async { Some("free") });
    let rules = Rules::from_str(
        "t.toml",
        &FILE.replace("PATTERN", &format!("{pattern:?}")),
        registry,
    );
    rules
        .unwrap_or_else(|error| panic!("{error}"))
        .layer(MemoryBackend::new())
        .unwrap()
        .1
}

/// A router that serves what a pattern means, with and without a slash at the end.
fn router(pattern: &str) -> Router {
    let (path, is_open) = pattern
        .strip_suffix("/**")
        .map_or((pattern, false), |path| (path, true));
    let path = path.strip_suffix('/').unwrap_or(path);
    let segments = path.split('/').enumerate();
    let segment = |(n, text): (usize, &str)| {
        if text == "*" {
            format!("{{p{n}}}")
        } else {
            text.to_owned()
        }
    };
    let route = segments.map(segment).collect::<Vec<_>>().join("/");
    let rest = is_open.then(|| format!("{route}/{{*rest}}"));
    let routes = [
        (!route.is_empty()).then(|| route.clone()),
        Some(format!("{route}/")),
        rest,
    ];
    routes
        .into_iter()
        .flatten()
        .fold(Router::new(), |router, route| {
            router.route(&route, get(|| async {}))
        })
}

async fn is_served(router: &Router, path: &Uri) -> bool {
    let request = Request::get(path).body(Body::empty()).unwrap();
    router.clone().oneshot(request).await.unwrap().status() == StatusCode::OK
}

/// The limits that do not apply to a request.
async fn skipped(handle: &Handle, path: &Uri) -> Vec<String> {
    let (parts, ()) = Request::get(path).body(()).unwrap().into_parts();
    let explained = handle.explain(&parts).await.unwrap();
    let skips = explained
        .limits
        .into_iter()
        .filter(|limit| matches!(limit.verdict, Verdict::Skips(_)));
    skips.map(|limit| limit.name).collect()
}

#[tokio::test]
async fn path_that_a_router_serves_is_matched_by_all_kinds_of_limits() {
    for (pattern, paths) in [
        (
            "/users/*",
            &[
                "/users/7",
                "/users/.",
                "/users/%2e",
                "/users/..",
                "/users/%2f",
                "/users/;x",
                "/users/%5c",
            ][..],
        ),
        (
            "/*/report",
            &["/a/report", "/./report", "/%2E/report", "/../report"],
        ),
        ("/*/*/report", &["/././report", "/../%2e/report"]),
        (
            "/files/**",
            &[
                "/files/./a",
                "/files/.",
                "/files/../a",
                "/files//a",
                "/files/%2e%2e/%2e",
            ],
        ),
    ] {
        let (router, handle) = (router(pattern), limited(pattern));
        for path in paths {
            let path: Uri = path.parse().unwrap();
            assert!(is_served(&router, &path).await, "{pattern} {path}");
            assert_eq!(skipped(&handle, &path).await, [""; 0], "{pattern} {path}");
        }
    }
}

fn pattern() -> impl Strategy<Value = String> {
    let segment = prop::sample::select(&["*", "*", "a", "b", "a.b", "a;b"][..]);
    let end = prop::sample::select(&["", "/", "/**"][..]);
    (vec(segment, 0..4), end).prop_map(|(segments, end)| {
        let path: String = segments
            .iter()
            .map(|segment| format!("/{segment}"))
            .collect();
        let pattern = path + end;
        if pattern.is_empty() {
            "/".to_owned()
        } else {
            pattern
        }
    })
}

/// Something between two slashes, or what some take for a slash.
fn piece() -> impl Strategy<Value = String> {
    let letters = [
        "", ".", "..", "...", "%2e", "%2E.", "a", "b", "%61", ";", ";x", ".;x", "%2f", "%5C",
        "%3b", "%",
    ];
    vec(prop::sample::select(letters.to_vec()), 0..3).prop_map(|letters| letters.concat())
}

/// A path near the pattern: what stands for a `*` is anything, and sometimes something is added.
fn spelled() -> impl Strategy<Value = (String, String)> {
    (pattern(), vec((piece(), prop::bool::weighted(0.1)), 8)).prop_map(|(pattern, pieces)| {
        let mut pieces = pieces.into_iter();
        let mut path = String::new();
        for segment in pattern.split('/').skip(1) {
            let Some((piece, is_added)) = pieces.next() else {
                break;
            };
            path += "/";
            path += if ["*", "**"].contains(&segment) {
                &piece
            } else {
                segment
            };
            if is_added {
                path += "/";
                path += &piece;
            }
        }
        (pattern, path)
    })
}

#[test]
fn every_spelling_that_a_router_serves_is_matched() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let served = Cell::new(0);
    let config = Config {
        cases: 1_000,
        failure_persistence: None,
        ..Config::default()
    };
    let result = TestRunner::new(config).run(&spelled(), |(pattern, path)| {
        let Ok(path) = path.parse::<Uri>() else {
            return Ok(());
        };
        runtime.block_on(async {
            if is_served(&router(&pattern), &path).await {
                served.set(served.get() + 1);
                prop_assert_eq!(
                    skipped(&limited(&pattern), &path).await,
                    [""; 0],
                    "{} {}",
                    pattern,
                    path
                );
            }
            Ok(())
        })
    });
    result.unwrap_or_else(|error| panic!("{error}"));
    assert!(served.get() > 200, "{}", served.get());
}

//! Many streams at once, whose estimates are wrong.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use http::request::Parts;
use http_body_util::BodyExt;
use throttle_tower::{Usage, all};

use crate::site::{Books, Site, Tokens, estimate, number, until};
use crate::store::{Store, budget};

const UNITS: u64 = 1_000_000;
pub(crate) const STREAMS: u64 = 64;
const STEP: u64 = 7;

/// Streams `x-actual` tokens.
pub(crate) fn model(books: &Books, step: u64, stops: bool) -> Router {
    let books = books.clone();
    let handler = move |usage: Usage, request: http::Request<Body>| async move {
        let (parts, _): (Parts, Body) = request.into_parts();
        let left = number(&parts, "x-actual");
        let pause = Duration::from_millis(2);
        Body::new(Tokens {
            left,
            step,
            pause,
            usage,
            books,
            stops,
            sleep: None,
        })
    };
    Router::new().route("/", get(handler))
}

/// From a tenth of the estimate to ten times as much.
fn sizes() -> impl Iterator<Item = (u64, u64)> {
    (0..STREAMS).map(|n| {
        let (estimate, factor) = (20 + 3 * n, 1 + n % 10);
        (
            estimate,
            if n % 2 == 0 {
                estimate * factor
            } else {
                (estimate / factor).max(1)
            },
        )
    })
}

/// Law 10 over many streams: the total charge is what the model has used, to the token. While they
/// stream, the store lacks only what each of them has in flight.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn law_10_charge_of_64_streams_is_the_models_own_count() {
    for store in Store::both().await {
        let books = Books::default();
        let limits = all([
            budget("requests", UNITS),
            budget("tokens", UNITS).cost(estimate).settled_later(),
            budget("month", UNITS).cost(estimate).settled_later(),
        ]);
        let site = Arc::new(Site::new(store, limits, model(&books, STEP, false)).await);
        let done = Arc::new(AtomicBool::new(false));
        let watch = {
            let (site, books, done) = (Arc::clone(&site), books.clone(), Arc::clone(&done));
            tokio::spawn(async move {
                let mut looks = 0;
                while !done.load(Ordering::SeqCst) {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    let used = books.total();
                    // Everything requested by then has been charged.
                    if site.layer.settlements().pending > 0 {
                        continue;
                    }
                    let charged = site.store.used("tokens", UNITS).await;
                    looks += 1;
                    assert!(
                        used <= charged + STREAMS * STEP,
                        "{used} used, {charged} charged"
                    );
                }
                looks
            })
        };
        let streams: Vec<_> = sizes()
            .map(|(estimate, actual)| {
                let site = Arc::clone(&site);
                tokio::spawn(async move {
                    let response = site
                        .send("/", &[("x-estimate", estimate), ("x-actual", actual)])
                        .await;
                    assert_eq!(response.status(), 200);
                    let mut body = response.into_body();
                    if estimate.is_multiple_of(5) {
                        // Disconnects in the middle.
                        body.frame().await.unwrap().unwrap();
                        return;
                    }
                    let text = body.collect().await.unwrap().to_bytes();
                    let reported: u64 = std::str::from_utf8(&text)
                        .unwrap()
                        .split_whitespace()
                        .map(|n| n.parse::<u64>().unwrap())
                        .sum();
                    assert_eq!(reported, actual);
                })
            })
            .collect();
        for stream in streams {
            stream.await.unwrap();
        }
        done.store(true, Ordering::SeqCst);
        let looks = watch.await.unwrap();
        assert!(
            looks > 0 || site.store.name == "redis",
            "the watch never looked"
        );
        // The server notices that these clients disconnected when it writes.
        let start = std::time::Instant::now();
        let mut before = (u64::MAX, 0);
        while before != (books.total(), site.layer.settlements().settled) {
            assert!(start.elapsed() < Duration::from_secs(20));
            before = (books.total(), site.layer.settlements().settled);
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        until(|| site.layer.settlements().pending == 0).await;
        assert_eq!(
            UNITS - site.left("tokens", UNITS).await,
            books.total(),
            "{}",
            site.store.name
        );
        assert_eq!(
            UNITS - site.left("requests", UNITS).await,
            STREAMS,
            "{}",
            site.store.name
        );
        let estimates: u64 = sizes().map(|(estimate, _)| estimate).sum();
        assert_eq!(
            UNITS - site.left("month", UNITS).await,
            estimates,
            "nothing was said of it"
        );
        assert_eq!(site.layer.settlements().failed, 0);
    }
}

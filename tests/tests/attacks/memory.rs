//! Attacks by oversized keys, and by guessing what a secret of the process hides.

use crate::support::{Site, from, ok, retry_after, send, three_by};
use axum::Router;
use axum::routing::any;
use http::request::Parts;
use http::{HeaderValue, StatusCode};
use throttle_tower::ClientIp;
use throttle_tower::extract::{Extension, from_fn};
use throttle_tower::{Header, Key, KeyExtractor, OnMissing};

/// Memory of this process that is in use, in bytes.
fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[derive(Clone, Copy)]
struct Random(u64);

#[tokio::test]
async fn attack_21_a_megabyte_is_no_key() {
    let megabyte = |fill: u8| HeaderValue::from_bytes(&vec![fill; 1 << 20]).unwrap();
    let with = |fill: u8| from("203.0.113.9").header("x-api-key", megabyte(fill));

    let site = Site::new(three_by(Header::new("x-api-key").or(ClientIp::peer())));
    site.assert_one_bucket((0..10).map(|n| with(b'a' + n)))
        .await;
    assert_eq!(
        site.status(from("203.0.113.9")).await,
        StatusCode::TOO_MANY_REQUESTS
    );

    let rejecting =
        three_by(Header::new("x-api-key")).on_missing(OnMissing::Reject(StatusCode::BAD_REQUEST));
    let site = Site::new(rejecting);
    assert_eq!(site.status(with(b'a')).await, StatusCode::BAD_REQUEST);
    let longest = |len| from("203.0.113.9").header("x-api-key", "k".repeat(len));
    assert_eq!(site.status(longest(Header::MAX_LEN)).await, StatusCode::OK);
    assert_eq!(
        site.status(longest(Header::MAX_LEN + 1)).await,
        StatusCode::BAD_REQUEST
    );
    assert_eq!(site.store.keys(), 1);
}

#[tokio::test]
async fn attack_21_long_keys_are_distinct_and_not_stored() {
    // 64 KiB that differ only at the end.
    let long = |parts: &Parts| {
        let number = parts.extensions.get::<Random>()?.0;
        Some(
            Key::builder()
                .text(&"k".repeat(1 << 16))
                .number(number)
                .finish(),
        )
    };
    let site = Site::new(three_by(from_fn(long)));
    let with = |n| from("203.0.113.9").extension(Random(n));
    assert_eq!(site.admitted((0..20).map(|n| with(n % 2))).await, 6);

    let before = resident();
    assert_eq!(site.admitted((0..2_000).map(|n| with(n + 2))).await, 2_000);
    assert_eq!(site.store.keys(), 2_002);
    // Stored raw, they would take 128 MiB.
    let grown = resident().saturating_sub(before);
    assert!(grown < 16 << 20, "grew by {grown} bytes");
}

/// The jitter of a wait depends on a secret of the process.
#[tokio::test]
async fn attack_24_jitter_cannot_be_learnt_from_another_process() {
    let waits = async || {
        let (builder, ..) = crate::support::builder(three_by(Extension::by(|key: &Random| key.0)));
        let layer = builder.retry_jitter(100).build().unwrap();
        let app = Router::new().route("/", any(ok)).layer(layer);
        let mut waits = Vec::new();
        for key in 0..100 {
            let request = || from("203.0.113.9").extension(Random(key));
            for _ in 0..3 {
                send(&app, request()).await;
            }
            waits.push(retry_after(&send(&app, request()).await).unwrap());
        }
        waits
    };
    assert_ne!(waits().await, waits().await);
}

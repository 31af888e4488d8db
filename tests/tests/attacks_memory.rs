//! Attacks on the memory store: oversized keys, too many keys, and guessing where keys are stored.

mod support;

use std::convert::Infallible;

use axum::Router;
use axum::routing::any;
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::Empty;
use support::{Dice, Site, Store, from, ok, retry_after, send, three, three_by};
use throttle_core::ManualClock;
use throttle_tower::ClientIp;
use throttle_tower::extract::{Extension, from_fn};
use throttle_tower::{Header, Key, KeyExtractor, MemoryBackend, OnMissing, ThrottleLayer, limit};
use tokio::sync::Mutex;
use tower::{Layer, Service, service_fn};

/// Tests that measure the size of the process run one at a time, so that nothing else grows beside them.
static ALONE: Mutex<()> = Mutex::const_new(());

/// Memory of this process that is in use, in bytes.
fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// A bare service behind a layer, for tests that call it millions of times.
async fn count_admitted(layer: &ThrottleLayer<Store>, keys: impl Iterator<Item = u64>) -> usize {
    let admit = |_: Request<Empty<Bytes>>| async { Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new())) };
    let mut service = layer.layer(service_fn(admit));
    let mut admitted = 0;
    for key in keys {
        let mut request = Request::new(Empty::new());
        request.extensions_mut().insert(Random(key));
        let Ok(response) = service.call(request).await;
        admitted += usize::from(response.status() == StatusCode::OK);
    }
    admitted
}

#[derive(Clone, Copy)]
struct Random(u64);

fn by_random() -> Extension<Random> {
    Extension::by(|key: &Random| key.0)
}

fn bounded(max_keys: usize) -> (ThrottleLayer<Store>, ManualClock, Store) {
    let clock = ManualClock::new(support::START);
    let store = MemoryBackend::builder().max_keys(max_keys).clock(clock.clone()).build();
    let layer = ThrottleLayer::new(limit("three", three()).by(by_random())).unwrap().backend(store.clone()).unwrap();
    (layer, clock, store)
}

#[tokio::test]
async fn attack_21_a_megabyte_is_no_key() {
    let megabyte = |fill: u8| HeaderValue::from_bytes(&vec![fill; 1 << 20]).unwrap();
    let with = |fill: u8| from("203.0.113.9").header("x-api-key", megabyte(fill));

    let site = Site::new(three_by(Header::new("x-api-key").or(ClientIp::peer())));
    site.assert_one_bucket((0..10).map(|n| with(b'a' + n))).await;
    assert_eq!(site.status(from("203.0.113.9")).await, StatusCode::TOO_MANY_REQUESTS);

    let rejecting = three_by(Header::new("x-api-key")).on_missing(OnMissing::Reject(StatusCode::BAD_REQUEST));
    let site = Site::new(rejecting);
    assert_eq!(site.status(with(b'a')).await, StatusCode::BAD_REQUEST);
    let longest = |len| from("203.0.113.9").header("x-api-key", "k".repeat(len));
    assert_eq!(site.status(longest(Header::MAX_LEN)).await, StatusCode::OK);
    assert_eq!(site.status(longest(Header::MAX_LEN + 1)).await, StatusCode::BAD_REQUEST);
    assert_eq!(site.store.keys(), 1);
}

#[tokio::test]
async fn attack_21_long_keys_are_distinct_and_not_stored() {
    let _alone = ALONE.lock().await;
    // 64 KiB that differ only at the end.
    let long = |parts: &Parts| {
        let number = parts.extensions.get::<Random>()?.0;
        Some(Key::builder().text(&"k".repeat(1 << 16)).number(number).finish())
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

#[tokio::test]
async fn attack_22_millions_of_keys_take_bounded_memory() {
    let _alone = ALONE.lock().await;
    let (layer, _, store) = bounded(10_000);
    let before = resident();
    let mut dice = Dice::new(22);
    let admitted = count_admitted(&layer, (0..2_000_000).map(|_| dice.roll())).await;
    assert!(store.keys() <= 10_000, "{} keys", store.keys());
    let grown = resident().saturating_sub(before);
    assert!(grown < 100 << 20, "grew by {grown} bytes");
    // New keys share a bounded number of budgets of three, so some of them are admitted and some are refused.
    let shards = 128;
    assert!((10_000..=10_000 + 3 * shards).contains(&admitted), "{admitted} admitted");
}

#[tokio::test]
async fn attack_22_room_is_made_by_time_and_not_by_force() {
    let (layer, clock, store) = bounded(1_000);
    assert_eq!(count_admitted(&layer, 0..1_000).await, 1_000);
    // A budget from which one unit was taken is idle after 20 seconds; then new keys find room again.
    clock.advance(std::time::Duration::from_secs(20));
    let admitted = count_admitted(&layer, 10_000..11_000).await;
    assert!(admitted > 900, "{admitted} admitted");
    assert!(store.keys() <= 1_000);
}

#[tokio::test]
async fn attack_23_flooding_the_store_is_no_amnesty() {
    let (capacity, exhausted) = (1_000, u64::MAX);
    let (layer, clock, store) = bounded(capacity);
    assert_eq!(count_admitted(&layer, [exhausted; 4].into_iter()).await, 3);

    let mut dice = Dice::new(23);
    for _ in 0..19 {
        count_admitted(&layer, (0..10 * capacity).map(|_| dice.roll())).await;
        assert_eq!(count_admitted(&layer, [exhausted].into_iter()).await, 0);
        // The first unit comes back after 20 seconds.
        clock.advance(std::time::Duration::from_secs(1));
    }
    assert!(store.keys() <= capacity);
    clock.advance(std::time::Duration::from_secs(1));
    assert_eq!(count_admitted(&layer, [exhausted; 2].into_iter()).await, 1);
}

/// The pattern of early refusals shows where keys are stored: each part of a full store has one overflow bucket.
async fn placement() -> Vec<bool> {
    let (layer, _, _) = bounded(4_096);
    assert_eq!(count_admitted(&layer, 0..4_096).await, 4_096);
    let mut admitted = Vec::new();
    for newcomer in 10_000..10_200 {
        admitted.push(count_admitted(&layer, std::iter::once(newcomer)).await == 1);
    }
    admitted
}

#[tokio::test]
async fn attack_24_where_a_key_goes_cannot_be_learnt_from_another_process() {
    let (one, other) = (placement().await, placement().await);
    assert!(one.contains(&true) && one.contains(&false));
    assert_ne!(one, other);

    // The jitter cannot be learnt from another process either.
    let waits = async || {
        let (layer, ..) = support::layer(three_by(by_random()));
        let app = Router::new().route("/", any(ok)).layer(layer.retry_jitter(100));
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

//! Processes share both paces of one schedule on a real Redis.

use std::time::{Duration, Instant};

use throttle_redis::{RedisBackend, Single};
use throttle_test_servers::Shared;
use throttle_tower::shape::{Bound, Shaper};
use throttle_tower::{LeakyBucket, OnError, Rate};
use tokio::task::JoinSet;

const MS: Duration = Duration::from_millis(1);
/// A request takes so long, and a token 1 ms.
const REQUEST: Duration = Duration::from_millis(20);
/// What calls cost in turn: each other one is bound by its request.
const TOKENS: [u64; 6] = [10, 90, 5, 60, 15, 35];
const CALLS: usize = 60;
/// By how much more a busy machine may delay one call than another.
const LATE: Duration = Duration::from_secs(2);

fn shaper(shared: &Shared, max_wait: Duration) -> Shaper<RedisBackend> {
    let backend = RedisBackend::builder(Single::new(&shared.url()).unwrap())
        .prefix(shared.prefix())
        .deadline(Duration::from_secs(2))
        .build()
        .unwrap();
    Shaper::builder(LeakyBucket::new(Rate::new(1, REQUEST)).max_wait(max_wait))
        .by_unit("tokens", Rate::new(1, MS))
        .headroom(Duration::ZERO)
        .name("model")
        .on_error(OnError::Closed)
        .backend(backend)
        .build()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shape_two_processes_keep_both_paces_over_redis() {
    let shared = Shared::new();
    let processes = [(); 2].map(|()| shaper(&shared, Duration::from_secs(60)));
    let mut calls = JoinSet::new();
    for number in 0..CALLS {
        let (process, tokens) = (processes[number % 2].clone(), TOKENS[number % TOKENS.len()]);
        calls.spawn(async move {
            let usage = process.schedule_units("key", 1, &[("tokens", tokens)]).await.unwrap();
            let left = Instant::now();
            // Every fourth call uses half of its tokens.
            let used = if number % 4 == 1 { tokens / 2 } else { tokens };
            usage.settle("tokens", used).unwrap();
            (left, tokens, tokens - used)
        });
    }
    let mut calls = calls.join_all().await;
    calls.sort();
    let given_back = calls.iter().map(|(.., unused)| *unused as u32).sum::<u32>() * MS;
    for (first, (from, ..)) in calls.iter().enumerate() {
        let (mut requests, mut tokens) = (Duration::ZERO, Duration::ZERO);
        for pair in calls[first..].windows(2) {
            requests += REQUEST;
            tokens += pair[0].1 as u32 * MS;
            let period = pair[1].0 - *from + LATE;
            assert!(requests <= period, "requests of {requests:?} in {period:?}");
            assert!(tokens <= period + given_back, "tokens of {tokens:?} in {period:?}");
        }
    }
    // A pace that is merely slow would pass without this check.
    let due: Duration = calls.iter().map(|(_, tokens, _)| (*tokens as u32 * MS).max(REQUEST)).sum();
    let took = calls[CALLS - 1].0 - calls[0].0;
    assert!(took < due + LATE, "{took:?} for what is due in {due:?}");
    assert_eq!(processes.iter().map(|process| process.stats().sent).sum::<u64>(), CALLS as u64);
}

/// A refused or dropped call is known to the other process as little as a call that was never made.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shape_refused_and_dropped_calls_take_of_no_pace_over_redis() {
    let shared = Shared::new();
    let [one, other] = [(); 2].map(|()| shaper(&shared, Duration::from_secs(60)));
    one.schedule_units("key", 1, &[("tokens", 30_000)]).await.unwrap();
    let error = other.schedule_units("key", 1, &[("tokens", 40_000)]).await.unwrap_err();
    let full = *error.queue_full().expect("it is refused");
    assert_eq!((full.bound, full.unit), (Bound::MaxWait, Some("tokens")));
    let units = [("tokens", 20_000)];
    let dropped = tokio::time::timeout(500 * MS, one.schedule_units("key", 1, &units));
    assert!(dropped.await.is_err(), "it waits for 30 s");
    let next = tokio::time::timeout(2_000 * MS, other.schedule_units("key", 1, &[("tokens", 1)]));
    assert!(next.await.is_err(), "it waits for the 30 s of the first call");
    let requests = tokio::time::timeout(2_000 * MS, other.schedule("key", 1));
    requests.await.expect("the pace of requests is free").unwrap();
}

/// The last call's unused tokens are given back at the server, for every process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shape_unused_tokens_of_the_last_call_are_free_for_all_processes_over_redis() {
    let shared = Shared::new();
    let [one, other] = [(); 2].map(|()| shaper(&shared, Duration::from_secs(60)));
    let usage = one.schedule_units("key", 1, &[("tokens", 30_000)]).await.unwrap();
    usage.settle("tokens", 100).unwrap();
    // In the background.
    tokio::time::sleep(500 * MS).await;
    let next = tokio::time::timeout(2_000 * MS, other.schedule_units("key", 1, &[("tokens", 1)]));
    next.await.expect("they are free").unwrap();
}

//! What one process of a fleet hears from an upstream holds for the others.

use std::time::Duration;

use http::Request;
use throttle_tower::shape::{HttpHead, Shaper};
use throttle_tower::{OnError, ShapeLayer};
use tokio::time::{Instant, sleep, sleep_until};
use tower::{Layer, ServiceExt};

use crate::obeying::{say, upstream};
use crate::support::{MS, Remote, over, ten};

const LONGEST: Duration = Duration::from_secs(10);

/// A process of the fleet.
fn process(store: &Remote) -> Shaper<Remote> {
    over(store, ten(60_000).share_pauses(LONGEST), OnError::Closed)
}

/// Makes calls of a key, one after the other, until then. Returns when they left.
fn calls(shaper: &Shaper<Remote>, until: Instant) -> tokio::task::JoinHandle<Vec<Duration>> {
    let (shaper, start) = (shaper.clone(), Instant::now());
    tokio::spawn(async move {
        let mut left = Vec::new();
        while Instant::now() < until {
            shaper.schedule("key", 1).await.unwrap();
            left.push(start.elapsed());
        }
        left
    })
}

fn between(left: &[Duration], [from, to]: [u64; 2]) -> usize {
    left.iter().filter(|at| (from..to).contains(&(at.as_millis() as u64))).count()
}

#[tokio::test(start_paused = true)]
async fn shape_pause_of_one_process_holds_for_the_others_after_a_quarter_of_a_second() {
    let store = Remote::new(2 * MS);
    let (one, other) = (process(&store), process(&store));
    let left = calls(&other, Instant::now() + 8_000 * MS);
    sleep(1_000 * MS).await;
    one.pause("key", 5_000 * MS);
    let left = left.await.unwrap();
    assert_eq!(between(&left, [0, 1_000]), 10);
    assert!(between(&left, [1_000, 1_400]) <= 4);
    assert_eq!(between(&left, [1_400, 6_000]), 0, "{left:?}");
    assert!(between(&left, [6_000, 8_000]) >= 19, "at the pace again: {left:?}");
}

/// Also for calls that wait already, and for the process that was told.
#[tokio::test(start_paused = true)]
async fn shape_refusal_that_one_process_hears_stops_the_calls_that_wait_in_another() {
    let store = Remote::new(2 * MS);
    let (one, other) = (process(&store), process(&store));
    let waiting: Vec<_> = (0..20).map(|_| calls(&other, Instant::now() + MS)).collect();
    sleep(500 * MS).await;
    let layer: ShapeLayer<_, _, HttpHead> = ShapeLayer::of(one).by(|_: &Request<()>| "key".into()).obey_upstream();
    let mut told = layer.layer(upstream(|call| match call {
        0 => say(429, &[("retry-after", "4")]),
        _ => say(200, &[]),
    }));
    // Leaves when the twenty have: it has the slot behind them.
    let refused = tokio::spawn(async move {
        let refused = (&mut told).oneshot(Request::new(())).await.unwrap();
        let heard = Instant::now();
        assert_eq!(refused.status(), 429);
        (&mut told).oneshot(Request::new(())).await.unwrap();
        heard.elapsed()
    });
    let late = calls(&other, Instant::now() + 8_000 * MS);
    assert!(refused.await.unwrap() >= 4_000 * MS);
    for calls in waiting {
        assert_eq!(calls.await.unwrap().len(), 1);
    }
    let late = late.await.unwrap();
    let (heard, over) = (2_000, 5_500);
    assert_eq!(between(&late, [heard + 500, over]), 0, "{late:?}");
}

#[tokio::test(start_paused = true)]
async fn shape_no_process_is_stopped_for_longer_than_the_longest_shared_pause() {
    let store = Remote::new(2 * MS);
    let other = process(&store);
    let fleet: Vec<_> = (0..20).map(|_| process(&store)).collect();
    // All of them at once, so that none knows of the others'.
    for (n, one) in (1..).zip(&fleet) {
        one.pause("key", Duration::from_secs(n));
    }
    sleep(20 * MS).await;
    let start = Instant::now();
    // The first call may leave while the process looks.
    other.schedule("key", 1).await.unwrap();
    sleep(20 * MS).await;
    other.schedule("key", 1).await.unwrap();
    let stopped = start.elapsed();
    assert!((LONGEST - 100 * MS..=LONGEST + 100 * MS).contains(&stopped), "{stopped:?}");
    // Its own pause is as long as it was told.
    let own = fleet.last().unwrap();
    own.schedule("key", 1).await.unwrap();
    assert!(start.elapsed() >= 19_900 * MS, "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn shape_keys_are_paused_apart() {
    let store = Remote::new(2 * MS);
    let (one, other) = (process(&store), process(&store));
    one.pause("other", Duration::from_secs(5));
    sleep(10 * MS).await;
    let left = calls(&other, Instant::now() + 1_000 * MS).await.unwrap();
    assert!(left.len() >= 10, "{left:?}");
}

#[tokio::test(start_paused = true)]
async fn shape_fleet_is_asked_at_most_four_times_a_second_for_each_key() {
    let store = Remote::new(2 * MS);
    let shaper = process(&store);
    let left = calls(&shaper, Instant::now() + 9_900 * MS).await.unwrap();
    assert_eq!(left.len(), 100);
    let looks = store.decisions() - left.len();
    assert!((30..=40).contains(&looks), "{looks}");
}

/// And none is told twice of what it knows.
#[tokio::test(start_paused = true)]
async fn shape_pause_that_many_responses_state_is_written_once() {
    let store = Remote::new(2 * MS);
    let shaper = process(&store);
    let until = Instant::now() + 5_000 * MS;
    for _ in 0..1_000 {
        shaper.pause("key", until - Instant::now());
    }
    sleep(100 * MS).await;
    assert_eq!(store.decisions(), 2, "a look, and the charge");
    shaper.pause("key", 6_000 * MS);
    sleep(100 * MS).await;
    assert_eq!(store.decisions(), 4, "a longer one is news");
}

#[tokio::test(start_paused = true)]
async fn law_12_shape_no_call_waits_for_what_the_fleet_says() {
    let store = Remote::new(2 * MS);
    let shaper = process(&store);
    let start = Instant::now();
    shaper.schedule("key", 1).await.unwrap();
    assert_eq!(start.elapsed(), 2 * MS, "one round trip, as without");
}

#[tokio::test(start_paused = true)]
async fn shape_each_process_keeps_its_own_pauses_while_the_store_fails() {
    let store = Remote::new(2 * MS);
    let rule = || OnError::local(2);
    let one = over(&store, ten(60_000).share_pauses(LONGEST), rule());
    let other = over(&store, ten(60_000).share_pauses(LONGEST), rule());
    store.fail(true);
    let start = Instant::now();
    one.pause("key", 3_000 * MS);
    other.schedule("key", 1).await.unwrap();
    assert!(start.elapsed() < 100 * MS);
    one.schedule("key", 1).await.unwrap();
    assert!(start.elapsed() >= 3_000 * MS);
    assert_eq!([one.stats().lost, other.stats().lost], [0, 0], "no slot is lost by it");
}

#[tokio::test(start_paused = true)]
async fn shape_reset_ends_the_pause_of_the_fleet() {
    let store = Remote::new(2 * MS);
    let (one, other) = (process(&store), process(&store));
    one.pause("key", 9_000 * MS);
    sleep(100 * MS).await;
    one.reset("key").await.unwrap();
    let start = Instant::now();
    for shaper in [one, other] {
        shaper.schedule("key", 1).await.unwrap();
        sleep_until(Instant::now() + 300 * MS).await;
        shaper.schedule("key", 1).await.unwrap();
    }
    assert!(start.elapsed() < 1_000 * MS, "{:?}", start.elapsed());
}

#[test]
fn shape_longest_shared_pause_is_a_millisecond_to_a_day() {
    let build = |longest| ten(0).share_pauses(longest).build().map(drop).map_err(|error| error.to_string());
    for longest in [Duration::ZERO, Duration::from_micros(999), Duration::from_secs(86_401), Duration::MAX] {
        let error = build(longest).unwrap_err();
        assert!(error.contains("share_pauses") && error.contains(&format!("{longest:?}")), "{error}");
    }
    for longest in [MS, Duration::from_secs(86_400)] {
        assert_eq!(build(longest), Ok(()));
    }
}

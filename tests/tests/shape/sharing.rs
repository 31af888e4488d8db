//! What one process of a fleet hears from an upstream holds for the others.

use std::time::Duration;

use http::Request;
use throttle_tower::shape::{Shaper, TokioClock};
use throttle_tower::{MemoryBackend, OnError, ShapeLayer};
use tokio::time::{Instant, sleep, sleep_until};
use tower::{Layer, ServiceExt};

use crate::obeying::{say, upstream};
use crate::support::{MS, Remote, over, ten, waiting};

const LONGEST: Duration = Duration::from_secs(10);

/// A process of the fleet.
fn process(store: &Remote) -> Shaper {
    over(store, ten(60_000).share_pauses(LONGEST), OnError::Closed)
}

/// Makes calls of a key, one after the other, until then. Returns when they left.
fn calls(shaper: &Shaper, until: Instant) -> tokio::task::JoinHandle<Vec<Duration>> {
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
    left.iter()
        .filter(|at| (from..to).contains(&(at.as_millis() as u64)))
        .count()
}

#[tokio::test(start_paused = true)]
async fn shape_pause_of_a_process_holds_for_others_within_a_quarter_second() {
    let store = Remote::new(2 * MS);
    let (one, other) = (process(&store), process(&store));
    let left = calls(&other, Instant::now() + 8_000 * MS);
    sleep(1_000 * MS).await;
    one.pause("key", 5_000 * MS);
    let left = left.await.unwrap();
    assert_eq!(between(&left, [0, 1_000]), 10);
    assert!(between(&left, [1_000, 1_400]) <= 4);
    assert_eq!(between(&left, [1_400, 6_000]), 0, "{left:?}");
    assert!(
        between(&left, [6_000, 8_000]) >= 19,
        "at the pace again: {left:?}"
    );
}

/// Also those that have their slots already, and the process that heard of it.
#[tokio::test(start_paused = true)]
async fn shape_refusal_in_one_process_stops_waiting_calls_of_another() {
    let store = Remote::new(2 * MS);
    let (one, other) = (process(&store), process(&store));
    let layer: ShapeLayer<http::Request<()>, http::Response<()>> = ShapeLayer::of(one)
        .by(|_: &Request<()>| "key".into())
        .obey_upstream();
    let refusing = layer.layer(upstream(|call| match call {
        0 => say(429, &[("retry-after", "4")]),
        _ => say(200, &[]),
    }));
    let start = Instant::now();
    let refused = refusing.clone().oneshot(Request::new(()));
    // They have the slots behind the first call, up to three seconds later.
    let waiting: Vec<_> = (0..30)
        .map(|_| calls(&other, Instant::now() + MS))
        .collect();
    assert_eq!(refused.await.unwrap().status(), 429);
    let heard = start.elapsed();
    assert!(heard < 10 * MS, "{heard:?}");
    refusing.oneshot(Request::new(())).await.unwrap();
    assert!(start.elapsed() >= 4_000 * MS, "{:?}", start.elapsed());
    let mut left = Vec::new();
    for calls in waiting {
        left.extend(calls.await.unwrap());
    }
    assert_eq!(left.len(), 30);
    assert!(between(&left, [0, 400]) <= 4, "{left:?}");
    assert_eq!(between(&left, [400, 4_000]), 0, "{left:?}");
}

/// When the second call leaves: the first may leave while the process looks.
async fn stopped_for(shaper: &Shaper) -> Duration {
    let start = Instant::now();
    shaper.schedule("key", 1).await.unwrap();
    sleep(20 * MS).await;
    shaper.schedule("key", 1).await.unwrap();
    start.elapsed()
}

#[tokio::test(start_paused = true)]
async fn shape_longest_of_pauses_that_many_processes_hear_is_kept() {
    let store = Remote::new(2 * MS);
    let (other, fleet) = (process(&store), [(); 9].map(|()| process(&store)));
    for (seconds, one) in (1..).zip(&fleet) {
        one.pause("key", Duration::from_secs(seconds));
    }
    // Some of them have to try again.
    sleep(1_000 * MS).await;
    let stopped = stopped_for(&other).await;
    assert!((7_900 * MS..=8_020 * MS).contains(&stopped), "{stopped:?}");
}

#[tokio::test(start_paused = true)]
async fn shape_no_process_is_stopped_for_longer_than_the_longest_shared_pause() {
    let store = Remote::new(2 * MS);
    let (one, other) = (process(&store), process(&store));
    one.pause("key", Duration::from_secs(3_600));
    sleep(20 * MS).await;
    let stopped = stopped_for(&other).await;
    assert!(
        (LONGEST - 100 * MS..=LONGEST + 20 * MS).contains(&stopped),
        "{stopped:?}"
    );
    // Its own pause is as long as its upstream states, and longer than a call waits here.
    let own = one.schedule("key", 1).await.unwrap_err();
    assert!(
        own.queue_full().unwrap().retry_after > Some(Duration::from_secs(3_500)),
        "{own:?}"
    );
}

/// A store whose clock is wrong, or whose pauses another program has written.
#[tokio::test(start_paused = true)]
async fn shape_pause_that_is_too_long_at_the_store_stops_a_process_once() {
    let store = Remote::new(2 * MS);
    let long = over(
        &store,
        ten(60_000).share_pauses(Duration::from_secs(3_600)),
        OnError::Closed,
    );
    long.pause("key", Duration::from_secs(3_600));
    sleep(20 * MS).await;
    let short = ten(60_000).share_pauses(LONGEST);
    let short = over(&store, short, OnError::Closed);
    let stopped = stopped_for(&short).await;
    assert!(stopped <= LONGEST + 20 * MS, "{stopped:?}");
    let left = calls(&short, Instant::now() + 2_000 * MS).await.unwrap();
    assert!(left.len() >= 19, "{left:?}");
}

/// 300 refusals of calls that were under way, each with an end a little later.
#[tokio::test(start_paused = true)]
async fn shape_end_that_creeps_is_announced() {
    let store = Remote::new(2 * MS);
    let (one, other) = (process(&store), process(&store));
    let start = Instant::now();
    for _ in 0..300 {
        one.pause("key", 5_000 * MS);
        sleep(10 * MS).await;
    }
    let written = store.decisions();
    assert!(written <= 4 * 70, "{written}: not each of them");
    stopped_for(&other).await;
    let stopped = start.elapsed();
    assert!((7_900 * MS..=8_000 * MS).contains(&stopped), "{stopped:?}");
}

/// Calls over a store that decides without a round trip have no slot.
#[tokio::test(start_paused = true)]
async fn shape_calls_that_leave_at_once_hear_of_pauses_too() {
    let store = Remote {
        at_once: true,
        ..Remote::new(2 * MS)
    };
    let (one, other) = (process(&store), process(&store));
    let start = Instant::now();
    one.pause("key", 5_000 * MS);
    sleep(20 * MS).await;
    other.schedule("key", 1).await.unwrap();
    sleep(130 * MS).await;
    other.schedule("key", 1).await.unwrap();
    assert!(
        (4_900 * MS..=5_020 * MS).contains(&start.elapsed()),
        "{:?}",
        start.elapsed()
    );
}

/// A process that announces a pause loses the store. No other process announces one until that turn
/// is over.
#[tokio::test(start_paused = true)]
async fn shape_pause_is_announced_although_a_process_died_during_its_turn() {
    let store = Remote::new(2 * MS);
    let [dying, one, other] = [(); 3].map(|()| process(&store));
    dying.pause("key", 9_000 * MS);
    sleep(4 * MS).await;
    assert_eq!(store.decisions(), 2, "a look and the turn");
    store.fail(true);
    sleep(10 * MS).await;
    store.fail(false);
    let start = Instant::now();
    one.pause("key", 4_000 * MS);
    sleep(1_000 * MS).await;
    stopped_for(&other).await;
    assert!(
        (3_900 * MS..=4_020 * MS).contains(&start.elapsed()),
        "{:?}",
        start.elapsed()
    );
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

/// A process learns nothing twice.
#[tokio::test(start_paused = true)]
async fn shape_pause_that_many_responses_state_is_written_once() {
    let store = Remote::new(2 * MS);
    let shaper = process(&store);
    let until = Instant::now() + 5_000 * MS;
    for _ in 0..1_000 {
        shaper.pause("key", until - Instant::now());
    }
    sleep(100 * MS).await;
    assert_eq!(
        store.decisions(),
        4,
        "a look, a turn, a look and the charge"
    );
    shaper.pause("key", 6_000 * MS);
    sleep(100 * MS).await;
    assert_eq!(store.decisions(), 8, "a longer one is news");
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
    // A pause that could not be announced is announced when it is heard again.
    store.fail(false);
    one.pause("key", 2_000 * MS);
    store.fail(true);
    sleep(10 * MS).await;
    store.fail(false);
    one.pause("key", 1_990 * MS);
    sleep(10 * MS).await;
    let stopped = stopped_for(&other).await;
    assert!(stopped > 1_900 * MS, "{stopped:?}");
    assert_eq!(
        [one.stats().lost, other.stats().lost],
        [0, 0],
        "no slot is lost by it"
    );
}

#[tokio::test(start_paused = true)]
async fn shape_reset_ends_the_pause_for_processes_that_have_not_heard_of_it() {
    let store = Remote::new(2 * MS);
    let (one, other) = (process(&store), process(&store));
    one.pause("key", 9_000 * MS);
    sleep(100 * MS).await;
    // Looks and calls go on meanwhile.
    let meanwhile = calls(&one, Instant::now() + 500 * MS);
    one.reset("key").await.unwrap();
    let start = Instant::now();
    for shaper in [&one, &other] {
        shaper.schedule("key", 1).await.unwrap();
        sleep_until(Instant::now() + 300 * MS).await;
        shaper.schedule("key", 1).await.unwrap();
    }
    assert!(start.elapsed() < 1_500 * MS, "{:?}", start.elapsed());
    drop(meanwhile);
    // It is announced anew when it is heard anew.
    one.pause("key", 4_000 * MS);
    sleep(10 * MS).await;
    sleep(300 * MS).await;
    let stopped = stopped_for(&other).await;
    assert!(stopped > 3_500 * MS, "{stopped:?}");
}

/// Its answer states a pause that the reset has ended since.
#[tokio::test(start_paused = true)]
async fn shape_look_begun_before_a_reset_is_ignored() {
    let store = Remote::new(100 * MS);
    let (one, other) = (process(&store), process(&store));
    one.pause("key", 9_000 * MS);
    sleep(1_000 * MS).await;
    let start = Instant::now();
    other.schedule("key", 1).await.unwrap();
    // The look that has begun then has read the pause, and its answer is on the way.
    let waiting = waiting(&other, "key").await;
    sleep(60 * MS).await;
    other.reset("key").await.unwrap();
    sleep(60 * MS).await;
    assert!(other.paused_until("key").is_none());
    waiting.await.unwrap();
    assert!(start.elapsed() < 1_000 * MS, "{:?}", start.elapsed());
}

#[test]
fn shape_longest_shared_pause_is_a_millisecond_to_a_day() {
    let memory = || MemoryBackend::builder().clock(TokioClock::new()).build();
    let build = |longest| {
        let shaper = ten(0)
            .share_pauses(longest)
            .name("api")
            .backend(memory())
            .build();
        shaper.map(drop).map_err(|error| error.to_string())
    };
    for longest in [
        Duration::ZERO,
        Duration::from_micros(999),
        Duration::from_secs(86_401),
        Duration::MAX,
    ] {
        let error = build(longest).unwrap_err();
        assert!(
            error.contains("share_pauses") && error.contains(&format!("{longest:?}")),
            "{error}"
        );
    }
    for longest in [MS, Duration::from_secs(86_400)] {
        assert_eq!(build(longest), Ok(()));
    }
}

#[test]
fn shape_shared_pauses_need_a_store_and_a_name_that_fits() {
    let alone = ten(0)
        .share_pauses(LONGEST)
        .build()
        .unwrap_err()
        .to_string();
    assert!(
        alone.contains("share_pauses") && alone.contains(".backend("),
        "{alone}"
    );
    let memory = MemoryBackend::builder().clock(TokioClock::new()).build();
    let named = |name: &str, longest| {
        let shaper = ten(0)
            .share_pauses(longest)
            .name(name)
            .backend(memory.clone())
            .build();
        shaper.map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(named(&"n".repeat(56), LONGEST), Ok(()));
    let long = named(&"n".repeat(57), LONGEST).unwrap_err();
    assert!(
        long.contains("at most 56 characters") && long.contains("share_pauses"),
        "{long}"
    );
}

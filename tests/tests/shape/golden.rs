//! The golden vectors of the shaper, through its public API, on tokio's paused clock.

use std::time::Duration;

use throttle_tower::shape::Shaper;
use throttle_tower::{LeakyBucket, Rate};
use tokio::time::{Instant, advance};

use crate::golden_vectors::{Op, Suite, load};

#[tokio::test(start_paused = true)]
async fn law_08_shape_golden_vectors_through_a_shaper() {
    let suites: Vec<Suite> = load().suites.into_iter().filter(|suite| suite.spec.is_shaper()).collect();
    let runs = suites.iter().filter(|suite| only_forward(suite));
    let mut run = 0;
    for suite in runs {
        replay(suite).await;
        run += 1;
    }
    assert!(run >= 6, "only {run} of {} suites of the shaper could be run", suites.len());
}

/// Tokio's clock does not step back. Suites whose clock steps back run on the algorithm and on the backends.
fn only_forward(suite: &Suite) -> bool {
    suite.ops.is_sorted_by_key(time)
}

fn time(op: &Op) -> i64 {
    match op {
        Op::Take { t, .. } | Op::Refund { t, .. } => *t,
    }
}

async fn replay(suite: &Suite) {
    let number = |name: &str| suite.spec.params[name].as_u64().unwrap();
    let micros = |name: &str| Duration::from_micros(number(name));
    let bucket = LeakyBucket::new(Rate::new(number("limit"), micros("period_us"))).max_wait(micros("max_wait_us"));
    let shaper = Shaper::builder(bucket).headroom(Duration::ZERO).build().unwrap();
    let start = Instant::now();
    let mut slots = Vec::new();
    for op in &suite.ops {
        let name = format!("{} at {}", suite.name, time(op));
        let due = start + Duration::from_micros(time(op).unsigned_abs());
        advance(due.saturating_duration_since(Instant::now())).await;
        match op {
            // A peek needs no slot.
            Op::Take { cost: 0, .. } => slots.push(None),
            Op::Take { cost, expect, .. } => match shaper.reserve("key", *cost).await {
                Ok(slot) => {
                    assert!(expect.allowed, "{name}");
                    assert_eq!(Some(slot.delay().as_micros() as u64), expect.delay_us, "{name}");
                    slots.push(Some(slot));
                }
                Err(error) => {
                    assert!(!expect.allowed, "{name}");
                    let retry = error.queue_full().unwrap().retry_after;
                    assert_eq!(retry.map(|wait| wait.as_micros() as u64), expect.retry_after_us, "{name}");
                    slots.push(None);
                }
            },
            Op::Refund { of, .. } => drop(slots[*of].take()),
        }
    }
}

//! Random upstreams: whatever they state, late and out of order, calls keep the pace and their
//! bounds, and fail for no other reason than a pause or their place in the queue.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{HeaderName, HeaderValue, Response};
use throttle_tower::shape::{Bound, ShapeError, Shaper};
use throttle_tower::{Key, Pace, Rate, ShapeLayer};
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tower::{Layer, ServiceExt, service_fn};

use crate::support::MS;

/// Numbers that repeat for each seed.
#[derive(Clone)]
struct Random(u64);

impl Random {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

const STATUSES: [u16; 12] = [200, 200, 200, 202, 304, 400, 403, 418, 429, 500, 503, 529];
const NAMES: [&str; 10] = [
    "retry-after",
    "retry-after-ms",
    "x-amz-retry-after",
    "ratelimit",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
    "x-ratelimit-remaining-requests",
    "x-ratelimit-reset-requests",
    "x-minlimit-remaining",
    "date",
];
const VALUES: [&str; 16] = [
    "0",
    "1",
    "2",
    "7",
    "40",
    "120s",
    "-1",
    "soon",
    "99999999999999999999",
    "1795262460",
    "2026-11-21T12:00:30Z",
    "Sat, 21 Nov 2026 12:00:00 GMT",
    "Thu, 01 Jan 1970 00:00:00 GMT",
    "\"a\";r=0;t=3",
    "\"a\";r=3;t=9",
    "\"a\";r=0;t=999999999999999",
];

fn hostile(random: &mut Random) -> Response<()> {
    let mut response = Response::new(());
    *response.status_mut() = random.pick(&STATUSES).try_into().unwrap();
    for _ in 0..random.below(4) {
        let (name, value) = (random.pick(&NAMES), random.pick(&VALUES));
        response.headers_mut().append(
            HeaderName::from_static(name),
            HeaderValue::from_static(value),
        );
    }
    response
}

#[derive(Clone, Copy)]
struct Call {
    cost: u64,
    tokens: u64,
    is_batch: bool,
    bound: Duration,
    made: Instant,
}

const PER_SECOND: u64 = 20;
const LONGEST: Duration = Duration::from_secs(10);
const RESERVE: u64 = 20;
const MOST: u64 = 3;

#[derive(Default)]
struct CallLog {
    /// When calls left, with their costs.
    left: Vec<(Instant, Call)>,
    answered: usize,
    refused: usize,
}

async fn history(seed: u64) -> Result<[usize; 2], String> {
    let mut random = Random(seed);
    let pace = Pace::new(Rate::per_second(PER_SECOND)).max_wait(LONGEST);
    let mut pace = Shaper::builder(pace).headroom(Duration::ZERO);
    let by_units = random.below(3) == 0;
    if by_units {
        pace = pace.by_unit("tokens", Rate::per_second(100));
    }
    let mut layer = ShapeLayer::of(pace.build().unwrap())
        .cost(|call: &Call| call.cost)
        .deadline(|call: &Call| Some(call.bound))
        .priority([("page", 0), ("batch", RESERVE)], |call| {
            if call.is_batch { "batch" } else { "page" }
        })
        .unwrap()
        .longest_pause(Duration::from_secs(random.pick(&[1, 5, 3_600])))
        .pause_jitter(random.pick(&[0, 50]));
    if by_units {
        layer = layer.by_unit("tokens", |call: &Call| call.tokens).unwrap();
    }
    let seen = Arc::new(Mutex::new(CallLog::default()));
    let (answers, left) = (Arc::new(Mutex::new(random.clone())), Arc::clone(&seen));
    let upstream = service_fn(move |call: Call| {
        left.lock().unwrap().left.push((Instant::now(), call));
        let random = &mut answers.lock().unwrap();
        let (response, trip) = (hostile(random), random.pick(&[0, 5, 100, 100, 3_000]));
        let fails = random.below(10) == 0;
        async move {
            sleep(trip * MS).await;
            if fails {
                Err("connection reset")
            } else {
                Ok(response)
            }
        }
    });
    let service = layer.obey_upstream().layer(upstream);
    let shaper = service.layer().shaper().clone();
    let mut calls = JoinSet::new();
    for _ in 0..random.below(80) {
        sleep(random.pick(&[0, 0, 0, 10, 60, 400, 5_000]) * MS).await;
        let call = Call {
            cost: 1 + random.below(MOST),
            tokens: random.below(12),
            is_batch: random.below(3) == 0,
            bound: LONGEST.min(random.pick(&[500, 2_000, 60_000]) * MS),
            made: Instant::now(),
        };
        if random.below(20) == 0 {
            shaper.pause(Key::CONSTANT, random.pick(&[10, 1_500, 20_000]) * MS);
        }
        let patience = random.pick(&[50, 1_000, 60_000, 60_000]) * MS;
        let (service, shaper, seen) = (service.clone(), shaper.clone(), Arc::clone(&seen));
        calls.spawn(async move {
            let Ok(result) = timeout(patience, service.oneshot(call)).await else {
                return Ok(());
            };
            let now = Instant::now();
            let full = match result {
                Ok(_) | Err(ShapeError::Inner(_)) => {
                    seen.lock().unwrap().answered += 1;
                    return Ok(());
                }
                Err(error) => *error.queue_full().expect("no store"),
            };
            seen.lock().unwrap().refused += 1;
            let latest = call.made + call.bound;
            if now > latest + 50 * MS {
                return Err(format!("{full:?} came {:?} after the bound", now - latest));
            }
            let seen = seen.lock().unwrap();
            let last = seen.left.last().map_or(now, |(at, _)| now.max(*at));
            let turns = u32::try_from(shaper.stats().waiting + 2).unwrap();
            // Three requests take 150 ms, and more tokens no longer.
            let turn = last + 150 * MS * turns;
            let by_place = full.bound == Bound::Class
                || full.retry_after.is_none()
                || turn > latest - 150 * MS;
            if full.pause.is_none() && !by_place {
                return Err(format!("{full:?} is no matter of its place: {turns} turns"));
            }
            Ok(())
        });
    }
    while let Some(checked) = calls.join_next().await {
        checked.unwrap()?;
    }
    let seen = seen.lock().unwrap();
    for (n, (at, call)) in seen.left.iter().enumerate() {
        if *at > call.made + call.bound + 3 * MS {
            return Err(format!(
                "left {:?} after its bound",
                *at - call.made - call.bound
            ));
        }
        let mut requests = call.cost;
        for (later, next) in &seen.left[n + 1..] {
            let due = Duration::from_millis(1_000 * requests / PER_SECOND);
            if *later + 2 * MS < *at + due {
                return Err(format!("{requests} requests in {:?}", *later - *at));
            }
            requests += next.cost;
        }
    }
    Ok([seen.answered, seen.refused])
}

/// `THROTTLE_HISTORIES` sets how many; the rules alone are tried in the crate, with many more.
#[test]
fn law_16_shape_random_upstreams_break_neither_pace_nor_bounds() {
    let histories = std::env::var("THROTTLE_HISTORIES").map_or(1_000, |n| n.parse().unwrap());
    let mut ended = [0; 2];
    for seed in 0..histories {
        let runtime = Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        match runtime.block_on(history(seed)) {
            Ok(counts) => (0..2).for_each(|n| ended[n] += counts[n]),
            Err(why) => panic!("seed {seed}: {why}"),
        }
    }
    assert!(
        ended[0] > 4 * histories as usize && ended[1] > histories as usize,
        "{ended:?}"
    );
}

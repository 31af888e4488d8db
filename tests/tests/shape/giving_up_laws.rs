//! Whatever calls give up, and however, the upstream gets its rate while others wait, and never
//! more.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use proptest::prelude::*;
use throttle_tower::shape::{Shaper, ShaperBuilder, TokioClock};
use throttle_tower::{MemoryBackend, OnError, Pace, Rate, ShapeLayer};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tower::{Layer, Service, service_fn};

use crate::support::{MS, Remote, poll};

/// ms. The promise is one call in each of these.
const PROMISED: u64 = 10;
const HEADROOM: u64 = 2;
const INTERVAL: u64 = PROMISED + HEADROOM;
/// A store's round trip.
const TRIP: u64 = 2;

#[derive(Clone, Copy, Debug)]
enum Caller {
    Waits,
    GivesUpAfter(u64),
    /// Keeps the future, and polls it no more.
    Forgets,
}

/// Callers, the process of each, and how long after the one before it comes.
fn callers() -> impl Strategy<Value = Vec<(Caller, usize, u64)>> {
    let caller = prop_oneof![
        3 => Just(Caller::Waits),
        4 => (0..150_u64).prop_map(Caller::GivesUpAfter),
        1 => Just(Caller::Forgets),
    ];
    proptest::collection::vec(
        (
            caller,
            0..2_usize,
            prop_oneof![3 => 0..8_u64, 1 => 0..60_u64],
        ),
        1..120,
    )
}

/// When a call came, and when it left or gave up.
#[derive(Clone, Copy)]
struct Seen {
    came: u64,
    ended: u64,
    has_left: bool,
}

/// The calls of a service are in so many classes.
async fn run(shapers: [Shaper; 2], classes: u64, callers: &[(Caller, usize, u64)]) -> Vec<Seen> {
    let service = service_fn(async |_: u64| Ok::<_, Infallible>(()));
    let services = shapers.map(|shaper| {
        let names = (0..classes).map(|class| (class.to_string(), class));
        let layer =
            ShapeLayer::of(shaper).priority(names, move |gap: &u64| (gap % classes).to_string());
        layer.unwrap().layer(service)
    });
    let (start, seen) = (Instant::now(), Arc::new(Mutex::new(Vec::new())));
    let at = move || start.elapsed().as_millis() as u64;
    let (mut calls, mut forgotten) = (JoinSet::new(), Vec::new());
    for (caller, process, gap) in callers {
        sleep(*gap as u32 * MS).await;
        let (mut service, seen, came) = (services[*process].clone(), Arc::clone(&seen), at());
        let gap = *gap;
        let call = async move { service.call(gap).await.expect("it may wait for long") };
        let patience = match caller {
            Caller::Waits => Duration::from_secs(600),
            Caller::GivesUpAfter(ms) => *ms as u32 * MS,
            Caller::Forgets => {
                let mut call = Box::pin(call);
                if poll(&mut call).is_ready() {
                    seen.lock().unwrap().push(Seen {
                        came,
                        ended: at(),
                        has_left: true,
                    });
                }
                forgotten.push(call);
                continue;
            }
        };
        calls.spawn(async move {
            let has_left = timeout(patience, call).await.is_ok();
            seen.lock().unwrap().push(Seen {
                came,
                ended: at(),
                has_left,
            });
        });
    }
    calls.join_all().await;
    seen.lock().unwrap().clone()
}

fn check(seen: &[Seen], forgotten: u64, late: u64) {
    let mut left: Vec<u64> = seen
        .iter()
        .filter(|call| call.has_left)
        .map(|call| call.ended)
        .collect();
    left.sort_unstable();
    for (first, from) in left.iter().enumerate() {
        for (calls, until) in (1..).zip(&left[first + 1..]) {
            assert!(
                calls * PROMISED <= until - from + late,
                "{calls} calls after {from} until {until}"
            );
        }
    }
    // The times in which some call waits.
    let mut waits: Vec<(u64, u64)> = seen.iter().map(|call| (call.came, call.ended)).collect();
    waits.sort_unstable();
    let mut merged: Vec<(u64, u64)> = Vec::new();
    for (from, until) in waits {
        match merged.last_mut().filter(|(_, before)| from <= *before) {
            Some((_, before)) => *before = until.max(*before),
            None => merged.push((from, until)),
        }
    }
    for (from, until) in merged {
        let calls = left.iter().filter(|at| (from..=until).contains(at)).count() as u64;
        // A call that is not polled holds up the others once, for some milliseconds. Nothing is due
        // in the first interval.
        let length = (until - from).saturating_sub(10 * forgotten + late + INTERVAL);
        assert!(
            calls * 100 * INTERVAL >= 98 * length,
            "{calls} calls from {from} to {until}"
        );
    }
}

fn paced() -> ShaperBuilder {
    let pace = Pace::new(Rate::new(1, PROMISED as u32 * MS)).max_wait(Duration::from_secs(600));
    Shaper::builder(pace).headroom(HEADROOM as u32 * MS)
}

fn paused<F: Future<Output = ()>>(test: impl FnOnce() -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async { test().await });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn law_15_upstream_gets_its_rate_and_never_more_whatever_gives_up(
        callers in callers(),
        kept in 0..3_usize,
        classes in 1..4_u64,
    ) {
        let forgotten = callers.iter().filter(|(caller, ..)| matches!(caller, Caller::Forgets)).count() as u64;
        paused(async || match kept {
            // In this process, by the schedule of one shaper or in a store that two share.
            0 => {
                let shaper = paced().build().unwrap();
                check(&run([shaper.clone(), shaper], classes, &callers).await, forgotten, 0);
            }
            1 => {
                let memory = MemoryBackend::builder().clock(TokioClock::new()).build();
                let shaper = || paced().name("pace").backend(memory.clone()).build().unwrap();
                check(&run([shaper(), shaper()], classes, &callers).await, forgotten, 0);
            }
            // A turn of a store is on its way for a round trip, and is then offered until a call
            // takes it.
            _ => {
                let remote = Remote::new(TRIP as u32 * MS);
                let shaper = || paced().name("pace").on_error(OnError::Closed).backend(remote.clone()).build().unwrap();
                let offers = if forgotten > 0 { 40 } else { 0 };
                check(&run([shaper(), shaper()], classes, &callers).await, forgotten, 2 * TRIP + 2 + offers);
            }
        });
    }
}

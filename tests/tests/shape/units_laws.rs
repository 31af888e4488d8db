//! Laws of several paces in one turn, for any calls that are made, dropped and settled at any time.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use proptest::prelude::*;
use throttle_core::Backend;
use throttle_tower::shape::{ShapeError, ShapeUsage, Shaper, ShaperBuilder, TokioClock};
use throttle_tower::{LeakyBucket, MemoryBackend, OnError, Rate};
use tokio::time::{Instant, advance};

use crate::support::{MS, Remote, poll};

/// ms of a request and of a token. Times are whole milliseconds, because tokio's timers are.
const REQUEST: u64 = 5;
const TOKEN: u64 = 2;
/// So short that calls are refused, or so long that none is.
const WAITS: [u64; 2] = [150, 60_000];

fn pace(max_wait: u64) -> ShaperBuilder {
    let requests = LeakyBucket::new(Rate::new(1, REQUEST as u32 * MS)).max_wait(max_wait as u32 * MS);
    Shaper::builder(requests).by_unit("tokens", Rate::new(1, TOKEN as u32 * MS)).headroom(Duration::ZERO)
}

#[derive(Clone, Debug)]
enum Step {
    Call {
        requests: u64,
        tokens: u64,
    },
    /// Drops one of the calls that wait.
    Drop(usize),
    /// One of the calls that left has used so many tokens.
    Settle(usize, u64),
    Pass(u64),
}

fn steps(settles: bool) -> impl Strategy<Value = Vec<Step>> {
    let tokens = prop_oneof![4 => 0..12_u64, 2 => 0..40_u64, 1 => 60..90_u64];
    let call = (1..4_u64, tokens.clone()).prop_map(|(requests, tokens)| Step::Call { requests, tokens });
    let settle = (any::<usize>(), tokens).prop_map(|(call, used)| Step::Settle(call, used));
    let step = prop_oneof![
        6 => call,
        1 => any::<usize>().prop_map(Step::Drop),
        4 => prop_oneof![3 => 0..8_u64, 2 => 0..30_u64, 1 => 0..300_u64].prop_map(Step::Pass),
        if settles { 4 } else { 0 } => settle,
    ];
    proptest::collection::vec(step, 1..70)
}

fn cases() -> ProptestConfig {
    let config = ProptestConfig::default();
    ProptestConfig { cases: config.cases.max(300), failure_persistence: None, ..config }
}

fn has_dropped(steps: &[Step]) -> bool {
    steps.iter().any(|step| matches!(step, Step::Drop(_)))
}

type Waiting = Pin<Box<dyn Future<Output = Result<ShapeUsage, ShapeError>>>>;

/// Times are in ms since the start.
struct Call {
    reserved: u64,
    requests: u64,
    tokens: u64,
    waiting: Option<Waiting>,
    left: Option<u64>,
    usage: Option<ShapeUsage>,
    /// When it was settled, and with how many tokens.
    settled: Option<(u64, u64)>,
}

struct Run<B: Backend> {
    shaper: Shaper<B>,
    start: Instant,
    calls: Vec<Call>,
    refused: usize,
}

impl<B: Backend> Run<B> {
    fn new(shaper: Shaper<B>) -> Self {
        Self { shaper, start: Instant::now(), calls: Vec::new(), refused: 0 }
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }

    /// Polls the calls that wait. Returns how many were refused.
    fn poll(&mut self) {
        let now = self.now();
        let mut refused = Vec::new();
        for (place, call) in self.calls.iter_mut().enumerate() {
            let Some(waiting) = &mut call.waiting else { continue };
            match poll(waiting) {
                std::task::Poll::Ready(Ok(usage)) => {
                    (call.left, call.usage, call.waiting) = (Some(now), Some(usage), None);
                }
                std::task::Poll::Ready(Err(error)) => {
                    assert!(error.queue_full().is_some(), "{error}");
                    refused.push(place);
                }
                std::task::Poll::Pending => {}
            }
        }
        self.refused += refused.len();
        refused.into_iter().rev().for_each(|place| drop(self.calls.remove(place)));
    }

    async fn pass(&mut self, ms: u64) {
        for _ in 0..ms {
            advance(MS).await;
            self.poll();
        }
    }

    async fn step(&mut self, step: &Step) {
        match *step {
            Step::Call { requests, tokens } => {
                let shaper = self.shaper.clone();
                let waiting: Waiting =
                    Box::pin(async move { shaper.schedule_units("key", requests, &[("tokens", tokens)]).await });
                let (waiting, reserved) = (Some(waiting), self.now());
                self.calls.push(Call { reserved, requests, tokens, waiting, left: None, usage: None, settled: None });
                self.poll();
            }
            Step::Drop(number) => {
                let waiting: Vec<usize> = (0..self.calls.len()).filter(|n| self.calls[*n].waiting.is_some()).collect();
                if !waiting.is_empty() {
                    drop(self.calls.remove(waiting[number % waiting.len()]));
                }
            }
            Step::Settle(number, used) => {
                let now = self.now();
                let open = |call: &&mut Call| call.left.is_some() && call.settled.is_none();
                let mut open: Vec<&mut Call> = self.calls.iter_mut().filter(open).collect();
                if !open.is_empty() {
                    let place = number % open.len();
                    open[place].usage.as_ref().unwrap().settle("tokens", used).unwrap();
                    open[place].settled = Some((now, used));
                }
            }
            Step::Pass(ms) => self.pass(ms).await,
        }
    }

    /// All calls that left, in their order.
    async fn finish(mut self) -> Vec<Call> {
        let longest = self.now() + WAITS[1];
        while self.calls.iter().any(|call| call.left.is_none()) {
            assert!(self.now() <= longest, "no call waits for longer than it may");
            self.pass(1).await;
        }
        self.calls.sort_by_key(|call| call.left);
        self.calls
    }
}

/// The laws that hold whatever is settled, over calls in the order of their departures. `processes` keep balances of their
/// own, and `late` is by how much they know less than the schedule.
/// A longest wait that refuses calls bounds what one call pays, too. And a dropped call gives back what it was to use of
/// the balance, whenever that was given.
fn check(calls: &[Call], processes: u64, late: u64, max_wait: u64, has_dropped: bool) {
    let left = |call: &Call| call.left.unwrap();
    for pair in calls.windows(2) {
        let apart = left(&pair[1]) - left(&pair[0]);
        assert!(apart >= pair[0].requests * REQUEST, "requests keep their distance: {apart} ms");
    }
    for (first, from) in calls.iter().enumerate() {
        // What was given back before is at most the time for which the first call waited.
        let since = if has_dropped { 0 } else { from.reserved };
        let kept = processes * (left(from) - from.reserved + late);
        for (last, until) in calls.iter().enumerate().skip(first + 1) {
            let (period, between) = (left(until) - left(from), &calls[first..last]);
            let settled =
                |call: &Call, since: u64| call.settled.filter(|(at, _)| (since..=until.reserved).contains(at));
            let unused = |calls: &[Call]| -> u64 {
                let of = |call: &Call| Some(call.tokens.saturating_sub(settled(call, since)?.1));
                calls.iter().filter_map(of).sum()
            };
            let estimated: u64 = between.iter().map(|call| call.tokens).sum();
            let allowed = period + kept + unused(calls) * TOKEN;
            assert!(estimated * TOKEN <= allowed, "{estimated} tokens in {period} ms");
            if processes == 1 && max_wait == WAITS[1] {
                let used: u64 = between.iter().map(|call| settled(call, 0).map_or(call.tokens, |(_, used)| used)).sum();
                // Nothing was reserved since, that could pay for it.
                let latest = between.iter().map(|call| call.reserved).max().unwrap();
                let more = |call: &Call| Some(settled(call, latest)?.1.saturating_sub(call.tokens));
                let unpaid: u64 = calls.iter().filter_map(more).sum();
                let allowed = period + kept + (unused(&calls[..first]) + unpaid) * TOKEN;
                assert!(used * TOKEN <= allowed, "{used} tokens were used in {period} ms");
            }
        }
    }
}

fn run<F: Future<Output = ()>>(test: impl FnOnce() -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async { test().await });
}

/// When the schedule would be free by the promise alone: each call takes the longest of its units' times.
#[derive(Default)]
struct Ideal {
    /// When each call leaves that has a slot, and until when it occupies the schedule.
    slots: Vec<(u64, u64)>,
    free: u64,
}

impl Ideal {
    fn reserve(&mut self, now: u64, requests: u64, tokens: u64) -> bool {
        let leaves = self.free.max(now);
        let until = leaves + (requests * REQUEST).max(tokens * TOKEN);
        let fits = until - now <= WAITS[0] + REQUEST;
        if fits {
            self.slots.push((leaves, until));
            self.free = until;
        }
        fits
    }

    /// The last slot is free again. Any other passes unused.
    fn give_back(&mut self, place: usize) {
        let (leaves, until) = self.slots.remove(place);
        if until == self.free {
            self.free = leaves;
        }
    }
}

proptest! {
    #![proptest_config(cases())]

    /// Without settlements every call leaves exactly when the promise allows it, and is refused exactly when that would
    /// be too late. Whatever was dropped or refused has taken nothing.
    #[test]
    fn shape_turns_of_two_paces_are_exactly_those_promised(steps in steps(false), shared in any::<bool>()) {
        run(async || {
            if shared {
                let memory = MemoryBackend::builder().clock(TokioClock::new()).build();
                exactly(pace(WAITS[0]).name("model").backend(memory).build().unwrap(), &steps).await;
            } else {
                exactly(pace(WAITS[0]).build().unwrap(), &steps).await;
            }
        });
    }

    #[test]
    fn shape_settled_turns_keep_both_paces(steps in steps(true), shared in any::<bool>(), wait in 0..2_usize) {
        run(async || {
            let max_wait = WAITS[wait];
            if shared {
                let memory = MemoryBackend::builder().clock(TokioClock::new()).build();
                any_steps(pace(max_wait).name("model").backend(memory).build().unwrap(), &steps, max_wait).await;
            } else {
                any_steps(pace(max_wait).build().unwrap(), &steps, max_wait).await;
            }
        });
    }

    /// Two processes over a store that takes a round trip: each knows only its own calls.
    #[test]
    fn shape_settled_turns_of_two_processes_keep_both_paces(
        steps in proptest::collection::vec((any::<bool>(), steps(true)), 1..6), wait in 0..2_usize,
    ) {
        run(async || {
            let max_wait = WAITS[wait];
            let remote = Remote::new(2 * MS);
            let shaper = || {
                pace(max_wait).name("model").on_error(OnError::Closed).backend(remote.clone()).build().unwrap()
            };
            let mut processes = [Run::new(shaper()), Run::new(shaper())];
            for (process, steps) in &steps {
                for step in steps {
                    if let Step::Pass(ms) = step {
                        for _ in 0..*ms {
                            advance(MS).await;
                            processes.iter_mut().for_each(Run::poll);
                        }
                    } else {
                        processes[usize::from(*process)].step(step).await;
                    }
                }
            }
            let mut calls = Vec::new();
            while processes.iter().any(|process| process.calls.iter().any(|call| call.left.is_none())) {
                advance(MS).await;
                processes.iter_mut().for_each(Run::poll);
            }
            for process in processes {
                calls.extend(process.finish().await);
            }
            calls.sort_by_key(|call| call.left);
            let dropped = steps.iter().any(|(_, steps)| has_dropped(steps));
            check(&calls, 2, 4, max_wait, dropped);
        });
    }
}

async fn any_steps<B: Backend>(shaper: Shaper<B>, steps: &[Step], max_wait: u64) {
    let mut run = Run::new(shaper);
    for step in steps {
        run.step(step).await;
    }
    check(&run.finish().await, 1, 0, max_wait, has_dropped(steps));
}

async fn exactly<B: Backend>(shaper: Shaper<B>, steps: &[Step]) {
    let (mut run, mut ideal) = (Run::new(shaper), Ideal::default());
    for step in steps {
        let (now, refused) = (run.now(), run.refused);
        match *step {
            Step::Call { requests, tokens } => {
                let fits = ideal.reserve(now, requests, tokens);
                run.step(step).await;
                assert_eq!(run.refused == refused, fits, "{requests} requests and {tokens} tokens at {now} ms");
            }
            Step::Drop(number) => {
                let waiting: Vec<usize> = (0..run.calls.len()).filter(|n| run.calls[*n].waiting.is_some()).collect();
                if !waiting.is_empty() {
                    ideal.give_back(waiting[number % waiting.len()]);
                }
                run.step(step).await;
            }
            Step::Pass(_) | Step::Settle(..) => run.step(step).await,
        }
    }
    let left: Vec<u64> = run.finish().await.iter().map(|call| call.left.unwrap()).collect();
    let promised: Vec<u64> = ideal.slots.iter().map(|(leaves, _)| *leaves).collect();
    assert_eq!(left, promised);
}

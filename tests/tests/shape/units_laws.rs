//! Laws of several paces in one turn, for any calls that are made, dropped and settled at any time.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use proptest::prelude::*;
use throttle_tower::shape::{ShapeError, ShapeUsage, Shaper, ShaperBuilder, TokioClock};
use throttle_tower::{MemoryBackend, OnError, Pace, Rate};
use tokio::time::{Instant, advance};

use crate::support::{MS, Remote, poll};

/// ms of a request and of a token. Times are whole milliseconds, because tokio's timers are.
const REQUEST: u64 = 5;
const TOKEN: u64 = 2;
/// Calls are polled once in a millisecond, after what a store has answered until then.
const POLLED: u64 = 3;
/// So short that calls are refused, or so long that none is.
const WAITS: [u64; 2] = [150, 60_000];

fn pace(max_wait: u64) -> ShaperBuilder {
    let requests = Pace::new(Rate::new(1, REQUEST as u32 * MS)).max_wait(max_wait as u32 * MS);
    Shaper::builder(requests)
        .by_unit("tokens", Rate::new(1, TOKEN as u32 * MS))
        .headroom(Duration::ZERO)
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
    let call =
        (1..4_u64, tokens.clone()).prop_map(|(requests, tokens)| Step::Call { requests, tokens });
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
    ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

type Waiting = Pin<Box<dyn Future<Output = Result<ShapeUsage, ShapeError>>>>;

/// Times are in ms since the start.
struct Call {
    came: u64,
    /// When the last call before it gave up.
    behind_until: u64,
    requests: u64,
    tokens: u64,
    waiting: Option<Waiting>,
    left: Option<u64>,
    usage: Option<ShapeUsage>,
    /// When it was settled, and with how many tokens.
    settled: Option<(u64, u64)>,
}

struct Run {
    shaper: Shaper,
    start: Instant,
    calls: Vec<Call>,
    refused: usize,
}

impl Run {
    fn new(shaper: Shaper) -> Self {
        Self {
            shaper,
            start: Instant::now(),
            calls: Vec::new(),
            refused: 0,
        }
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }

    /// Polls the calls that wait. Returns how many were refused.
    fn poll(&mut self) {
        let now = self.now();
        let mut refused = Vec::new();
        for (place, call) in self.calls.iter_mut().enumerate() {
            let Some(waiting) = &mut call.waiting else {
                continue;
            };
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
        refused
            .into_iter()
            .rev()
            .for_each(|place| drop(self.calls.remove(place)));
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
                let waiting: Waiting = Box::pin(async move {
                    shaper
                        .schedule_units("key", requests, &[("tokens", tokens)])
                        .await
                });
                let (waiting, came) = (Some(waiting), self.now());
                self.calls.push(Call {
                    came,
                    behind_until: 0,
                    requests,
                    tokens,
                    waiting,
                    left: None,
                    usage: None,
                    settled: None,
                });
                self.poll();
            }
            Step::Drop(number) => {
                let waiting: Vec<usize> = (0..self.calls.len())
                    .filter(|n| self.calls[*n].waiting.is_some())
                    .collect();
                if !waiting.is_empty() {
                    let (place, now) = (waiting[number % waiting.len()], self.now());
                    drop(self.calls.remove(place));
                    self.calls[place..]
                        .iter_mut()
                        .for_each(|call| call.behind_until = now);
                    self.poll();
                }
            }
            Step::Settle(number, used) => {
                let now = self.now();
                let open = |call: &&mut Call| call.left.is_some() && call.settled.is_none();
                let mut open: Vec<&mut Call> = self.calls.iter_mut().filter(open).collect();
                if !open.is_empty() {
                    let place = number % open.len();
                    open[place]
                        .usage
                        .as_ref()
                        .unwrap()
                        .settle("tokens", used)
                        .unwrap();
                    open[place].settled = Some((now, used));
                    self.poll();
                }
            }
            Step::Pass(ms) => self.pass(ms).await,
        }
    }

    /// All calls that left, in their order.
    async fn finish(mut self) -> Vec<Call> {
        let longest = self.now() + WAITS[1];
        while self.calls.iter().any(|call| call.left.is_none()) {
            assert!(
                self.now() <= longest,
                "no call waits for longer than it may"
            );
            self.pass(1).await;
        }
        self.calls.sort_by_key(|call| call.left);
        self.calls
    }
}

/// What the upstream can count on, over calls in the order of their departures: between the first
/// and the last of any of them, the calls that leave before the last one were charged what fits the
/// time, beside what was given back in it. `late` is by how much a departure or a settlement may be
/// seen later than the schedule knows of it.
fn check(calls: &[Call], late: u64) {
    let left = |call: &Call| call.left.unwrap();
    let given_back = |from: u64, until: u64| -> u64 {
        let within = |call: &&Call| {
            call.settled
                .is_some_and(|(at, _)| (from..=until).contains(&at))
        };
        let unused = |call: &Call| {
            call.tokens
                .saturating_sub(call.settled.map_or(call.tokens, |(_, used)| used))
        };
        calls.iter().filter(within).map(unused).sum()
    };
    for (first, from) in calls.iter().enumerate() {
        let (mut requests, mut tokens) = (0, 0);
        for pair in calls[first..].windows(2) {
            requests += pair[0].requests;
            tokens += pair[0].tokens;
            let until = left(&pair[1]);
            let period = until - left(from) + late;
            assert!(
                requests * REQUEST <= period,
                "{requests} requests in {period} ms"
            );
            // A call without tokens does not wait for those of others.
            if pair[1].tokens > 0 {
                let allowed = period + given_back(left(from).saturating_sub(late), until) * TOKEN;
                let seen = || {
                    calls
                        .iter()
                        .map(|call| (left(call), call.requests, call.tokens))
                        .collect::<Vec<_>>()
                };
                assert!(
                    tokens * TOKEN <= allowed,
                    "{tokens} tokens in {period} ms, {allowed} allowed: {:?}",
                    seen()
                );
            }
        }
    }
}

fn run<F: Future<Output = ()>>(test: impl FnOnce() -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async { test().await });
}

/// When the paces are free by the promise alone.
#[derive(Default)]
struct Ideal {
    requests: u64,
    tokens: u64,
}

impl Ideal {
    /// When a call leaves that comes then.
    fn leave(&mut self, now: u64, requests: u64, tokens: u64) -> u64 {
        let leaves = now
            .max(self.requests)
            .max(if tokens > 0 { self.tokens } else { 0 });
        self.requests = leaves + requests * REQUEST;
        if tokens > 0 {
            self.tokens = leaves + tokens * TOKEN;
        }
        leaves
    }
}

/// The run in which the former schedule let 71 tokens through in 52 ms: requests and tokens of each
/// call, the number of tokens with which an open call is settled, and the milliseconds that pass.
fn known_steps() -> Vec<Step> {
    let call = |requests, tokens| Step::Call { requests, tokens };
    let mut steps = vec![call(1, 0); 6];
    steps.extend([
        call(1, 2),
        call(1, 6),
        Step::Pass(27),
        Step::Settle(0, 0),
        Step::Settle(0, 0),
        Step::Settle(0, 2),
    ]);
    steps.extend([
        Step::Pass(18),
        call(1, 63),
        Step::Pass(3),
        Step::Settle(6_233_139_915_990, 10),
        call(1, 4),
    ]);
    steps.extend([
        call(1, 14),
        Step::Settle(0, 2),
        Step::Settle(0, 11),
        call(1, 26),
        Step::Settle(0, 0),
        Step::Pass(1),
    ]);
    steps.extend([
        Step::Settle(4_788_384_142_197_431_555, 0),
        Step::Pass(0),
        call(1, 60),
        Step::Pass(0),
    ]);
    steps
}

#[test]
fn shape_settled_turns_of_a_known_run_keep_both_paces() {
    for trip in [0, 2] {
        run(async || {
            let remote = Remote::new(trip * MS);
            let shaper = pace(WAITS[0])
                .name("model")
                .on_error(OnError::Closed)
                .backend(remote)
                .build()
                .unwrap();
            any_steps(shaper, &known_steps(), 2 * u64::from(trip) + POLLED).await;
        });
        run(async || any_steps(pace(WAITS[0]).build().unwrap(), &known_steps(), 0).await);
    }
}

proptest! {
    #![proptest_config(cases())]

    /// Without settlements every call leaves exactly when the promise allows it, if those before it
    /// have left or given up. Whatever was dropped has taken nothing.
    #[test]
    fn shape_turns_of_two_paces_are_exactly_those_promised(steps in steps(false), shared in any::<bool>()) {
        run(async || {
            if shared {
                let memory = MemoryBackend::builder().clock(TokioClock::new()).build();
                exactly(pace(WAITS[1]).name("model").backend(memory).build().unwrap(), &steps).await;
            } else {
                exactly(pace(WAITS[1]).build().unwrap(), &steps).await;
            }
        });
    }

    #[test]
    fn shape_settled_turns_keep_both_paces(steps in steps(true), shared in any::<bool>(), wait in 0..2_usize) {
        run(async || {
            let max_wait = WAITS[wait];
            if shared {
                let memory = MemoryBackend::builder().clock(TokioClock::new()).build();
                any_steps(pace(max_wait).name("model").backend(memory).build().unwrap(), &steps, 0).await;
            } else {
                any_steps(pace(max_wait).build().unwrap(), &steps, 0).await;
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
            check(&calls, 2 * 4 + POLLED);
        });
    }
}

async fn any_steps(shaper: Shaper, steps: &[Step], late: u64) {
    let mut run = Run::new(shaper);
    for step in steps {
        run.step(step).await;
    }
    check(&run.finish().await, late);
}

async fn exactly(shaper: Shaper, steps: &[Step]) {
    let mut run = Run::new(shaper);
    for step in steps {
        run.step(step).await;
    }
    let (mut ideal, mut before) = (Ideal::default(), 0);
    for call in run.finish().await {
        let left = call.left.unwrap();
        // In their order: a call is not before the one that came before it.
        let due = ideal.leave(
            call.came.max(call.behind_until).max(before),
            call.requests,
            call.tokens,
        );
        assert_eq!(
            left, due,
            "{} requests and {} tokens that came at {}",
            call.requests, call.tokens, call.came
        );
        before = left;
    }
}

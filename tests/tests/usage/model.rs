//! Random lives of several streams on one limit, compared with a model that is too simple to be
//! wrong.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use proptest::collection::vec;
use proptest::prelude::*;
use throttle_core::IntoAlgorithm;
use throttle_core::PolicySet;
use throttle_core::backend::Call;
use throttle_core::{Algorithm, Limiter, ManualClock, Policy, Timestamp};
use throttle_tower::{
    Constant, FixedWindow, Gcra, Key, MemoryBackend, Rate, ThrottleBody, ThrottleLayer, Usage,
    limit,
};
use tower::{Layer, Service};

const CAPACITY: u64 = 60;
/// µs in which one unit drains; sixty of them make a window.
const UNIT: i64 = 1_000;
const WINDOW: i64 = UNIT * 60;
const START: i64 = 1_789_948_800_000_000;

/// The next step.
#[derive(Clone, Copy, Debug)]
enum Op {
    /// A request with this estimate.
    Open(u64),
    Add(usize, u64),
    Settle(usize, u64),
    Refund(usize),
    /// The body of the response is dropped.
    End(usize),
    Tick(i64),
}

fn op() -> impl Strategy<Value = Op> {
    let stream = 0..8usize;
    prop_oneof![
        3 => (0..25u64).prop_map(Op::Open),
        6 => (stream.clone(), 0..20u64).prop_map(|(stream, units)| Op::Add(stream, units)),
        1 => (stream.clone(), 0..90u64).prop_map(|(stream, units)| Op::Settle(stream, units)),
        1 => stream.clone().prop_map(Op::Refund),
        2 => stream.prop_map(Op::End),
        2 => (0..WINDOW).prop_map(Op::Tick),
        1 => (WINDOW..3 * WINDOW).prop_map(Op::Tick),
    ]
}

/// A store of one key, in whole units.
trait Naive: Default {
    fn left(&mut self, now: i64) -> u64;
    /// Takes units that remain, and returns their place.
    fn take(&mut self, now: i64, units: u64) -> i64;
    fn give_back(&mut self, now: i64, at: i64, units: u64);
    fn debit(&mut self, now: i64, at: i64, units: u64);
    fn algorithm() -> Algorithm;
}

/// Counts in windows.
#[derive(Default)]
struct Windows {
    start: i64,
    used: u64,
}

impl Naive for Windows {
    fn left(&mut self, now: i64) -> u64 {
        let start = now - now % WINDOW;
        if start != self.start {
            *self = Self { start, used: 0 };
        }
        CAPACITY - self.used
    }

    fn take(&mut self, _: i64, units: u64) -> i64 {
        self.used += units;
        self.start
    }

    fn give_back(&mut self, now: i64, at: i64, units: u64) {
        self.left(now);
        if at == self.start {
            self.used -= units;
        }
    }

    fn debit(&mut self, now: i64, at: i64, units: u64) {
        let left = self.left(now);
        if at == self.start {
            self.used += units.min(left);
        }
    }

    fn algorithm() -> Algorithm {
        FixedWindow::new(Rate::new(CAPACITY, Duration::from_micros(WINDOW as u64)))
            .into_algorithm()
            .unwrap()
    }
}

/// Counts debt that drains, in µs.
#[derive(Default)]
struct Drains {
    empty_at: i64,
}

impl Naive for Drains {
    fn left(&mut self, now: i64) -> u64 {
        self.empty_at = self.empty_at.max(now);
        ((WINDOW - (self.empty_at - now)) / UNIT) as u64
    }

    fn take(&mut self, _: i64, units: u64) -> i64 {
        self.empty_at += units as i64 * UNIT;
        0
    }

    fn give_back(&mut self, now: i64, _: i64, units: u64) {
        self.empty_at = now.max(self.empty_at - units as i64 * UNIT);
    }

    fn debit(&mut self, now: i64, at: i64, units: u64) {
        let units = self.left(now).min(units);
        let _ = (self.take(now, units), at);
    }

    fn algorithm() -> Algorithm {
        Gcra::new(Rate::new(CAPACITY, Duration::from_micros(WINDOW as u64)))
            .into_algorithm()
            .unwrap()
    }
}

/// The charge that a stream must have: the pieces that were taken for it, each with its place.
struct Known {
    estimate: u64,
    pieces: Vec<(i64, u64)>,
    used: Option<u64>,
    patience: u64,
    open: bool,
}

impl Known {
    fn held(&self) -> u64 {
        self.pieces.iter().map(|(_, units)| units).sum()
    }

    /// Adds units. Returns whether the whole use is charged.
    fn add<N: Naive>(&mut self, store: &mut N, now: i64, units: u64) -> bool {
        let used = self.used.unwrap_or(0) + units;
        self.used = Some(used);
        if used > self.held() && used >= self.patience {
            let wanted = (used - self.held()).max(self.estimate);
            let got = store.left(now).min(wanted);
            if got > 0 {
                self.pieces.push((store.take(now, got), got));
            }
            if got < wanted {
                self.patience = used + self.estimate;
            }
        }
        used <= self.held()
    }

    fn close<N: Naive>(&mut self, store: &mut N, now: i64, total: Option<u64>) {
        if !std::mem::take(&mut self.open) {
            return;
        }
        let total = total.or(self.used).unwrap_or(self.estimate);
        let held = self.held();
        if total > held {
            let (at, _) = self.pieces.last().expect("the estimate");
            store.debit(now, *at, total - held);
        }
        let mut surplus = held.saturating_sub(total);
        for (at, units) in self.pieces.iter().rev() {
            let back = surplus.min(*units);
            surplus -= back;
            store.give_back(now, *at, back);
        }
    }
}

type Body = ThrottleBody<Full<Bytes>>;

fn walk<N: Naive>(ops: &[Op]) -> Result<(), TestCaseError> {
    let clock = ManualClock::new(Timestamp::from_micros(START));
    let memory = MemoryBackend::builder().clock(clock.clone()).build();
    let estimate = |parts: &http::request::Parts| {
        parts.headers["x-estimate"]
            .to_str()
            .unwrap()
            .parse()
            .unwrap()
    };
    let limits = limit("tokens", N::algorithm())
        .by(Constant)
        .cost(estimate)
        .settled_later();
    let layer = ThrottleLayer::builder(limits)
        .backend(memory.clone())
        .build()
        .unwrap();
    let mut service = layer.layer(tower::service_fn(|mut request: Request<()>| {
        let usage = request
            .extensions_mut()
            .remove::<Usage>()
            .expect("it is admitted");
        let mut response = Response::new(Full::<Bytes>::default());
        response.extensions_mut().insert(usage);
        std::future::ready(Ok::<_, Infallible>(response))
    }));
    let policy = Policy::new("tokens", N::algorithm()).unwrap();
    let limiter = Limiter::new(memory, PolicySet::new(policy).unwrap()).unwrap();

    let (mut now, mut naive) = (START, N::default());
    let mut streams: Vec<(Known, Usage, Option<Body>)> = Vec::new();
    for op in ops {
        match *op {
            Op::Tick(micros) => {
                now += micros;
                clock.set(Timestamp::from_micros(now));
            }
            Op::Open(estimate) => {
                let request = Request::get("/")
                    .header("x-estimate", estimate)
                    .body(())
                    .unwrap();
                let mut response = at_once(service.call(request));
                // A client that writes 0 is admitted only if something is left.
                let estimate = estimate.max(1);
                let fits = estimate <= naive.left(now);
                prop_assert_eq!(response.status() == StatusCode::OK, fits);
                if !fits {
                    continue;
                }
                let usage = response.extensions_mut().remove::<Usage>().unwrap();
                let pieces = vec![(naive.take(now, estimate), estimate)];
                let known = Known {
                    estimate,
                    pieces,
                    used: None,
                    patience: 0,
                    open: true,
                };
                streams.push((known, usage, Some(response.into_body())));
            }
            Op::Add(stream, units) => {
                let Some((known, usage, _)) = streams.get_mut(stream) else {
                    continue;
                };
                let expected = known.open.then(|| known.add(&mut naive, now, units));
                prop_assert_eq!(usage.add("tokens", units).ok(), expected);
                if known.open {
                    prop_assert_eq!(usage.taken("tokens"), known.held());
                    prop_assert_eq!(usage.used("tokens"), known.used);
                }
            }
            Op::Settle(stream, actual) => {
                let Some((known, usage, _)) = streams.get_mut(stream) else {
                    continue;
                };
                prop_assert_eq!(usage.settle("tokens", actual).is_ok(), known.open);
                known.close(&mut naive, now, Some(actual));
            }
            Op::Refund(stream) => {
                let Some((known, usage, _)) = streams.get_mut(stream) else {
                    continue;
                };
                prop_assert_eq!(usage.refund().is_ok(), known.open);
                known.close(&mut naive, now, Some(0));
            }
            Op::End(stream) => {
                let Some((known, _, body)) = streams.get_mut(stream) else {
                    continue;
                };
                drop(body.take());
                known.close(&mut naive, now, None);
            }
        }
        let decision = at_once(limiter.decide(&[Call::peek(Key::CONSTANT)]));
        prop_assert_eq!(decision.remaining(), naive.left(now), "after {:?}", op);
    }
    prop_assert_eq!(
        (layer.settlements().pending, layer.settlements().failed),
        (0, 0)
    );
    Ok(())
}

/// Runs a future that never waits, as in memory.
fn at_once<T, E: std::fmt::Debug>(future: impl Future<Output = Result<T, E>>) -> T {
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(future).poll(&mut cx) {
        std::task::Poll::Ready(result) => result.unwrap(),
        std::task::Poll::Pending => panic!("memory answers at once"),
    }
}

fn cases() -> ProptestConfig {
    let config = ProptestConfig::default();
    ProptestConfig {
        cases: config.cases.max(2_000),
        failure_persistence: None,
        ..config
    }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn law_10_charge_of_random_streams_on_a_window(ops in vec(op(), 1..60)) {
        walk::<Windows>(&ops)?;
    }

    #[test]
    fn law_10_charge_of_random_streams_on_a_drain(ops in vec(op(), 1..60)) {
        walk::<Drains>(&ops)?;
    }
}

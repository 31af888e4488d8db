//! Clients that make the calls of a case, and what becomes of them.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::Response;
use throttle_tower::shape::{PauseCause, QueueFull, Shape, ShapeError};
use throttle_tower::{Key, Pace, Rate, ShapeLayer};
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use tower::{Layer, Service, ServiceExt};

use super::Case;
use super::server::Server;

const TIMER: Duration = Duration::from_millis(2);
/// A call that is not the first one may hear of the end of its bound so much later.
const LATE: Duration = Duration::from_millis(50);

#[derive(Clone, Copy)]
pub(super) enum Client {
    /// Sends each call immediately. After a refusal it waits as stated, or else 1, 2, 4 to
    /// 60 s.
    Loop,
    /// The same at a pace.
    Plain { pace: u64 },
    /// A pace that obeys. A call that the upstream refuses is repeated immediately, and a
    /// call that fails here after `retry_after`.
    Obeying { pace: u64, slows: bool },
}

/// What became of the calls of a case.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) wanted: usize,
    pub(super) answered: usize,
    /// Calls that failed in the end: here, and there.
    pub(super) failed_here: usize,
    pub(super) failed_there: usize,
    /// Refusals here of what the upstream would have answered.
    pub(super) wrong: usize,
    pub(super) sent: usize,
    pub(super) refused_there: u64,
    pub(super) inside_wait: u64,
    pub(super) bans: u64,
    /// Until the answer, in seconds.
    pub(super) mean: f64,
    pub(super) longest: f64,
    /// Errors that came later than the bound after the call was made, or neither with their pause
    /// nor when no turn was left before the bound.
    pub(super) late_errors: Vec<Duration>,
    /// Errors during a pause that do not name it.
    pub(super) without_cause: usize,
    pub(super) pauses: usize,
    /// Departures before the end of a pause, and first ones long after it.
    pub(super) early: usize,
    pub(super) idle: usize,
    /// After a pause: refused, answered, and of the refused those whose bound ended.
    pub(super) probes: Vec<[u64; 3]>,
}

#[derive(Clone, Copy)]
struct Call {
    number: u64,
    tries: u32,
    /// How long it may wait.
    bound: Duration,
    made: Instant,
}

/// What all calls of a run share.
struct Run {
    start: Instant,
    trip: f64,
    interval: Duration,
    server: Server,
    outcome: Outcome,
    left_at: Option<Instant>,
    pause_until: Option<Instant>,
    pause_heard: Option<Instant>,
    /// Whether a call waits for the end of the pause.
    is_awaited: bool,
    since_pause: HashMap<usize, [u64; 3]>,
}

impl Run {
    fn now(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }

    fn left(&mut self, call: &Call) -> (usize, bool) {
        let now = Instant::now();
        self.outcome.sent += 1;
        if let Some(until) = self.pause_until {
            self.outcome.early += usize::from(now < until);
            self.outcome.idle += usize::from(self.is_awaited && now > until + TIMER);
        }
        self.is_awaited = false;
        self.left_at = Some(now);
        let is_ending = now + self.interval + TIMER >= call.made + call.bound;
        (self.outcome.pauses, is_ending)
    }

    /// A pause is in force after a response.
    fn paused(&mut self, until: Instant, by: PauseCause, is_awaited: bool) {
        let now = Instant::now();
        if self.pause_until.is_none_or(|former| former <= now) {
            self.outcome.pauses += 1;
            if matches!(by, PauseCause::Refusal(_)) {
                self.since_pause.insert(self.outcome.pauses, [0; 3]);
            }
        }
        if self.pause_until != Some(until) {
            (self.pause_until, self.pause_heard) = (Some(until), Some(now));
        }
        self.is_awaited = is_awaited;
    }

    fn responded(&mut self, pause: usize, is_refused: bool, is_ending: bool) {
        if let Some([refused, answered, ending]) = self.since_pause.get_mut(&pause) {
            *(if is_refused { refused } else { answered }) += 1;
            *ending += u64::from(is_refused && is_ending);
        }
    }

    fn refused_here(&mut self, call: &Call, full: &QueueFull, waiting: usize, is_paused: bool) {
        let now = Instant::now();
        let latest = (call.made + call.bound).max(now);
        let turns = u32::try_from(waiting + 1).expect("a few calls");
        let turn = self.left_at.map_or(now, |at| at + self.interval * turns);
        if turn <= latest && self.server.would_answer(self.start.elapsed().as_secs_f64()) {
            self.outcome.wrong += 1;
        }
        let cause = self
            .pause_heard
            .map_or(call.made, |heard| heard.max(call.made));
        let (after, bound) = (now - call.made, call.bound);
        if after > bound + LATE || (after + self.interval + TIMER < bound && now > cause + TIMER) {
            self.outcome.late_errors.push(after);
        }
        self.outcome.without_cause += usize::from(is_paused && full.pause.is_none());
    }
}

/// The upstream's side of a client.
#[derive(Clone)]
struct Upstream(Arc<Mutex<Run>>);

type UpstreamFuture = Pin<Box<dyn Future<Output = Result<Response<()>, Infallible>> + Send>>;

impl Service<Call> for Upstream {
    type Response = Response<()>;
    type Error = Infallible;
    type Future = UpstreamFuture;

    fn poll_ready(
        &mut self,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), Infallible>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, call: Call) -> UpstreamFuture {
        let run = Arc::clone(&self.0);
        let (pause, is_ending) = run.lock().unwrap().left(&call);
        Box::pin(async move {
            let trip = trip(
                run.lock().unwrap().trip,
                call.number * 7 + u64::from(call.tries),
            );
            sleep(trip / 2).await;
            let (response, late) = {
                let mut run = run.lock().unwrap();
                let now = run.now();
                run.server.call(now)
            };
            sleep(trip / 2 + Duration::from_secs_f64(late)).await;
            let is_refused = response.status().as_u16() >= 400;
            run.lock().unwrap().responded(pause, is_refused, is_ending);
            Ok(response)
        })
    }
}

/// 0.8 to 1.2 of a round trip, the same in every run.
fn trip(seconds: f64, number: u64) -> Duration {
    let part = number.wrapping_mul(2_654_435_761) as u32;
    Duration::from_secs_f64(seconds * (0.8 + 0.4 * f64::from(part) / 2_f64.powi(32)))
}

type PacedUpstream = Shape<Upstream, Call, Response<()>>;

enum PacedClient {
    Loop(Upstream),
    Plain(Box<PacedUpstream>),
    Obeying(Box<PacedUpstream>),
}

impl PacedClient {
    fn new(client: Client, case: &Case, upstream: Upstream) -> Self {
        let layer = |pace| {
            let pace = Pace::new(Rate::per_second(pace));
            ShapeLayer::new(pace.max_wait(Duration::from_secs(case.bound)))
                .unwrap()
                .deadline(|call: &Call| Some(call.bound))
        };
        match client {
            Client::Loop => Self::Loop(upstream),
            Client::Plain { pace } => Self::Plain(Box::new(layer(pace).layer(upstream))),
            Client::Obeying { pace, slows } => {
                let mut layer = layer(pace).refusal_if(|_, headers| {
                    headers
                        .get("x-amzn-errortype")
                        .is_some_and(|kind| kind == "ThrottlingException")
                });
                if slows {
                    layer = layer.slow_down_after_refusal();
                }
                Self::Obeying(Box::new(layer.obey_upstream().layer(upstream)))
            }
        }
    }

    async fn call(&self, call: Call) -> Result<Response<()>, QueueFull> {
        let result = match self {
            Self::Loop(upstream) => return Ok(upstream.clone().oneshot(call).await.unwrap()),
            Self::Plain(shape) | Self::Obeying(shape) => shape.as_ref().clone().oneshot(call).await,
        };
        result.map_err(|error| match error {
            ShapeError::QueueFull(full) => full,
            error => panic!("{error}"),
        })
    }

    fn waiting(&self) -> usize {
        match self {
            Self::Loop(_) => 0,
            Self::Plain(shape) | Self::Obeying(shape) => shape.layer().stats().waiting,
        }
    }

    fn paused(&self) -> Option<(Instant, PauseCause)> {
        let Self::Obeying(shape) = self else {
            return None;
        };
        let paused = shape.layer().shaper().paused_until(Key::CONSTANT)?;
        Some((paused.until, paused.cause))
    }
}

/// Makes one call until it is answered, or its patience is over.
async fn call(
    number: u64,
    at: Duration,
    case_of: (u64, u64),
    paced: Arc<PacedClient>,
    run: Arc<Mutex<Run>>,
) {
    let start = run.lock().unwrap().start;
    sleep_until(start + at).await;
    let came = Instant::now();
    let (bound, patience) = (
        Duration::from_secs(case_of.0),
        Duration::from_secs(case_of.1),
    );
    let over = came + patience;
    let mut tries = 0;
    loop {
        let made = Instant::now();
        let bound = bound.min(over.saturating_duration_since(made));
        let made = Call {
            number,
            tries,
            bound,
            made,
        };
        let (wait, is_here) = match paced.call(made).await {
            Ok(response) if response.status().as_u16() < 400 => {
                let mut run = run.lock().unwrap();
                run.outcome.answered += 1;
                let took = came.elapsed().as_secs_f64();
                run.outcome.mean += took;
                run.outcome.longest = run.outcome.longest.max(took);
                note_pause(&mut run, &paced);
                return;
            }
            Ok(response) => {
                tries += 1;
                note_pause(&mut run.lock().unwrap(), &paced);
                let told = response.headers().get("retry-after");
                let told = told.and_then(|value| value.to_str().unwrap().parse().ok());
                let wait = told
                    .unwrap_or(1 << (tries - 1).min(6))
                    .min(60.max(told.unwrap_or(0)));
                let obeys = matches!(*paced, PacedClient::Obeying(_));
                (
                    if obeys {
                        Duration::ZERO
                    } else {
                        Duration::from_secs(wait)
                    },
                    false,
                )
            }
            Err(full) => {
                let mut run = run.lock().unwrap();
                let is_paused = paced.paused().is_some();
                run.refused_here(&made, &full, paced.waiting(), is_paused);
                let wait = full.retry_after.unwrap_or(patience);
                (wait.max(Duration::from_millis(20)), true)
            }
        };
        if Instant::now() + wait > over {
            let outcome = &mut run.lock().unwrap().outcome;
            *(if is_here {
                &mut outcome.failed_here
            } else {
                &mut outcome.failed_there
            }) += 1;
            return;
        }
        sleep(wait).await;
    }
}

fn note_pause(run: &mut Run, paced: &PacedClient) {
    if let Some((until, by)) = paced.paused() {
        run.paused(until, by, paced.waiting() > 0);
    }
}

pub(super) fn run(case: &Case, client: Client, trip: f64) -> Outcome {
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        let pace = match client {
            Client::Loop => 1_000,
            Client::Plain { pace } | Client::Obeying { pace, .. } => pace,
        };
        let run = Arc::new(Mutex::new(Run {
            start: Instant::now(),
            trip,
            interval: Duration::from_secs_f64(1.005 / pace as f64),
            server: (case.server)(trip),
            outcome: Outcome::default(),
            left_at: None,
            pause_until: None,
            pause_heard: None,
            is_awaited: false,
            since_pause: HashMap::new(),
        }));
        let paced = Arc::new(PacedClient::new(client, case, Upstream(Arc::clone(&run))));
        let mut calling = JoinSet::new();
        for (number, at) in (0..).zip(case.times()) {
            let bounds = (case.bound, case.patience);
            calling.spawn(call(
                number,
                at,
                bounds,
                Arc::clone(&paced),
                Arc::clone(&run),
            ));
        }
        let wanted = calling.len();
        calling.join_all().await;
        let mut run = run.lock().unwrap();
        let mut outcome = std::mem::take(&mut run.outcome);
        outcome.wanted = wanted;
        outcome.mean /= outcome.answered.max(1) as f64;
        (outcome.refused_there, outcome.inside_wait, outcome.bans) =
            (run.server.refused, run.server.inside_wait, run.server.bans);
        outcome.probes = run.since_pause.values().copied().collect();
        outcome
            .probes
            .retain(|[refused, answered, ending]| *refused > answered + 1 + ending);
        assert_eq!(
            wanted,
            outcome.answered + outcome.failed_here + outcome.failed_there
        );
        outcome
    })
}

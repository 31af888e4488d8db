//! The time of a call that does not wait.

use std::convert::Infallible;
use std::fmt::Debug;
use std::future::{Ready, ready};
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU32;
use std::sync::Mutex;
use std::task::{Context, Poll};
use std::time::Duration;

use governor::{DefaultDirectRateLimiter, DefaultKeyedRateLimiter, Quota};
use leaky_bucket::RateLimiter;
use throttle_tower::shape::Shaper;
use throttle_tower::{Key, Pace, Rate, ShapeLayer};
use tokio::runtime::{Builder, Runtime};
use tower::buffer::Buffer;
use tower::limit::RateLimit;
use tower::{Layer, Service, ServiceExt};

use crate::alloc;
use crate::report;
use crate::stage::{Contender, compete};

/// A pace keeps calls at least one clock tick apart. This many limiters or keys are used in turn,
/// so that none is used twice in a tick.
const IN_TURN: u32 = 64;
/// Steps of a turn: less than a time slice.
pub const STEPS: usize = 64 * 40;

pub fn run() {
    let runtime = runtime();
    table(
        "A call that need not wait, through a service",
        "service around one that does nothing",
        services(&runtime),
    );
    table(
        "A call that need not wait, without a service",
        "awaited",
        bare(&runtime),
    );
}

/// The names of the contenders of both tables.
pub fn counted() -> Vec<&'static str> {
    let runtime = runtime();
    let rows = services(&runtime).into_iter().chain(bare(&runtime));
    rows.map(|(name, _)| name).collect()
}

/// Takes turns of [`STEPS`] calls with one contender, by its place among [`counted`]. `count` takes
/// each turn.
pub fn turns(place: usize, turns: usize, count: impl FnOnce(Vec<()>, &mut dyn FnMut(()))) {
    let runtime = runtime();
    let (_, contender) = services(&runtime)
        .into_iter()
        .chain(bare(&runtime))
        .nth(place)
        .expect("a contender's place");
    contender(0, 0);
    count(vec![(); turns], &mut |()| _ = black_box(contender(0, 0)));
}

fn runtime() -> Runtime {
    Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime starts")
}

/// One contender, and its name.
type Row<'a> = (&'static str, Contender<'a>);

fn table(title: &str, call: &str, rows: Vec<Row<'_>>) {
    report::title(title, &[call, "ns", "÷ the first", "allocations a call"]);
    let (names, contenders): (Vec<_>, Vec<_>) = rows.into_iter().unzip();
    let rounds = compete(&contenders, 1);
    for ((name, contender), nanos) in names.iter().zip(&contenders).zip(&rounds) {
        let mut steps = 0;
        let allocations = alloc::calls(|| steps = contender(0, 0)) as f64 / steps as f64;
        let cells = [
            report::spread(nanos, 0),
            report::ratio(nanos, &rounds[0]),
            format!("{allocations:.2}"),
        ];
        report::row(&[&[(*name).to_owned()][..], &cells[..]].concat());
    }
}

/// Responds at once.
#[derive(Clone, Copy)]
struct NoOp;

impl Service<IpAddr> for NoOp {
    type Response = ();
    type Error = Infallible;
    type Future = Ready<Result<(), Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: IpAddr) -> Self::Future {
        ready(Ok(()))
    }
}

/// Calls several services in turn.
fn service<'a, S>(runtime: &'a Runtime, make: impl Fn() -> S) -> Contender<'a>
where
    S: Service<IpAddr, Response = (), Error: Debug> + Send + 'a,
{
    call_each(runtime, (0..IN_TURN).map(|_| make()).collect())
}

fn call_each<'a, S>(runtime: &'a Runtime, services: Vec<S>) -> Contender<'a>
where
    S: Service<IpAddr, Response = (), Error: Debug> + Send + 'a,
{
    let services = Mutex::new(services);
    Box::new(move |_, _| {
        let mut services = services.lock().expect("no call panics");
        runtime.block_on(async {
            for n in 0..STEPS {
                let at = n % services.len();
                let service = services[at].ready().await.expect("it is never down");
                black_box(service.call(black_box(address(n))))
                    .await
                    .expect("it is never refused");
            }
        });
        STEPS
    })
}

/// Calls several limiters in turn.
fn each<'a, L: Sync + Send + 'a>(
    runtime: &'a Runtime,
    make: impl Fn() -> L,
    ask: impl AsyncFn(&L, usize) + Sync + 'a,
) -> Contender<'a> {
    ask_each(runtime, (0..IN_TURN).map(|_| make()).collect(), ask)
}

fn ask_each<'a, L: Sync + Send + 'a>(
    runtime: &'a Runtime,
    limiters: Vec<L>,
    ask: impl AsyncFn(&L, usize) + Sync + 'a,
) -> Contender<'a> {
    Box::new(move |_, _| {
        runtime.block_on(async {
            for n in 0..STEPS {
                ask(&limiters[n % limiters.len()], n).await;
            }
        });
        STEPS
    })
}

fn address(n: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from(0x0a00_0000 + n as u32 % IN_TURN))
}

fn shaper() -> Shaper {
    let pace = Pace::new(Rate::new(10_000, Duration::from_millis(1)));
    Shaper::new(pace).expect("the pace is valid")
}

fn quota() -> Quota {
    Quota::per_second(NonZeroU32::new(1_000_000_000).expect("not zero"))
}

fn rate_limit() -> RateLimit<NoOp> {
    RateLimit::new(
        NoOp,
        tower::limit::rate::Rate::new(u64::MAX, Duration::from_secs(3_600)),
    )
}

fn leaky_bucket(fair: bool) -> RateLimiter {
    let many = 1_000_000_000_000;
    RateLimiter::builder()
        .initial(many)
        .max(many)
        .refill(1_000_000)
        .interval(Duration::from_millis(1))
        .fair(fair)
        .build()
}

fn services(runtime: &Runtime) -> Vec<Row<'_>> {
    let _inside = runtime.enter();
    let shape = || ShapeLayer::of(shaper());
    vec![
        (
            "throttle, `ShapeLayer`",
            service(runtime, || shape().layer(NoOp)),
        ),
        (
            "throttle, `ShapeLayer` by key",
            call_each(
                runtime,
                vec![shape().by(|ip: &IpAddr| (*ip).into()).layer(NoOp)],
            ),
        ),
        (
            "tower, `RateLimit` in a `Buffer`",
            service(runtime, || Buffer::new(rate_limit(), 64)),
        ),
        (
            "tower, `RateLimit`, which has one caller",
            service(runtime, rate_limit),
        ),
        ("none", service(runtime, || NoOp)),
    ]
}

fn bare(runtime: &Runtime) -> Vec<Row<'_>> {
    vec![
        (
            "throttle, `schedule(Key::CONSTANT, 1)`",
            each(runtime, shaper, async |shaper: &Shaper, _| {
                shaper
                    .schedule(Key::CONSTANT, 1)
                    .await
                    .expect("it is never refused");
            }),
        ),
        (
            "throttle, `schedule(address, 1)`",
            ask_each(runtime, vec![shaper()], async |shaper: &Shaper, n| {
                shaper
                    .schedule(address(n), 1)
                    .await
                    .expect("it is never refused");
            }),
        ),
        (
            "leaky-bucket, `acquire_one()`",
            each(
                runtime,
                || leaky_bucket(true),
                async |limiter: &RateLimiter, _| limiter.acquire_one().await,
            ),
        ),
        (
            "leaky-bucket, `fair(false)`",
            each(
                runtime,
                || leaky_bucket(false),
                async |limiter: &RateLimiter, _| limiter.acquire_one().await,
            ),
        ),
        (
            "governor, `until_ready()`",
            each(
                runtime,
                || DefaultDirectRateLimiter::direct(quota()),
                async |limiter: &DefaultDirectRateLimiter, _| limiter.until_ready().await,
            ),
        ),
        (
            "governor, `until_key_ready(&address)`",
            ask_each(
                runtime,
                vec![DefaultKeyedRateLimiter::<IpAddr>::dashmap(quota())],
                async |limiter: &DefaultKeyedRateLimiter<IpAddr>, n| {
                    limiter.until_key_ready(&address(n)).await
                },
            ),
        ),
    ]
}

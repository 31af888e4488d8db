//! Each limiter as one closure that decides about one key.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use clock_lib::{
    Clock as RateNetClock, ManualClock as RateNetManual, SystemClock as RateNetSystem,
};
use governor::clock::{Clock as GovernorClock, FakeRelativeClock};
use governor::middleware::NoOpMiddleware;
use governor::state::keyed::DefaultKeyedStateStore;
use limitador::limit::{Context, Limit, Namespace};
use quota::{QuotaPolicy, QuotaPool, RefillRate};
use rate_net::Algorithm as RateNet;
use throttle_core::algorithm::IntoAlgorithm;
use throttle_core::backend::Call;
use throttle_core::{
    Backend, Clock, FixedWindow, Gcra, Key, ManualClock, MemoryBackend, Policy, PolicySet, Rate,
    SlidingLog, SlidingWindow, SystemClock, Timestamp,
};

use super::apps::{APPS, of_governor, request_from};
use super::ideal::{Kind, Quota};
use crate::layer::answer;

/// Whether one more request is admitted now.
pub type Admit = Box<dyn FnMut() -> bool + Send>;
/// Sets the time since the start.
pub type SetTime = Box<dyn FnMut(Duration) + Send>;

pub struct Library {
    pub name: &'static str,
    pub kind: Kind,
    pub real: fn(Quota) -> Admit,
    /// The same on a clock that is set, where the limiter takes one.
    pub simulated: Option<fn(Quota) -> (Admit, SetTime)>,
}

const fn library(
    name: &'static str,
    kind: Kind,
    real: fn(Quota) -> Admit,
    simulated: Option<fn(Quota) -> (Admit, SetTime)>,
) -> Library {
    Library {
        name,
        kind,
        real,
        simulated,
    }
}

use Kind::{Bucket, Window};

pub const LIBRARIES: [Library; 13] = [
    library(
        "throttle, `Gcra`",
        Bucket,
        |q| throttle(Gcra::new(rate(q))),
        Some(|q| set_throttle(Gcra::new(rate(q)))),
    ),
    library(
        "throttle, `SlidingWindow`",
        Window,
        |q| throttle(SlidingWindow::new(rate(q))),
        Some(|q| set_throttle(SlidingWindow::new(rate(q)))),
    ),
    library(
        "throttle, `SlidingLog`",
        Window,
        |q| throttle(SlidingLog::new(rate(q))),
        Some(|q| set_throttle(SlidingLog::new(rate(q)))),
    ),
    library(
        "throttle, `FixedWindow`",
        Window,
        |q| throttle(FixedWindow::new(rate(q))),
        Some(|q| set_throttle(FixedWindow::new(rate(q)))),
    ),
    library(
        "governor, `check_key`",
        Bucket,
        |q| governor(q, governor::clock::DefaultClock::default()),
        Some(set_governor),
    ),
    library("tower_governor", Bucket, |q| app(1, q), None),
    library("axum-governor", Bucket, |q| app(2, q), None),
    library(
        "rate-net, `TokenBucket`",
        Bucket,
        |q| rate_net(RateNet::TokenBucket, q, RateNetSystem::new()),
        Some(|q| set_rate_net(RateNet::TokenBucket, q)),
    ),
    library(
        "rate-net, `SlidingWindowCounter`",
        Window,
        |q| rate_net(RateNet::SlidingWindowCounter, q, RateNetSystem::new()),
        Some(|q| set_rate_net(RateNet::SlidingWindowCounter, q)),
    ),
    library(
        "rate-net, `SlidingWindowLog`",
        Window,
        |q| rate_net(RateNet::SlidingWindowLog, q, RateNetSystem::new()),
        Some(|q| set_rate_net(RateNet::SlidingWindowLog, q)),
    ),
    library(
        "rate-net, `FixedWindow`",
        Window,
        |q| rate_net(RateNet::FixedWindow, q, RateNetSystem::new()),
        Some(|q| set_rate_net(RateNet::FixedWindow, q)),
    ),
    library("quota, `QuotaPool`", Bucket, quota_pool, None),
    library(
        "limitador, in memory (a fixed window)",
        Window,
        limitador,
        None,
    ),
];

fn rate(quota: Quota) -> Rate {
    Rate::new(quota.count.into(), quota.period)
}

fn throttle(algorithm: impl IntoAlgorithm) -> Admit {
    throttle_on(algorithm, SystemClock::new())
}

fn set_throttle(algorithm: impl IntoAlgorithm) -> (Admit, SetTime) {
    let clock = ManualClock::new(Timestamp::EPOCH);
    let time = clock.clone();
    let set = move |now: Duration| time.set(Timestamp::from_micros(now.as_micros() as i64));
    (throttle_on(algorithm, clock), Box::new(set))
}

fn throttle_on(algorithm: impl IntoAlgorithm, clock: impl Clock) -> Admit {
    let policy = Policy::new("compared", algorithm).expect("a valid limit");
    let backend = MemoryBackend::builder().clock(clock).build();
    let set = backend
        .prepare(PolicySet::new(policy).expect("a valid set"))
        .expect(
            "the backend \
        has room",
        );
    Box::new(move || {
        backend
            .decide_now(&set, &[Call::from(Key::from("client"))])
            .is_admitted()
    })
}

fn governor<C: GovernorClock + Send + Sync + 'static>(quota: Quota, clock: C) -> Admit
where
    C::Instant: Send + Sync,
{
    let store = DefaultKeyedStateStore::<u8>::default();
    let limiter = governor::RateLimiter::<_, _, _, NoOpMiddleware<C::Instant>>::new(
        of_governor(quota),
        store,
        clock,
    );
    Box::new(move || limiter.check_key(&0).is_ok())
}

fn set_governor(quota: Quota) -> (Admit, SetTime) {
    let clock = FakeRelativeClock::default();
    let (time, mut before) = (clock.clone(), Duration::ZERO);
    let set = move |now| {
        time.advance(now - before);
        before = now;
    };
    (governor(quota, clock), Box::new(set))
}

fn rate_net(algorithm: RateNet, quota: Quota, clock: impl RateNetClock + Clone + 'static) -> Admit {
    let builder = rate_net::RateLimiter::builder()
        .algorithm(algorithm)
        .quota(quota.count, quota.period);
    let limiter = builder
        .burst(quota.count)
        .clock(clock)
        .try_build()
        .expect("a valid limit");
    Box::new(move || limiter.check("client").is_allow())
}

fn set_rate_net(algorithm: RateNet, quota: Quota) -> (Admit, SetTime) {
    let clock = Arc::new(RateNetManual::new());
    let time = Arc::clone(&clock);
    (
        rate_net(algorithm, quota, clock),
        Box::new(move |now| time.advance_to(now)),
    )
}

fn quota_pool(quota: Quota) -> Admit {
    let rate = RefillRate::per_sec(f64::from(quota.count) / quota.period.as_secs_f64());
    let policy = QuotaPolicy::new()
        .set_capacity(quota.count.into())
        .set_refill_rate(rate);
    let pool = QuotaPool::with_key_type(policy, quota.count.into());
    Box::new(move || pool.consume(&0_u8, 1).is_ok())
}

fn limitador(quota: Quota) -> Admit {
    let limiter = limitador_of(quota, 1_000);
    Box::new(move || asks_limitador(&limiter, IpAddr::V4(Ipv4Addr::LOCALHOST)))
}

/// Limits by a variable, as its documentation does.
pub fn limitador_of(quota: Quota, keys: u64) -> limitador::RateLimiter {
    let limiter = limitador::RateLimiter::new(keys);
    let variable = "address".try_into().expect("a valid variable");
    let seconds = quota.period.as_secs();
    limiter.add_limit(Limit::new(
        "compared",
        quota.count.into(),
        seconds,
        Vec::new(),
        vec![variable],
    ));
    limiter
}

pub fn asks_limitador(limiter: &limitador::RateLimiter, address: IpAddr) -> bool {
    let context = Context::from(std::collections::HashMap::from([(
        "address".to_owned(),
        address.to_string(),
    )]));
    let answer = limiter.check_rate_limited_and_update(&Namespace::from("compared"), &context, 1);
    !answer.expect("memory does not fail").limited
}

fn app(place: usize, quota: Quota) -> Admit {
    let app = (APPS[place].make)(quota);
    let peer = IpAddr::V4(Ipv4Addr::LOCALHOST);
    Box::new(move || answer(app.clone(), request_from(peer)).status() == StatusCode::OK)
}

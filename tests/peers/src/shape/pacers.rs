//! The contenders, each as a function that makes one call: it waits for its turn and then calls an
//! upstream.

use std::future::{Future, ready};
use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use governor::{DefaultDirectRateLimiter, Quota};
use leaky_bucket::RateLimiter;
use throttle_tower::shape::Shaper;
use throttle_tower::{Pace, Rate, ShapeLayer};
use tokio::runtime::{Builder, Runtime};
use tokio::time::Instant;
use tower::buffer::Buffer;
use tower::{BoxError, Layer, Service, ServiceExt, service_fn};

/// Makes one call. In a runtime only.
pub type Pacer = Arc<dyn Fn() -> Calling + Send + Sync>;
pub type Calling = Pin<Box<dyn Future<Output = ()> + Send>>;

/// At most `count` departures in a period.
#[derive(Clone, Copy)]
pub struct CommonPace {
    pub count: u32,
    pub period: Duration,
}

impl CommonPace {
    pub const fn per_second(count: u32) -> Self {
        Self {
            count,
            period: Duration::from_secs(1),
        }
    }

    /// The time from one departure to the next, if they are even.
    pub fn interval(self) -> Duration {
        self.period / self.count
    }

    pub fn rate(self) -> Rate {
        Rate::new(self.count.into(), self.period)
    }

    fn quota(self) -> Quota {
        let burst = NonZeroU32::new(self.count).expect("a pace is not zero");
        Quota::with_period(self.interval())
            .expect("a period is not zero")
            .allow_burst(burst)
    }
}

/// Records when calls arrive.
#[derive(Clone, Default)]
pub struct Upstream(Arc<Mutex<Vec<Instant>>>);

impl Upstream {
    pub fn call(&self) {
        self.lock().push(Instant::now());
    }

    /// Returns the arrivals in order, and clears them.
    pub fn take(&self) -> Vec<Instant> {
        let mut arrived = std::mem::take(&mut *self.lock());
        arrived.sort_unstable();
        arrived
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn service(
        &self,
    ) -> impl Service<(), Response = (), Error = BoxError, Future: Send> + Clone + Send + Sync + 'static
    {
        let upstream = self.clone();
        service_fn(move |()| {
            upstream.call();
            ready(Ok(()))
        })
    }
}

pub fn runtime() -> Runtime {
    Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime starts")
}

/// Longer than any call has to wait, so that every call may wait.
const PATIENT: Duration = Duration::from_secs(400 * 86_400);
const MOST_WAITING: usize = 2_000_000;

pub fn shaper(pace: CommonPace) -> Shaper {
    let pace = Pace::new(pace.rate()).max_wait(PATIENT);
    Shaper::builder(pace)
        .max_waiting(MOST_WAITING)
        .build()
        .expect("the pace is valid")
}

/// throttle's layer.
pub fn shape_layer(pace: CommonPace, upstream: &Upstream) -> Pacer {
    shape_by(shaper(pace), upstream)
}

fn shape_by(shaper: Shaper, upstream: &Upstream) -> Pacer {
    let service = ShapeLayer::of(shaper).layer(upstream.service());
    Arc::new(move || {
        let calling = service.clone().oneshot(());
        Box::pin(async move { calling.await.expect("no call waits too long") })
    })
}

/// The same with more headroom than the default.
pub fn shape_layer_with_headroom(
    pace: CommonPace,
    headroom: Duration,
    upstream: &Upstream,
) -> Pacer {
    let shaper = Shaper::builder(Pace::new(pace.rate()).max_wait(PATIENT)).headroom(headroom);
    shape_by(shaper.build().expect("the pace is valid"), upstream)
}

/// throttle's shaper, without a service.
pub fn bare_shaper(pace: CommonPace, upstream: &Upstream) -> Pacer {
    let (shaper, upstream) = (shaper(pace), upstream.clone());
    Arc::new(move || {
        let (shaper, upstream) = (shaper.clone(), upstream.clone());
        Box::pin(async move {
            shaper
                .schedule("upstream", 1)
                .await
                .expect("no call waits too long");
            upstream.call();
        })
    })
}

/// tower's layer, behind a buffer so that it can be shared. In a runtime only.
pub fn rate_limit(pace: CommonPace, upstream: &Upstream, buffered: usize) -> Pacer {
    let limited = tower::limit::RateLimit::new(
        upstream.service(),
        tower::limit::rate::Rate::new(pace.count.into(), pace.period),
    );
    let buffer = Buffer::new(limited, buffered);
    Arc::new(move || {
        let calling = buffer.clone().oneshot(());
        Box::pin(async move { calling.await.expect("the upstream is there") })
    })
}

/// leaky-bucket: a number of tokens each period, of which at most `max` are saved up.
pub fn leaky_bucket(pace: CommonPace, max: Option<usize>, upstream: &Upstream) -> Pacer {
    let mut builder = RateLimiter::builder();
    builder
        .refill(pace.count as usize)
        .interval(pace.period)
        .initial(pace.count as usize);
    if let Some(max) = max {
        builder.max(max);
    }
    let (limiter, upstream) = (Arc::new(builder.build()), upstream.clone());
    Arc::new(move || {
        let (acquire, upstream) = (Arc::clone(&limiter).acquire_owned(1), upstream.clone());
        Box::pin(async move {
            acquire.await;
            upstream.call();
        })
    })
}

/// governor: a quota with the default burst, or with another one.
pub fn governor(pace: CommonPace, burst: Option<u32>, upstream: &Upstream) -> Pacer {
    let quota = match burst.and_then(NonZeroU32::new) {
        Some(burst) => pace.quota().allow_burst(burst),
        None => pace.quota(),
    };
    let (limiter, upstream) = (
        Arc::new(DefaultDirectRateLimiter::direct(quota)),
        upstream.clone(),
    );
    Arc::new(move || {
        let (limiter, upstream) = (Arc::clone(&limiter), upstream.clone());
        Box::pin(async move {
            limiter.until_ready().await;
            upstream.call();
        })
    })
}

/// governor with a key.
pub fn governor_keyed(pace: CommonPace, burst: u32, upstream: &Upstream) -> Pacer {
    let burst = NonZeroU32::new(burst).expect("a burst is not zero");
    let limiter = Arc::new(governor::DefaultKeyedRateLimiter::<&str>::dashmap(
        pace.quota().allow_burst(burst),
    ));
    let upstream = upstream.clone();
    Arc::new(move || {
        let (limiter, upstream) = (Arc::clone(&limiter), upstream.clone());
        Box::pin(async move {
            limiter.until_key_ready(&"upstream").await;
            upstream.call();
        })
    })
}

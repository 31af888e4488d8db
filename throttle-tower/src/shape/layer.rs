use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, StatusCode};
use throttle_core::{Backend, ConfigError, Key, MemoryBackend};
use tower_layer::Layer;

use super::builder::IntoShaper;
use super::clock::TokioClock;
use super::counters::ShapeStats;
use super::heed::{HeadOf, HttpHead, IgnoreUpstream};
use super::how::How;
use super::http::HttpShapeLayer;
use super::obey::Obey;
use super::service::Shape;
use super::shaper::Shaper;

/// Delays calls to a steady pace, through any `tower::Service`.
///
/// For the client of an API that limits its rate: put it around the client, and calls leave one emission interval apart,
/// in the order they were made. Those that would have to wait longer than the bucket's longest wait are refused at once.
///
/// ```
/// use std::time::Duration;
/// use throttle_tower::{LeakyBucket, Rate, ShapeLayer};
/// use tower::{Service, ServiceBuilder, ServiceExt};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = tower::service_fn(|_: &'static str| async { Ok::<_, std::io::Error>(()) });
/// let pace = LeakyBucket::new(Rate::per_second(5)).max_wait(Duration::from_secs(2));
/// let mut client = ServiceBuilder::new().layer(ShapeLayer::new(pace)?).service(client);
/// client.ready().await?.call("a request of the client's").await?;
/// # Ok(())
/// # }
/// ```
///
/// # How it behaves
///
/// * **Clones share the schedule**: of the layer, and of its services. Each key has a schedule of its own; without
///   [`by`](Self::by) there is one.
/// * **Order.** Calls of one key are scheduled in the order in which they were made (with a store, in the order in which it
///   hears of them), and leave when they were told, never earlier. Tokio's timers are late by up to about a millisecond;
///   that does not add up, because calls wait until an instant. Above a thousand a second several leave in one millisecond.
/// * **The promise** is the rate as the upstream counts it: [some headroom](crate::ShaperBuilder::headroom) keeps what
///   travels at different speeds from making one call too many in a period. So the pace is up to a hundredth slower than
///   the rate.
/// * **Readiness.** The service that was found ready is the one that is called, at the moment its turn comes: whatever it
///   holds to be ready (a place in a `Buffer`, a permit of a `ConcurrencyLimit`) it holds while it waits. Put those outside.
/// * **Deadlines.** A `tower::timeout` outside of it counts the waiting and drops the call, whose slot is then given back. Better
///   tell it of the [deadline](Self::deadline), and the call is refused before it waits in vain.
/// * **Dropping** a waiting call gives its slot back if nothing is scheduled behind it. Otherwise its time passes unused:
///   those behind it were told when to leave, and moving them all would be no constant amount of work.
/// * **Memory.** A waiting call takes about 500 bytes beside the request, and up to
///   [100,000](crate::ShaperBuilder::max_waiting) may wait. No tasks are started for them.
///
/// # Type parameters
///
/// The request's type, the backend, and where an upstream's word is read. All can be named:
/// `ShapeLayer<reqwest::Request>`.
#[must_use = "a layer does nothing until a service is wrapped in it"]
pub struct ShapeLayer<Req, B: Backend = MemoryBackend<TokioClock>, H = IgnoreUpstream> {
    pub(super) shaper: Shaper<B>,
    pub(super) how: Arc<How<Req>>,
    pub(super) obey: Obey,
    pub(super) heed: H,
}

impl<Req, B: Backend> ShapeLayer<Req, B> {
    /// Paces calls by a bucket, in this process alone; or by a shaper with [options](Shaper::builder), among them a store that
    /// a fleet shares.
    ///
    /// ```
    /// use std::time::Duration;
    /// use throttle_tower::{LeakyBucket, Rate, ShapeLayer};
    /// use throttle_tower::shape::Shaper;
    ///
    /// let pace = Shaper::builder(LeakyBucket::new(Rate::per_second(50))).headroom(Duration::from_millis(20));
    /// let layer = ShapeLayer::new(pace)?.by(|request: &http::Request<()>| request.uri().host().unwrap_or_default().into());
    /// # Ok::<(), throttle_tower::ConfigError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the configuration is wrong: which field, value and bound.
    pub fn new(pace: impl IntoShaper<Backend = B>) -> Result<Self, ConfigError> {
        Ok(Self::of(pace.into_shaper()?))
    }

    /// Paces calls by a shaper that is there.
    pub fn of(shaper: Shaper<B>) -> Self {
        Self { shaper, how: Arc::default(), obey: Obey::default(), heed: IgnoreUpstream }
    }

    /// Listens to what an upstream says about its limits, in responses that are `http::Response`s.
    ///
    /// * **429 or 503 with `Retry-After`**, in seconds or as a date: no call of that key leaves before then, those that
    ///   wait already included. Afterwards they leave in their order, at the pace.
    /// * **`RateLimit` with nothing left** (`r=0`, or its older spellings, or `X-RateLimit-Remaining: 0`): the same, until
    ///   its `t`.
    /// * **`RateLimit` with something left**, but less than the pace would use in its `t`: calls leave so far apart that it
    ///   lasts, until another response says otherwise.
    ///
    /// The response itself is passed on untouched, a 429 too. What was learned holds in this process. Calls that would now
    /// have to wait too long are refused.
    pub fn obey_upstream(self) -> ShapeLayer<Req, B, HttpHead> {
        self.heeding(HttpHead)
    }

    /// The same where responses are of another type, told where their head is:
    /// `|response: &reqwest::Response| (response.status(), response.headers())`.
    pub fn obey_upstream_of<Res>(self, head: fn(&Res) -> (StatusCode, &HeaderMap)) -> ShapeLayer<Req, B, HeadOf<Res>> {
        self.heeding(HeadOf(head))
    }

    fn heeding<H>(self, heed: H) -> ShapeLayer<Req, B, H> {
        ShapeLayer { shaper: self.shaper, how: self.how, obey: self.obey, heed }
    }
}

impl<Req, B: Backend, H> ShapeLayer<Req, B, H> {
    /// Keeps a schedule for each key: per host, per tenant. Defaults to one for all.
    ///
    /// ```
    /// # use throttle_tower::{Key, LeakyBucket, Rate, ShapeLayer};
    /// let pace = LeakyBucket::new(Rate::per_second(5));
    /// let layer = ShapeLayer::new(pace)?.by(|request: &http::Request<()>| request.uri().host().unwrap_or_default().into());
    /// # Ok::<(), throttle_tower::ConfigError>(())
    /// ```
    pub fn by(self, key: impl Fn(&Req) -> Key + Send + Sync + 'static) -> Self {
        self.with(|how| how.key = Some(Arc::new(key)))
    }

    /// How many units of the rate a call takes; one that takes none is not paced. Defaults to 1.
    pub fn cost(self, cost: impl Fn(&Req) -> u64 + Send + Sync + 'static) -> Self {
        self.with(|how| how.cost = Some(Arc::new(cost)))
    }

    /// How long from now a call may take until it has left, where that is less than the bucket's longest wait: what would
    /// leave later is refused at once. Over a store such calls take two round trips. Defaults to no deadline.
    pub fn deadline(self, deadline: impl Fn(&Req) -> Option<Duration> + Send + Sync + 'static) -> Self {
        self.with(|how| how.deadline = Some(Arc::new(deadline)))
    }

    /// The longest that an upstream is [obeyed](Self::obey_upstream): it cannot park its clients for a year. Defaults to
    /// one minute.
    pub fn longest_pause(mut self, pause: Duration) -> Self {
        self.obey.longest = pause;
        self
    }

    /// Lengthens pauses that an upstream asks for by up to `percent` of them, at most 100, at random, so that a fleet does
    /// not come back all at once. Defaults to 0.
    pub fn pause_jitter(mut self, percent: u8) -> Self {
        self.obey.jitter = percent.min(100);
        self
    }

    /// The same for services whose responses are HTTP: calls that are refused are answered 429 or 503 instead of an error.
    pub fn http(self) -> HttpShapeLayer<Req, B, H> {
        HttpShapeLayer::new(self)
    }

    /// What it has done so far, and how many wait now, of all clones together.
    #[must_use]
    pub fn stats(&self) -> ShapeStats {
        self.shaper.stats()
    }

    /// The shaper: to pace something else together with these calls, to pause or reset a key.
    #[must_use]
    pub const fn shaper(&self) -> &Shaper<B> {
        &self.shaper
    }

    fn with(mut self, change: impl FnOnce(&mut How<Req>)) -> Self {
        change(Arc::make_mut(&mut self.how));
        self
    }
}

impl<S, Req, B: Backend, H: Clone> Layer<S> for ShapeLayer<Req, B, H> {
    type Service = Shape<S, Req, B, H>;

    fn layer(&self, inner: S) -> Self::Service {
        Shape::new(inner, self.clone())
    }
}

impl<Req, B: Backend, H: Clone> Clone for ShapeLayer<Req, B, H> {
    fn clone(&self) -> Self {
        Self { shaper: self.shaper.clone(), how: Arc::clone(&self.how), obey: self.obey, heed: self.heed.clone() }
    }
}

impl<Req, B: Backend, H> fmt::Debug for ShapeLayer<Req, B, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShapeLayer").field("shaper", &self.shaper).finish_non_exhaustive()
    }
}

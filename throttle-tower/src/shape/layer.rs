use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Response, StatusCode};
use throttle_core::{ConfigError, Key};

use super::call_functions::CallFunctions;
use super::pace::Pace;
use super::shaper::Shaper;
use super::stats::ShapeStats;
use super::unit_usage::ShapeUsage;
use crate::time::FAR;

/// Delays calls through any `tower::Service` so that they stay within an upstream's rate.
///
/// Wrap it around the client of an API that limits its rate. Calls leave one emission interval
/// apart, in the order in which they were made. A call that would have to wait longer than the
/// pace's longest wait is refused immediately.
///
/// ```
/// use std::time::Duration;
/// use throttle_tower::{Pace, Rate, ShapeLayer};
/// use tower::{Service, ServiceBuilder, ServiceExt};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = tower::service_fn(|_: &'static str| async { Ok::<_, std::io::Error>(()) });
/// let pace = Pace::new(Rate::per_second(5)).max_wait(Duration::from_secs(2));
/// let mut client = ServiceBuilder::new().layer(ShapeLayer::new(pace)?).service(client);
/// let before = tokio::time::Instant::now();
/// for request in ["first", "second"] {
///     client.ready().await?.call(request).await?;
/// }
/// assert!(before.elapsed() >= Duration::from_millis(200));
/// # Ok(())
/// # }
/// ```
///
/// # How it behaves
///
/// * **Clones share the schedule**, those of the layer and those of its services. Each key has a
///   schedule of its own; without [`by`](Self::by) there is one.
/// * **Order.** Calls of one key leave in the order in which they were made, those of higher
///   [classes](Self::priority) first, as far as they wait in one process, never early, and at the
///   latest about a millisecond late, which is the resolution of tokio's timers. The lateness does
///   not accumulate, because each turn counts from the instant at which it was due. Above a
///   thousand calls a second, several leave in one millisecond. Processes that share a store
///   compete for turns by chance.
/// * **Headroom.** The upstream counts calls when they arrive, and network delays vary. So the pace
///   is slower than the rate by [some headroom](crate::shape::ShaperBuilder::headroom): by default
///   up to a hundredth, or a fortieth over an asynchronous store. If delays vary by no more than
///   the headroom, no period of the upstream has too many calls.
/// * **Readiness.** The service that `poll_ready` prepared is called at the call's scheduled time.
///   A resource that it reserved in `poll_ready` (a slot of a `Buffer`, a permit of a
///   `ConcurrencyLimit`) stays reserved while the call waits, so put such layers outside of this
///   one.
/// * **Giving up.** A call that waits holds nothing but its position. If it is dropped, by a
///   `tower::timeout` outside of this layer for example, the next call has that position
///   immediately, and the upstream gets its whole rate. A future that is kept and not polled is
///   passed over when its turn comes, and has its position again when it is polled.
/// * **Deadlines.** With a [deadline](Self::deadline), a call that could not leave in time is
///   refused immediately, as far as that is known, and at the latest when its time has passed.
/// * **Several paces.** A pace may count [other units](crate::shape::ShaperBuilder::by_unit) than
///   requests, such as tokens: a call waits for its turn by all that it uses, and takes all or
///   none.
/// * **Memory.** A waiting call takes less than 600 bytes, the request and the inner service not
///   counted (700 if it [obeys the upstream](Self::obey_upstream)), and up to
///   [100,000](crate::shape::ShaperBuilder::max_waiting) may wait. While calls of a key wait, the
///   key has one small task, in the runtime of one of them.
///
/// # Type parameters
///
/// The request's and the response's type of the services: `ShapeLayer<reqwest::Request,
/// reqwest::Response>`.
#[must_use = "a layer does nothing until a service is wrapped in it"]
pub struct ShapeLayer<Req, Res> {
    pub(super) shaper: Shaper,
    pub(super) functions: Arc<CallFunctions<Req, Res>>,
}

impl<Req, Res> ShapeLayer<Req, Res> {
    /// Delays calls so that they keep a pace of this process alone, with the options that a
    /// [`Shaper`] has by default.
    ///
    /// # Errors
    ///
    /// If the configuration is wrong. The error names the field, the value and the bound.
    pub fn new(pace: Pace) -> Result<Self, ConfigError> {
        Shaper::new(pace).map(Self::of)
    }

    /// Delays calls to the pace of a shaper. Its [builder](Shaper::builder) has options, among them
    /// a store that a fleet shares.
    ///
    /// ```
    /// use std::time::Duration;
    /// use throttle_tower::shape::Shaper;
    /// use throttle_tower::{Pace, Rate, ShapeLayer};
    ///
    /// let pace = Shaper::builder(Pace::new(Rate::per_second(50)))
    ///     .headroom(Duration::from_millis(20));
    /// let layer: ShapeLayer<http::Request<()>, http::Response<()>> = ShapeLayer::of(pace.build()?);
    /// assert_eq!(
    ///     layer.shaper().rate(),
    ///     Rate::new(50, Duration::from_millis(1_020))
    /// );
    /// # Ok::<(), throttle_tower::ConfigError>(())
    /// ```
    pub fn of(shaper: Shaper) -> Self {
        Self {
            shaper,
            functions: Arc::default(),
        }
    }
}

impl<Req, Body> ShapeLayer<Req, Response<Body>> {
    /// Obeys the upstream's limits as its responses state them, where they are `http::Response`s.
    ///
    /// * **A refusal that states a wait**: no call of that key leaves before then, at most
    ///   [`longest_pause`](Self::longest_pause). A refusal is a response with status 429, 503 or
    ///   529; any other error (4xx, 5xx) that states a wait above 0; a 403 with nothing left; of
    ///   gRPC, status 8 or 14 in the headers; and what [`refusal_if`](Self::refusal_if) adds. The
    ///   wait replaces the resets of the same response.
    /// * **A refusal with nothing left, and a reset**: until the reset.
    /// * **Any other refusal**: for 1 second or for the time of one request, whichever is longer.
    ///   Then for twice as long after each further refusal, at most a minute, until a call that
    ///   left after the pause is answered.
    /// * **After a refusal** one call leaves. Each answer lets one more be under way, until they
    ///   are as many as the pace makes.
    /// * **Nothing left on an answered call**: the next call leaves after a second and finds out
    ///   whether the reset is the end of a window. If it is, the key pauses until then, also at
    ///   later times. If the quota refills before, nothing more happens. A key remembers this for
    ///   an hour.
    /// * **Something left**: nothing, until calls under way could use it up. Then further calls are
    ///   held for an answer, at most two round trips.
    ///
    /// A success with `Retry-After` is no refusal: it asks the client to look again at what it has
    /// begun.
    ///
    /// What is left and the reset are enough; the limit itself may be missing.
    ///
    /// | header | says | source |
    /// |---|---|---|
    /// | `Retry-After` | the wait after a refusal, in each form of a reset | RFC 9110, 10.2.3; Shopify, Docker Hub |
    /// | `retry-after-ms`, `x-ms-retry-after-ms`, `x-amz-retry-after` | the same: milliseconds, with or without a fraction | OpenAI's and Anthropic's clients, Azure, AWS |
    /// | `x-ratelimit-retry-after`, `x-rate-limit-retry-after-seconds`, `x-ogw-ratelimit-reset` | the same: seconds | MailerLite, Bucket4j, Lark |
    /// | `grpc-retry-pushback-ms` | the same: milliseconds; a negative number tells no time | gRPC proposal A6 |
    /// | `grpc-status-details-bin` | the same: the delay of a `RetryInfo` | `google.rpc` |
    /// | `RateLimit` | what is left (`r`) for so many seconds (`t`) | drafts 08 to 11 |
    /// | `RateLimit` | what is `remaining` until `reset`, in seconds from now | draft 07 |
    /// | `RateLimit-Remaining`, `-Reset`; the same with `X-RateLimit-`, `X-Rate-Limit-` and others | what is left until the reset | drafts 03 to 06, GitHub, GitLab, X, Reddit, Discord and many others |
    /// | `x-ratelimit-remaining-requests`, `-tokens`, `anthropic-ratelimit-…`, `x-shopify-shop-api-call-limit` | nothing left, and in how long all is back | OpenAI, Groq, Azure, Anthropic, Shopify |
    /// | `x-ratelimit-remaining-minute`, `x-hubspot-ratelimit-remaining`, `x-minlimit-remaining` and others | nothing left of a period, which counts as a whole one | Kong, Mistral, HubSpot, Trello, Xero, Etsy |
    ///
    /// A reset is a number of seconds below 10⁹; an instant in seconds since 1970 below 10¹², else
    /// in milliseconds; a duration as `6m0s` or `17ms`; an instant of RFC 3339; or a date of HTTP.
    /// Numbers may have fractions. An instant is compared with the `Date` of its response, or with
    /// the clock of this machine if there is none, or if the response has an `Age`.
    ///
    /// Where two of a kind disagree, the stricter counts: the longest wait, the least that is left.
    /// The headers of the last two rows bound the pause after a refusal that states no wait. On an
    /// answered call they change nothing.
    ///
    /// **Bounds are absolute.** A call that cannot leave in time because of a pause fails
    /// immediately: a waiting call when the pause begins, a new one when it is made. The error has
    /// the [pause](super::QueueFull::pause) and the time to come back. A call that is held for an
    /// answer does not fail: it leaves when its bound ends.
    ///
    /// The response itself is passed on unchanged, a 429 too. Pauses hold in this process only,
    /// unless a fleet [shares them](crate::shape::ShaperBuilder::share_pauses).
    /// [`Shaper::reset`] ends them. With the feature `tracing` an event under the target `throttle`
    /// says that a pause begins, with its status and wait, and no key: at most ten a second.
    ///
    /// Anything that cannot be read is ignored.
    pub fn obey_upstream(self) -> Self {
        self.obey_upstream_of(|response| Some((response.status(), response.headers())))
    }
}

impl<Req, Res> ShapeLayer<Req, Res> {
    /// [Obeys the upstream's limits](ShapeLayer::obey_upstream) where responses are of another
    /// type. The function returns a response's status and headers, as they were received, or `None`
    /// if the upstream's limits cannot be read from it: the headers of a response from a cache do
    /// not describe the present.
    ///
    /// The function is called once for each response to a shaped call, before the response is
    /// returned, and never for an error. It must not block.
    ///
    /// ```
    /// use http::{HeaderMap, StatusCode};
    /// use throttle_tower::{Pace, Rate, ShapeLayer};
    ///
    /// struct Answer {
    ///     status: StatusCode,
    ///     headers: HeaderMap,
    /// }
    ///
    /// let layer: ShapeLayer<(), Answer> = ShapeLayer::new(Pace::new(Rate::per_second(5)))?
    ///     .obey_upstream_of(|answer: &Answer| Some((answer.status, &answer.headers)));
    /// assert_eq!(layer.stats().paused, 0);
    /// # Ok::<(), throttle_tower::ConfigError>(())
    /// ```
    pub fn obey_upstream_of(
        self,
        head: impl Fn(&Res) -> Option<(StatusCode, &HeaderMap)> + Send + Sync + 'static,
    ) -> Self {
        self.with(|functions| functions.head = Some(Arc::new(head)))
    }

    /// Keeps a schedule for each key, such as a host or a tenant. Defaults to one schedule for all
    /// calls.
    ///
    /// ```
    /// # use throttle_tower::{Key, Pace, Rate, ShapeLayer};
    /// fn host(request: &http::Request<()>) -> Key {
    ///     request.uri().host().unwrap_or_default().into()
    /// }
    ///
    /// let per_host: ShapeLayer<_, http::Response<()>> =
    ///     ShapeLayer::new(Pace::new(Rate::per_second(5)))?.by(host);
    /// # Ok::<(), throttle_tower::ConfigError>(())
    /// ```
    pub fn by(self, key: impl Fn(&Req) -> Key + Send + Sync + 'static) -> Self {
        self.with(|functions| functions.key = Arc::new(key))
    }

    /// Estimates what a call costs of another unit than requests. The shaper's builder gives that
    /// unit [its pace](crate::shape::ShaperBuilder::by_unit); a unit without an estimate costs a
    /// call nothing. What the call has really used is [settled](Self::settle_with) afterwards.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use throttle_tower::shape::Shaper;
    /// # use throttle_tower::{Pace, Rate, ShapeLayer};
    /// // A prompt, and the longest answer that it may get.
    /// struct Question {
    ///     prompt: String,
    ///     max_tokens: u64,
    /// }
    ///
    /// let requests = Pace::new(Rate::per_minute(500)).max_wait(Duration::from_secs(60));
    /// let pace = Shaper::builder(requests).by_unit("tokens", Rate::per_minute(30_000));
    /// let layer: ShapeLayer<_, String> =
    ///     ShapeLayer::of(pace.build()?).by_unit("tokens", |question: &Question| {
    ///         question.prompt.len() as u64 / 4 + question.max_tokens
    ///     })?;
    /// # Ok::<(), throttle_tower::ConfigError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the shaper has no pace of that unit, or the unit has an estimate already.
    pub fn by_unit(
        self,
        unit: &str,
        estimate: impl Fn(&Req) -> u64 + Send + Sync + 'static,
    ) -> Result<Self, ConfigError> {
        let paces = &self.shaper.schedule.paces;
        let wrong = |rule: String| ConfigError::new("unit", format_args!("{unit:?}"), rule);
        let index = paces
            .index(unit)
            .ok_or_else(|| wrong(paces.unknown_unit(unit).to_string()))?;
        let mut estimates = self.functions.estimates.iter();
        if estimates.any(|(other, _)| *other == index) {
            return Err(wrong(
                "each unit has one estimate; remove one of them".to_owned(),
            ));
        }
        let estimate = (index, Arc::new(estimate) as _);
        Ok(self.with(|functions| functions.estimates.push(estimate)))
    }

    /// Passes each response, with the [`ShapeUsage`] of its call, to a function before the caller
    /// gets it. The function settles what the call has really used, or puts the `ShapeUsage` where
    /// the caller finds it, because the response's body says it. It is not called for a call that
    /// was not charged by [unit](Self::by_unit). Further functions are called after it, in their
    /// order.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use throttle_tower::shape::{ShapeUsage, Shaper};
    /// # use throttle_tower::{Pace, Rate, ShapeLayer};
    /// # use http::{Request, Response};
    /// # use tower::{Layer, ServiceExt, service_fn};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let requests = Pace::new(Rate::per_minute(500)).max_wait(Duration::from_secs(60));
    /// let pace = Shaper::builder(requests).by_unit("tokens", Rate::per_minute(30_000));
    /// let layer = ShapeLayer::of(pace.build()?)
    ///     .by_unit("tokens", |_: &Request<String>| 1_000)?
    ///     .obey_upstream()
    ///     .settle_with(|response: &mut Response<String>, usage| {
    ///         response.extensions_mut().insert(usage);
    ///     });
    /// # let model = service_fn(async |_| Ok::<_, std::convert::Infallible>(Response::new("some text".to_owned())));
    /// let response = layer
    ///     .layer(model)
    ///     .oneshot(Request::new("a prompt".to_owned()))
    ///     .await?;
    /// let usage: &ShapeUsage = response.extensions().get().expect("it was charged by unit");
    /// usage.settle("tokens", response.body().len() as u64 / 4)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn settle_with(
        self,
        settle: impl Fn(&mut Res, ShapeUsage) + Send + Sync + 'static,
    ) -> Self {
        self.with(|functions| functions.settles.push(Arc::new(settle)))
    }

    /// How many units of the rate a call takes; a call that takes none is not delayed. Defaults
    /// to 1.
    pub fn cost(self, cost: impl Fn(&Req) -> u64 + Send + Sync + 'static) -> Self {
        self.with(|functions| functions.cost = Arc::new(cost))
    }

    /// Sets a deadline for each call: the longest time until the call's last unit is due. A call
    /// leaves as a whole when its first unit is due, and each further unit is due one emission
    /// interval later. A call that would miss its deadline is refused immediately. A deadline has
    /// an effect only if it is shorter than the pace's longest wait; over a store a call then takes
    /// two round trips. Defaults to no deadline.
    pub fn deadline(
        self,
        deadline: impl Fn(&Req) -> Option<Duration> + Send + Sync + 'static,
    ) -> Self {
        self.with(|functions| functions.deadline = Arc::new(deadline))
    }

    /// Sets the longest pause that an upstream can [request](Self::obey_upstream), so that a wrong
    /// header cannot stop all calls for a year. If the upstream states a longer wait, one call
    /// leaves at the end of this pause, and its answer states the rest. Zero disables pauses: after
    /// a refusal calls are only held for answers, and leave at the pace. Defaults to one hour.
    pub fn longest_pause(mut self, pause: Duration) -> Self {
        self.shaper.obey.longest = pause.min(FAR);
        self
    }

    /// Lengthens each pause that an upstream [requests](Self::obey_upstream), so that the processes
    /// of a fleet do not all resume together. The added time is random, and is up to `percent` of
    /// the pause. `percent` is at most 100. Defaults to 0.
    pub fn pause_jitter(mut self, percent: u8) -> Self {
        self.shaper.obey.jitter = percent.min(100);
        self
    }

    /// Takes further responses as refusals: those for which the function returns true. It adds to
    /// the responses that [always refuse](Self::obey_upstream). It has an effect only where the
    /// upstream is obeyed. Called again, it replaces what was set. Defaults to none.
    ///
    /// A response whose body alone refuses is passed to
    /// [`Shaper::obey`](super::Shaper::obey) instead, after its body has been read.
    ///
    /// ```
    /// # use throttle_tower::{Pace, Rate, ShapeLayer};
    /// let pace = Pace::new(Rate::per_second(20));
    /// let layer: ShapeLayer<http::Request<()>, http::Response<()>> = ShapeLayer::new(pace)?.refusal_if(
    ///     |status, headers| {
    ///         let kind = headers.get("x-amzn-errortype");
    ///         status == 400 && kind.is_some_and(|kind| kind == "ThrottlingException")
    ///     },
    /// );
    /// let layer = layer.obey_upstream();
    /// # Ok::<(), throttle_tower::ConfigError>(())
    /// ```
    pub fn refusal_if(
        mut self,
        refusal_if: impl Fn(StatusCode, &HeaderMap) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.shaper.obey.refusal_if = Some(Arc::new(refusal_if));
        self
    }

    /// Halves the pace of a key at the first refusal after each pause, down to a thirty-second
    /// part, unless the refusal states that nothing is left. From the end of the pause on the pace
    /// grows by a sixtieth of the whole pace a second. It has an effect only where the upstream is
    /// [obeyed](Self::obey_upstream). Off by default.
    ///
    /// The upstream then refuses fewer calls. But a slower pace makes a longer queue, so more calls
    /// fail here that the upstream would have answered. Set it where refusals ban: GitHub, Binance,
    /// Riot.
    pub fn slow_down_after_refusal(mut self) -> Self {
        self.shaper.obey.slows = true;
        self
    }

    /// What the shaper has done so far, and how many calls wait now, of all clones together.
    #[must_use]
    pub fn stats(&self) -> ShapeStats {
        self.shaper.stats()
    }

    /// The shaper: to delay other work together with these calls, to pause or reset a key.
    #[must_use]
    pub const fn shaper(&self) -> &Shaper {
        &self.shaper
    }

    /// Reports what the shaper does through the facade of the `metrics` crate, with `name` as the
    /// label `layer`: see [`metrics`](mod@crate::metrics). All layers and clones of one shaper
    /// report together. The first name stays, and each shaper needs a name of its own. Defaults to
    /// reporting nothing.
    ///
    /// ```
    /// # use throttle_tower::{Pace, Rate, ShapeLayer};
    /// let pace = Pace::new(Rate::per_second(50));
    /// let layer: ShapeLayer<http::Request<()>, http::Response<()>> = ShapeLayer::new(pace)?.metrics("billing-api");
    /// # Ok::<(), throttle_tower::ConfigError>(())
    /// ```
    #[cfg(feature = "metrics")]
    pub fn metrics(self, name: impl Into<String>) -> Self {
        let metrics = crate::observe::metrics::ShapeMetrics::registered(name.into());
        self.shaper.schedule.counters.report_metrics(metrics);
        self
    }

    pub(super) fn with(mut self, change: impl FnOnce(&mut CallFunctions<Req, Res>)) -> Self {
        change(Arc::make_mut(&mut self.functions));
        self
    }
}

impl<Req, Res> Clone for ShapeLayer<Req, Res> {
    fn clone(&self) -> Self {
        Self {
            shaper: self.shaper.clone(),
            functions: Arc::clone(&self.functions),
        }
    }
}

impl<Req, Res> fmt::Debug for ShapeLayer<Req, Res> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShapeLayer")
            .field("shaper", &self.shaper)
            .finish_non_exhaustive()
    }
}

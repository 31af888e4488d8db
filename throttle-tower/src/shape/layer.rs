use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, StatusCode};
use throttle_core::{Backend, ConfigError, Key, LeakyBucket, MemoryBackend};

use super::clock::TokioClock;
use super::obey_upstream::ObeyUpstream;
use super::request_fields::RequestFields;
use super::shaper::Shaper;
use super::stats::ShapeStats;
use super::units::ShapeUsage;
use super::upstream_head::{HeadOf, HttpHead, IgnoreUpstream, SettleWith};
use crate::time::FAR;

/// Delays calls through any `tower::Service` so that they stay within an upstream's rate.
///
/// Wrap it around the client of an API that limits its rate. Calls leave one emission interval
/// apart, in the order in which they were made. A call that would have to wait longer than the
/// bucket's longest wait is refused at once.
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
///   A resource that it reserved in `poll_ready` (a place in a `Buffer`, a permit of a
///   `ConcurrencyLimit`) stays reserved while the call waits, so put such layers outside of this
///   one.
/// * **Giving up.** A call that waits holds nothing but its place. If it is dropped, by a
///   `tower::timeout` outside of this layer for example, the next call has that place at once, and
///   the upstream gets its whole rate. A future that is kept and not polled is passed over when its
///   turn comes, and has its place again when it is polled.
/// * **Deadlines.** With a [deadline](Self::deadline), a call that could not leave in time is
///   refused at once, as far as that is known, and at the latest when its time has passed.
/// * **Several paces.** A pace may count [other units](crate::shape::ShaperBuilder::by_unit) beside
///   requests, such as tokens: a call waits for its turn by all that it uses, and takes all or
///   none.
/// * **Memory.** A waiting call takes less than 600 bytes beside the request and the inner service
///   (700 if it [obeys the upstream](Self::obey_upstream)), and up to
///   [100,000](crate::shape::ShaperBuilder::max_waiting) may wait. While calls of a key wait, the
///   key has one small task, in the runtime of one of them.
///
/// # Type parameters
///
/// The request's type, the backend, and how the upstream's responses are read. All can be named:
/// `ShapeLayer<reqwest::Request>`.
#[must_use = "a layer does nothing until a service is wrapped in it"]
pub struct ShapeLayer<Req, B: Backend = MemoryBackend<TokioClock>, H = IgnoreUpstream> {
    pub(super) shaper: Shaper<B>,
    pub(super) fields: Arc<RequestFields<Req>>,
    pub(super) obey: ObeyUpstream,
    pub(super) head: H,
}

impl<Req> ShapeLayer<Req> {
    /// Delays calls so that they keep a pace of this process alone, with the options that a
    /// [`Shaper`] has by default.
    ///
    /// # Errors
    ///
    /// If the configuration is wrong. The error names the field, the value and the bound.
    pub fn new(pace: LeakyBucket) -> Result<Self, ConfigError> {
        Shaper::new(pace).map(Self::of)
    }
}

impl<Req, B: Backend> ShapeLayer<Req, B> {
    /// Delays calls to the pace of a shaper. Its [builder](Shaper::builder) has options, among them
    /// a store that a fleet shares.
    ///
    /// ```
    /// use std::time::Duration;
    /// use throttle_tower::shape::Shaper;
    /// use throttle_tower::{LeakyBucket, Rate, ShapeLayer};
    ///
    /// let pace = Shaper::builder(LeakyBucket::new(Rate::per_second(50)))
    ///     .headroom(Duration::from_millis(20));
    /// let layer: ShapeLayer<http::Request<()>> = ShapeLayer::of(pace.build()?);
    /// assert_eq!(
    ///     layer.shaper().rate(),
    ///     Rate::new(50, Duration::from_millis(1_020))
    /// );
    /// # Ok::<(), throttle_tower::ConfigError>(())
    /// ```
    pub fn of(shaper: Shaper<B>) -> Self {
        Self {
            shaper,
            fields: Arc::default(),
            obey: ObeyUpstream::default(),
            head: IgnoreUpstream,
        }
    }

    /// Obeys the upstream's limits as its responses state them, where they are `http::Response`s.
    ///
    /// * **A refusal that says how long to wait**: no call of that key leaves before then, not even
    ///   one that waits already. Afterwards the calls leave in their order, at the pace. A refusal
    ///   is a response with status 429, 503 or 529; with 403, if it has `Retry-After` or nothing
    ///   remains; or of gRPC, with status 8 or 14 in the headers.
    /// * **A refusal that does not say it**, or says 0: at first a pause as long as the pace needs
    ///   for one call, then twice as long for each refusal after a pause, until a call is not
    ///   refused.
    /// * **A limit with nothing left**: no call of that key leaves until the limit has something
    ///   again, whatever the status.
    /// * **A limit with something left**, but less than the pace would use until its reset: the
    ///   calls are spaced so that it lasts, until another response states otherwise. Where the
    ///   reset is stated in whole seconds it comes up to a second earlier than stated, and what is
    ///   left then is lost: against 10 calls in 2 seconds, 40 calls take 10 to 12 seconds where 6
    ///   are the least, but none is refused.
    ///
    /// What is left and the reset are enough; the limit itself may be missing.
    ///
    /// | header | says | source |
    /// |---|---|---|
    /// | `Retry-After` | the wait after a refusal: seconds with or without a fraction, or a date; above 10⁹ an instant to come in seconds since 1970 | RFC 9110, 10.2.3; Shopify, Docker Hub |
    /// | `retry-after-ms`, `x-ms-retry-after-ms` | the same: milliseconds, with or without a fraction | OpenAI's and Anthropic's clients, Azure |
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
    /// Numbers may have fractions.
    ///
    /// **Where two disagree, the stricter counts**: the longest wait, the slowest pace. The headers
    /// of the last two rows count only where a refusal does not state its wait. The limits of the
    /// first of them refill all the time: a request waits for its part of the time until all is
    /// back, tokens are waited for in full, and what is left slows no call down. Limits of tokens
    /// with something left cannot be compared with a pace of calls, and are not.
    ///
    /// **Each pause and each spacing is at most [`longest_pause`](Self::longest_pause)**, beside
    /// [`pause_jitter`](Self::pause_jitter), whatever the upstream says. A longer wait, of at most
    /// a day, is kept in steps of that length. After each step one call leaves. A response that is
    /// no refusal and no server error ends the steps, and all calls that wait, new ones too, leave
    /// from the end of the running step on. A later refusal replaces the wait by what it states. A
    /// call whose response is not read ends nothing: one that was dropped or failed, and one that
    /// the [`shaper`](Self::shaper) has delayed. [`Shaper::reset`] ends the steps of a key.
    ///
    /// The response itself is passed on unchanged, a 429 too. Pauses hold in this process only,
    /// unless a fleet [shares them](crate::shape::ShaperBuilder::share_pauses). If a pause would
    /// make a new call wait too long, that call is refused; calls that wait already are not, and
    /// wait longer by the pause.
    ///
    /// Anything that cannot be read is ignored.
    pub fn obey_upstream(self) -> ShapeLayer<Req, B, HttpHead> {
        self.with_head(HttpHead)
    }

    /// Obeys the upstream's limits where responses are of another type, given a function that
    /// returns their head:
    /// `|response: &reqwest::Response| (response.status(), response.headers())`.
    pub fn obey_upstream_of<Res>(
        self,
        head: fn(&Res) -> (StatusCode, &HeaderMap),
    ) -> ShapeLayer<Req, B, HeadOf<Res>> {
        self.with_head(HeadOf(head))
    }

    fn with_head<H>(self, head: H) -> ShapeLayer<Req, B, H> {
        ShapeLayer {
            shaper: self.shaper,
            fields: self.fields,
            obey: self.obey,
            head,
        }
    }
}

impl<Req, B: Backend, H> ShapeLayer<Req, B, H> {
    /// Keeps a schedule for each key, such as a host or a tenant. Defaults to one schedule for all
    /// calls.
    ///
    /// ```
    /// # use throttle_tower::{Key, LeakyBucket, Rate, ShapeLayer};
    /// fn host(request: &http::Request<()>) -> Key {
    ///     request.uri().host().unwrap_or_default().into()
    /// }
    ///
    /// let per_host = ShapeLayer::new(LeakyBucket::new(Rate::per_second(5)))?.by(host);
    /// # Ok::<(), throttle_tower::ConfigError>(())
    /// ```
    pub fn by(self, key: impl Fn(&Req) -> Key + Send + Sync + 'static) -> Self {
        self.with(|fields| fields.key = Some(Arc::new(key)))
    }

    /// Estimates what a call costs of another unit than requests. The shaper's builder gives that
    /// unit [its pace](crate::shape::ShaperBuilder::by_unit); a unit without an estimate costs a
    /// call nothing. What the call has really used is [settled](Self::settle_with) afterwards.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use throttle_tower::shape::Shaper;
    /// # use throttle_tower::{LeakyBucket, Rate, ShapeLayer};
    /// // A prompt, and the longest answer that it may get.
    /// struct Question {
    ///     prompt: String,
    ///     max_tokens: u64,
    /// }
    ///
    /// let requests = LeakyBucket::new(Rate::per_minute(500)).max_wait(Duration::from_secs(60));
    /// let pace = Shaper::builder(requests).by_unit("tokens", Rate::per_minute(30_000));
    /// let layer = ShapeLayer::of(pace.build()?).by_unit("tokens", |question: &Question| {
    ///     question.prompt.len() as u64 / 4 + question.max_tokens
    /// })?;
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
        let place = paces.place(unit).ok_or_else(|| {
            ConfigError::new(
                "unit",
                format_args!("{unit:?}"),
                paces.unknown_unit(unit).to_string(),
            )
        })?;
        if self
            .fields
            .estimates
            .iter()
            .any(|(other, _)| *other == place)
        {
            let rule = "each unit has one estimate; remove one of them";
            return Err(ConfigError::new("unit", format_args!("{unit:?}"), rule));
        }
        Ok(self.with(|fields| fields.estimates.push((place, Arc::new(estimate)))))
    }

    /// Passes each response, with the [`ShapeUsage`] of its call, to a function before the caller
    /// gets it. The function settles what the call has really used, or puts the `ShapeUsage` where
    /// the caller finds it, because the response's body says it. It is not called for a call that
    /// was not charged by [unit](Self::by_unit). Set [`obey_upstream`](Self::obey_upstream) before.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use throttle_tower::shape::{ShapeUsage, Shaper};
    /// # use throttle_tower::{LeakyBucket, Rate, ShapeLayer};
    /// # use http::{Request, Response};
    /// # use tower::{Layer, ServiceExt, service_fn};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let requests = LeakyBucket::new(Rate::per_minute(500)).max_wait(Duration::from_secs(60));
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
    pub fn settle_with<Res>(
        self,
        settle: fn(&mut Res, ShapeUsage),
    ) -> ShapeLayer<Req, B, SettleWith<H, Res>> {
        let Self {
            shaper,
            fields,
            obey,
            head,
        } = self;
        ShapeLayer {
            shaper,
            fields,
            obey,
            head: SettleWith { head, settle },
        }
    }

    /// How many units of the rate a call takes; a call that takes none is not delayed. Defaults
    /// to 1.
    pub fn cost(self, cost: impl Fn(&Req) -> u64 + Send + Sync + 'static) -> Self {
        self.with(|fields| fields.cost = Some(Arc::new(cost)))
    }

    /// Sets a deadline for each call: the longest time until the call's last unit is due. A call
    /// leaves as a whole when its first unit is due, and each further unit is due one emission
    /// interval later. A call that would miss its deadline is refused at once. A deadline has an
    /// effect only if it is shorter than the bucket's longest wait; over a store a call then takes
    /// two round trips. Defaults to no deadline.
    pub fn deadline(
        self,
        deadline: impl Fn(&Req) -> Option<Duration> + Send + Sync + 'static,
    ) -> Self {
        self.with(|fields| fields.deadline = Some(Arc::new(deadline)))
    }

    /// Sets the longest pause that an upstream can [request](Self::obey_upstream), so that a wrong
    /// header cannot stop all calls for a year. Defaults to one minute.
    pub fn longest_pause(mut self, pause: Duration) -> Self {
        self.obey.longest = pause.min(FAR);
        self
    }

    /// Lengthens each pause that an upstream [requests](Self::obey_upstream), so that the processes
    /// of a fleet do not all resume at once. The added time is random, and is up to `percent` of
    /// the pause. `percent` is at most 100. Defaults to 0.
    pub fn pause_jitter(mut self, percent: u8) -> Self {
        self.obey.jitter = percent.min(100);
        self
    }

    /// What the shaper has done so far, and how many calls wait now, of all clones together.
    #[must_use]
    pub fn stats(&self) -> ShapeStats {
        self.shaper.stats()
    }

    /// The shaper: to delay other work together with these calls, to pause or reset a key.
    #[must_use]
    pub const fn shaper(&self) -> &Shaper<B> {
        &self.shaper
    }

    pub(super) fn with(mut self, change: impl FnOnce(&mut RequestFields<Req>)) -> Self {
        change(Arc::make_mut(&mut self.fields));
        self
    }
}

impl<Req, B: Backend, H: Clone> Clone for ShapeLayer<Req, B, H> {
    fn clone(&self) -> Self {
        Self {
            shaper: self.shaper.clone(),
            fields: Arc::clone(&self.fields),
            obey: self.obey,
            head: self.head.clone(),
        }
    }
}

impl<Req, B: Backend, H> fmt::Debug for ShapeLayer<Req, B, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShapeLayer")
            .field("shaper", &self.shaper)
            .finish_non_exhaustive()
    }
}

use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use throttle_core::{ConfigError, Key, Policy};
use tokio::time::timeout;

use super::cost::IntoCost;
use super::key_source::{FoundTier, KeySource, TierLookup};
use super::kind::{LimitKind, Rated, ResolvedKind};
use super::on_error::OnError;
use super::on_missing::OnMissing;
use super::priority::{Priority, class_of};
use super::settings::LimitSettings;
use super::warn_at::WarnAt;
use crate::extract::KeyExtractor;
use crate::throttle::QUEUE_STEPS;

/// Starts a limit: a public name and a kind, which is an algorithm for a rate or
/// [`InFlight`](crate::InFlight). Next, set [the key](Unkeyed::by) that it is applied by.
///
/// A mistake in it is reported when the layer is built.
///
/// ```
/// use throttle_tower::{ClientIp, Gcra, Rate, ThrottleLayer, limit};
///
/// let per_ip = |rate| limit("per-ip", Gcra::new(rate).burst(20)).by(ClientIp::peer());
/// assert!(ThrottleLayer::new(per_ip(Rate::per_second(10))).is_ok());
/// let error = ThrottleLayer::new(per_ip(Rate::per_second(0))).unwrap_err();
/// assert_eq!(error.policy(), Some("per-ip"));
/// ```
pub fn limit<K: LimitKind>(name: impl Into<String>, kind: K) -> Unkeyed<K::Family> {
    Unkeyed {
        kind: kind.resolve(&name.into()),
        family: PhantomData,
    }
}

/// A limit that still needs a [key](Self::by).
///
/// ```
/// use throttle_tower::{ClientIp, Constant, Gcra, Rate, ThrottleLayer, all, limit};
///
/// let orders = |name| limit(name, Gcra::new(Rate::per_second(10)));
/// let limits = all([orders("per-ip").by(ClientIp::peer()), orders("all").by(Constant)]);
/// assert!(ThrottleLayer::new(limits).is_ok());
/// ```
#[derive(Clone, Debug)]
#[must_use = "say whose budget it is with `.by(…)`"]
pub struct Unkeyed<F = Rated> {
    kind: Result<ResolvedKind, ConfigError>,
    family: PhantomData<F>,
}

impl<F> Unkeyed<F> {
    /// Gives each key of `extractor` its own budget.
    pub fn by(self, extractor: impl KeyExtractor) -> Limit<F> {
        Limit::new(self.kind, KeySource::Extracted(Arc::new(extractor)))
    }
}

impl Unkeyed {
    /// Gives each key its own budget, where a future returns the key: for example a session that is
    /// looked up in a store. The closure clones from the request's head what the future needs.
    ///
    /// The future runs before anything is charged, for every request that the limit applies to,
    /// concurrently with the futures of other limits. It costs an allocation. If it exceeds its
    /// [deadline](Limit::key_deadline), the key is [missing](Limit::on_missing).
    ///
    /// If other limits refuse the request whatever the key is, the future is not polled on a
    /// backend that decides synchronously, such as memory. Over a store it always runs, because
    /// finding that out would take one more round trip per request.
    ///
    /// ```
    /// use http::request::Parts;
    /// use throttle_tower::{Gcra, Rate, limit};
    ///
    /// # async fn user_of(token: String) -> Option<u64> { None }
    /// let per_user =
    ///     limit("per-user", Gcra::new(Rate::per_minute(60))).by_async(|parts: &Parts| {
    ///         let token = parts
    ///             .headers
    ///             .get("authorization")
    ///             .and_then(|v| v.to_str().ok())
    ///             .map(str::to_owned);
    ///         async move { user_of(token?).await }
    ///     });
    /// ```
    ///
    /// In memory, a request that other limits refuse in any case is answered before its future is
    /// polled. Its wait is then that of the other limits.
    ///
    /// # Cancel safety
    ///
    /// A request that is dropped while its key is looked up has been charged nothing.
    ///
    /// # Panics
    ///
    /// The request panics outside of a tokio runtime with timers enabled.
    pub fn by_async<E, Fut, K>(self, extractor: E) -> Limit
    where
        E: Fn(&Parts) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Option<K>> + Send + 'static,
        K: Into<Key>,
    {
        let key_source = KeySource::Future(Arc::new(move |parts, deadline| {
            let key = extractor(parts);
            Box::pin(async move {
                (
                    timeout(deadline, key).await.ok().flatten().map(Into::into),
                    FoundTier::Numbered(0),
                )
            })
        }));
        Limit::new(self.kind, key_source)
    }
}

/// A limit with the key that it is applied by, what a request costs, and when it applies.
///
/// `Limit`, which is `Limit<Rated>`, limits a rate and has all settings. `Limit<InFlight>` limits
/// requests in flight: it has the settings of its key, its cost, its condition and its classes.
///
/// ```
/// use http::request::Parts;
/// use throttle_tower::{ClientIp, Gcra, OnMissing, Rate, ThrottleLayer, limit};
///
/// let uploads = limit("uploads", Gcra::new(Rate::per_minute(30)))
///     .by(ClientIp::peer())
///     .when(|parts: &Parts| parts.method == http::Method::PUT)
///     .cost(3)
///     .on_missing(OnMissing::Skip);
/// assert!(ThrottleLayer::new(uploads.clone()).is_ok());
/// assert!(
///     ThrottleLayer::new(uploads.cost(31)).is_err(),
///     "no request of that cost would ever be admitted"
/// );
/// ```
#[derive(Clone, Debug)]
#[must_use = "a limit does nothing until a layer is built with it"]
pub struct Limit<F = Rated> {
    kind: Result<ResolvedKind, ConfigError>,
    unit: Option<String>,
    /// The cost of every request, where it is a number.
    constant_cost: Option<u64>,
    pub(crate) applied: LimitSettings,
    family: PhantomData<F>,
}

impl<F> Limit<F> {
    fn new(kind: Result<ResolvedKind, ConfigError>, key_source: KeySource) -> Self {
        Self {
            kind,
            unit: None,
            constant_cost: None,
            applied: LimitSettings::by(key_source),
            family: PhantomData,
        }
    }

    /// The same limit, for a composition of limits of all kinds.
    pub(super) fn of_any_kind(self) -> Limit<()> {
        Limit {
            kind: self.kind,
            unit: self.unit,
            constant_cost: self.constant_cost,
            applied: self.applied,
            family: PhantomData,
        }
    }

    /// Sets what a request costs, in units or permits: a number, or a function of the request's
    /// head. A cost of 0 peeks: it charges nothing, and is admitted even if nothing is left. For a
    /// limit that is [settled later](Limit::settled_later), a cost of 0 counts as 1. Defaults to 1.
    ///
    /// If a constant cost exceeds what the limit can admit at one instant, building the layer
    /// fails. For a limit with tiers, the largest tier counts; requests in a tier that admits less
    /// are refused without a `Retry-After`, because no wait helps. The same happens to a request
    /// for which a function returns a cost that the limit cannot admit.
    ///
    /// ```
    /// use http::request::Parts;
    /// use throttle_tower::{Constant, Gcra, Rate, Route, limit};
    ///
    /// let exports = limit("exports", Gcra::new(Rate::per_minute(60)))
    ///     .by(Constant)
    ///     .cost(|parts: &Parts| if Route::template(parts) == Some("/export") { 20 } else { 1 });
    /// ```
    pub fn cost(mut self, cost: impl IntoCost) -> Self {
        self.constant_cost = cost.constant();
        self.applied.cost = Some(cost.into_cost());
        self
    }

    /// Applies the limit only to requests of which `applies` is true. Defaults to all. To apply it
    /// to some routes, compare [`Route::template`](crate::Route::template) rather than the path,
    /// which has several spellings, and lacks the prefix in a router that is nested in another one.
    ///
    /// It is called once for each request. A limit that does not apply costs a request this call,
    /// and over a store a little more. For hundreds of limits of a route each, use
    /// [`LimitTree::select`](crate::LimitTree::select) or the `match` of a rule file (package
    /// `tower-throttle-rules`): such limits are found by the route, and not asked.
    ///
    /// ```
    /// use http::request::Parts;
    /// use throttle_tower::{Gcra, Rate, client_ip::ClientIp, is_preflight, limit};
    ///
    /// let writes = limit("writes", Gcra::new(Rate::per_minute(30)))
    ///     .by(ClientIp::peer())
    ///     .when(|parts: &Parts| !parts.method.is_safe() && !is_preflight(parts));
    /// ```
    pub fn when(mut self, applies: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.applied.when = Some(Arc::new(applies));
        self
    }

    /// Sets what happens to requests without a key. Defaults to [`OnMissing::Share`].
    pub fn on_missing(mut self, rule: OnMissing) -> Self {
        self.applied.on_missing = rule;
        self
    }

    /// Shares the limit's budget between classes of requests: names, the highest first, each with
    /// the units that its requests leave free for the classes above. `class_of_request` returns the
    /// name of a request's class. Defaults to no classes, and no reserve.
    ///
    /// A limit on [requests in flight](crate::InFlight) shares its permits in the same way: what
    /// follows says units for both.
    ///
    /// A request is admitted if its cost and the reserve of its class are available, and is charged
    /// the cost alone. So its `Retry-After`, what remains in its headers, and its
    /// [report](crate::LimitReport) are those of its class, and exact. The quota in its headers is
    /// what its class gets if the others send nothing.
    ///
    /// **The program assigns the class**: by the route, by a customer's contract, by an extension
    /// that authentication has inserted. It must not come from a header, because a client that
    /// chooses its class chooses the highest. If `class_of_request` returns the name of no class,
    /// the request is in the lowest class, and the layer [warns](crate::Warning::UnknownClass)
    /// once.
    ///
    /// * **A reserve is not lent out.** Units that the higher classes do not use stay free: if all
    ///   requests are of a low class, they get the rest of the burst, or of the window, and no
    ///   more. A bucket that refills all the time, such as [`Gcra`](throttle_core::Gcra), still
    ///   admits them at its whole rate; a window admits them at the rest of its count.
    /// * **A reserve protects no more than it holds.** While the highest class uses more than the
    ///   rate, every lower one is refused, and no reserve protects requests of the highest class
    ///   from each other.
    /// * **It is the request's, not the key's.** Layers that name one limit share its budget, and
    ///   each decides by the classes that it has.
    /// * **A held request is passed.** A request that [waits](Limit::wait_up_to) queues with those
    ///   of its key and class, until its own reserve is free. Higher classes pass it, as many as
    ///   come: the bound is its longest wait, and then it is refused. Its queue forecasts turns as
    ///   if no other class came. A request that costs more than the reserves of two classes differ
    ///   by may wait for units that the lower class takes.
    /// * Usage that a handler settles may take from the reserve, because the work is done by then.
    ///   While a response streams, its running charges leave the reserve free.
    ///
    /// Building the layer fails without a class, with two of one name, with reserves that do not
    /// ascend, or with a reserve that a tier, or the constant cost, leaves no room beside. Requests
    /// with [parameters of their own](crate::plans::Tier::own) that hold no more than the reserve
    /// of their class are refused without a `Retry-After`.
    ///
    /// ```
    /// use http::request::Parts;
    /// use throttle_tower::{Constant, Gcra, Rate, Route, ThrottleLayer, limit};
    ///
    /// let class_of = |parts: &Parts| match Route::template(parts) {
    ///     Some("/checkout") => "critical",
    ///     Some("/export") => "batch",
    ///     _ => "normal",
    /// };
    /// let api = |batch| {
    ///     limit("api", Gcra::new(Rate::per_second(100)).burst(200))
    ///         .by(Constant)
    ///         .priority(
    ///             [("critical", 0), ("normal", 40), ("batch", batch)],
    ///             class_of,
    ///         )
    /// };
    /// assert!(ThrottleLayer::new(api(120)).is_ok());
    /// assert!(
    ///     ThrottleLayer::new(api(200)).is_err(),
    ///     "no request of the class would ever be admitted"
    /// );
    /// ```
    pub fn priority<N: Into<String>, C: AsRef<str>>(
        mut self,
        classes: impl IntoIterator<Item = (N, u64)>,
        class_of_request: impl Fn(&Parts) -> C + Send + Sync + 'static,
    ) -> Self {
        self.applied.priority = Some(Priority::new(classes, class_of(class_of_request)));
        self
    }

    /// What the limit counts.
    ///
    /// # Errors
    ///
    /// If a setting of the limit is wrong.
    pub(crate) fn resolve(&self) -> Result<ResolvedKind, ConfigError> {
        let kind = self.kind.clone()?;
        self.check(&kind)
            .map_err(|error| error.in_policy(kind.name().as_str()))?;
        let ResolvedKind::Units(policy) = kind else {
            return Ok(kind);
        };
        let policy = match &self.unit {
            Some(unit) => policy.with_unit(unit)?,
            None => policy,
        };
        let policy = match self.applied.audit {
            Some(audit) => audit.policy(policy, &self.applied)?,
            None => policy,
        };
        Ok(ResolvedKind::Units(policy))
    }

    fn check(&self, kind: &ResolvedKind) -> Result<(), ConfigError> {
        let (least, most) = kind.capacities();
        if let Some(cost) = self.constant_cost.filter(|cost| *cost > most) {
            let (units, bound) = match kind {
                ResolvedKind::Units(_) => ("units", "the burst"),
                ResolvedKind::Permits(..) => ("permits", "the number of permits"),
            };
            let rule = format!(
                "the limit admits at most {most} {units} at once, so that every request would be \
                 refused; lower the cost, or raise {bound} to at least the cost"
            );
            return Err(ConfigError::new("cost", cost, rule));
        }
        self.applied.key_source.check()?;
        self.applied.on_missing.check()?;
        if let Some(priority) = &self.applied.priority {
            // In some tier, or, if all requests cost the same, in every tier.
            priority.check(least, 1)?;
            priority.check(most, self.constant_cost.unwrap_or(1))?;
        }
        self.applied.check_ban()
    }
}

impl Limit {
    /// A limit whose keys are in tiers.
    pub(crate) fn tiered(
        policy: Result<Policy, ConfigError>,
        lookup: impl TierLookup + 'static,
    ) -> Self {
        Self::new(
            policy.map(ResolvedKind::Units),
            KeySource::Tiered(Arc::new(lookup)),
        )
    }

    /// Sets how long a key [that a future resolves to](Unkeyed::by_async) may take. After that the
    /// request counts as one without a key, by [`on_missing`](Self::on_missing), and the future is
    /// dropped. Limits with other keys ignore it. Defaults to 1 second.
    pub fn key_deadline(mut self, longest: Duration) -> Self {
        self.applied.key_deadline = longest;
        self
    }

    /// Sets what happens when the store fails. There is no default: a backend that can fail needs
    /// one.
    pub fn on_error(mut self, rule: OnError) -> Self {
        self.applied.on_error = Some(rule);
        self
    }

    /// Sets the unit that the limit counts, as clients read it: `tokens`, `content-bytes`. Defaults
    /// to requests.
    pub fn unit(mut self, unit: impl Into<String>) -> Self {
        self.unit = Some(unit.into());
        self
    }

    /// Queues a request that this limit would refuse, if it can be admitted within `longest`,
    /// instead of answering 429. The request is admitted, and charged, when there is room. Defaults
    /// to not queueing.
    ///
    /// * **Fair.** The queued requests of a key are admitted in the order in which they arrived. A
    ///   later request queues after them or is refused. In a layer with an [`any`](crate::any) a
    ///   later request is decided immediately, because another member may have room, and it queues
    ///   only if it is refused. If two limits delay a request, it waits in one queue after the
    ///   other. The order holds within a process; over a store, processes compete.
    /// * **On time.** A queued request is decided as of the instant at which there was room for it,
    ///   even if its timer wakes late. So a queue that is never empty admits exactly the rate of
    ///   its limit. If the process was stalled, requests that became due in the last 50 ms are
    ///   admitted together. The queue does not make up for turns that it missed earlier: the
    ///   remaining requests get later turns, or are refused if `longest` is over by then. Over
    ///   Redis the same holds as long as a round trip is shorter than the interval at which the
    ///   limit admits the requests of a key. There are two exceptions: a cluster where the keys of
    ///   one request are in several slots, and a backend without
    ///   [`decide_as_of`](throttle_core::Backend::decide_as_of). There a request is decided when
    ///   the store receives it, late by a timer step and a round trip. To make up for this delay,
    ///   give the limit a burst of as many units as its rate admits in about 10 ms.
    /// * **Bounded.** A request is queued only if its turn comes in time, and a layer queues at
    ///   most 10,000 ([`max_waiting`](crate::ThrottleBuilder::max_waiting)). If not, it is refused
    ///   immediately, with a `Retry-After` that includes the requests before it. Whether its turn
    ///   comes in time is a forecast. In memory the forecast is exact for limits with fixed
    ///   windows, and for limits whose units return evenly over time, such as
    ///   [`Gcra`](throttle_core::Gcra), with one exception: if a request outside the queue takes
    ///   the units first, for example through another layer on the same backend, the turn comes
    ///   later than forecast. For sliding windows and logs, and over a store, the forecast is an
    ///   estimate.
    /// * **Cancelled with the request**: while it is queued it is charged nothing, and dropping it
    ///   gives its position to the next.
    /// * **Not blocked by a request that is not polled**, for example one of `StreamExt::buffered`
    ///   while the stream is not polled, the loser of a `select!` that is kept, or a request of a
    ///   runtime that is not driven. 5 ms after its turn (over a store, 25 ms after a question that
    ///   it does not end) the next request takes the turn. Once it is polled again, it has the next
    ///   turn within its own `longest`; after that it is refused if others wait.
    /// * If several limits of an `all` refuse, the request queues only if all of them have a
    ///   `wait_up_to`. A queued request holds no [permits](crate::InFlight). The tokio runtime must
    ///   have its timers enabled.
    ///
    /// ```
    /// use std::time::Duration;
    /// use throttle_tower::{Gcra, Rate, client_ip::ClientIp, limit};
    ///
    /// let smooth = limit("per-ip", Gcra::new(Rate::per_second(10)).burst(1))
    ///     .by(ClientIp::peer())
    ///     .wait_up_to(Duration::from_millis(500));
    /// ```
    pub fn wait_up_to(mut self, longest: Duration) -> Self {
        self.applied.wait_up_to = Some(longest);
        self.applied.queue_steps = Some(&QUEUE_STEPS);
        self
    }

    /// Reports each request that brings its key near the end of the limit: one after whose charge
    /// at least this part of the capacity is used, and before it was not. 0.8 is four fifths. For a
    /// [class](Self::priority), it is the part of what is beyond the reserve. Defaults to no
    /// reports. The `near` of the [metrics](mod@crate::metrics) counts by the same part, by default
    /// 0.8.
    ///
    /// The request is in [`Event::near`](crate::Event::near), in the
    /// [`LimitReport::near`](crate::LimitReport::near) that its handler finds, and in an event of
    /// `Traces`. Later requests are not, until units have come back
    /// and the part is reached again. Charges after the decision, such as settlements, are not
    /// reported, and neither is what this process decides by its [share](crate::OnError::Local).
    ///
    /// Building the layer fails unless the part is from 0.000001 to 0.999999. It is kept in
    /// millionths.
    ///
    /// ```
    /// use http::{Request, Response};
    /// use throttle_tower::{Constant, FixedWindow, LimitReport, Rate, ThrottleLayer, limit};
    /// use tower::{Layer, ServiceExt, service_fn};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let month = limit("month", FixedWindow::new("5/30d".parse()?))
    ///     .by(Constant)
    ///     .warn_at(0.8);
    /// let service =
    ///     ThrottleLayer::new(month.clone())?.layer(service_fn(async |request: Request<()>| {
    ///         let report: &LimitReport =
    ///             request.extensions().get().expect("the layer inserts it");
    ///         let mut response = Response::new(());
    ///         response
    ///             .headers_mut()
    ///             .insert("x-near", report.near().count().into());
    ///         Ok::<_, std::convert::Infallible>(response)
    ///     }));
    /// for near in ["0", "0", "0", "1", "0"] {
    ///     assert_eq!(
    ///         service.clone().oneshot(Request::new(())).await?.headers()["x-near"],
    ///         near
    ///     );
    /// }
    /// assert!(
    ///     ThrottleLayer::new(month.warn_at(80.0)).is_err(),
    ///     "it is a part"
    /// );
    /// # Ok(())
    /// # }
    /// ```
    pub fn warn_at(mut self, part: f64) -> Self {
        let warn_at = WarnAt::of(part);
        self.applied.warn_at = warn_at.as_ref().ok().copied();
        self.kind = self.kind.and_then(|kind| match warn_at {
            Ok(_) => Ok(kind),
            Err(error) => Err(error.in_policy(kind.name().as_str())),
        });
        self
    }
}

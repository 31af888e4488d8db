use std::fmt;
use std::future::Future;
use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use http::request::Parts;
use throttle_core::{Algorithm, ConfigError, IntoAlgorithm, Key, Policy};
use tokio::time::timeout;

use super::IntoCost;
use super::outcome::Outcomes;
use crate::KeyExtractor;
use crate::plans::{Directory, Tiered};
use crate::throttle::Seen;

/// Starts a limit: a public name and an algorithm. Say next [whose budget](Unkeyed::by) it is.
///
/// What is wrong with it is reported when the layer is built.
///
/// ```
/// use throttle_tower::{ClientIp, Gcra, Rate, limit};
///
/// let per_ip = limit("per-ip", Gcra::new(Rate::per_second(10)).burst(20)).by(ClientIp::peer());
/// ```
pub fn limit(name: impl Into<String>, algorithm: impl IntoAlgorithm) -> Unkeyed {
    Unkeyed { name: name.into(), algorithm: algorithm.into_algorithm() }
}

/// A limit that does not say yet whose budget it is.
#[derive(Clone, Debug)]
#[must_use = "say whose budget it is with `.by(…)`"]
pub struct Unkeyed {
    name: String,
    algorithm: Result<Algorithm, ConfigError>,
}

impl Unkeyed {
    /// One budget for each key of `extractor`.
    pub fn by(self, extractor: impl KeyExtractor) -> Limit {
        self.keyed(Keying::Sync(Arc::new(extractor)))
    }

    /// One budget for each key that a future resolves to: a session looked up in a store, say. The closure takes from
    /// the request's head what the future needs.
    ///
    /// The future runs before anything is charged, on every request the limit applies to, and at the same time as those of
    /// other limits; it costs an allocation. One that takes longer than its [deadline](Limit::key_deadline) counts as a
    /// [missing key](Limit::on_missing).
    ///
    /// It is not polled for a request that other limits refuse whatever the key may be, if the backend decides without
    /// waiting, as memory does; over a store that would be one more round trip for every request.
    ///
    /// ```
    /// use http::request::Parts;
    /// use throttle_tower::{Gcra, Rate, limit};
    ///
    /// # async fn user_of(token: String) -> Option<u64> { None }
    /// let per_user = limit("per-user", Gcra::new(Rate::per_minute(60))).by_async(|parts: &Parts| {
    ///     let token = parts.headers.get("authorization").and_then(|v| v.to_str().ok()).map(str::to_owned);
    ///     async move { user_of(token?).await }
    /// });
    /// ```
    ///
    /// # Cancel safety
    ///
    /// A request that is dropped while its key is looked up has been charged nothing.
    ///
    /// # Panics
    ///
    /// The request panics outside of a tokio runtime with timers enabled.
    pub fn by_async<F, Fut, K>(self, extractor: F) -> Limit
    where
        F: Fn(&Parts) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Option<K>> + Send + 'static,
        K: Into<Key>,
    {
        self.keyed(Keying::Async(Arc::new(move |parts, deadline| {
            let key = extractor(parts);
            Box::pin(async move { (timeout(deadline, key).await.ok().flatten().map(Into::into), 0) })
        })))
    }

    fn keyed(self, keying: Keying) -> Limit {
        Limit::new(self.name, self.algorithm, None, keying)
    }
}

/// A policy with the key it is applied by, what a request costs, and when it applies.
#[derive(Clone, Debug)]
#[must_use = "a limit does nothing until a layer is built with it"]
pub struct Limit {
    name: String,
    algorithm: Result<Algorithm, ConfigError>,
    /// Of plans, instead.
    tiers: Option<Tiered>,
    unit: Option<String>,
    replaces_existing: bool,
    /// The cost of every request, where it is a number.
    constant_cost: Option<u64>,
    pub(crate) how: Applied,
}

/// How a policy is applied to a request.
#[derive(Clone)]
pub(crate) struct Applied {
    pub(crate) keying: Keying,
    pub(crate) cost: Option<CostOf>,
    pub(crate) when: Option<Applies>,
    pub(crate) on_missing: OnMissing,
    pub(crate) on_error: Option<OnError>,
    /// How long an async key may take.
    pub(crate) key_deadline: Duration,
    /// Whether the key depends on the route.
    pub(crate) by_route: bool,
    /// Whether the key depends on the peer's address.
    pub(crate) by_peer: bool,
    /// Whether a key was ever found.
    pub(crate) seen: Seen,
    /// What becomes of a charge once it is known what happened.
    pub(crate) outcomes: Outcomes,
    /// How long a request may be held that would be refused.
    pub(crate) wait_up_to: Option<Duration>,
}

/// How long an async key may take, unless said otherwise.
const KEY_DEADLINE: Duration = Duration::from_secs(1);

#[derive(Clone)]
pub(crate) enum Keying {
    Sync(Arc<dyn KeyExtractor>),
    Async(AsyncKey),
    Plans(Directory),
}

/// Extracts a key from the head of a request; the key has so long to come.
type AsyncKey = Arc<dyn Fn(&Parts, Duration) -> FutureKey + Send + Sync>;
pub(crate) type CostOf = Arc<dyn Fn(&Parts) -> u64 + Send + Sync>;
pub(crate) type Applies = Arc<dyn Fn(&Parts) -> bool + Send + Sync>;
/// The key, and the number of the tier.
pub(crate) type FutureKey = Pin<Box<dyn Future<Output = (Option<Key>, u8)> + Send>>;

impl Applied {
    fn by(keying: Keying) -> Self {
        let (by_route, by_peer) = match &keying {
            Keying::Sync(extractor) => (extractor.uses_route(), extractor.uses_peer()),
            Keying::Plans(directory) => (directory.uses_route(), directory.uses_peer()),
            Keying::Async(_) => (false, false),
        };
        Self {
            keying,
            cost: None,
            when: None,
            on_missing: OnMissing::Share,
            on_error: None,
            key_deadline: KEY_DEADLINE,
            by_route,
            by_peer,
            seen: Seen::default(),
            outcomes: Outcomes::default(),
            wait_up_to: None,
        }
    }
}

/// What a missing key means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnMissing {
    /// All requests without a key share one budget.
    #[default]
    Share,
    /// The limit does not apply to requests without a key.
    Skip,
    /// Requests without a key are refused with this status before anything is decided. A layer with a status below 400
    /// is an error when it is built.
    Reject(StatusCode),
}

impl OnMissing {
    /// # Errors
    ///
    /// If the status of a refusal is none of a refusal.
    pub(super) fn check(self) -> Result<(), ConfigError> {
        match self {
            Self::Reject(status) if !(status.is_client_error() || status.is_server_error()) => {
                let rule = "a refusal must have a status of 400 or above";
                Err(ConfigError::new("on_missing", status, rule))
            }
            Self::Share | Self::Skip | Self::Reject(_) => Ok(()),
        }
    }
}

/// What happens to a request that the store does not decide about.
///
/// | | the store is broken | the store is busy |
/// |---|---|---|
/// | `Open` | the request is admitted | this process decides by the whole limit |
/// | `Closed` | 503 | 503 |
/// | `Local` | this process decides by 1/n of the limit | the same |
///
/// * **Broken**: there is no connection ([`Unavailable`]), it answers errors ([`Protocol`]), or it did so often in a row
///   that it is not asked for now ([`Suspended`]).
/// * **Busy**: too many decisions wait for it ([`Saturated`]), or its answer has not come in time ([`Timeout`]), also where
///   it is not asked for now because of several late answers. A burst that is more than the connection carries in time says
///   nothing about the store, so it opens no limit. A store that hangs looks the same for as long as its connection stands.
///
/// The decision names the error, and who decided instead: [`Decision::decided_by`](throttle_core::Decision::decided_by).
///
/// [`Unavailable`]: throttle_core::BackendErrorKind::Unavailable
/// [`Protocol`]: throttle_core::BackendErrorKind::Protocol
/// [`Suspended`]: throttle_core::BackendErrorKind::Suspended
/// [`Saturated`]: throttle_core::BackendErrorKind::Saturated
/// [`Timeout`]: throttle_core::BackendErrorKind::Timeout
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnError {
    /// While the store is broken, the request is admitted as if the limit did not apply, and no rate-limit headers are sent.
    ///
    /// While the store is busy, this process decides by a [share](throttle_core::LocalShare) of its own that is the whole
    /// limit (1/1), and answers with the share's numbers. The share is charged by these decisions only. So at most one more
    /// limit is admitted by each process, in the same period, beside what the store admits; layers whose limits have the same
    /// names have one such share together if they keep it in [one store](crate::ThrottleLayer::local_store).
    Open,
    /// The request is refused with 503: the fault is ours, not the client's. That is also so while the store is busy: such a
    /// limit admits only what the store has admitted.
    Closed,
    /// This process decides by itself, by a [share](throttle_core::LocalShare) of the limit that is kept in memory. Responses
    /// carry the usual headers, with the share's numbers.
    ///
    /// The share is charged for what the store admits as well. So a client that has just used up this process's part gets
    /// nothing more here when the store fails. Layers whose limits have the same names should keep their shares in
    /// [one store](crate::ThrottleLayer::local_store).
    Local {
        /// How many processes share the limit: each admits one of so many parts, and at least 1 unit. Where it is too
        /// small, they admit too much together.
        processes: u32,
    },
}

impl OnError {
    /// [`Local`](Self::Local), for a limit that so many processes share.
    #[must_use]
    pub const fn local(processes: u32) -> Self {
        Self::Local { processes }
    }

    /// How many processes share the limit, if this one is to decide.
    pub(crate) fn processes(self) -> Option<NonZeroU32> {
        match self {
            Self::Local { processes } => NonZeroU32::new(processes),
            Self::Open | Self::Closed => None,
        }
    }
}

impl Limit {
    pub(crate) fn of_plans(name: String, tiers: Tiered, directory: Directory) -> Self {
        // Asked for by nobody: the tiers stand instead.
        let algorithm = throttle_core::Gcra::new(throttle_core::Rate::per_second(1)).build();
        Self::new(name, algorithm, Some(tiers), Keying::Plans(directory))
    }

    fn new(name: String, algorithm: Result<Algorithm, ConfigError>, tiers: Option<Tiered>, keying: Keying) -> Self {
        Self {
            name,
            algorithm,
            tiers,
            unit: None,
            replaces_existing: false,
            constant_cost: None,
            how: Applied::by(keying),
        }
    }

    pub(crate) fn change_tiers(mut self, change: impl FnOnce(&mut Tiered)) -> Self {
        if let Some(tiers) = &mut self.tiers {
            change(tiers);
        }
        self
    }

    pub(crate) fn change_directory(mut self, change: impl FnOnce(Directory) -> Directory) -> Self {
        if let Keying::Plans(directory) = self.how.keying {
            self.how.keying = Keying::Plans(change(directory));
        }
        self
    }

    /// What a request costs, in units: a number, or a function of the request's head. A cost of 0 looks without using.
    /// Defaults to 1.
    ///
    /// A number above what the limit admits at once is an error when the layer is built. Of a limit with tiers that is what
    /// the largest tier admits: requests in a tier that admits less are refused, without a `Retry-After`, because no wait
    /// helps. A function's cost above it is refused the same way.
    ///
    /// ```
    /// use http::request::Parts;
    /// use throttle_tower::{Constant, Gcra, Rate, limit};
    ///
    /// let exports = limit("exports", Gcra::new(Rate::per_minute(60)))
    ///     .by(Constant)
    ///     .cost(|parts: &Parts| if parts.uri.path() == "/export" { 20 } else { 1 });
    /// ```
    pub fn cost(mut self, cost: impl IntoCost) -> Self {
        self.constant_cost = cost.constant();
        self.how.cost = Some(cost.into_cost());
        self
    }

    /// Applies the limit only to requests of which `applies` is true. Defaults to all.
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
        self.how.when = Some(Arc::new(applies));
        self
    }

    /// What a missing key means. Defaults to [`OnMissing::Share`].
    pub fn on_missing(mut self, rule: OnMissing) -> Self {
        self.how.on_missing = rule;
        self
    }

    /// How long a key [that a future resolves to](Unkeyed::by_async) may take. After that the request counts as one without
    /// a key, by [`on_missing`](Self::on_missing), and the future is dropped. Other limits have no use for it. Defaults to 1
    /// second.
    pub fn key_deadline(mut self, longest: Duration) -> Self {
        self.how.key_deadline = longest;
        self
    }

    /// What happens when the store fails. There is no default: a backend that can fail asks for it.
    pub fn on_error(mut self, rule: OnError) -> Self {
        self.how.on_error = Some(rule);
        self
    }

    /// What the limit counts, as clients are told: `tokens`, `content-bytes`. Defaults to requests.
    pub fn unit(mut self, unit: impl Into<String>) -> Self {
        self.unit = Some(unit.into());
        self
    }

    /// Replaces a limit of the same name that is in use on the same backend and has other parameters: to change a limit while
    /// the layer with the former one still serves. The new parameters are in force for both layers, both tell clients so, and
    /// what was used stays used. Without it that is an error, because two limits that happen to share a name would be one.
    /// Defaults to not replacing.
    ///
    /// ```
    /// use throttle_tower::{Constant, Gcra, MemoryBackend, Rate, ThrottleLayer, limit};
    ///
    /// let per_minute = |count| limit("all", Gcra::new(Rate::per_minute(count))).by(Constant);
    /// let backend = MemoryBackend::new();
    /// let former = ThrottleLayer::new(per_minute(5))?.backend(backend.clone())?;
    /// assert!(ThrottleLayer::new(per_minute(100))?.backend(backend.clone()).is_err());
    /// let changed = ThrottleLayer::new(per_minute(100).replace_existing())?.backend(backend)?;
    /// # Ok::<(), throttle_tower::ConfigError>(())
    /// ```
    pub fn replace_existing(mut self) -> Self {
        self.replaces_existing = true;
        self
    }

    /// Holds a request that this limit would refuse, if it can be admitted within so long, instead of answering 429. It is
    /// then admitted, and charged, when there is room. Defaults to not at all.
    ///
    /// * **Fair.** Those who are held for one key are let through in the order in which they came, and newcomers wait behind
    ///   them or are refused; only in an [`any`](crate::any) they are asked about first, for another member may have room.
    ///   Who is held by two limits stands in one line after the other. That is so in each process; over a store, processes race.
    /// * **On time.** In memory, a held request is decided as of the instant at which there was room for it, however late its
    ///   timer wakes, so a line that is never empty admits exactly the rate of its limit. Requests that became due while the
    ///   process did not run leave together, 50 ms' worth at most; what the line missed before that is lost. Over a store, a
    ///   request is decided when the store is asked: a timer and a round trip late, which a burst of 10 ms' worth or so
    ///   makes up for. With a burst of 1 the line is slower than its limit by that.
    /// * **Bounded.** A request is held only if its turn comes in time, and 10,000 requests by a layer
    ///   ([`max_held`](crate::ThrottleLayer::max_held)). One that cannot make it is refused at once, with a `Retry-After`
    ///   that counts the requests before it. In memory, a request that is held for a limit that drains or has windows of a fixed
    ///   start is refused later only if requests outside the line take its turn. For sliding windows and logs, and over a
    ///   store, the forecast is an estimate.
    /// * **Cancelled with the request**, which was charged nothing while it was held, and leaves its place to the next.
    /// * Where several limits of an `all` refuse, all of them must be ready to wait. Permits of a
    ///   [`Concurrency`](crate::Concurrency) are not held meanwhile. The tokio runtime must have its timers enabled.
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
        self.how.wait_up_to = Some(longest);
        self
    }

    /// Refuses a constant cost that no state of the policy admits.
    fn check_cost(&self, policy: &Policy) -> Result<(), ConfigError> {
        let tiers = policy.tiers().map(|(_, tier)| tier.algorithm().capacity());
        let most = tiers.max().unwrap_or_else(|| policy.algorithm().capacity());
        match self.constant_cost {
            Some(cost) if cost > most => {
                let rule = format!(
                    "the limit admits at most {most} units at once, so that every request would be refused; lower the cost, \
                     or raise the burst to at least the cost"
                );
                Err(ConfigError::new("cost", cost, rule).in_policy(&self.name))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn policy(&self) -> Result<Policy, ConfigError> {
        let policy = match &self.tiers {
            Some(tiers) => tiers.policy(&self.name)?,
            None => {
                let algorithm = self.algorithm.clone().map_err(|error| error.in_policy(&self.name))?;
                Policy::new(&self.name, algorithm)?
            }
        };
        self.check_cost(&policy)?;
        match &self.how.keying {
            Keying::Sync(extractor) => extractor.check().map_err(|error| error.in_policy(&self.name))?,
            Keying::Plans(directory) => directory.check().map_err(|error| error.in_policy(&self.name))?,
            Keying::Async(_) => {}
        }
        self.how.on_missing.check().map_err(|error| error.in_policy(&self.name))?;
        let policy = if self.replaces_existing { policy.replace_existing() } else { policy };
        match &self.unit {
            Some(unit) => policy.with_unit(unit),
            None => Ok(policy),
        }
    }
}

impl fmt::Debug for Applied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Applied");
        shown.field("on_missing", &self.on_missing).field("on_error", &self.on_error).finish_non_exhaustive()
    }
}

use std::fmt;
use std::time::Duration;

use throttle_core::{ConfigError, Policy};

use super::tier_lookup::CachedTierLookup;
use crate::limit::{IntoCost, IntoLimitTree, Limit, LimitTree, OnError, OnMissing};

/// A limit that depends on the caller's plan: see [`plans`](crate::plans()).
///
/// ```
/// use throttle_tower::plans::Plans;
/// use throttle_tower::{Gcra, Header, Rate, ThrottleLayer, plans};
///
/// let per_user = |default: &str| -> Plans {
///     plans("per-user", [("free", Gcra::new(Rate::per_minute(60)))])
///         .by(Header::new("x-api-key"))
///         .lookup(|_key| async { Some("free") })
///         .unknown(default)
/// };
/// assert!(ThrottleLayer::new(per_user("free")).is_ok());
/// assert_eq!(ThrottleLayer::new(per_user("gold")).unwrap_err().field(), "unknown");
/// ```
#[derive(Clone)]
#[must_use = "a limit does nothing until a layer is built with it"]
pub struct Plans {
    lookup: CachedTierLookup,
    limit: Limit,
}

impl Plans {
    pub(super) fn new(policy: Result<Policy, ConfigError>, lookup: CachedTierLookup) -> Self {
        let limit = Limit::tiered(policy, lookup.clone());
        Self { lookup, limit }
    }

    /// Sets the approximate number of identities whose tiers are remembered (1 to 16,777,216), and for how long. When
    /// the cache is full, an identity without recent requests is evicted; its next request causes a lookup. An identity
    /// takes about 50 bytes, which are reserved when the layer is built; with [parameters of its
    /// own](super::Tier::own), some 100 more. Defaults to 10,000 for 60 seconds.
    pub fn cache(self, identities: usize, keep_for: Duration) -> Self {
        self.change(|lookup| lookup.set_cache(identities, keep_for))
    }

    /// Bounds lookups: how many run at a time, at least 1, and how long each may take. A lookup beyond these bounds
    /// counts as [failed](super::PlansWithoutLookup::lookup), so no request waits longer for its tier than the
    /// deadline, and none queues for a lookup. Each layer and its clones count together. Defaults to 256 lookups of 1
    /// second.
    ///
    /// ```
    /// use std::time::Duration;
    /// use throttle_tower::{Gcra, Header, Rate, ThrottleLayer, plans};
    ///
    /// # async fn plan_of(key: String) -> Result<Option<&'static str>, std::io::Error> { Ok(None) }
    /// let per_user = plans("per-user", [("free", Gcra::new(Rate::per_minute(60)))])
    ///     .by(Header::new("x-api-key"))
    ///     .lookup(plan_of)
    ///     .unknown("free");
    /// assert!(ThrottleLayer::new(per_user.clone().lookups(20, Duration::from_millis(200))).is_ok());
    /// assert!(ThrottleLayer::new(per_user.lookups(0, Duration::from_millis(200))).is_err());
    /// ```
    pub fn lookups(self, at_once: usize, deadline: Duration) -> Self {
        self.change(|lookup| (lookup.max_lookups, lookup.deadline) = (at_once, deadline))
    }

    /// Treats a request whose identity the lookup does not know like a request without an identity, as
    /// [`on_missing`](Self::on_missing) sets: all such requests share one budget in the tier of unknown identities, or
    /// the limit does not apply to them, or they are refused. By default each unknown identity has a budget of its own.
    ///
    /// With this setting a client gains nothing by inventing identities, not even while lookups fail. During a failure,
    /// an identity that was known before keeps its last tier and its budget. All identities without a successful lookup
    /// share one more budget in the tier of unknown identities. New customers share that budget too until a lookup of
    /// theirs succeeds, and after a restart every customer is new.
    ///
    /// ```
    /// use throttle_tower::{Gcra, Header, OnMissing, Rate, ThrottleLayer, plans};
    ///
    /// # async fn plan_of(key: String) -> Option<&'static str> { None }
    /// let per_user = plans("per-user", [("free", Gcra::new(Rate::per_minute(60)))])
    ///     .by(Header::new("x-api-key"))
    ///     .lookup(plan_of)
    ///     .unknown("free")
    ///     .unknown_as_missing()
    ///     .on_missing(OnMissing::Reject(http::StatusCode::UNAUTHORIZED));
    /// assert!(ThrottleLayer::new(per_user).is_ok());
    /// ```
    pub fn unknown_as_missing(self) -> Self {
        self.change(|lookup| lookup.unknown.as_missing = true)
    }

    /// As [`Limit::cost`].
    pub fn cost(self, cost: impl IntoCost) -> Self {
        Self { limit: self.limit.cost(cost), ..self }
    }

    /// As [`Limit::when`]. Nothing is looked up for a request that the limit does not apply to.
    pub fn when(self, applies: impl Fn(&http::request::Parts) -> bool + Send + Sync + 'static) -> Self {
        Self { limit: self.limit.when(applies), ..self }
    }

    /// As [`Limit::on_missing`], for requests without an identity.
    pub fn on_missing(self, rule: OnMissing) -> Self {
        Self { limit: self.limit.on_missing(rule), ..self }
    }

    /// As [`Limit::on_error`]: what happens when the store fails. A lookup that fails is [another
    /// matter](super::PlansWithoutLookup::lookup).
    pub fn on_error(self, rule: OnError) -> Self {
        Self { limit: self.limit.on_error(rule), ..self }
    }

    /// As [`Limit::unit`].
    pub fn unit(self, unit: impl Into<String>) -> Self {
        Self { limit: self.limit.unit(unit), ..self }
    }

    /// The plans as a [`Limit`], for its other settings: refunds, later settlement, waiting. Call it last.
    pub fn into_limit(self) -> Limit {
        self.limit
    }

    fn change(mut self, change: impl FnOnce(&mut CachedTierLookup)) -> Self {
        change(&mut self.lookup);
        Self { limit: self.limit.looked_up(self.lookup.clone()), ..self }
    }
}

impl fmt::Debug for Plans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Plans").field(&self.limit).finish()
    }
}

impl From<Plans> for LimitTree {
    fn from(plans: Plans) -> Self {
        plans.limit.into()
    }
}

impl IntoLimitTree for Plans {
    fn into_limit_tree(self) -> LimitTree {
        self.limit.into()
    }
}

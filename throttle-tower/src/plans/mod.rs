//! LimitTree that depend on who asks: an identity is in a tier, which a lookup tells.

mod cache;
mod directory;
mod flight;
#[cfg(test)]
mod tests;
mod told;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use directory::{Directory, Lookup};
use throttle_core::{Algorithm, Carry, ConfigError, IntoAlgorithm, Policy};

use crate::limit::{IntoCost, IntoLimitTree, Limit, LimitTree};
use crate::{KeyExtractor, OnError, OnMissing};

/// Identities whose tiers are remembered, unless said otherwise.
const ENTRIES: usize = 10_000;
/// Most identities that can be remembered.
const MOST_ENTRIES: usize = 1 << 24;
/// How long a tier is good, unless said otherwise.
const GOOD_FOR: Duration = Duration::from_secs(60);
/// Most lookups at a time, unless said otherwise.
const LOOKUPS: usize = 256;
/// How long a lookup may take, unless said otherwise.
const DEADLINE: Duration = Duration::from_secs(1);

/// Starts a limit that depends on who asks: a public name, and a limit for each tier. Say next [whose
/// budget](PlansUnkeyed::by) it is.
///
/// An identity has one budget, whatever its tier. What it has used when its tier changes is carried over by a
/// [rule](Plans::on_change). Clients are told the limit of their own tier, under the one name.
///
/// What is wrong with it is reported when the layer is built.
///
/// ```
/// use std::time::Duration;
/// use throttle_tower::{Carry, Gcra, Header, Rate, ThrottleLayer, plans};
///
/// # async fn plan_of(key: String) -> Result<Option<&'static str>, std::io::Error> { Ok(None) }
/// let tiers = [
///     ("free", Gcra::new(Rate::per_minute(60))),
///     ("pro", Gcra::new(Rate::per_minute(600))),
///     ("internal", Gcra::new(Rate::per_minute(6_000))),
/// ];
/// let throttle = ThrottleLayer::new(
///     plans("per-user", tiers)
///         .by(Header::new("x-api-key"))
///         .lookup(|key: String| plan_of(key))
///         .unknown("free")
///         .cache(10_000, Duration::from_secs(60))
///         .on_change(Carry::Keep),
/// )?;
/// # Ok::<(), throttle_tower::ConfigError>(())
/// ```
pub fn plans<N: Into<String>, A: IntoAlgorithm>(
    name: impl Into<String>,
    tiers: impl IntoIterator<Item = (N, A)>,
) -> PlansUnkeyed {
    let tiers = tiers.into_iter().map(|(tier, algorithm)| (tier.into(), algorithm.into_algorithm()));
    PlansUnkeyed { name: name.into(), tiers: tiers.collect() }
}

type Tiers = Vec<(String, Result<Algorithm, ConfigError>)>;

/// Plans that do not say yet whose budget they are.
#[derive(Clone, Debug)]
#[must_use = "say whose budget it is with `.by(…)`"]
pub struct PlansUnkeyed {
    name: String,
    tiers: Tiers,
}

impl PlansUnkeyed {
    /// The identity of a request: it has one budget, and its tier is looked up.
    pub fn by(self, extractor: impl KeyExtractor) -> PlansWithoutLookup {
        PlansWithoutLookup { plans: self, extractor: Arc::new(extractor) }
    }
}

/// Plans that do not say yet how a tier is found out.
#[must_use = "say how an identity's tier is found out with `.lookup(…)`"]
pub struct PlansWithoutLookup {
    plans: PlansUnkeyed,
    extractor: Arc<dyn KeyExtractor>,
}

impl PlansWithoutLookup {
    /// Finds out the tier of an identity: the name of one, `None` for an identity that has none, or an error. A name
    /// that no tier has counts as none.
    ///
    /// A request that other limits refuse whatever its tier may be costs no lookup: the limits whose keys and tiers are
    /// known are looked at first. Over a store that is one more round trip for a request whose tier is not remembered,
    /// and none for others. A limit for which [attempts count](Limit::charge_refused) needs its key in any case, so it
    /// looks at none.
    ///
    /// * Concurrent requests of one identity share a lookup, and it runs at the same time as those of other limits'
    ///   keys.
    /// * What it returns is remembered for [some time](Plans::cache), `None` too. Then a request costs no lookup and no
    ///   allocation, and a change of tier is seen after that time at the latest.
    /// * It fails if it returns an error, or takes longer than its [deadline](Plans::lookups). It counts as failed
    ///   without being called while too many others are under way. Then the last known tier applies, if it is still
    ///   remembered, or else that of the unknown. It is called again after a second, or after the time that tiers are
    ///   remembered, if that is shorter. The layer reports neither a failure nor a name that no tier has: log or count
    ///   those in the lookup.
    /// * An identity is told as text: that of a header, a number in decimal, an address with the length of its prefix;
    ///   several parts with commas between. One that is not UTF-8 is not looked up: it is unknown.
    ///
    /// It is remembered by a digest, never raw.
    ///
    /// # Cancel safety
    ///
    /// A request that is dropped while its tier is looked up has been charged nothing. The lookup goes on for the other
    /// requests that wait for it, and is dropped with the last of them, or at its deadline.
    ///
    /// # Panics
    ///
    /// A request that waits for a lookup panics outside of a tokio runtime with timers enabled.
    pub fn lookup<F, Fut>(self, lookup: F) -> PlansWithoutDefault
    where
        F: Fn(String) -> Fut + Send + Sync + 'static,
        Fut: Future<Output: IntoTier> + Send + 'static,
    {
        let names: Arc<[String]> = self.plans.tiers.iter().map(|(name, _)| name.clone()).collect();
        let lookup: Lookup = Arc::new(move |identity| {
            let (answer, names) = (lookup(identity), Arc::clone(&names));
            Box::pin(async move {
                let place = |name: &str| names.iter().position(|tier| tier == name);
                let tier = answer.await.into_tier(&place)?;
                Ok(tier.and_then(|place| u8::try_from(place).ok()))
            })
        });
        PlansWithoutDefault { plans: self.plans, directory: Directory::new(self.extractor, lookup) }
    }
}

impl fmt::Debug for PlansWithoutLookup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlansWithoutLookup").field("plans", &self.plans).finish_non_exhaustive()
    }
}

/// A lookup that could not tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LookupFailed;

impl fmt::Display for LookupFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the tier of an identity could not be looked up")
    }
}

impl std::error::Error for LookupFailed {}

/// What a lookup answers: `Option` or `Result<Option<_>, _>` of a tier's name.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not what a lookup answers",
    label = "expected `Option` or `Result<Option<_>, _>` of a tier's name, such as `Some(\"pro\")`"
)]
pub trait IntoTier {
    /// What `place` tells of the name.
    ///
    /// # Errors
    ///
    /// If the lookup failed.
    #[doc(hidden)]
    fn into_tier(self, place: &dyn Fn(&str) -> Option<usize>) -> Result<Option<usize>, LookupFailed>;
}

impl<N: AsRef<str>> IntoTier for Option<N> {
    fn into_tier(self, place: &dyn Fn(&str) -> Option<usize>) -> Result<Option<usize>, LookupFailed> {
        Ok(self.and_then(|name| place(name.as_ref())))
    }
}

impl<N: AsRef<str>, E> IntoTier for Result<Option<N>, E> {
    fn into_tier(self, place: &dyn Fn(&str) -> Option<usize>) -> Result<Option<usize>, LookupFailed> {
        self.map_err(|_| LookupFailed)?.into_tier(place)
    }
}

/// Plans that do not say yet in which tier an unknown identity is.
#[must_use = "say in which tier an unknown identity is with `.unknown(…)`"]
pub struct PlansWithoutDefault {
    plans: PlansUnkeyed,
    directory: Directory,
}

impl PlansWithoutDefault {
    /// The tier of identities that the lookup does not know, of requests without an identity, and of identities whose
    /// lookup failed before it ever returned anything.
    ///
    /// Each unknown identity has a budget of its own, and costs a lookup. Where clients can make up identities, let
    /// those share one ([`Plans::unknown_as_missing`]), take only those that may exist
    /// ([`Header::accept`](crate::Header::accept)), or add a limit by address with [`all`](crate::all): what it refuses
    /// costs no lookup.
    pub fn unknown(mut self, tier: impl Into<String>) -> Plans {
        let (tier, PlansUnkeyed { name, tiers }) = (tier.into(), self.plans);
        let place = tiers.iter().position(|(name, _)| *name == tier);
        // One that there is not is an error when the layer is built.
        self.directory.unknowns.tier = place.and_then(|place| u8::try_from(place).ok()).unwrap_or(0);
        let tiers = Tiered { tiers, unknown: tier, carry: Carry::Keep };
        let limit = Limit::tiered(tiers.policy(&name), self.directory.clone());
        Plans { name, tiers, directory: self.directory, limit }
    }
}

impl fmt::Debug for PlansWithoutDefault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlansWithoutDefault").field("plans", &self.plans).finish_non_exhaustive()
    }
}

/// What a limit has instead of one algorithm.
#[derive(Clone, Debug)]
struct Tiered {
    tiers: Tiers,
    unknown: String,
    carry: Carry,
}

impl Tiered {
    fn policy(&self, name: &str) -> Result<Policy, ConfigError> {
        let mut tiers = Vec::new();
        for (tier, algorithm) in &self.tiers {
            tiers.push((tier, algorithm.clone().map_err(|error| error.in_policy(name))?));
        }
        let policy = Policy::tiered(name, tiers, self.carry)?;
        if policy.tier_named(&self.unknown).is_none() {
            let rule = "it must be the name of a tier";
            return Err(ConfigError::new("unknown", format_args!("{:?}", self.unknown), rule).in_policy(name));
        }
        Ok(policy)
    }
}

/// A limit that depends on who asks: see [`plans`].
#[derive(Clone)]
#[must_use = "a limit does nothing until a layer is built with it"]
pub struct Plans {
    name: String,
    tiers: Tiered,
    directory: Directory,
    limit: Limit,
}

impl Plans {
    /// About how many identities' tiers are remembered, at least 1 and at most 16,777,216, and for how long. When there
    /// are more, one not asked for lately is forgotten, and looked up again. An identity takes about 50 bytes, which
    /// are reserved when the layer is built. Defaults to 10,000 for 60 seconds.
    pub fn cache(self, identities: usize, good_for: Duration) -> Self {
        self.change(|_, directory| directory.remember(identities, good_for))
    }

    /// Bounds lookups: how many are under way at a time, at least 1, and how long each may take. A lookup beyond these
    /// bounds counts as [failed](PlansWithoutLookup::lookup), so no request waits longer for its tier than the
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
        self.change(|_, directory| (directory.lookups, directory.deadline) = (at_once, deadline))
    }

    /// What becomes of what an identity has used when its tier changes, or its tier's limit does. Defaults to
    /// [`Carry::Keep`].
    pub fn on_change(self, rule: Carry) -> Self {
        self.change(|tiers, _| tiers.carry = rule)
    }

    /// Treats an identity that the lookup does not know as a request without one, by [`on_missing`](Self::on_missing):
    /// all of them share one budget in the tier of the unknown, or are not limited by this, or are refused. By default
    /// each has a budget of its own.
    ///
    /// Made-up identities gain nothing then, also while lookups fail: an identity that was known before keeps its last
    /// tier and its budget, and all those of which nothing is known share one more budget in the tier of the unknown.
    /// New customers share that budget too until a lookup of theirs succeeds, and after a restart every customer is
    /// new.
    ///
    /// ```
    /// use throttle_tower::{Gcra, Header, OnMissing, Rate, plans};
    ///
    /// # async fn plan_of(key: String) -> Option<&'static str> { None }
    /// let per_user = plans("per-user", [("free", Gcra::new(Rate::per_minute(60)))])
    ///     .by(Header::new("x-api-key"))
    ///     .lookup(plan_of)
    ///     .unknown("free")
    ///     .unknown_as_missing()
    ///     .on_missing(OnMissing::Reject(http::StatusCode::UNAUTHORIZED));
    /// ```
    pub fn unknown_as_missing(self) -> Self {
        self.change(|_, directory| directory.unknowns.as_missing = true)
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
    /// matter](PlansWithoutLookup::lookup).
    pub fn on_error(self, rule: OnError) -> Self {
        Self { limit: self.limit.on_error(rule), ..self }
    }

    /// As [`Limit::unit`].
    pub fn unit(self, unit: impl Into<String>) -> Self {
        Self { limit: self.limit.unit(unit), ..self }
    }

    /// As [`Limit::replace_existing`]: to change the tiers, or their limits, while the former ones are in use.
    pub fn replace_existing(self) -> Self {
        Self { limit: self.limit.replace_existing(), ..self }
    }

    /// As a limit, to say all else that limits can: what is refunded, what is settled later, who is held. Call it last.
    pub fn into_limit(self) -> Limit {
        self.limit
    }

    fn change(mut self, change: impl FnOnce(&mut Tiered, &mut Directory)) -> Self {
        change(&mut self.tiers, &mut self.directory);
        let policy = self.tiers.policy(&self.name);
        Self { limit: self.limit.with_tiers(policy, self.directory.clone()), ..self }
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

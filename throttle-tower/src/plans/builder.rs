//! The steps that lead to a limit by plans: name and tiers, the identity, the lookup, the tier of
//! unknown identities.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use throttle_core::{Algorithm, ConfigError, IntoAlgorithm, Policy};

use super::tier::IntoTier;
use super::tier_lookup::{CachedTierLookup, LookupFn};
use crate::extract::KeyExtractor;
use crate::limit::Limit;

/// The names and algorithms of the tiers, in order. A wrong algorithm is reported when the layer is
/// built.
type Tiers = Vec<(String, Result<Algorithm, ConfigError>)>;

/// Starts a limit that depends on the caller's plan: a public name, and a limit for each tier. Next
/// comes [the identity](PlansUnkeyed::by) whose budget a request spends.
///
/// An identity has one budget, whatever its tier. A client that has used 40 units and moves to
/// another tier has used 40 there, or the whole tier if that is smaller. Until its first request is
/// admitted there, these units recover at the pace of the former tier. For a fresh budget on an
/// upgrade, reset the key. The headers of a response show the limit of the client's own tier, under
/// the one name.
///
/// A wrong setting is reported when the layer is built.
///
/// ```
/// use std::time::Duration;
/// use throttle_tower::{Gcra, Header, Rate, ThrottleLayer, plans};
///
/// # async fn plan_of(key: String) -> Result<Option<&'static str>, std::io::Error> { Ok(None) }
/// let tiers = [
///     ("free", Gcra::new(Rate::per_minute(60))),
///     ("pro", Gcra::new(Rate::per_minute(600))),
///     ("internal", Gcra::new(Rate::per_minute(6_000))),
/// ];
/// let per_user = plans("per-user", tiers)
///     .by(Header::new("x-api-key"))
///     .lookup(|key: String| plan_of(key))
///     .cache(10_000, Duration::from_secs(60))
///     .unknown_as_missing() // all invented keys together have one budget
///     .unknown("free");
/// assert!(ThrottleLayer::new(per_user).is_ok());
/// ```
pub fn plans<N: Into<String>, A: IntoAlgorithm>(
    name: impl Into<String>,
    tiers: impl IntoIterator<Item = (N, A)>,
) -> PlansUnkeyed {
    let tiers = tiers
        .into_iter()
        .map(|(tier, algorithm)| (tier.into(), algorithm.into_algorithm()));
    PlansUnkeyed {
        name: name.into(),
        tiers: tiers.collect(),
    }
}

/// [`plans`] that still need a key: the identity whose budget a request spends.
///
/// ```
/// use throttle_tower::plans::{PlansUnkeyed, plans};
/// use throttle_tower::{Gcra, Rate};
///
/// let unkeyed: PlansUnkeyed = plans("per-user", [("free", Gcra::new(Rate::per_minute(60)))]);
/// assert!(format!("{unkeyed:?}").contains("per-user"));
/// ```
#[derive(Clone, Debug)]
#[must_use = "name the identity that has a budget with `.by(…)`"]
pub struct PlansUnkeyed {
    name: String,
    tiers: Tiers,
}

impl PlansUnkeyed {
    /// The identity of a request: it has one budget, and its tier is looked up.
    pub fn by(self, extractor: impl KeyExtractor) -> PlansWithoutLookup {
        PlansWithoutLookup {
            plans: self,
            extractor: Arc::new(extractor),
        }
    }
}

/// [`plans`] that still need a lookup of tiers.
///
/// ```
/// use throttle_tower::plans::{PlansWithoutLookup, plans};
/// use throttle_tower::{Gcra, Header, Rate};
///
/// let tiers = [("free", Gcra::new(Rate::per_minute(60)))];
/// let without_lookup: PlansWithoutLookup = plans("per-user", tiers).by(Header::new("x-api-key"));
/// assert!(format!("{without_lookup:?}").contains("per-user"));
/// ```
#[must_use = "say how an identity's tier is found out with `.lookup(…)`"]
pub struct PlansWithoutLookup {
    plans: PlansUnkeyed,
    extractor: Arc<dyn KeyExtractor>,
}

impl PlansWithoutLookup {
    /// Sets the lookup, which finds out the tier of an identity. It returns the name of a tier,
    /// `None` for an identity without one, or an error. A name that no tier has counts as `None`.
    ///
    /// It may also return parameters of the identity's own, such as the rate and the burst in a
    /// customer's row: a [`Tier`](super::Tier). They are in the headers that the customer gets. The
    /// identity keeps its one budget when its parameters change, or when it moves between them and
    /// a tier.
    ///
    /// ```
    /// use throttle_tower::plans::Tier;
    /// use throttle_tower::{Gcra, Header, Rate, plans};
    ///
    /// # struct Row { per_minute: u64, burst: u64 }
    /// # async fn row_of(key: &str) -> Result<Option<Row>, std::io::Error> { Ok(None) }
    /// let per_customer = plans("per-customer", [("free", Gcra::new(Rate::per_minute(60)))])
    ///     .by(Header::new("x-api-key"))
    ///     .lookup(async |key: String| -> Result<Option<Tier>, std::io::Error> {
    ///         let Some(row) = row_of(&key).await? else { return Ok(None) };
    ///         Ok(Some(Tier::own(Gcra::new(Rate::per_minute(row.per_minute)).burst(row.burst))))
    ///     })
    ///     .unknown("free");
    /// ```
    ///
    /// If other limits refuse a request whatever its tier is, there is no lookup: the layer first
    /// peeks at the limits whose keys and tiers are known. Over a store the peek is one more round
    /// trip for a request whose tier is not cached. The layer does not peek if a limit with
    /// [`charge_refused`](crate::Limit::charge_refused) needs a lookup for the request: that limit
    /// is charged even if another one refuses, so its key and tier are needed in any case.
    ///
    /// * Concurrent requests of one identity share a lookup. It runs at the same time as the
    ///   lookups of other limits' keys.
    /// * Its result is remembered for [some time](Plans::cache), `None` too. Meanwhile a request
    ///   costs no lookup and no allocation, and a change of tier takes effect after that time at
    ///   the latest.
    /// * It fails if it returns an error, panics, or takes longer than its
    ///   [deadline](Plans::lookups). While the maximum number of lookups is running, a further
    ///   lookup counts as failed and is not called. After a failure the last known tier applies, if
    ///   it is still cached, or else the tier of unknown identities. The lookup is called again
    ///   after a second, or after the cache time if that is shorter. The layer logs neither a
    ///   failed lookup, which `throttle_plan_lookups_total` counts, nor a name that no tier has,
    ///   which it counts as `unknown`: log names and errors in the lookup. Parameters [that the
    ///   limit cannot have](super::Tier::own) are like a failed lookup. They are logged, and so is
    ///   a panic.
    /// * It receives an identity as text: the value of a header, a number in decimal, an address
    ///   with the length of its prefix; several parts with commas between. An identity that is not
    ///   UTF-8 is not looked up: it is unknown.
    /// * Different keys can have the same text: an address and a header in which a client writes
    ///   that address, or the parts `a,b` and `c`, and the parts `a` and `b,c`. Where clients
    ///   choose a part, let a header's [`accept`](crate::Header::accept) refuse what looks like
    ///   another kind of key.
    ///
    /// The identity is remembered as a digest, never raw.
    ///
    /// # Cancel safety
    ///
    /// A request that is dropped while its tier is looked up has been charged nothing. The lookup
    /// goes on for the other requests that wait for it, and is dropped with the last of them, or at
    /// its deadline.
    ///
    /// # Panics
    ///
    /// A request that waits for a lookup panics outside of a tokio runtime with timers enabled.
    pub fn lookup<F, Fut>(self, lookup: F) -> Plans
    where
        F: Fn(String) -> Fut + Send + Sync + 'static,
        Fut: Future<Output: IntoTier> + Send + 'static,
    {
        let policy = policy(self.plans);
        let lookup: LookupFn = Arc::new(move |identity| {
            let answer = lookup(identity);
            Box::pin(async move { answer.await.into_tier() })
        });
        let lookup = CachedTierLookup::new(self.extractor, lookup, policy.as_ref().ok().cloned());
        Plans { policy, lookup }
    }
}

impl fmt::Debug for PlansWithoutLookup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlansWithoutLookup")
            .field("plans", &self.plans)
            .finish_non_exhaustive()
    }
}

/// [`plans`] with their lookup, which still need the tier of [unknown](Self::unknown) identities.
///
/// ```
/// use throttle_tower::plans::Plans;
/// use throttle_tower::{Gcra, Header, Rate, ThrottleLayer, plans};
///
/// let per_user = |default: &str| {
///     let tiers = [("free", Gcra::new(Rate::per_minute(60)))];
///     let plans: Plans = plans("per-user", tiers)
///         .by(Header::new("x-api-key"))
///         .lookup(async |_| Some("free"));
///     plans.unknown(default)
/// };
/// assert!(ThrottleLayer::new(per_user("free")).is_ok());
/// assert_eq!(
///     ThrottleLayer::new(per_user("gold")).unwrap_err().field(),
///     "unknown"
/// );
/// ```
#[derive(Clone)]
#[must_use = "name the tier of unknown identities with `.unknown(…)`"]
pub struct Plans {
    policy: Result<Policy, ConfigError>,
    pub(super) lookup: CachedTierLookup,
}

impl Plans {
    /// Sets the approximate number of identities whose tiers are remembered (1 to 16,777,216), and
    /// for how long. When the cache is full, an identity without recent requests is evicted; its
    /// next request causes a lookup. An identity takes about 50 bytes, which are reserved when the
    /// layer is built; with [parameters of its own](super::Tier::own), some 100 more. The time is
    /// tokio's: in a test, `tokio::time::advance` moves it, and a
    /// [`ManualClock`](crate::ManualClock) of the backend does not. Defaults to 10,000 for 60
    /// seconds.
    pub fn cache(mut self, identities: usize, keep_for: Duration) -> Self {
        self.lookup.set_cache(identities, keep_for);
        self
    }

    /// Bounds lookups: how many run at a time, at least 1, and how long each may take. A lookup
    /// beyond these bounds counts as [failed](super::PlansWithoutLookup::lookup), so no request
    /// waits longer for its tier than the deadline, and none queues for a lookup. Each layer and
    /// its clones count together. Defaults to 256 lookups of 1 second.
    ///
    /// ```
    /// use std::time::Duration;
    /// use throttle_tower::{Gcra, Header, Rate, ThrottleLayer, plans};
    ///
    /// # async fn plan_of(key: String) -> Result<Option<&'static str>, std::io::Error> { Ok(None) }
    /// let per_user = plans("per-user", [("free", Gcra::new(Rate::per_minute(60)))])
    ///     .by(Header::new("x-api-key"))
    ///     .lookup(plan_of);
    /// let bounded = |at_once| {
    ///     per_user
    ///         .clone()
    ///         .lookups(at_once, Duration::from_millis(200))
    ///         .unknown("free")
    /// };
    /// assert!(ThrottleLayer::new(bounded(20)).is_ok());
    /// assert!(ThrottleLayer::new(bounded(0)).is_err());
    /// ```
    pub fn lookups(mut self, at_once: usize, deadline: Duration) -> Self {
        (self.lookup.max_lookups, self.lookup.deadline) = (at_once, deadline);
        self
    }

    /// Treats a request whose identity the lookup does not know like a request without an identity,
    /// as [`on_missing`](Limit::on_missing) sets: all such requests share one budget in the tier of
    /// unknown identities, or the limit does not apply to them, or they are refused. By default
    /// each unknown identity has a budget of its own.
    ///
    /// With this setting a client gains nothing by inventing identities, not even while lookups
    /// fail. During a failure, an identity that was known before keeps its last tier and its
    /// budget. All identities without a successful lookup share one more budget in the tier of
    /// unknown identities. New customers share that budget too until a lookup of theirs succeeds,
    /// and after a restart every customer is new.
    ///
    /// ```
    /// use throttle_tower::{Gcra, Header, OnMissing, Rate, ThrottleLayer, plans};
    ///
    /// # async fn plan_of(key: String) -> Option<&'static str> { None }
    /// let per_user = plans("per-user", [("free", Gcra::new(Rate::per_minute(60)))])
    ///     .by(Header::new("x-api-key"))
    ///     .lookup(plan_of)
    ///     .unknown_as_missing()
    ///     .unknown("free")
    ///     .on_missing(OnMissing::Reject(http::StatusCode::UNAUTHORIZED));
    /// assert!(ThrottleLayer::new(per_user).is_ok());
    /// ```
    pub fn unknown_as_missing(mut self) -> Self {
        self.lookup.unknown.as_missing = true;
        self
    }

    /// The tier of identities that the lookup does not know, of requests without an identity, and
    /// of identities whose lookup failed before it ever returned anything. Returns the limit, which
    /// has the options of every [`Limit`].
    ///
    /// Each unknown identity has a budget of its own, and costs a lookup. If clients can make up
    /// identities, choose one of these:
    ///
    /// * let all unknown identities share one budget:
    ///   [`unknown_as_missing`](Self::unknown_as_missing);
    /// * accept only identities that may exist: [`Header::accept`](crate::Header::accept);
    /// * add a limit by address with [`all`](crate::all). The requests that it refuses cause no
    ///   lookup.
    ///
    /// Nothing is looked up for a request that the limit does not [apply to](Limit::when). A lookup
    /// that fails is no failure of the store, which [`Limit::on_error`] is for.
    pub fn unknown(mut self, tier: impl Into<String>) -> Limit {
        let tier = tier.into();
        let policy = self
            .policy
            .and_then(|policy| match policy.tier_named(&tier) {
                Some(number) => {
                    self.lookup.unknown.tier = number;
                    Ok(policy)
                }
                None => {
                    let rule = "it must be the name of a tier";
                    Err(ConfigError::new("unknown", format_args!("{tier:?}"), rule)
                        .in_policy(policy.name()))
                }
            });
        Limit::tiered(policy, self.lookup)
    }
}

/// # Errors
///
/// If the name or a tier is wrong.
fn policy(PlansUnkeyed { name, tiers }: PlansUnkeyed) -> Result<Policy, ConfigError> {
    let valid = |(tier, algorithm): (String, Result<Algorithm, ConfigError>)| {
        algorithm
            .map(|algorithm| (tier, algorithm))
            .map_err(|error| error.in_policy(&name))
    };
    Policy::tiered(
        &name,
        tiers
            .into_iter()
            .map(valid)
            .collect::<Result<Vec<_>, _>>()?,
    )
}

impl fmt::Debug for Plans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plans")
            .field("policy", &self.policy.as_ref().map(Policy::name))
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use http::Request;
    use throttle_core::{Gcra, Rate};

    use super::*;
    use crate::limit::{FoundKey, TierLookup};
    use crate::{Constant, Header};

    #[tokio::test]
    async fn identity_is_unknown_unless_its_tier_is_named_exactly() {
        let (parts, ()) = Request::new(()).into_parts();
        for (answer, expected) in [("pro", 1), ("Pro", 0), ("pro ", 0), ("gold", 0)] {
            let tiers = ["free", "pro"].map(|tier| (tier, Gcra::new(Rate::per_minute(60))));
            let built = plans("p", tiers)
                .by(Constant)
                .lookup(move |_| async move { Some(answer) });
            let FoundKey::Later { key, .. } = built.lookup.find(&parts) else {
                panic!("no tier is remembered")
            };
            assert_eq!(key.await.1.number(), expected, "{answer:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn ten_thousand_identities_are_remembered_for_a_minute_by_default() {
        let tiers = [("free", Gcra::new(Rate::per_minute(60)))];
        let built = plans("p", tiers)
            .by(Header::new("x-user"))
            .lookup(|_| async { Some("free") });
        let find = |user: usize| {
            let (parts, ()) = Request::builder()
                .header("x-user", user)
                .body(())
                .unwrap()
                .into_parts();
            built.lookup.find(&parts)
        };
        for user in 0..10_000 {
            let FoundKey::Later { key, .. } = find(user) else {
                panic!("{user} was never looked up")
            };
            key.await;
        }
        let remembered = || {
            (0..10_000)
                .filter(|user| matches!(find(*user), FoundKey::Now(..)))
                .count()
        };
        tokio::time::advance(Duration::from_millis(59_999)).await;
        assert!(remembered() > 9_000, "{}", remembered());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(remembered(), 0);
    }
}

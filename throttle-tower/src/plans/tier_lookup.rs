//! Finds the tier of a request's identity: remembered, or looked up.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{Shared, WeakShared};
use http::request::Parts;
use throttle_core::{ConfigError, Key, Policy};
use tokio::time::{Instant, timeout, timeout_at};

use super::cache::TierCache;
use super::identity::{Digest, Digester, identity_text};
use super::identity_tier::{IdentityTier, UnknownIdentities};
use super::tier::{Kind, LookupFailed, Tier};
use crate::caught::caught;
use crate::extract::KeyExtractor;
use crate::limit::{FoundKey, FoundTier, LookupReport, LookupResult, TierLookup};
use crate::lock::lock;
use crate::log::OncePerMinute;
use crate::time::FAR;

/// Identities whose tiers are remembered, by default.
const DEFAULT_ENTRIES: usize = 10_000;
/// Most identities that can be remembered.
const MAX_ENTRIES: usize = 1 << 24;
/// How long a tier is remembered, by default.
const DEFAULT_KEEP_FOR: Duration = Duration::from_secs(60);
/// Most lookups at a time, by default.
const DEFAULT_MAX_LOOKUPS: usize = 256;
/// How long a lookup may take, by default.
const DEFAULT_DEADLINE: Duration = Duration::from_secs(1);
/// How long after its deadline a lookup counts as over, although it has not ended: its timers are
/// those of the runtime that polled it first, which may not be driven.
const GRACE: Duration = Duration::from_millis(5);
/// How long a failed lookup is not repeated, at most.
const RETRY_FAILED_AFTER: Duration = Duration::from_secs(1);

/// `None` if the lookup does not know the identity.
pub(super) type LookupAnswer =
    Pin<Box<dyn Future<Output = Result<Option<Tier>, LookupFailed>> + Send>>;
pub(super) type LookupFn = Arc<dyn Fn(String) -> LookupAnswer + Send + Sync>;

/// A lookup under way. Each request that waits for it also polls it, so it goes on as long as one
/// of them waits, even without the request that started it. It is dropped with the last of them.
type TierFuture = Pin<Box<dyn Future<Output = IdentityTier> + Send>>;

/// Finds out the key and the tier of requests. Clones share what is remembered.
#[derive(Clone)]
pub(super) struct CachedTierLookup {
    extractor: Arc<dyn KeyExtractor>,
    lookup: LookupFn,
    pub(super) unknown: UnknownIdentities,
    entries: usize,
    keep_for: Duration,
    /// Most lookups at a time.
    pub(super) max_lookups: usize,
    /// How long a lookup may take.
    pub(super) deadline: Duration,
    /// What tiers and parameters are checked against; `None` if it is wrong itself, and no layer is
    /// built.
    policy: Option<Policy>,
    shared: Arc<CacheAndLookups>,
    /// `None` if the layer has no observer.
    report: Option<LookupReport>,
}

struct CacheAndLookups {
    digester: Digester,
    table: Mutex<Table>,
    /// What was logged of parameters that the limit cannot have.
    invalid: OncePerMinute,
    /// What was logged of lookups that panicked.
    panicked: OncePerMinute,
}

struct Table {
    cache: TierCache,
    running: HashMap<Digest, RunningLookup>,
    /// How many lookups were started.
    started: u64,
}

/// A lookup under way.
struct RunningLookup {
    number: u64,
    lookup: WeakShared<TierFuture>,
    over: Instant,
}

/// Removes a lookup that has ended or is dropped from those that run, unless a later one has
/// replaced it.
///
/// A request that comes after this starts another lookup, even if an earlier request has not
/// fetched the result of this one yet: that result would grow old.
struct EndOfLookup {
    shared: Arc<CacheAndLookups>,
    digest: Digest,
    number: u64,
}

impl Drop for EndOfLookup {
    fn drop(&mut self) {
        let running = &mut lock(&self.shared.table).running;
        let own = running.get(&self.digest);
        if own.is_some_and(|own| own.number == self.number) {
            running.remove(&self.digest);
        }
    }
}

impl CachedTierLookup {
    pub(super) fn new(
        extractor: Arc<dyn KeyExtractor>,
        lookup: LookupFn,
        policy: Option<Policy>,
    ) -> Self {
        Self {
            extractor,
            lookup,
            unknown: UnknownIdentities {
                tier: 0,
                as_missing: false,
            },
            entries: DEFAULT_ENTRIES,
            keep_for: DEFAULT_KEEP_FOR,
            max_lookups: DEFAULT_MAX_LOOKUPS,
            deadline: DEFAULT_DEADLINE,
            policy,
            shared: CacheAndLookups::new(DEFAULT_ENTRIES),
            report: None,
        }
    }

    pub(super) fn set_cache(&mut self, entries: usize, keep_for: Duration) {
        (self.entries, self.keep_for) = (entries, keep_for);
        // A larger cache is refused when the layer is built.
        if entries <= MAX_ENTRIES {
            self.shared = CacheAndLookups::new(entries);
        }
    }

    /// How many lookups are under way.
    #[cfg(test)]
    pub(super) fn running(&self) -> usize {
        lock(&self.shared.table).running.len()
    }

    fn report(&self, result: LookupResult) {
        if let Some(report) = &self.report {
            report(result);
        }
    }

    fn look_up(&self, key: Key, digest: Digest) -> FoundKey {
        let Some(identity) = identity_text(&key) else {
            let (key, tier) = self.unknown.budget(key, IdentityTier::Unknown);
            return FoundKey::Now(key, tier);
        };
        let last = lock(&self.shared.table)
            .cache
            .last(digest)
            .and_then(|tier| {
                let (key, tier) = self.unknown.budget(key.clone(), tier);
                Some((key?, tier))
            });
        let this = self.clone();
        let key = Box::pin(async move {
            let tier = match this.join(digest, identity) {
                Ok((joined, over)) => match timeout_at(over, joined).await {
                    Ok(tier) => tier,
                    Err(_) => {
                        this.report(LookupResult::Failed);
                        lock(&this.shared.table).cache.fallback(digest)
                    }
                },
                Err(tier) => tier,
            };
            this.unknown.budget(key, tier)
        });
        FoundKey::Later { key, last }
    }

    /// Joins the running lookup of the identity, or starts one.
    ///
    /// # Errors
    ///
    /// The tier that applies without a lookup: another request's lookup has ended meanwhile, or the
    /// maximum number of lookups is running.
    fn join(
        &self,
        digest: Digest,
        identity: String,
    ) -> Result<(Shared<TierFuture>, Instant), IdentityTier> {
        let (now, mut table) = (Instant::now(), lock(&self.shared.table));
        if let Some(tier) = table.cache.get(digest, now) {
            self.report(LookupResult::Remembered);
            return Err(tier);
        }
        if let Some(running) = table
            .running
            .get(&digest)
            .filter(|running| running.over > now)
            && let Some(lookup) = running.lookup.upgrade()
        {
            return Ok((lookup, running.over));
        }
        let fallback = table.cache.fallback(digest);
        if table.running.len() >= self.max_lookups {
            table.running.retain(|_, running| running.over > now);
        }
        if table.running.len() >= self.max_lookups {
            self.report(LookupResult::TurnedAway);
            return Err(fallback);
        }
        table.started += 1;
        let ends = EndOfLookup {
            shared: Arc::clone(&self.shared),
            digest,
            number: table.started,
        };
        let number = ends.number;
        let started = self.start(identity, fallback, ends).shared();
        let over = now + self.deadline.min(FAR) + GRACE;
        let running = started.downgrade().map(|lookup| RunningLookup {
            number,
            lookup,
            over,
        });
        table
            .running
            .extend(running.map(|running| (digest, running)));
        Ok((started, over))
    }

    /// The lookup itself, with its deadline. It remembers what it finds out.
    fn start(&self, identity: String, fallback: IdentityTier, ends: EndOfLookup) -> TierFuture {
        let (keep_for, deadline, report) = (self.keep_for, self.deadline, self.report.clone());
        let (policy, lookup) = (self.policy.clone(), Arc::clone(&self.lookup));
        Box::pin(async move {
            // Called with the first poll, so that no code of the application runs under the lock. A
            // panic of it would be that of whichever request polls, and the next request would ask
            // again.
            let answer = caught(Box::pin(timeout(deadline, async {
                lookup(identity).await
            })))
            .await;
            if answer.is_none() {
                let cause = "panicked and counts as failed";
                warn(&ends.shared.panicked, policy.as_ref(), &cause);
            }
            let answer = answer.and_then(Result::ok).unwrap_or(Err(LookupFailed));
            let found = match answer.map(|tier| tier_of(tier, policy.as_ref())) {
                Ok(Ok(tier)) => Ok(tier),
                Ok(Err(error)) => {
                    let cause = format_args!("returned parameters that are not used: {error}");
                    warn(&ends.shared.invalid, policy.as_ref(), &cause);
                    Err(LookupResult::Invalid)
                }
                Err(LookupFailed) => Err(LookupResult::Failed),
            };
            if let Some(report) = report {
                report(match found {
                    Ok(IdentityTier::Known(_) | IdentityTier::Own(_)) => LookupResult::Found,
                    Ok(IdentityTier::Unknown | IdentityTier::NeverLookedUp) => {
                        LookupResult::Unknown
                    }
                    Err(failed) => failed,
                });
            }
            let (tier, keep_for) = match found {
                Ok(tier) => (tier, keep_for),
                Err(_) => (fallback, keep_for.min(RETRY_FAILED_AFTER)),
            };
            lock(&ends.shared.table).cache.insert(
                ends.digest,
                tier.clone(),
                Instant::now(),
                keep_for,
            );
            tier
        })
    }
}

impl TierLookup for CachedTierLookup {
    fn find(&self, parts: &Parts) -> FoundKey {
        let Some(key) = self.extractor.extract(parts) else {
            return FoundKey::Now(None, FoundTier::Numbered(self.unknown.tier));
        };
        let digest = self.shared.digester.digest(&key);
        let remembered = lock(&self.shared.table).cache.get(digest, Instant::now());
        match remembered {
            Some(tier) => {
                self.report(LookupResult::Remembered);
                let (key, tier) = self.unknown.budget(key, tier);
                FoundKey::Now(key, tier)
            }
            None => self.look_up(key, digest),
        }
    }

    fn extractor(&self) -> &dyn KeyExtractor {
        &*self.extractor
    }

    fn reporting(&self, report: LookupReport) -> Arc<dyn TierLookup> {
        Arc::new(Self {
            report: Some(report),
            ..self.clone()
        })
    }

    fn check(&self) -> Result<(), ConfigError> {
        self.extractor.check()?;
        if self.entries > MAX_ENTRIES {
            let rule = format!(
                "at most {MAX_ENTRIES} identities are remembered: room for all is reserved"
            );
            return Err(ConfigError::new("cache", self.entries, rule));
        }
        if self.max_lookups == 0 {
            return Err(ConfigError::new(
                "lookups",
                0,
                "at least one lookup at a time, or no tier is ever known",
            ));
        }
        if self.deadline.is_zero() {
            return Err(ConfigError::new(
                "deadline of lookups",
                "0",
                "a lookup needs some time",
            ));
        }
        Ok(())
    }
}

impl CacheAndLookups {
    fn new(entries: usize) -> Arc<Self> {
        let table = Table {
            cache: TierCache::new(entries),
            running: HashMap::new(),
            started: 0,
        };
        let (digester, table) = (Digester::default(), Mutex::new(table));
        Arc::new(Self {
            digester,
            table,
            invalid: OncePerMinute::default(),
            panicked: OncePerMinute::default(),
        })
    }
}

fn warn(log: &OncePerMinute, policy: Option<&Policy>, cause: &dyn fmt::Display) {
    let name = policy.map_or("", Policy::name);
    log.warn(&format_args!(
        "a lookup of the limit {name:?} {cause}. The last known tier applies"
    ));
}

/// What an answer says of an identity.
///
/// # Errors
///
/// If it has parameters that the limit cannot have.
fn tier_of(answer: Option<Tier>, policy: Option<&Policy>) -> Result<IdentityTier, ConfigError> {
    let (Some(Tier(answer)), Some(policy)) = (answer, policy) else {
        return Ok(IdentityTier::Unknown);
    };
    Ok(match answer {
        Kind::Named(name) => policy
            .tier_named(&name)
            .map_or(IdentityTier::Unknown, IdentityTier::Known),
        Kind::Own(own) => IdentityTier::Own(policy.own(own?)?),
    })
}

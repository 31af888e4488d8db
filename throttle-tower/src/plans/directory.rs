//! Finds the tier of an identity: remembered, or looked up.

use std::collections::HashMap;
use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use http::request::Parts;
use throttle_core::{ConfigError, Key, KeyPart};
use tokio::time::{Instant, timeout};

use super::LookupFailed;
use super::cache::{Cache, Digest};
use super::flight::{Flight, Joined};
use super::told::{Told, Unknowns};
use crate::extract::KeyExtractor;
use crate::limit::{Found, TierLookup};
use crate::lock::lock;

/// How long a failed lookup is not repeated, at most.
const FAILED: Duration = Duration::from_secs(1);

/// A lookup under way: a tier's number if the identity is known, nothing if not; or it failed.
pub(super) type Answer = Pin<Box<dyn Future<Output = Result<Option<u8>, LookupFailed>> + Send>>;
pub(super) type Lookup = Arc<dyn Fn(String) -> Answer + Send + Sync>;

#[derive(Clone)]
pub(super) struct Directory {
    extractor: Arc<dyn KeyExtractor>,
    lookup: Lookup,
    pub(super) unknowns: Unknowns,
    entries: usize,
    good_for: Duration,
    /// Most lookups at a time.
    pub(super) lookups: usize,
    /// How long a lookup may take.
    pub(super) deadline: Duration,
    known: Arc<Known>,
}

/// What the clones of a layer share.
pub(super) struct Known {
    secrets: [RandomState; 2],
    tiers: Mutex<Tiers>,
}

struct Tiers {
    cache: Cache,
    flights: HashMap<Digest, Weak<Flight>>,
    /// Numbers the requests that wait.
    seats: u64,
}

impl Directory {
    pub(super) fn new(extractor: Arc<dyn KeyExtractor>, lookup: Lookup) -> Self {
        Self {
            extractor,
            lookup,
            unknowns: Unknowns { tier: 0, as_missing: false },
            entries: super::ENTRIES,
            good_for: super::GOOD_FOR,
            lookups: super::LOOKUPS,
            deadline: super::DEADLINE,
            known: Known::new(super::ENTRIES),
        }
    }

    pub(super) fn remember(&mut self, entries: usize, good_for: Duration) {
        (self.entries, self.good_for) = (entries, good_for);
        // More is refused when the layer is built.
        if entries <= super::MOST_ENTRIES {
            self.known = Known::new(entries);
        }
    }

    /// Lookups under way.
    #[cfg(test)]
    pub(super) fn flights(&self) -> usize {
        lock(&self.known.tiers).flights.len()
    }

    #[cold]
    fn look_up(&self, key: Key, digest: Digest) -> Found {
        let Some(identity) = identity(&key) else {
            let (key, tier) = self.unknowns.charge(key, Told::Unknown);
            return Found::Now(key, tier);
        };
        let directory = self.clone();
        Found::Later(Box::pin(async move {
            let told = match directory.join(digest, identity) {
                Ok(joined) => joined.await,
                Err(told) => told,
            };
            directory.unknowns.charge(key, told)
        }))
    }

    /// Joins the lookup of the identity that is under way, or begins one.
    ///
    /// # Errors
    ///
    /// What counts without a lookup: another request's has ended meanwhile, or as many as may be are under way.
    fn join(&self, digest: Digest, identity: String) -> Result<Joined, Told> {
        let mut tiers = lock(&self.known.tiers);
        if let Some(told) = tiers.cache.get(digest, Instant::now()) {
            return Err(told);
        }
        tiers.seats += 1;
        let seat = tiers.seats;
        if let Some(flight) = tiers.flights.get(&digest).and_then(Weak::upgrade) {
            return Ok(flight.join(seat));
        }
        let otherwise = tiers.cache.last(digest).unwrap_or(Told::Nothing);
        if tiers.flights.len() >= self.lookups {
            return Err(otherwise);
        }
        let (known, lookup) = (Arc::downgrade(&self.known), Arc::clone(&self.lookup));
        let (good_for, deadline) = (self.good_for, self.deadline);
        let work = async move {
            // Called with the first poll, so that no code of the application runs under the lock.
            let (told, good_for) = match timeout(deadline, async { lookup(identity).await }).await {
                Ok(Ok(tier)) => (tier.map_or(Told::Unknown, Told::Tier), good_for),
                // What was told before is better than nothing, and soon asked for again.
                Ok(Err(LookupFailed)) | Err(_) => (otherwise, good_for.min(FAILED)),
            };
            if let Some(known) = known.upgrade() {
                lock(&known.tiers).cache.keep(digest, told, Instant::now(), good_for);
            }
            told
        };
        let landing = Landing { known: Arc::downgrade(&self.known), digest };
        let flight = Flight::new(Box::pin(work), otherwise, landing);
        tiers.flights.insert(digest, Arc::downgrade(&flight));
        Ok(flight.join(seat))
    }
}

impl TierLookup for Directory {
    fn find(&self, parts: &Parts) -> Found {
        let Some(key) = self.extractor.extract(parts) else { return Found::Now(None, self.unknowns.tier) };
        let digest = self.known.digest(&key);
        let told = lock(&self.known.tiers).cache.get(digest, Instant::now());
        match told {
            Some(told) => {
                let (key, tier) = self.unknowns.charge(key, told);
                Found::Now(key, tier)
            }
            None => self.look_up(key, digest),
        }
    }

    fn extractor(&self) -> &dyn KeyExtractor {
        &*self.extractor
    }

    fn check(&self) -> Result<(), ConfigError> {
        self.extractor.check()?;
        if self.entries > super::MOST_ENTRIES {
            let rule = format!("at most {} identities are remembered: room for all is reserved", super::MOST_ENTRIES);
            return Err(ConfigError::new("cache", self.entries, rule));
        }
        if self.lookups == 0 {
            return Err(ConfigError::new("lookups", 0, "at least one lookup at a time, or no tier is ever known"));
        }
        if self.deadline.is_zero() {
            return Err(ConfigError::new("deadline of lookups", "0", "a lookup needs some time"));
        }
        Ok(())
    }
}

/// Clears a lookup's place when it is over, or no request waits for it any more.
pub(super) struct Landing {
    known: Weak<Known>,
    digest: Digest,
}

impl Landing {
    /// While the lookup is there: its place is its own. A request that comes now begins another one, even if an earlier
    /// one has not fetched the answer of this one yet, which would grow old.
    pub(super) fn clear(&self) {
        if let Some(known) = self.known.upgrade() {
            lock(&known.tiers).flights.remove(&self.digest);
        }
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        if let Some(known) = self.known.upgrade() {
            let mut tiers = lock(&known.tiers);
            // Not another one that has begun meanwhile.
            if tiers.flights.get(&self.digest).is_some_and(|flight| flight.strong_count() == 0) {
                tiers.flights.remove(&self.digest);
            }
        }
    }
}

impl Known {
    fn new(entries: usize) -> Arc<Self> {
        let tiers = Tiers { cache: Cache::new(entries), flights: HashMap::new(), seats: 0 };
        Arc::new(Self { secrets: Default::default(), tiers: Mutex::new(tiers) })
    }

    fn digest(&self, key: &Key) -> Digest {
        let [high, low] = [0, 1].map(|half: usize| self.secrets[half].hash_one(key));
        u128::from(high) << 64 | u128::from(low)
    }
}

/// A key as text; nothing if a part of it is none.
fn identity(key: &Key) -> Option<String> {
    let mut text = String::new();
    for (place, part) in key.expose_parts().enumerate() {
        if place > 0 {
            text.push(',');
        }
        match part {
            KeyPart::Text(part) => text.push_str(part),
            KeyPart::Bytes(part) => text.push_str(std::str::from_utf8(part).ok()?),
            KeyPart::Number(number) => text.push_str(&number.to_string()),
            KeyPart::Network(address, bits) => text.push_str(&format!("{address}/{bits}")),
            _ => return None,
        }
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn law_11_identities_are_told_apart_by_two_secrets() {
        let known = Known::new(1);
        for n in 0..100_u64 {
            let digest = known.digest(&Key::from(n));
            assert_ne!((digest >> 64) as u64, digest as u64, "128 bits, not 64 twice");
        }
    }

    #[test]
    fn identities_are_told_as_text() {
        let key = Key::builder().text("acme").bytes(b"ada").number(7).ip(Ipv4Addr::LOCALHOST.into()).finish();
        assert_eq!(identity(&key).as_deref(), Some("acme,ada,7,127.0.0.1/32"));
        assert_eq!(identity(&Key::CONSTANT).as_deref(), Some(""));
        assert_eq!(identity(&Key::builder().text("acme").bytes(b"\xff").finish()), None);
        assert_eq!(identity(&Key::missing()), None);
    }
}

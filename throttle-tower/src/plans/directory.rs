//! Finds out in which tier an identity is: what is known at once, and what has to be looked up.

use std::collections::HashMap;
use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use http::request::Parts;
use throttle_core::{ConfigError, Key, KeyPart};

use super::LookupFailed;
use super::cache::{Cache, Digest};
use super::flight::{Flight, Joined};
use crate::KeyExtractor;
use crate::limit::FutureKey;
use crate::lock::lock;

/// How long a failed lookup is not repeated, at most.
const FAILED: Duration = Duration::from_secs(1);

/// The number of no tier: who is told so is not known.
const STRANGER: u8 = u8::MAX;

/// A lookup under way: a tier's number if the identity is known, nothing if not; or it failed.
pub(super) type Answer = Pin<Box<dyn Future<Output = Result<Option<u8>, LookupFailed>> + Send>>;
pub(super) type Lookup = Arc<dyn Fn(String) -> Answer + Send + Sync>;

#[derive(Clone)]
pub(crate) struct Directory {
    pub(super) extractor: Arc<dyn KeyExtractor>,
    pub(super) lookup: Lookup,
    pub(super) unknown: u8,
    /// Whether strangers count as nobody in particular.
    unknown_as_missing: bool,
    pub(super) good_for: Duration,
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
    /// Numbers those who wait.
    seats: u64,
}

/// What a request is decided by, or what has to be waited for.
pub(crate) enum Found {
    Now(Option<Key>, u8),
    Later(FutureKey),
}

impl Directory {
    pub(super) fn new(extractor: Arc<dyn KeyExtractor>, lookup: Lookup) -> Self {
        let (good_for, known) = (super::GOOD_FOR, Known::new(super::ENTRIES));
        Self { extractor, lookup, unknown: 0, unknown_as_missing: false, good_for, known }
    }

    pub(super) fn bounded(mut self, entries: usize, good_for: Duration) -> Self {
        (self.known, self.good_for) = (Known::new(entries), good_for);
        self
    }

    pub(super) fn with_unknown_as_missing(mut self) -> Self {
        self.unknown_as_missing = true;
        self
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        self.extractor.check()
    }

    pub(crate) fn uses_route(&self) -> bool {
        self.extractor.uses_route()
    }

    /// Lookups under way.
    #[cfg(test)]
    pub(super) fn flights(&self) -> usize {
        lock(&self.known.tiers).flights.len()
    }

    /// Whose request it is and in which tier.
    #[inline]
    pub(crate) fn find(&self, parts: &Parts) -> Found {
        let Some(key) = self.extractor.extract(parts) else { return Found::Now(None, self.unknown) };
        let digest = self.known.digest(&key);
        let tier = lock(&self.known.tiers).cache.get(digest, Instant::now());
        match tier {
            Some(told) => {
                let (key, tier) = self.treat().apply(key, told);
                Found::Now(key, tier)
            }
            None => self.look_up(key, digest),
        }
    }

    fn treat(&self) -> Treat {
        Treat { unknown: self.unknown, as_missing: self.unknown_as_missing }
    }

    #[cold]
    fn look_up(&self, key: Key, digest: Digest) -> Found {
        let treat = self.treat();
        let Some(identity) = identity(&key) else {
            let (key, tier) = treat.apply(key, STRANGER);
            return Found::Now(key, tier);
        };
        let joined = self.join(digest, identity);
        Found::Later(Box::pin(async move { treat.apply(key, joined.await) }))
    }

    /// Of those who ask for the same identity at a time, the first begins the lookup and the others join it.
    fn join(&self, digest: Digest, identity: String) -> Joined {
        let mut tiers = lock(&self.known.tiers);
        tiers.seats += 1;
        let seat = tiers.seats;
        if let Some(flight) = tiers.flights.get(&digest).and_then(Weak::upgrade) {
            return flight.join(seat);
        }
        let otherwise = tiers.cache.last(digest).unwrap_or(self.unknown);
        let (known, lookup) = (Arc::downgrade(&self.known), Arc::clone(&self.lookup));
        let good_for = self.good_for;
        let work = async move {
            // Begun with the first poll, so that nobody else's code runs under the lock.
            let (tier, good_for) = match lookup(identity).await {
                Ok(tier) => (tier.unwrap_or(STRANGER), good_for),
                // What was known is better than nothing, and soon asked for again.
                Err(LookupFailed) => (otherwise, good_for.min(FAILED)),
            };
            if let Some(known) = known.upgrade() {
                lock(&known.tiers).cache.keep(digest, tier, Instant::now(), good_for);
            }
            tier
        };
        let landing = Landing { known: Arc::downgrade(&self.known), digest };
        let flight = Flight::new(Box::pin(work), otherwise, landing);
        tiers.flights.insert(digest, Arc::downgrade(&flight));
        flight.join(seat)
    }
}

/// What is made of what the lookup has told.
#[derive(Clone, Copy)]
struct Treat {
    unknown: u8,
    as_missing: bool,
}

impl Treat {
    fn apply(self, key: Key, told: u8) -> (Option<Key>, u8) {
        match told {
            STRANGER => ((!self.as_missing).then_some(key), self.unknown),
            tier => (Some(key), tier),
        }
    }
}

/// Clears a lookup's place when it is over, or nobody waits for it any more.
pub(super) struct Landing {
    known: Weak<Known>,
    digest: Digest,
}

impl Landing {
    /// While the lookup is there: its place is its own. Whoever comes now begins another one, even if somebody has not
    /// fetched the answer of this one yet, which would grow old.
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

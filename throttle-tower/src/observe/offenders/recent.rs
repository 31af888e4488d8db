use std::cell::OnceCell;
use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::mem;
use std::time::Duration;

use heavykeeper::CuckooTopK;
use throttle_core::PolicyName;
use tokio::time::Instant;

use super::offender::Offender;

/// A key of a limit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct LimitKey {
    pub(super) limit: PolicyName,
    /// The key's; `None` for the key that requests without one share.
    pub(super) digest: Option<u64>,
}

/// Keys that are listed of a minute.
const LISTED: usize = 128;

/// The sketch's buckets. Each has a cell for a newcomer and [`CELLS`] for keys with higher counts.
const BUCKETS: usize = 1024;
const CELLS: usize = 4;

/// A newcomer to a bucket displaces another one that was counted n times with the probability of
/// this to the power of n.
const DECAY: f64 = 0.9;

const SECONDS: u64 = 60;

/// Refusals of the running minute and of the one before. The sketch forgets nothing by itself, so a
/// minute is forgotten as a whole.
pub(super) struct Recent {
    started: Instant,
    running: Minute,
    before: Minute,
}

impl Recent {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            started: now,
            running: Minute::new(),
            before: Minute::new(),
        }
    }

    /// Counts a refusal of a key, and returns whether the key is listed and its text is not
    /// [set](Self::set_text).
    pub(super) fn add(&mut self, key: &LimitKey, now: Instant) -> bool {
        self.turn(now);
        let Minute { sketch, texts } = &mut self.running;
        let (displaced, is_new) = sketch.add_with_evicted(key, 1);
        if let Some(displaced) = displaced {
            texts.remove(&displaced);
        }
        if is_new {
            texts.insert(key.clone(), OnceCell::new());
        }
        texts.get(key).is_some_and(|text| text.get().is_none())
    }

    /// Sets the text of a key that is still listed.
    pub(super) fn set_text(&mut self, key: &LimitKey, text: Option<String>) {
        if let Some(known) = self.running.texts.get(key) {
            known.get_or_init(|| text);
        }
    }

    /// The keys with the highest counts, at most `n`.
    pub(super) fn list(&mut self, n: usize, now: Instant) -> Vec<Offender> {
        self.turn(now);
        let minutes = [&self.running, &self.before];
        let keys = minutes.iter().flat_map(|minute| minute.texts.keys());
        let keys: BTreeSet<&LimitKey> = keys.collect();
        let offender = |key: &LimitKey| {
            let counts = minutes.iter().map(|minute| minute.sketch.count(key));
            let mut texts = minutes
                .iter()
                .map(|minute| minute.texts.get(key)?.get()?.clone());
            Offender {
                policy: key.limit.clone(),
                digest: key.digest,
                refused: counts.sum(),
                shown: texts.find_map(|text| text),
            }
        };
        let mut offenders: Vec<Offender> = keys.into_iter().map(offender).collect();
        offenders.sort_by_key(|offender| Reverse(offender.refused));
        offenders.truncate(n.min(LISTED));
        offenders
    }

    fn turn(&mut self, now: Instant) {
        let minutes = now.saturating_duration_since(self.started).as_secs() / SECONDS;
        if minutes > 0 {
            let ended = mem::replace(&mut self.running, Minute::new());
            self.before = if minutes == 1 { ended } else { Minute::new() };
            self.started += Duration::from_secs(minutes * SECONDS);
        }
    }
}

struct Minute {
    sketch: CuckooTopK<LimitKey>,
    /// The keys that the sketch lists, each with the text of it, once it is known.
    texts: HashMap<LimitKey, OnceCell<Option<String>>>,
}

impl Minute {
    fn new() -> Self {
        // The sketch needs no secret: of the digests that it hashes, nothing is known to a client.
        Self {
            sketch: CuckooTopK::new(LISTED, BUCKETS, CELLS, DECAY),
            texts: HashMap::with_capacity(LISTED),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Recent {
        pub(in crate::observe::offenders) fn keys_listed(&self) -> usize {
            self.running.texts.len() + self.before.texts.len()
        }
    }
}

use std::cmp::Reverse;
use std::collections::HashMap;
use std::mem;
use std::time::Duration;

use heavykeeper::CuckooTopK;
use throttle_core::PolicyName;
use tokio::time::Instant;

/// A key of a limit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Refused {
    pub(super) limit: PolicyName,
    /// The key's; `None` for the key that requests without one share.
    pub(super) digest: Option<u64>,
}

/// Keys that are listed of a minute.
const LISTED: usize = 128;

/// The sketch's buckets. Each has a cell for a newcomer and [`CELLS`] for keys with higher counts.
const BUCKETS: usize = 1024;
const CELLS: usize = 4;

/// A newcomer to a bucket takes the place of another one that was counted n times with the
/// probability of this to the power of n.
const DECAY: f64 = 0.9;

const SECONDS: u64 = 60;

/// Refusals of the running minute and of the one before. The sketch forgets nothing by itself, so a
/// minute is forgotten as a whole.
pub(super) struct Recent {
    started: Instant,
    running: Minute,
    before: Minute,
    shows_text: bool,
}

impl Recent {
    pub(super) fn new(now: Instant, shows_text: bool) -> Self {
        Self {
            started: now,
            running: Minute::new(),
            before: Minute::new(),
            shows_text,
        }
    }

    /// Counts a refusal of a key, and returns whether the text of the key is
    /// [wanted](Self::set_text).
    pub(super) fn add(&mut self, key: &Refused, now: Instant) -> bool {
        self.turn(now);
        let Minute { sketch, listed } = &mut self.running;
        let (displaced, is_new) = sketch.add_with_evicted(key, 1);
        if let Some(displaced) = displaced {
            listed.remove(&displaced);
        }
        if is_new {
            listed.insert(
                key.clone(),
                if self.shows_text {
                    Text::Wanted
                } else {
                    Text::Known(None)
                },
            );
        }
        self.shows_text && matches!(listed.get(key), Some(Text::Wanted))
    }

    /// Keeps the text of a key, if the key is still listed.
    pub(super) fn set_text(&mut self, key: &Refused, text: Option<Box<str>>) {
        if let Some(known) = self.running.listed.get_mut(key) {
            *known = Text::Known(text);
        }
    }

    /// Returns the keys with the highest counts, and their texts.
    pub(super) fn list(&mut self, n: usize, now: Instant) -> Vec<(Refused, u64, Option<String>)> {
        self.turn(now);
        let minutes = [&self.running, &self.before];
        let mut keys: Vec<Refused> = minutes
            .iter()
            .flat_map(|minute| minute.listed.keys())
            .cloned()
            .collect();
        keys.sort_unstable();
        keys.dedup();
        let count = |key: &Refused| {
            minutes
                .iter()
                .map(|minute| minute.sketch.count(key))
                .sum::<u64>()
        };
        let mut counted: Vec<(Refused, u64)> = keys
            .into_iter()
            .map(|key| {
                let count = count(&key);
                (key, count)
            })
            .collect();
        counted.sort_by_key(|(_, count)| Reverse(*count));
        counted.truncate(n.min(LISTED));
        let text = |key: &Refused| {
            minutes
                .iter()
                .find_map(|minute| minute.listed.get(key)?.shown().map(str::to_owned))
        };
        counted
            .into_iter()
            .map(|(key, count)| {
                let text = text(&key);
                (key, count, text)
            })
            .collect()
    }

    /// Goes on to the present minute.
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
    sketch: CuckooTopK<Refused>,
    /// The keys that the sketch lists.
    listed: HashMap<Refused, Text>,
}

/// The text of a key.
enum Text {
    /// The key's next refusal asks for it.
    Wanted,
    Known(Option<Box<str>>),
}

impl Minute {
    fn new() -> Self {
        // The sketch needs no secret: of the digests that it hashes, nothing is known to a client.
        Self {
            sketch: CuckooTopK::new(LISTED, BUCKETS, CELLS, DECAY),
            listed: HashMap::with_capacity(LISTED),
        }
    }
}

impl Text {
    fn shown(&self) -> Option<&str> {
        match self {
            Self::Known(text) => text.as_deref(),
            Self::Wanted => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Recent {
        pub(in crate::observe::offenders) fn keys_listed(&self) -> usize {
            self.running.listed.len() + self.before.listed.len()
        }
    }
}

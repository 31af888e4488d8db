use std::cmp::Reverse;
use std::collections::HashMap;
use std::mem;
use std::time::Duration;

use heavykeeper::CuckooTopK;
use tokio::time::Instant;

/// A key of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Refused {
    /// Its place.
    pub(super) policy: usize,
    /// The key's.
    pub(super) digest: u64,
}

/// Keys that are listed of a minute.
const LISTED: usize = 128;

/// The sketch's buckets. Each has a cell for a newcomer and [`CELLS`] for keys with higher counts.
const BUCKETS: usize = 1024;
const CELLS: usize = 4;

/// A newcomer to a bucket takes the place of another one that was counted n times with the probability of this to the
/// power of n.
const DECAY: f64 = 0.9;

const SECONDS: u64 = 60;

/// Refusals of the running minute and of the one before. The sketch forgets nothing by itself, so a minute is forgotten
/// as a whole.
pub(super) struct Recent {
    started: Instant,
    running: Minute,
    before: Minute,
    shows_text: bool,
}

impl Recent {
    pub(super) fn new(now: Instant, shows_text: bool) -> Self {
        Self { started: now, running: Minute::new(), before: Minute::new(), shows_text }
    }

    /// Counts refusals of a key in the running minute, and returns whether its text is wanted.
    pub(super) fn add(&mut self, key: Refused, refusals: u64) -> bool {
        let (displaced, is_new) = self.running.sketch.add_with_evicted(&key, refusals);
        if !self.shows_text {
            return false;
        }
        let texts = &mut self.running.texts;
        if let Some(displaced) = displaced {
            texts.remove(&displaced);
        }
        if is_new {
            texts.insert(key, Text::Wanted);
        }
        matches!(texts.get(&key), Some(Text::Wanted))
    }

    /// Keeps the text of a key, if the key is still listed.
    pub(super) fn show(&mut self, key: Refused, text: Option<Box<str>>) {
        if let Some(kept) = self.running.texts.get_mut(&key) {
            *kept = Text::Known(text);
        }
    }

    /// The keys with the highest counts, with their texts.
    pub(super) fn list(&mut self, n: usize, now: Instant) -> Vec<(Refused, u64, Option<String>)> {
        self.turn(now);
        let minutes = [&self.running, &self.before];
        let mut keys: Vec<Refused> =
            minutes.iter().flat_map(|minute| minute.sketch.list()).map(|node| node.item).collect();
        keys.sort_unstable();
        keys.dedup();
        let count = |key: &Refused| minutes.iter().map(|minute| minute.sketch.count(key)).sum::<u64>();
        let mut counted: Vec<(Refused, u64)> = keys.into_iter().map(|key| (key, count(&key))).collect();
        counted.sort_by_key(|(_, count)| Reverse(*count));
        counted.truncate(n.min(LISTED));
        let text = |key: &Refused| minutes.iter().find_map(|minute| minute.text(key)).map(str::to_owned);
        counted.into_iter().map(|(key, count)| (key, count, text(&key))).collect()
    }

    /// When the running minute ends.
    pub(super) fn ends(&self) -> Instant {
        self.started + Duration::from_secs(SECONDS)
    }

    /// Goes on to the present minute.
    pub(super) fn turn(&mut self, now: Instant) {
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
    /// Of the listed keys, if texts are shown.
    texts: HashMap<Refused, Text>,
}

enum Text {
    /// The key's next refusal asks for it.
    Wanted,
    Known(Option<Box<str>>),
}

impl Minute {
    fn new() -> Self {
        Self { sketch: CuckooTopK::new(LISTED, BUCKETS, CELLS, DECAY), texts: HashMap::new() }
    }

    fn text(&self, key: &Refused) -> Option<&str> {
        match self.texts.get(key)? {
            Text::Known(text) => text.as_deref(),
            Text::Wanted => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Recent {
        pub(in crate::observe::offenders) fn texts_kept(&self) -> usize {
            self.running.texts.len() + self.before.texts.len()
        }
    }

    #[test]
    fn text_is_asked_for_at_each_refusal_until_it_is_known() {
        let now = Instant::now();
        let (mut recent, key) = (Recent::new(now, true), Refused { policy: 0, digest: 1 });
        assert_eq!([recent.add(key, 1), recent.add(key, 1)], [true; 2]);
        recent.show(key, None);
        assert!(!recent.add(key, 1), "no text is an answer, too");
        recent.show(Refused { policy: 1, digest: 1 }, Some("other".into()));
        assert_eq!((recent.texts_kept(), recent.list(9, now)), (1, vec![(key, 3, None)]));
        assert!(!Recent::new(now, false).add(key, 1));
    }

    #[test]
    fn counts_take_no_more_memory_than_documented() {
        let recent = Recent::new(Instant::now(), false);
        let bytes: usize = [&recent.running, &recent.before].map(|minute| minute.sketch.mem_bytes(|_| 0)).iter().sum();
        assert!((200_000..=210_000).contains(&bytes), "{bytes}");
    }
}

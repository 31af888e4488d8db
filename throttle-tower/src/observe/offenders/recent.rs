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

    /// Counts refusals of a key in the running minute, and returns whether it is to be [named](Self::name). The key
    /// itself may be left out, until it is listed.
    pub(super) fn add(&mut self, tag: u64, key: Option<Refused>, refusals: u64) -> bool {
        let minute = &mut self.running;
        let (displaced, is_new) = minute.sketch.add_with_evicted(&tag, refusals);
        if let Some(displaced) = displaced.and_then(|displaced| minute.listed.remove(&displaced)) {
            minute.wanting -= usize::from(displaced.is_wanting());
        }
        if is_new {
            let text = if self.shows_text { Text::Wanted } else { Text::Known(None) };
            let listed = Listed { key, text };
            minute.wanting += usize::from(listed.is_wanting());
            minute.listed.insert(tag, listed);
        }
        minute.wanting > 0 && minute.listed.get(&tag).is_some_and(Listed::is_wanting)
    }

    /// Keeps a key and its text, if it is still listed.
    pub(super) fn name(&mut self, tag: u64, key: Refused, text: Option<Box<str>>) {
        let minute = &mut self.running;
        if let Some(listed) = minute.listed.get_mut(&tag) {
            minute.wanting -= usize::from(listed.is_wanting());
            *listed = Listed { key: Some(key), text: Text::Known(text) };
        }
    }

    /// Returns the keys with the highest counts, and their texts. Call [`turn`](Self::turn) first, or minutes that are
    /// over still count.
    pub(super) fn list(&self, n: usize) -> Vec<(Refused, u64, Option<String>)> {
        let minutes = [&self.running, &self.before];
        let mut tags: Vec<u64> = minutes.iter().flat_map(|minute| minute.listed.keys()).copied().collect();
        tags.sort_unstable();
        tags.dedup();
        let count = |tag: &u64| minutes.iter().map(|minute| minute.sketch.count(tag)).sum::<u64>();
        let listed = |tag: &u64| minutes.map(|minute| minute.listed.get(tag)).into_iter().flatten();
        let named = tags.iter().filter_map(|tag| Some((listed(tag).find_map(|listed| listed.key)?, tag)));
        let mut counted: Vec<(Refused, u64, &u64)> = named.map(|(key, tag)| (key, count(tag), tag)).collect();
        counted.sort_by_key(|(key, count, _)| (Reverse(*count), *key));
        counted.truncate(n.min(LISTED));
        let text = |tag: &u64| listed(tag).find_map(Listed::text).map(str::to_owned);
        counted.into_iter().map(|(key, count, tag)| (key, count, text(tag))).collect()
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
    /// Of keys by their tags: most keys are counted and never listed, so more need not be known of them.
    sketch: CuckooTopK<u64>,
    /// What is listed by the sketch.
    listed: HashMap<u64, Listed>,
    /// So many of them are to be named.
    wanting: usize,
}

/// A key that is listed.
struct Listed {
    /// `None` until it is named.
    key: Option<Refused>,
    text: Text,
}

enum Text {
    /// The key's next refusal asks for it.
    Wanted,
    Known(Option<Box<str>>),
}

impl Minute {
    fn new() -> Self {
        let sketch = CuckooTopK::new(LISTED, BUCKETS, CELLS, DECAY);
        Self { sketch, listed: HashMap::with_capacity(LISTED), wanting: 0 }
    }
}

impl Listed {
    fn is_wanting(&self) -> bool {
        self.key.is_none() || matches!(self.text, Text::Wanted)
    }

    fn text(&self) -> Option<&str> {
        match &self.text {
            Text::Known(text) => text.as_deref(),
            Text::Wanted => None,
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

    const KEY: Refused = Refused { policy: 0, digest: 1 };

    #[test]
    fn key_is_listed_once_it_is_named() {
        let now = Instant::now();
        let mut recent = Recent::new(now, false);
        assert_eq!([recent.add(7, None, 1), recent.add(7, None, 1)], [true; 2]);
        assert!(recent.list(9).is_empty());
        recent.name(7, KEY, None);
        assert!(!recent.add(7, None, 1));
        assert_eq!(recent.list(9), [(KEY, 3, None)]);
        recent.turn(now + Duration::from_secs(SECONDS));
        assert!(recent.add(7, None, 2), "a new minute");
        assert_eq!(recent.list(9), [(KEY, 5, None)], "it is named in the minute before");
    }

    #[test]
    fn minute_ends_sixty_seconds_after_the_one_before_it() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut recent = Recent::new(start, false);
        for (seen, ends) in [(0, 60), (59, 60), (60, 120), (150, 180), (1_000, 1_020)] {
            recent.turn(after(seen));
            assert_eq!(recent.ends(), after(ends), "seen after {seen} s");
        }
    }
}

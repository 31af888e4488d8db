use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use throttle_core::Key;
use tokio::time::Instant;

use crate::lock::lock;

/// How long to pause after refusals that do not say it: at first for as long as the pace needs for one call, then twice
/// as long for each refusal that comes after a pause, until a call succeeds.
#[derive(Default)]
pub(super) struct Backoff {
    /// The number of keys, so that responses take no lock while no key is refused.
    count: AtomicUsize,
    pauses: Mutex<Pauses>,
}

#[derive(Default)]
struct Pauses {
    by_key: HashMap<Key, Pause>,
    /// The number of keys at which the next sweep removes forgotten ones.
    sweep_at: usize,
}

struct Pause {
    length: Duration,
    until: Instant,
    /// From then on a refusal is a first one again.
    forgotten_at: Instant,
}

impl Backoff {
    /// The end of the pause after a refusal. Refusals that come during a pause were of calls from before, so they do not
    /// prolong it.
    pub(super) fn refused(&self, key: &Key, now: Instant, first: Duration, longest: Duration) -> Instant {
        let mut pauses = self.lock();
        let length = match pauses.by_key.get(key) {
            Some(pause) if now < pause.until => return pause.until,
            Some(pause) if now < pause.forgotten_at => pause.length.saturating_mul(2),
            _ => first,
        };
        let length = length.min(longest);
        let until = now + length;
        pauses.sweep(now);
        pauses.by_key.insert(key.clone(), Pause { length, until, forgotten_at: until + longest });
        self.count.store(pauses.by_key.len(), Ordering::Release);
        until
    }

    /// The next refusal of this key is a first one.
    pub(super) fn succeeded(&self, key: &Key) {
        if self.count.load(Ordering::Acquire) > 0 {
            let mut pauses = self.lock();
            pauses.by_key.remove(key);
            self.count.store(pauses.by_key.len(), Ordering::Release);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Pauses> {
        lock(&self.pauses)
    }
}

impl Pauses {
    /// Only when the number of keys has doubled since the last sweep, which makes its cost constant per key.
    fn sweep(&mut self, now: Instant) {
        if self.by_key.len() >= self.sweep_at {
            self.by_key.retain(|_, pause| now < pause.forgotten_at);
            self.sweep_at = (2 * self.by_key.len()).max(64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Duration = Duration::from_millis(100);
    const LONGEST: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn shape_pauses_double_until_a_call_succeeds() {
        let (backoff, key, start) = (Backoff::default(), Key::from("key"), Instant::now());
        let pause = |now| backoff.refused(&key, now, FIRST, LONGEST).saturating_duration_since(now);
        let mut now = start;
        for doubled in [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600] {
            assert_eq!(pause(now), FIRST * doubled);
            assert_eq!(pause(now + FIRST / 2), FIRST * doubled - FIRST / 2, "of a call from before");
            now += FIRST * doubled;
        }
        backoff.succeeded(&Key::from("other"));
        assert_eq!(pause(now), LONGEST);
        backoff.succeeded(&key);
        assert_eq!(backoff.count.load(Ordering::Acquire), 0);
        assert_eq!(pause(now), FIRST);
    }

    #[tokio::test(start_paused = true)]
    async fn shape_refusals_long_ago_are_forgotten() {
        let (backoff, start) = (Backoff::default(), Instant::now());
        let key = Key::from("key");
        let until = backoff.refused(&key, start, FIRST, LONGEST);
        let just_known = until + LONGEST - Duration::from_nanos(1);
        assert_eq!(backoff.refused(&key, just_known, FIRST, LONGEST) - just_known, FIRST * 2);
        let later = just_known + FIRST * 2 + LONGEST;
        assert_eq!(backoff.refused(&key, later, FIRST, LONGEST) - later, FIRST);
        for number in 0..10_000_u64 {
            backoff.refused(&Key::from(number), start + FIRST * number as u32, FIRST, FIRST);
        }
        assert!(backoff.count.load(Ordering::Acquire) <= 64);
    }

    #[tokio::test(start_paused = true)]
    async fn shape_pause_without_a_pace_for_one_call_in_time_is_the_longest() {
        let (backoff, now) = (Backoff::default(), Instant::now());
        assert_eq!(backoff.refused(&Key::CONSTANT, now, LONGEST * 9, LONGEST), now + LONGEST);
    }
}

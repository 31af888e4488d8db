use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use throttle_core::Key;
use tokio::time::Instant;

use crate::lock::lock;

/// How long a pause is remembered at least after its end.
const REMEMBERED: Duration = Duration::from_secs(60);

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
    /// When forgotten keys are removed next; `None` before the first time.
    sweep_at: Option<Instant>,
}

struct Pause {
    /// Before it was lengthened by chance.
    length: Duration,
    until: Instant,
    /// From then on a refusal is a first one again.
    forgotten_at: Instant,
}

impl Backoff {
    /// The end of the pause after the refusal of a call that left and was refused at these instants. `lengthen` bounds a
    /// pause, and makes it longer by chance. A call that left before a pause says nothing of the time after it, so its
    /// refusal does not prolong it.
    pub(super) fn refused(
        &self,
        key: &Key,
        [left, now]: [Instant; 2],
        first: Duration,
        lengthen: impl Fn(Duration) -> Duration,
    ) -> Instant {
        let mut pauses = self.lock();
        let length = match pauses.by_key.get(key) {
            Some(pause) if left < pause.until => return pause.until,
            Some(pause) if now < pause.forgotten_at => pause.length.saturating_mul(2),
            _ => first,
        };
        let pause = lengthen(length);
        let until = now + pause;
        pauses.sweep(now);
        let forgotten_at = until + pause.max(REMEMBERED);
        pauses.by_key.insert(key.clone(), Pause { length: length.min(pause), until, forgotten_at });
        self.count.store(pauses.by_key.len(), Ordering::Release);
        until
    }

    /// A call that left then was not refused: the next refusal of this key is a first one.
    pub(super) fn succeeded(&self, key: &Key, left: Instant, now: Instant) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut pauses = self.lock();
        if pauses.by_key.get(key).is_some_and(|pause| left >= pause.until) {
            pauses.by_key.remove(key);
        }
        pauses.sweep(now);
        self.count.store(pauses.by_key.len(), Ordering::Release);
    }

    pub(super) fn forget(&self, key: &Key) {
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
    /// Not again before a while has passed, or the responses of many keys would each look through all of them.
    fn sweep(&mut self, now: Instant) {
        if self.sweep_at.is_none_or(|at| at <= now) {
            self.by_key.retain(|_, pause| now < pause.forgotten_at);
            self.sweep_at = Some(now + REMEMBERED);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Duration = Duration::from_millis(100);
    const LONGEST: Duration = Duration::from_secs(60);

    fn refused(backoff: &Backoff, key: &Key, left: Instant, now: Instant) -> Duration {
        let until = backoff.refused(key, [left, now], FIRST, |length| length.min(LONGEST));
        until.saturating_duration_since(now)
    }

    #[tokio::test(start_paused = true)]
    async fn shape_pauses_double_until_a_call_succeeds() {
        let (backoff, key, start) = (Backoff::default(), Key::from("key"), Instant::now());
        let pause = |now| refused(&backoff, &key, now, now);
        let mut now = start;
        for doubled in [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600] {
            assert_eq!(pause(now), FIRST * doubled);
            now += FIRST * doubled;
        }
        backoff.succeeded(&Key::from("other"), now, now);
        assert_eq!(pause(now), LONGEST);
        now += LONGEST;
        backoff.succeeded(&key, now, now);
        assert_eq!(backoff.count.load(Ordering::Acquire), 0);
        assert_eq!(pause(now), FIRST);
        backoff.forget(&key);
        assert_eq!(backoff.count.load(Ordering::Acquire), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn shape_calls_that_left_before_a_pause_neither_prolong_nor_forget_it() {
        let (backoff, key, start) = (Backoff::default(), Key::from("key"), Instant::now());
        assert_eq!(refused(&backoff, &key, start, start), FIRST);
        assert_eq!(refused(&backoff, &key, start, start + FIRST / 2), FIRST / 2, "the rest of it");
        assert_eq!(refused(&backoff, &key, start, start + FIRST * 3), Duration::ZERO, "it is over");
        let end = start + FIRST;
        backoff.succeeded(&key, end - Duration::from_nanos(1), end);
        assert_eq!(refused(&backoff, &key, end, end), FIRST * 2);
    }

    #[tokio::test(start_paused = true)]
    async fn shape_pause_that_was_lengthened_by_chance_doubles_what_it_was_before() {
        let (backoff, key, start) = (Backoff::default(), Key::from("key"), Instant::now());
        let mut now = start;
        for doubled in [1, 2, 4] {
            let until = backoff.refused(&key, [now; 2], FIRST, |length| length * 3 / 2);
            assert_eq!(until - now, FIRST * doubled * 3 / 2);
            now = until;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn shape_refusals_long_ago_are_forgotten() {
        let (backoff, start) = (Backoff::default(), Instant::now());
        let key = Key::from("key");
        let just_known = start + refused(&backoff, &key, start, start) + REMEMBERED - Duration::from_nanos(1);
        assert_eq!(refused(&backoff, &key, just_known, just_known), FIRST * 2);
        let later = just_known + FIRST * 2 + REMEMBERED;
        assert_eq!(refused(&backoff, &key, later, later), FIRST);
        let at = |number: u64| start + REMEMBERED * u32::try_from(number).unwrap() / 10;
        for number in 0..1_000 {
            refused(&backoff, &Key::from(number), at(number), at(number));
        }
        assert!(backoff.count.load(Ordering::Acquire) <= 64);
        // Nor do they make the responses of other keys take the lock for ever.
        backoff.succeeded(&key, later, at(1_020));
        assert_eq!(backoff.count.load(Ordering::Acquire), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn shape_pause_for_one_call_is_bounded_too() {
        let (backoff, now) = (Backoff::default(), Instant::now());
        let until = backoff.refused(&Key::CONSTANT, [now; 2], LONGEST * 9, |length| length.min(LONGEST));
        assert_eq!(until, now + LONGEST);
    }

    /// Of many keys, not each response looks through all of them.
    #[tokio::test(start_paused = true)]
    async fn shape_forgotten_refusals_are_removed_once_a_minute() {
        let (backoff, start) = (Backoff::default(), Instant::now());
        let counts = [0, 60, 100, 121].map(|second| {
            let now = start + Duration::from_secs(second);
            refused(&backoff, &Key::from(second), now, now);
            backoff.count.load(Ordering::Acquire)
        });
        assert_eq!(counts, [1, 2, 3, 2]);
    }
}

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use throttle_core::{Key, Rate};
use tokio::time::Instant;

use super::pause_queue::{PauseQueue, QueuePosition, Steps};
use crate::lock::lock;
use crate::time::time_for;

/// Keys whose calls must not leave yet although their slots have come: the upstream has asked for a pause, or the
/// process has stood still and the calls that were due meanwhile would leave all at once.
///
/// The schedule knows nothing of pauses and runs on. A call whose slot comes during a pause, or while earlier calls
/// still wait because of one, queues here, in the order of the slots. When the queue is empty the key is removed.
pub(super) struct PausedKeys {
    rate: Rate,
    /// A call that leaves later than this delays the calls behind it; `None` if lateness delays none.
    tolerance: Option<Duration>,
    /// How long a call takes at least, if units are not calls but microseconds.
    call: Option<Duration>,
    /// The number of keys, so that calls take no lock while no key is paused.
    count: AtomicUsize,
    queues: Mutex<Queues>,
}

#[derive(Default)]
struct Queues {
    by_key: HashMap<Key, PauseQueue>,
    /// How many queues were ever created.
    created: u64,
    /// The number of keys at which the next sweep removes idle ones.
    sweep_at: usize,
}

impl PausedKeys {
    pub(super) fn new(rate: Rate, tolerance: Option<Duration>) -> Self {
        Self { rate, tolerance, call: None, count: AtomicUsize::new(0), queues: Mutex::default() }
    }

    /// Units are microseconds, and a call takes at least so many.
    pub(super) fn counting_time(self, call: Option<Duration>) -> Self {
        Self { call, ..self }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// How many keys are paused, slowed down, or catching up.
    pub(super) fn active(&self, now: Instant) -> usize {
        if self.is_empty() { 0 } else { self.lock().by_key.values().filter(|queue| queue.is_active(now)).count() }
    }

    /// No call of this key leaves before `until`.
    pub(super) fn pause(&self, key: &Key, now: Instant, until: Instant) {
        if until > now {
            self.change(key, now, |queue| queue.pause(until, now));
        }
    }

    /// Before `until`, units of this key leave `spacing` apart, or at the rate if that is slower. Where units are time,
    /// calls do.
    pub(super) fn slow(&self, key: &Key, now: Instant, spacing: Duration, until: Instant) {
        let usual = self.call.unwrap_or_else(|| time_for(self.rate, 1));
        let slow = |queue: &mut PauseQueue| match self.call {
            Some(_) => queue.slow_calls(spacing, usual, until, now),
            None => queue.slow(spacing, until, now),
        };
        if spacing > usual {
            self.change(key, now, slow);
        } else if !self.is_empty()
            && let Some(queue) = self.lock().by_key.get_mut(key)
        {
            slow(queue);
        }
    }

    /// An upstream has announced a wait, in the response to a call that left then: the steps of a long one, or `None`.
    pub(super) fn announce(&self, key: &Key, now: Instant, left: Instant, steps: Option<Steps>) {
        if steps.is_some() {
            self.change(key, now, |queue| queue.announce(left, steps));
        } else if !self.is_empty()
            && let Some(queue) = self.lock().by_key.get_mut(key)
        {
            queue.announce(left, None);
        }
    }

    /// A call that left then was not refused.
    pub(super) fn succeeded(&self, key: &Key, left: Instant) {
        if !self.is_empty()
            && let Some(queue) = self.lock().by_key.get_mut(key)
        {
            queue.end_steps(left);
        }
    }

    pub(super) fn forget(&self, key: &Key) {
        if !self.is_empty() {
            self.remove(&mut self.lock(), key);
        }
    }

    /// When the last of `cost` units would leave whose slot comes after `delay`; `None` for a key that is not paused.
    pub(super) fn finish(&self, key: &Key, cost: u64, delay: Duration, now: Instant) -> Option<Duration> {
        if self.is_empty() {
            return None;
        }
        let mut queues = self.lock();
        let queue = queues.by_key.get(key)?;
        if queue.is_active(now) {
            return Some(queue.finish(delay, cost, now));
        }
        self.remove(&mut queues, key);
        None
    }

    /// Gives back the position of a call that was dropped.
    pub(super) fn give_back(&self, key: &Key, position: QueuePosition) {
        if let Some(queue) = self.lock().by_key.get_mut(key).filter(|queue| queue.number == position.queue) {
            queue.give_back(position.unit, position.units);
        }
    }

    /// Whether a call of `cost` units may leave whose slot or position has come. If not, its position in the queue.
    pub(super) fn leave(
        &self,
        key: &Key,
        cost: u64,
        due: Instant,
        position: Option<QueuePosition>,
        now: Instant,
    ) -> Result<(), QueuePosition> {
        let late = now.saturating_duration_since(due);
        let is_late = self.tolerance.is_some_and(|tolerance| late > tolerance);
        if is_late && position.is_none() {
            // The calls behind this one are due as well: from here on they queue.
            self.change(key, now, |_| {});
        } else if self.is_empty() {
            return Ok(());
        }
        let mut queues = self.lock();
        // A queue is removed when the time of its last position has come, and that call may leave.
        let Some(queue) = queues.by_key.get_mut(key) else { return Ok(()) };
        if position.is_none() && !is_late && !queue.is_active(now) {
            self.remove(&mut queues, key);
            return Ok(());
        }
        let position = position.filter(|position| position.queue == queue.number);
        let (unit, units) = match position {
            Some(position) => (position.unit, position.units),
            None => {
                let units = queue.units_of_call(cost, now);
                (queue.join(units, now), units)
            }
        };
        match queue.time(unit) {
            at if at > now => Err(QueuePosition { at, unit, units, queue: queue.number }),
            _ => {
                queue.leave(unit, units);
                if is_late && position.is_some() {
                    queue.delay_all(late);
                }
                queue.begin_step(now);
                Ok(())
            }
        }
    }

    fn change(&self, key: &Key, now: Instant, change: impl FnOnce(&mut PauseQueue)) {
        let mut queues = self.lock();
        if !queues.by_key.contains_key(key) {
            queues.sweep(now);
        }
        queues.created += 1;
        let number = queues.created;
        let request = self.call.map_or(1, |call| call.as_nanos().div_ceil(1_000).try_into().unwrap_or(u64::MAX).max(1));
        let new_queue = || PauseQueue::counting(request, number, now, time_for(self.rate, 1));
        change(queues.by_key.entry(key.clone()).or_insert_with(new_queue));
        self.count.store(queues.by_key.len(), Ordering::Release);
    }

    fn remove(&self, queues: &mut Queues, key: &Key) {
        queues.by_key.remove(key);
        self.count.store(queues.by_key.len(), Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, Queues> {
        lock(&self.queues)
    }
}

impl Queues {
    /// Removes idle queues: those of keys without further calls would stay for ever. A sweep only when the number of
    /// keys has doubled since the last one makes its cost constant per key.
    fn sweep(&mut self, now: Instant) {
        if self.by_key.len() >= self.sweep_at {
            self.by_key.retain(|_, queue| queue.is_needed(now));
            self.sweep_at = (2 * self.by_key.len()).max(64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A key that is paused for a second from now on. Calls may be up to 20 ms late without delaying others.
    fn paused() -> (PausedKeys, Key, Instant) {
        let paused_keys = PausedKeys::new(Rate::per_second(10), Some(Duration::from_millis(20)));
        let (key, start) = (Key::from("key"), Instant::now());
        paused_keys.pause(&key, start, start + Duration::from_secs(1));
        (paused_keys, key, start)
    }

    /// The process has stood still, and the times of all three positions have come: the first call leaves late, and the
    /// others as much later.
    #[tokio::test(start_paused = true)]
    async fn shape_late_call_delays_the_calls_behind_it() {
        let ms = |ms: u64| Duration::from_millis(ms);
        let (paused_keys, key, start) = paused();
        let positions = [(); 3].map(|()| paused_keys.leave(&key, 1, start, None, start).expect_err("paused"));
        assert_eq!(positions.map(|position| position.at), [1_000, 1_100, 1_200].map(|at| start + ms(at)));
        let leave = |position: QueuePosition, now| {
            paused_keys.leave(&key, 1, position.at, Some(position), now).map_err(|position| position.at)
        };
        let now = start + ms(1_350);
        assert_eq!(leave(positions[0], now), Ok(()));
        assert_eq!(leave(positions[1], now), Err(start + ms(1_450)));
        assert_eq!(leave(positions[2], now), Err(start + ms(1_550)));
    }

    #[tokio::test(start_paused = true)]
    async fn shape_call_that_is_hardly_late_delays_none_behind_it() {
        let ms = |ms: u64| Duration::from_millis(ms);
        let (paused_keys, key, start) = paused();
        let positions = [(); 2].map(|()| paused_keys.leave(&key, 1, start, None, start).expect_err("paused"));
        let leave = |position: QueuePosition, now| {
            paused_keys.leave(&key, 1, position.at, Some(position), now).map_err(|position| position.at)
        };
        assert_eq!(leave(positions[0], start + ms(1_020)), Ok(()));
        assert_eq!(leave(positions[1], start + ms(1_099)), Err(start + ms(1_100)));
        assert_eq!(leave(positions[1], start + ms(1_100)), Ok(()));
    }

    /// Neither the first late call nor one that is hardly late delays those behind it by its lateness.
    #[tokio::test(start_paused = true)]
    async fn shape_calls_that_are_late_together_leave_at_the_rate() {
        let ms = |ms: u64| Duration::from_millis(ms);
        let paused_keys = PausedKeys::new(Rate::per_second(10), Some(ms(20)));
        let (key, due) = (Key::from("key"), Instant::now());
        let leave = |position, now| paused_keys.leave(&key, 1, due, position, now).map_err(|position| position.at);
        assert_eq!(leave(None, due + ms(20)), Ok(()), "within the tolerance");
        assert!(paused_keys.is_empty());
        let now = due + ms(30);
        assert_eq!(leave(None, now), Ok(()));
        assert_eq!(leave(None, now), Err(now + ms(100)));
        assert_eq!(leave(None, now), Err(now + ms(200)));
    }

    #[tokio::test(start_paused = true)]
    async fn shape_every_unit_of_a_call_has_its_time_after_a_pause() {
        let ms = |ms: u64| Duration::from_millis(ms);
        let paused_keys = PausedKeys::new(Rate::per_second(10), None);
        let (key, start) = (Key::from("key"), Instant::now());
        paused_keys.pause(&key, start, start + ms(1_000));
        assert_eq!(paused_keys.finish(&key, 3, Duration::ZERO, start), Some(ms(1_200)));
        let first = paused_keys.leave(&key, 3, start, None, start).expect_err("paused");
        let second = paused_keys.leave(&key, 1, start, None, start).expect_err("paused");
        assert_eq!([first.at, second.at], [1_000, 1_300].map(|at| start + ms(at)));
        let now = first.at;
        assert!(paused_keys.leave(&key, 3, first.at, Some(first), now).is_ok());
        // All three units have left, so the next one is the second call's.
        paused_keys.pause(&key, now, start + ms(2_000));
        let waits = paused_keys.leave(&key, 1, second.at, Some(second), now).expect_err("paused again");
        assert_eq!(waits.at, start + ms(2_000));
    }

    #[tokio::test(start_paused = true)]
    async fn shape_faster_pace_is_heeded_by_later_calls() {
        let ms = |ms: u64| Duration::from_millis(ms);
        let paused_keys = PausedKeys::new(Rate::per_second(10), None);
        let (key, start) = (Key::from("key"), Instant::now());
        paused_keys.slow(&key, start, ms(100), start + ms(10_000));
        assert!(paused_keys.is_empty(), "the rate itself slows no call down");
        paused_keys.slow(&key, start, ms(101), start + ms(10_000));
        assert_eq!(paused_keys.active(start), 1);
        paused_keys.slow(&key, start, ms(50), start + ms(10_000));
        assert_eq!(paused_keys.active(start), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn shape_position_in_a_former_queue_is_not_given_back() {
        let ms = |ms: u64| Duration::from_millis(ms);
        let paused_keys = PausedKeys::new(Rate::per_second(10), None);
        let (key, start) = (Key::from("key"), Instant::now());
        let join = || paused_keys.leave(&key, 1, start, None, start).expect_err("paused");
        paused_keys.pause(&key, start, start + ms(1_000));
        let former = join();
        paused_keys.forget(&key);
        assert!(paused_keys.is_empty());
        paused_keys.pause(&key, start, start + ms(1_000));
        assert_eq!(join().at, start + ms(1_000));
        paused_keys.give_back(&key, former);
        assert_eq!(join().at, start + ms(1_100));
    }

    #[tokio::test(start_paused = true)]
    async fn shape_forgotten_key_leaves_the_others_paused() {
        let paused_keys = PausedKeys::new(Rate::per_second(10), None);
        let now = Instant::now();
        let keys = [Key::from("key"), Key::from("other")];
        for key in &keys {
            paused_keys.pause(key, now, now + Duration::from_secs(1));
        }
        paused_keys.forget(&keys[0]);
        assert!(paused_keys.leave(&keys[0], 1, now, None, now).is_ok());
        assert!(paused_keys.leave(&keys[1], 1, now, None, now).is_err());
        assert_eq!(paused_keys.active(now), 1);
    }

    /// However its queue is removed.
    #[tokio::test(start_paused = true)]
    async fn shape_key_whose_pause_is_over_leaves_the_others_paused() {
        let paused_keys = PausedKeys::new(Rate::per_second(10), None);
        let (key, other, start) = (Key::from("key"), Key::from("other"), Instant::now());
        let end = start + Duration::from_secs(1);
        paused_keys.pause(&other, start, start + Duration::from_secs(60));
        for by_leaving in [true, false] {
            paused_keys.pause(&key, start, end);
            assert_eq!(paused_keys.count.load(Ordering::Acquire), 2);
            if by_leaving {
                assert!(paused_keys.leave(&key, 1, end, None, end).is_ok());
            } else {
                assert_eq!(paused_keys.finish(&key, 1, Duration::ZERO, end), None);
            }
            assert_eq!(paused_keys.count.load(Ordering::Acquire), 1);
            assert!(paused_keys.leave(&other, 1, end, None, end).is_err());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn shape_key_is_removed_when_its_pause_is_over() {
        let paused_keys = PausedKeys::new(Rate::per_second(10), None);
        let (key, start) = (Key::from("key"), Instant::now());
        paused_keys.pause(&key, start, start);
        assert!(paused_keys.is_empty(), "a pause of no time is none");
        let end = start + Duration::from_secs(1);
        paused_keys.pause(&key, start, end);
        assert!(!paused_keys.is_empty());
        assert!(paused_keys.leave(&key, 1, end, None, end).is_ok());
        assert!(paused_keys.is_empty());
        // As soon as a call asks when it would leave, too.
        paused_keys.pause(&key, start, end);
        assert_eq!(paused_keys.finish(&key, 1, Duration::ZERO, start), Some(Duration::from_secs(1)));
        assert_eq!(paused_keys.finish(&key, 1, Duration::ZERO, end), None);
        assert!(paused_keys.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn shape_idle_keys_are_swept() {
        let paused_keys = PausedKeys::new(Rate::per_second(10), None);
        for number in 0..10_000_u64 {
            let now = Instant::now();
            paused_keys.pause(&Key::from(number), now, now + Duration::from_millis(10));
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert!(paused_keys.count.load(Ordering::Acquire) <= 64, "{:?}", paused_keys.count);
        assert!((5..=12).contains(&paused_keys.active(Instant::now())));
    }

    #[tokio::test(start_paused = true)]
    async fn shape_sweeps_remove_no_paused_key_and_become_rarer_with_their_number() {
        let paused_keys = PausedKeys::new(Rate::per_second(10), None);
        let now = Instant::now();
        for number in 0..200_u64 {
            paused_keys.pause(&Key::from(number), now, now + Duration::from_secs(1));
        }
        assert_eq!(paused_keys.active(now), 200);
        assert_eq!(paused_keys.lock().sweep_at, 256);
    }

    /// It comes when no call waits, so that only the steps are known of the key.
    #[tokio::test(start_paused = true)]
    async fn shape_call_that_comes_long_after_a_step_begins_the_next_one() {
        let second = Duration::from_secs(1);
        let paused_keys = PausedKeys::new(Rate::per_second(10), None);
        let (key, start) = (Key::from("key"), Instant::now());
        paused_keys.pause(&key, start, start + second);
        let steps = Steps { announced_at: start, until: start + 10 * second, length: second };
        paused_keys.announce(&key, start, start, Some(steps));
        let now = start + 3 * second;
        assert_eq!(paused_keys.active(now), 1);
        assert!(paused_keys.leave(&key, 1, now, None, now).is_ok());
        let next = paused_keys.leave(&key, 1, now, None, now).expect_err("the upstream may still refuse");
        assert_eq!(next.at, now + second);
    }

    /// However many other keys are paused meanwhile.
    #[tokio::test(start_paused = true)]
    async fn shape_steps_of_a_key_are_not_swept() {
        let second = Duration::from_secs(1);
        let paused_keys = PausedKeys::new(Rate::per_second(10), None);
        let (key, start) = (Key::from("key"), Instant::now());
        let steps = Steps { announced_at: start, until: start + 10 * second, length: second };
        paused_keys.announce(&key, start, start, Some(steps));
        for number in 0..200_u64 {
            paused_keys.pause(&Key::from(number), start, start + second);
        }
        assert!(paused_keys.leave(&key, 1, start, None, start).is_ok());
        let next = paused_keys.leave(&key, 1, start, None, start).expect_err("its steps are known");
        assert_eq!(next.at, start + second);
    }

    #[tokio::test(start_paused = true)]
    async fn shape_slowed_call_counted_in_time_is_known_to_the_microsecond() {
        let (ms, micros) = (Duration::from_millis, Duration::from_micros);
        let paused_keys = PausedKeys::new(Rate::new(1, micros(1)), None).counting_time(Some(ms(100)));
        let (key, start) = (Key::from("key"), Instant::now());
        paused_keys.slow(&key, start, ms(200), start + ms(20_000));
        let finish = paused_keys.finish(&key, 100_000, ms(250), start);
        assert_eq!(finish, Some(micros(2 * 249_999)), "each µs before its slot counts twice");
    }

    /// It leaves late, and delays none: what it waited for is forgotten.
    #[tokio::test(start_paused = true)]
    async fn shape_late_call_with_a_position_in_a_forgotten_queue_makes_no_new_one() {
        let ms = |ms: u64| Duration::from_millis(ms);
        let (paused_keys, key, start) = paused();
        let position = paused_keys.leave(&key, 1, start, None, start).expect_err("paused");
        paused_keys.forget(&key);
        let leaves = paused_keys.leave(&key, 1, position.at, Some(position), start + ms(2_000));
        assert!(leaves.is_ok() && paused_keys.is_empty());
    }
}

use std::time::Duration;

use smallvec::{SmallVec, smallvec};
use tokio::time::Instant;

use crate::time::{FAR, micros};

/// The calls of one key that leave later than their slots say: after a pause, or slowed down.
///
/// Positions are numbered by units, and the time of each follows from its number: the units of a stretch leave a fixed
/// spacing apart. A waiting call keeps its number. When the upstream asks for a slower pace, the times of later numbers
/// move, and never to an earlier instant for a call that has one. So no call overtakes another, and none has to be
/// woken.
pub(super) struct PauseQueue {
    /// Distinguishes it from earlier queues of the same key.
    pub(super) number: u64,
    /// The first unit without a position.
    first_free: u64,
    /// The first unit that has not left.
    first_waiting: u64,
    /// By their first units; there is always one.
    stretches: SmallVec<[Stretch; 2]>,
    /// No unit leaves before.
    paused_until: Instant,
    /// The pauses that follow, one after each call that leaves.
    steps: Option<Steps>,
    /// Until then units leave `slow_spacing` apart, and afterwards `spacing`.
    slow_until: Instant,
    slow_spacing: Duration,
    /// Until then each call counts as units that take so long, where units are time.
    call_spacing: Duration,
    /// One unit at the shaper's rate.
    spacing: Duration,
    /// How many units a call of one request has: one, or microseconds.
    request: u64,
}

/// A wait that is kept in pauses of a bounded length, one after each call that leaves.
pub(super) struct Steps {
    pub(super) announced_at: Instant,
    pub(super) until: Instant,
    pub(super) length: Duration,
}

/// A call's position in the queue of its key.
#[derive(Clone, Copy)]
pub(super) struct QueuePosition {
    pub(super) at: Instant,
    pub(super) unit: u64,
    /// How many units it has.
    pub(super) units: u64,
    /// The queue's number.
    pub(super) queue: u64,
}

#[derive(Clone, Copy)]
struct Stretch {
    first: u64,
    at: Instant,
    spacing: Duration,
}

impl Stretch {
    fn time(&self, unit: u64) -> Instant {
        let nanos = self.spacing.as_nanos().saturating_mul(u128::from(unit.saturating_sub(self.first)));
        let after = u64::try_from(nanos).map_or(FAR, Duration::from_nanos);
        self.at.checked_add(after).unwrap_or_else(|| self.at + FAR)
    }
}

impl PauseQueue {
    /// A call of one request has so many units.
    pub(super) fn counting(request: u64, number: u64, now: Instant, spacing: Duration) -> Self {
        Self {
            number,
            first_free: 0,
            first_waiting: 0,
            stretches: smallvec![Stretch { first: 0, at: now, spacing }],
            paused_until: now,
            steps: None,
            slow_until: now,
            slow_spacing: spacing,
            call_spacing: Duration::ZERO,
            spacing,
            request,
        }
    }

    /// Whether a call that came now would be delayed, or delay those behind it.
    pub(super) fn is_active(&self, now: Instant) -> bool {
        self.delays(now) || self.steps_left(now).is_some()
    }

    fn delays(&self, now: Instant) -> bool {
        self.slow_until > now || self.time(self.first_free) > now
    }

    fn steps_left(&self, now: Instant) -> Option<&Steps> {
        self.steps.as_ref().filter(|steps| steps.until > now)
    }

    /// Whether it must not be forgotten. Steps of a key that no call uses are, after some of them: the next call is then
    /// refused, and they begin again.
    pub(super) fn is_needed(&self, now: Instant) -> bool {
        const UNUSED: u32 = 4;
        let is_used = |steps: &Steps| now < self.paused_until + steps.length * UNUSED;
        self.delays(now) || self.steps_left(now).is_some_and(is_used)
    }

    /// When the last of `units` would leave whose slot comes after `delay`, as things stand. Calls with earlier slots
    /// will have joined the queue before it.
    pub(super) fn finish(&self, delay: Duration, units: u64, now: Instant) -> Duration {
        let slots = delay.as_nanos().div_ceil(self.spacing.as_nanos().max(1)).saturating_sub(1);
        let before = u64::try_from(slots).unwrap_or(u64::MAX);
        let first = self.first_free.saturating_add(before).saturating_add(self.slowed(before, now));
        let last = self.time(first.saturating_add(units.saturating_sub(self.request)));
        // An idle queue begins when the first of them joins it. Units that are µs show the difference.
        let idle =
            if self.request > 1 { now.saturating_duration_since(self.time(self.first_free)) } else { Duration::ZERO };
        let last = last + idle;
        let last = self.steps_left(now).map_or(last, |steps| last.max(self.time_in_steps(steps, first, now)));
        last.saturating_duration_since(now).max(delay)
    }

    /// How many units more the slots of so many become while calls are slowed down: each may be one of a single
    /// request.
    fn slowed(&self, slots: u64, now: Instant) -> u64 {
        let slow_slots = u128::from(slots.min(micros(self.slow_until.saturating_duration_since(now))));
        let more = u128::from(micros(self.call_spacing).saturating_sub(self.request));
        u64::try_from(slow_slots * more / u128::from(self.request)).unwrap_or(u64::MAX)
    }

    /// How many units a call of `units` counts as that joins now.
    pub(super) fn units_of_call(&self, units: u64, now: Instant) -> u64 {
        if self.slow_until > now { units.max(micros(self.call_spacing)) } else { units }
    }

    /// Joins the end of the queue. Returns the first of the units.
    pub(super) fn join(&mut self, units: u64, now: Instant) -> u64 {
        self.catch_up(now);
        let unit = self.first_free;
        self.first_free = unit.saturating_add(units);
        unit
    }

    /// Time that passes without calls is not saved up.
    fn catch_up(&mut self, now: Instant) {
        if self.time(self.first_free) < now {
            self.restretch(self.first_free, now, self.slow_until);
        }
    }

    /// Gives back the last position. Any other one passes unused.
    pub(super) fn give_back(&mut self, unit: u64, units: u64) {
        if unit.saturating_add(units) == self.first_free {
            self.first_free = unit;
        }
    }

    /// When a unit may leave.
    pub(super) fn time(&self, unit: u64) -> Instant {
        let stretch = self.stretches.iter().rev().find(|stretch| stretch.first <= unit).unwrap_or(&self.stretches[0]);
        // A late call whose time had come before the pause waits for its end, too.
        stretch.time(unit).max(self.paused_until)
    }

    /// Removes a call that leaves.
    pub(super) fn leave(&mut self, unit: u64, units: u64) {
        self.first_waiting = self.first_waiting.max(unit.saturating_add(units));
        while self.stretches.get(1).is_some_and(|next| next.first <= self.first_waiting) {
            self.stretches.remove(0);
        }
    }

    /// Delays every call that has not left.
    pub(super) fn delay_all(&mut self, by: Duration) {
        self.stretches.iter_mut().for_each(|stretch| stretch.at += by);
    }

    pub(super) fn pause(&mut self, until: Instant, now: Instant) {
        self.catch_up(now);
        // A call whose time has passed was dropped, or leaves at this moment.
        let more = until.saturating_duration_since(self.time(self.first_waiting).max(now));
        self.delay_all(more);
        self.paused_until = self.paused_until.max(until);
    }

    /// When a unit may leave if the upstream refuses until the end of its wait: one call for each step.
    fn time_in_steps(&self, steps: &Steps, unit: u64, now: Instant) -> Instant {
        let before = unit.saturating_sub(self.first_waiting).div_ceil(self.request);
        let before = u32::try_from(before).unwrap_or(u32::MAX);
        let next = self.time(self.first_waiting).max(now);
        next.checked_add(steps.length.saturating_mul(before)).map_or(steps.until, |at| at.min(steps.until.max(next)))
    }

    /// The response to a call that left before an announcement is no later word: it can only prolong the wait.
    pub(super) fn announce(&mut self, left: Instant, steps: Option<Steps>) {
        let earlier = self.steps.take_if(|former| left <= former.announced_at);
        self.steps = match (earlier, steps) {
            (Some(former), Some(steps)) => Some(Steps { until: steps.until.max(former.until), ..steps }),
            (former, steps) => steps.or(former),
        };
    }

    /// A call has left.
    pub(super) fn begin_step(&mut self, now: Instant) {
        if let Some(steps) = self.steps_left(now) {
            self.pause(steps.until.min(now + steps.length), now);
        }
    }

    /// A call was not refused. One that left before the wait was announced says nothing about it.
    pub(super) fn end_steps(&mut self, left: Instant) {
        self.steps.take_if(|steps| left > steps.announced_at);
    }

    /// Before `until`, units leave `spacing` apart, if that is slower than the shaper's rate.
    pub(super) fn slow(&mut self, spacing: Duration, until: Instant, now: Instant) {
        let was_slow = self.slow_until > now;
        if spacing <= self.spacing && !was_slow {
            return;
        }
        if !was_slow || spacing >= self.slow_spacing {
            // Every waiting call leaves later, the next one by as much as the spacing has grown.
            let until = if was_slow { until.max(self.slow_until) } else { until };
            let before = if was_slow { self.slow_spacing } else { self.spacing };
            let grown = if self.first_waiting > 0 { spacing - before } else { Duration::ZERO };
            let next = self.time(self.first_waiting) + grown;
            self.slow_spacing = spacing;
            self.restretch(self.first_waiting, next, until);
        } else {
            // A faster pace holds for later calls only: a call keeps its time.
            self.slow_spacing = spacing;
            let until = if spacing <= self.spacing { now } else { until };
            self.restretch(self.first_free, self.time(self.first_free), until);
        }
    }

    /// Before `until`, calls that join later leave `spacing` apart at least, if that is slower than the `usual` one.
    /// For units of a microsecond each.
    pub(super) fn slow_calls(&mut self, spacing: Duration, usual: Duration, until: Instant, now: Instant) {
        self.slow_until = match (self.slow_until > now, spacing <= usual) {
            (false, true) => return,
            (true, _) if spacing >= self.call_spacing => until.max(self.slow_until),
            (true, true) => now,
            (_, false) => until,
        };
        self.call_spacing = spacing;
    }

    /// Replaces the stretches from one unit on.
    fn restretch(&mut self, first: u64, at: Instant, slow_until: Instant) {
        self.slow_until = slow_until;
        self.stretches.retain(|stretch| stretch.first < first);
        let slow_for = slow_until.saturating_duration_since(at);
        if slow_for.is_zero() || self.slow_spacing <= self.spacing {
            self.stretches.push(Stretch { first, at, spacing: self.spacing });
            return;
        }
        let slow = Stretch { first, at, spacing: self.slow_spacing };
        // At least one unit: the unit after the end of the slow time keeps the slow spacing as well.
        let units = slow_for.as_nanos().div_ceil(slow.spacing.as_nanos());
        let then = first.saturating_add(u64::try_from(units).unwrap_or(u64::MAX));
        self.stretches.push(slow);
        self.stretches.push(Stretch { first: then, at: slow.time(then), spacing: self.spacing });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn times(queue: &PauseQueue, start: Instant, units: std::ops::Range<u64>) -> Vec<u128> {
        units.map(|unit| queue.time(unit).duration_since(start).as_millis()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn shape_calls_leave_at_the_rate_after_a_pause() {
        let start = Instant::now();
        let mut queue = PauseQueue::counting(1, 0, start, 100 * MS);
        queue.pause(start + 1_000 * MS, start);
        let units: Vec<u64> = [1, 2, 1].map(|units| queue.join(units, start)).into();
        assert_eq!(units, [0, 1, 3]);
        assert_eq!(times(&queue, start, 0..5), [1_000, 1_100, 1_200, 1_300, 1_400]);
        assert_eq!(queue.finish(Duration::ZERO, 1, start), 1_400 * MS);
        assert_eq!(queue.finish(200 * MS, 3, start), 1_700 * MS);
        assert_eq!(queue.finish(250 * MS, 1, start), 1_600 * MS, "two calls are due before it");
        // A longer pause moves every call that has not left.
        queue.leave(0, 1);
        queue.pause(start + 1_500 * MS, start + 1_000 * MS);
        assert_eq!(times(&queue, start, 1..5), [1_500, 1_600, 1_700, 1_800]);
        // A shorter one moves none.
        queue.pause(start + 1_200 * MS, start + 1_000 * MS);
        assert_eq!(times(&queue, start, 1..5), [1_500, 1_600, 1_700, 1_800]);
    }

    #[tokio::test(start_paused = true)]
    async fn shape_slower_pace_holds_for_waiting_calls_too() {
        let start = Instant::now();
        let mut queue = PauseQueue::counting(1, 0, start, 100 * MS);
        queue.slow(200 * MS, start + 1_000 * MS, start);
        for _ in 0..8 {
            queue.join(1, start);
        }
        assert_eq!(times(&queue, start, 0..8), [0, 200, 400, 600, 800, 1_000, 1_100, 1_200]);
        // Two have left, and the upstream says the same again: the slow time goes on.
        queue.leave(0, 1);
        queue.leave(1, 1);
        let now = start + 200 * MS;
        queue.slow(200 * MS, now + 1_000 * MS, now);
        assert_eq!(times(&queue, start, 2..9), [400, 600, 800, 1_000, 1_200, 1_300, 1_400]);
        // Slower still: the next one leaves farther from the last.
        queue.slow(300 * MS, now + 1_000 * MS, now);
        assert_eq!(times(&queue, start, 2..7), [500, 800, 1_100, 1_400, 1_500]);
        // Faster: for later calls only.
        queue.slow(150 * MS, now + 5_000 * MS, now);
        assert_eq!(times(&queue, start, 2..10), [500, 800, 1_100, 1_400, 1_500, 1_600, 1_700, 1_850]);
        queue.slow(50 * MS, now + 5_000 * MS, now);
        assert_eq!(times(&queue, start, 7..10), [1_600, 1_700, 1_800], "no faster than the rate");
    }

    #[tokio::test(start_paused = true)]
    async fn shape_idle_queue_saves_nothing_up() {
        let start = Instant::now();
        let mut queue = PauseQueue::counting(1, 0, start, 100 * MS);
        queue.slow(200 * MS, start + 10_000 * MS, start);
        let first = queue.join(1, start);
        queue.leave(first, 1);
        let now = start + 3_000 * MS;
        let next = queue.join(1, now);
        assert_eq!(queue.time(next), now);
        assert_eq!(queue.time(next + 1), now + 200 * MS);
        assert!(queue.is_active(now) && !queue.is_active(start + 20_000 * MS));
    }

    #[tokio::test(start_paused = true)]
    async fn shape_idle_queue_sends_no_burst_after_a_pause() {
        let start = Instant::now();
        let mut queue = PauseQueue::counting(1, 0, start, 100 * MS);
        queue.pause(start + 1_000 * MS, start);
        // A call that was dropped, and whose position passes unused.
        queue.join(1, start);
        let now = start + 10_000 * MS;
        queue.pause(now + 1_000 * MS, now);
        let units: Vec<u64> = (0..3).map(|_| queue.join(1, now)).collect();
        assert_eq!(units, [1, 2, 3]);
        assert_eq!(times(&queue, start, 1..4), [11_000, 11_100, 11_200]);
    }

    #[tokio::test(start_paused = true)]
    async fn shape_late_call_waits_for_the_longest_pause() {
        let start = Instant::now();
        let mut queue = PauseQueue::counting(1, 0, start, 100 * MS);
        queue.join(2, start);
        let now = start + 50 * MS;
        queue.pause(start + 1_000 * MS, now);
        assert_eq!(times(&queue, start, 0..1), [1_000], "though its time had come");
        queue.pause(start + 500 * MS, now);
        assert_eq!(times(&queue, start, 0..1), [1_000], "a shorter pause ends no longer one");
    }

    #[tokio::test(start_paused = true)]
    async fn shape_only_the_last_position_is_given_back() {
        let start = Instant::now();
        let mut queue = PauseQueue::counting(1, 0, start, 100 * MS);
        queue.pause(start + 1_000 * MS, start);
        let units: Vec<u64> = [1, 2, 3].map(|units| queue.join(units, start)).into();
        queue.give_back(units[1], 2);
        assert_eq!(queue.join(1, start), 6, "the call behind keeps its time");
        queue.give_back(6, 1);
        queue.give_back(units[2], 3);
        assert_eq!(queue.join(1, start), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn shape_calls_may_leave_out_of_order() {
        let start = Instant::now();
        let mut queue = PauseQueue::counting(1, 0, start, 100 * MS);
        queue.join(3, start);
        queue.leave(1, 1);
        queue.leave(0, 1);
        queue.pause(start + 1_000 * MS, start + 100 * MS);
        assert_eq!(times(&queue, start, 2..4), [1_000, 1_100]);
    }

    #[tokio::test(start_paused = true)]
    async fn shape_call_that_was_passed_waits_for_a_pause_that_moves_no_other() {
        let start = Instant::now();
        let mut queue = PauseQueue::counting(1, 0, start, 100 * MS);
        queue.join(3, start);
        queue.leave(1, 1);
        queue.pause(start + 150 * MS, start + 100 * MS);
        assert_eq!(times(&queue, start, 0..1), [150]);
        assert_eq!(times(&queue, start, 2..4), [200, 300]);
    }

    #[tokio::test(start_paused = true)]
    async fn shape_slower_pace_does_not_end_earlier() {
        let start = Instant::now();
        let mut queue = PauseQueue::counting(1, 0, start, 100 * MS);
        queue.slow(200 * MS, start + 1_000 * MS, start);
        queue.slow(250 * MS, start + 500 * MS, start);
        queue.join(6, start);
        assert_eq!(times(&queue, start, 0..6), [0, 250, 500, 750, 1_000, 1_100]);
    }

    #[tokio::test(start_paused = true)]
    async fn shape_pace_of_an_earlier_slow_time_is_forgotten() {
        let start = Instant::now();
        let mut queue = PauseQueue::counting(1, 0, start, 100 * MS);
        queue.slow(200 * MS, start + 400 * MS, start);
        queue.join(8, start);
        assert_eq!(times(&queue, start, 0..6), [0, 200, 400, 500, 600, 700]);
        queue.leave(0, 4);
        let now = start + 550 * MS;
        queue.slow(150 * MS, now + 1_000 * MS, now);
        assert_eq!(times(&queue, start, 4..7), [650, 800, 950], "waiting calls are slowed down again");
    }

    #[tokio::test(start_paused = true)]
    async fn shape_slow_time_ends_when_the_rate_is_allowed_again() {
        let start = Instant::now();
        let mut queue = PauseQueue::counting(1, 0, start, 100 * MS);
        queue.slow(200 * MS, start + 10_000 * MS, start);
        queue.slow(100 * MS, start + 10_000 * MS, start);
        assert!(!queue.is_active(start));
        queue.join(2, start);
        assert_eq!(times(&queue, start, 0..3), [0, 100, 200]);
        assert!(queue.is_active(start + 199 * MS) && !queue.is_active(start + 200 * MS));
        queue.slow(100 * MS, start + 10_000 * MS, start + 200 * MS);
        assert!(!queue.is_active(start + 200 * MS), "nor does the rate itself begin one");
    }

    #[tokio::test(start_paused = true)]
    async fn shape_faster_pace_may_end_earlier() {
        let start = Instant::now();
        let mut queue = PauseQueue::counting(1, 0, start, 100 * MS);
        queue.slow(200 * MS, start + 10_000 * MS, start);
        queue.slow(150 * MS, start + 400 * MS, start);
        queue.join(6, start);
        assert_eq!(times(&queue, start, 0..6), [0, 150, 300, 450, 550, 650]);
        assert!(!queue.is_active(start + 750 * MS));
    }

    #[tokio::test(start_paused = true)]
    async fn shape_pause_moves_a_slow_time_and_does_not_prolong_it() {
        let start = Instant::now();
        let mut queue = PauseQueue::counting(1, 0, start, 100 * MS);
        queue.slow(200 * MS, start + 400 * MS, start);
        queue.join(5, start);
        queue.pause(start + 5_000 * MS, start);
        assert_eq!(times(&queue, start, 0..5), [5_000, 5_200, 5_400, 5_500, 5_600]);
        let mut queue = PauseQueue::counting(1, 0, start, 100 * MS);
        queue.slow(200 * MS, start + 1_000 * MS, start);
        queue.pause(start + 5_000 * MS, start);
        assert!(queue.is_active(start + 4_999 * MS) && !queue.is_active(start + 5_000 * MS));
    }

    /// Whether the next call waits already, and is late, or has still to come.
    #[tokio::test(start_paused = true)]
    async fn shape_slower_pace_counts_from_the_last_departure() {
        let start = Instant::now();
        for waiting in [0, 3] {
            let mut queue = PauseQueue::counting(1, 0, start, 100 * MS);
            queue.join(1 + waiting, start);
            queue.leave(0, 1);
            let now = start + 150 * MS;
            queue.slow(200 * MS, now + 2_000 * MS, now);
            assert_eq!(times(&queue, start, 1..4), [200, 400, 600]);
        }
    }

    /// A pace that begins when the last one ends is compared with the rate.
    #[tokio::test(start_paused = true)]
    async fn shape_slow_time_is_over_at_its_end() {
        let start = Instant::now();
        let mut queue = PauseQueue::counting(1, 0, start, 100 * MS);
        queue.slow(200 * MS, start + 400 * MS, start);
        queue.join(5, start);
        queue.leave(0, 3);
        let end = start + 400 * MS;
        assert_eq!(times(&queue, start, 3..5), [500, 600]);
        queue.slow(250 * MS, end + 1_000 * MS, end);
        assert_eq!(times(&queue, start, 3..5), [650, 900]);
    }

    #[tokio::test(start_paused = true)]
    async fn shape_units_that_cannot_be_counted_leave_in_the_far_future() {
        let start = Instant::now();
        let mut queue = PauseQueue::counting(1, 0, start, 100 * MS);
        assert!(queue.time(u64::MAX) >= start + FAR);
        queue.join(u64::MAX, start);
        queue.join(2, start);
        assert!(queue.finish(Duration::ZERO, u64::MAX, start) >= FAR);
    }

    #[tokio::test(start_paused = true)]
    async fn shape_call_finishes_no_earlier_than_its_slot() {
        let start = Instant::now();
        let mut queue = PauseQueue::counting(1, 0, start, 100 * MS);
        queue.join(1, start);
        let now = start + 10_000 * MS;
        assert_eq!(queue.finish(200 * MS, 1, now), 200 * MS, "an idle queue delays no call");
        queue.pause(now + 1_000 * MS, now);
        assert_eq!(queue.finish(200 * MS, 1, now), 1_100 * MS);
    }

    #[tokio::test(start_paused = true)]
    async fn shape_repeated_slow_times_do_not_pile_up() {
        let start = Instant::now();
        let mut queue = PauseQueue::counting(1, 0, start, 100 * MS);
        for said in 0..1_000 {
            queue.slow(200 * MS, start + (1_000 + said) * MS, start);
        }
        assert_eq!(queue.stretches.len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn shape_stretches_of_calls_that_left_do_not_pile_up() {
        let mut now = Instant::now();
        let mut queue = PauseQueue::counting(1, 0, now, 100 * MS);
        for _ in 0..1_000 {
            let unit = queue.join(1, now);
            queue.leave(unit, 1);
            queue.slow(200 * MS, now + 1_000 * MS, now);
            now += 200 * MS;
        }
        assert!(queue.stretches.len() <= 4, "{}", queue.stretches.len());
    }

    /// At the start of the slowdown, and ten seconds later without a call.
    #[tokio::test(start_paused = true)]
    async fn shape_finish_of_a_call_counted_in_microseconds_includes_the_slowdown() {
        let start = Instant::now();
        let mut queue = PauseQueue::counting(100_000, 0, start, Duration::from_micros(1));
        queue.slow_calls(200 * MS, 100 * MS, start + 20_000 * MS, start);
        for now in [start, start + 10_000 * MS] {
            let finish = queue.finish(250 * MS, 100_000, now);
            assert_eq!(finish, Duration::from_micros(2 * 249_999), "each µs before its slot counts twice");
        }
    }

    fn steps(announced_at: Instant, until: Instant) -> Option<Steps> {
        Some(Steps { announced_at, until, length: 1_000 * MS })
    }

    #[tokio::test(start_paused = true)]
    async fn shape_queue_is_active_until_the_end_of_its_steps() {
        let start = Instant::now();
        let mut queue = PauseQueue::counting(1, 0, start, 100 * MS);
        queue.announce(start, steps(start, start + 10_000 * MS));
        assert!(queue.is_active(start + 9_999 * MS) && !queue.is_active(start + 10_000 * MS));
    }

    /// After four steps without a call, and never before.
    #[tokio::test(start_paused = true)]
    async fn shape_steps_that_no_call_uses_are_not_needed_for_long() {
        let start = Instant::now();
        let mut queue = PauseQueue::counting(1, 0, start, 100 * MS);
        queue.announce(start, steps(start, start + 60_000 * MS));
        assert!(queue.is_needed(start + 3_999 * MS) && !queue.is_needed(start + 4_000 * MS));
        queue.begin_step(start + 2_000 * MS);
        assert!(queue.is_needed(start + 6_999 * MS) && !queue.is_needed(start + 7_000 * MS));
        queue.announce(start + MS, steps(start + 2_000 * MS, start + 5_000 * MS));
        assert!(queue.is_needed(start + 4_999 * MS) && !queue.is_needed(start + 5_000 * MS), "their end");
    }

    #[tokio::test(start_paused = true)]
    async fn shape_response_to_a_call_from_before_an_announcement_only_prolongs_its_steps() {
        let start = Instant::now();
        let mut queue = PauseQueue::counting(1, 0, start, 100 * MS);
        let ends_after =
            |queue: &PauseQueue, ms: u32| queue.is_active(start + (ms - 1) * MS) && !queue.is_active(start + ms * MS);
        queue.announce(start, steps(start, start + 10_000 * MS));
        queue.announce(start, None);
        assert!(ends_after(&queue, 10_000), "a short wait ends none");
        queue.announce(start, steps(start, start + 5_000 * MS));
        assert!(ends_after(&queue, 10_000), "nor do earlier steps");
        queue.announce(start, steps(start, start + 20_000 * MS));
        assert!(ends_after(&queue, 20_000));
        queue.announce(start + MS, steps(start + MS, start + 5_000 * MS));
        assert!(ends_after(&queue, 5_000), "a later word");
        queue.announce(start + 2 * MS, None);
        assert!(!queue.is_active(start));
    }

    #[tokio::test(start_paused = true)]
    async fn shape_slots_after_a_slowdown_of_calls_counted_in_microseconds_are_the_usual_ones() {
        let start = Instant::now();
        let mut queue = PauseQueue::counting(100_000, 0, start, Duration::from_micros(1));
        queue.slow_calls(200 * MS, 100 * MS, start + 100 * MS, start);
        assert_eq!(queue.finish(250 * MS, 100_000, start), Duration::from_micros(100_000 + 249_999));
    }

    /// The steps wait for the next call, which comes no earlier than now.
    #[tokio::test(start_paused = true)]
    async fn shape_second_call_after_an_idle_time_finishes_a_step_from_now() {
        let start = Instant::now();
        let mut queue = PauseQueue::counting(1, 0, start, 100 * MS);
        queue.announce(start, steps(start, start + 60_000 * MS));
        let now = start + 10_000 * MS;
        assert_eq!(
            [100, 200, 300].map(|delay| queue.finish(delay * MS, 1, now)),
            [100, 1_000, 2_000].map(|ms| ms * MS)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn shape_success_of_a_call_that_left_no_later_than_the_announcement_ends_no_steps() {
        let start = Instant::now();
        let mut queue = PauseQueue::counting(1, 0, start, 100 * MS);
        let announced_at = start + MS;
        queue.announce(start, steps(announced_at, start + 10_000 * MS));
        for left in [start, announced_at] {
            queue.end_steps(left);
            assert!(queue.is_active(start));
        }
        queue.end_steps(announced_at + Duration::from_nanos(1));
        assert!(!queue.is_active(start));
    }

    /// A call that joins in the slow time counts as units that take as long as the upstream asks for.
    #[tokio::test(start_paused = true)]
    async fn shape_slower_pace_of_calls_does_not_end_earlier_and_a_faster_one_may() {
        let start = Instant::now();
        let until = |ms: u32| start + ms * MS;
        for (spacing, units_then, ends) in [
            (250, [250_000; 2], 20_000),
            (200, [200_000; 2], 20_000),
            (150, [150_000, 100_000], 1_000),
            (100, [100_000; 2], 0),
        ] {
            let mut queue = PauseQueue::counting(100_000, 0, start, Duration::from_micros(1));
            queue.slow_calls(200 * MS, 100 * MS, until(20_000), start);
            queue.slow_calls(spacing * MS, 100 * MS, until(1_000), start);
            assert_eq!([999, 1_000].map(|ms| queue.units_of_call(100_000, until(ms))), units_then, "{spacing}");
            assert!(ends == 0 || queue.is_active(until(ends) - MS), "{spacing}");
            assert!(!queue.is_active(until(ends)), "{spacing}");
        }
    }
}

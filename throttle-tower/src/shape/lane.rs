use std::time::Duration;

use smallvec::{SmallVec, smallvec};
use tokio::time::Instant;

use crate::time::FAR;

/// The turns of one key whose calls leave later than their slots say: after a pause, or slowed down.
///
/// Turns are numbered by units, and when each may leave follows from the number: units of a stretch leave so far apart. A call
/// that waits keeps its number; what an upstream says meanwhile moves the times, and never to an earlier one for those who
/// have been told one. So nobody overtakes, and nobody needs to be woken.
pub(super) struct Lane {
    /// Told from lanes that the same key had before.
    pub(super) number: u64,
    /// The first unit without a turn.
    taken: u64,
    /// The first unit that has not left.
    left: u64,
    /// By their first units; there is always one.
    stretches: SmallVec<[Stretch; 2]>,
    /// Nobody leaves before.
    until: Instant,
    /// Until then units leave `spacing` apart, and afterwards at the pace.
    slow_until: Instant,
    spacing: Duration,
    pace: Duration,
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

impl Lane {
    pub(super) fn new(number: u64, now: Instant, pace: Duration) -> Self {
        let whole = Stretch { first: 0, at: now, spacing: pace };
        let stretches = smallvec![whole];
        Self { number, taken: 0, left: 0, stretches, until: now, slow_until: now, spacing: pace, pace }
    }

    /// Whether anybody would be put off.
    pub(super) fn is_active(&self, now: Instant) -> bool {
        self.until > now || self.slow_until > now || self.time(self.taken) > now
    }

    /// When the last of so many units would leave whose slot is so far away, as things stand: those whose slots are still to
    /// come before it will have taken their turns by then.
    pub(super) fn finish(&self, delay: Duration, units: u64, now: Instant) -> Duration {
        let slots = delay.as_nanos().div_ceil(self.pace.as_nanos().max(1)).saturating_sub(1);
        let before = u64::try_from(slots).unwrap_or(u64::MAX);
        let last = self.taken.saturating_add(before).saturating_add(units - 1);
        self.time(last).max(self.until).saturating_duration_since(now).max(delay)
    }

    /// The first free turn, for so many units.
    pub(super) fn take(&mut self, units: u64, now: Instant) -> u64 {
        let unit = self.taken;
        if self.time(unit) < now {
            // Nothing is saved up while nobody comes.
            self.lay_out(unit, now, self.slow_until);
        }
        self.taken = unit.saturating_add(units);
        unit
    }

    /// Gives back the last turn. One that others have come behind passes unused.
    pub(super) fn give_back(&mut self, unit: u64, units: u64) {
        if unit.saturating_add(units) == self.taken {
            self.taken = unit;
        }
    }

    /// When a turn's time comes.
    pub(super) fn time(&self, unit: u64) -> Instant {
        let stretch = self.stretches.iter().rev().find(|stretch| stretch.first <= unit).unwrap_or(&self.stretches[0]);
        // Somebody may be late whose turn had come before the pause.
        stretch.time(unit).max(self.until)
    }

    /// A call of so many units leaves.
    pub(super) fn leave(&mut self, unit: u64, units: u64) {
        self.left = self.left.max(unit.saturating_add(units)).min(self.taken);
        while self.stretches.get(1).is_some_and(|next| next.first <= self.left) {
            self.stretches.remove(0);
        }
    }

    /// Puts off all who have not left.
    pub(super) fn put_off(&mut self, by: Duration) {
        self.stretches.iter_mut().for_each(|stretch| stretch.at += by);
    }

    pub(super) fn pause(&mut self, until: Instant, now: Instant) {
        // One whose time has passed has gone away, or leaves this moment.
        let more = until.saturating_duration_since(self.time(self.left).max(now));
        self.put_off(more);
        self.until = self.until.max(until);
    }

    /// Until then, units leave `spacing` apart, if that is farther than the pace.
    pub(super) fn slow(&mut self, spacing: Duration, until: Instant, now: Instant) {
        let was_slow = self.slow_until > now;
        if spacing <= self.pace && !was_slow {
            return;
        }
        if !was_slow || spacing >= self.spacing {
            // All who wait leave later: the next one too, by as much as it is farther from the last.
            let until = if was_slow { until.max(self.slow_until) } else { until };
            let before = if was_slow { self.spacing } else { self.pace };
            let next = self.time(self.left) + if self.left > 0 { spacing - before } else { Duration::ZERO };
            self.spacing = spacing;
            self.lay_out(self.left, next, until);
        } else {
            // Who has been told a time keeps it.
            self.spacing = spacing.max(self.pace);
            let until = if spacing <= self.pace { now } else { until };
            self.lay_out(self.taken, self.time(self.taken), until);
        }
    }

    /// Lays the turns from one unit on out anew.
    fn lay_out(&mut self, first: u64, at: Instant, slow_until: Instant) {
        let spacing = self.spacing;
        self.slow_until = slow_until;
        self.stretches.retain(|stretch| stretch.first < first);
        let slow = slow_until.saturating_duration_since(at);
        if slow.is_zero() || spacing <= self.pace {
            self.stretches.push(Stretch { first, at, spacing: self.pace });
            return;
        }
        let whole = Stretch { first, at, spacing };
        // At least one: what leaves at the end of the slow time is followed as slowly.
        let units = slow.as_nanos().div_ceil(spacing.as_nanos());
        let then = first.saturating_add(u64::try_from(units).unwrap_or(u64::MAX));
        self.stretches.push(whole);
        self.stretches.push(Stretch { first: then, at: whole.time(then), spacing: self.pace });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn times(lane: &Lane, start: Instant, units: std::ops::Range<u64>) -> Vec<u128> {
        units.map(|unit| lane.time(unit).duration_since(start).as_millis()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn shape_turns_after_a_pause_are_at_the_pace() {
        let start = Instant::now();
        let mut lane = Lane::new(0, start, 100 * MS);
        lane.pause(start + 1_000 * MS, start);
        let turns: Vec<u64> = [1, 2, 1].map(|units| lane.take(units, start)).into();
        assert_eq!(turns, [0, 1, 3]);
        assert_eq!(times(&lane, start, 0..5), [1_000, 1_100, 1_200, 1_300, 1_400]);
        assert_eq!(lane.finish(Duration::ZERO, 1, start), 1_400 * MS);
        assert_eq!(lane.finish(200 * MS, 3, start), 1_700 * MS);
        // A longer one moves all who have not left.
        lane.leave(0, 1);
        lane.pause(start + 1_500 * MS, start + 1_000 * MS);
        assert_eq!(times(&lane, start, 1..5), [1_500, 1_600, 1_700, 1_800]);
        // A shorter one nobody.
        lane.pause(start + 1_200 * MS, start + 1_000 * MS);
        assert_eq!(times(&lane, start, 1..5), [1_500, 1_600, 1_700, 1_800]);
    }

    #[tokio::test(start_paused = true)]
    async fn shape_slower_turns_also_for_those_who_wait() {
        let start = Instant::now();
        let mut lane = Lane::new(0, start, 100 * MS);
        lane.slow(200 * MS, start + 1_000 * MS, start);
        for _ in 0..8 {
            lane.take(1, start);
        }
        assert_eq!(times(&lane, start, 0..8), [0, 200, 400, 600, 800, 1_000, 1_100, 1_200]);
        // Two have left, and the upstream says the same again: the slow time goes on.
        lane.leave(0, 1);
        lane.leave(1, 1);
        let now = start + 200 * MS;
        lane.slow(200 * MS, now + 1_000 * MS, now);
        assert_eq!(times(&lane, start, 2..9), [400, 600, 800, 1_000, 1_200, 1_300, 1_400]);
        // Slower still: the next one leaves farther from the last.
        lane.slow(300 * MS, now + 1_000 * MS, now);
        assert_eq!(times(&lane, start, 2..7), [500, 800, 1_100, 1_400, 1_500]);
        // Faster: for those who come.
        lane.slow(150 * MS, now + 5_000 * MS, now);
        assert_eq!(times(&lane, start, 2..10), [500, 800, 1_100, 1_400, 1_500, 1_600, 1_700, 1_850]);
        lane.slow(50 * MS, now + 5_000 * MS, now);
        assert_eq!(times(&lane, start, 7..10), [1_600, 1_700, 1_800], "no faster than the pace");
    }

    #[tokio::test(start_paused = true)]
    async fn shape_an_idle_lane_saves_nothing_up() {
        let start = Instant::now();
        let mut lane = Lane::new(0, start, 100 * MS);
        lane.slow(200 * MS, start + 10_000 * MS, start);
        let first = lane.take(1, start);
        lane.leave(first, 1);
        let now = start + 3_000 * MS;
        let next = lane.take(1, now);
        assert_eq!(lane.time(next), now);
        assert_eq!(lane.time(next + 1), now + 200 * MS);
        assert!(lane.is_active(now) && !lane.is_active(start + 20_000 * MS));
    }
}

mod fleet;
mod known;
pub(super) mod shared;

use std::time::Duration;

use tokio::time::Instant;

use crate::time::FAR;

/// How long a refusal is remembered at least after the pause that followed it.
const REMEMBERED: Duration = Duration::from_secs(60);

/// What an upstream has asked of one key, beside its pace: to pause, or to call more slowly.
pub(super) struct Pauses {
    began: Instant,
    /// No call leaves before.
    until: Instant,
    /// The pauses that follow, one after each call that leaves.
    steps: Option<Steps>,
    /// Requests that leave before `slow_until` are `spacing` apart from the next one.
    slow_until: Instant,
    spacing: Duration,
    /// The last call that left while the key was slowed down, and its requests.
    left: Option<(Instant, u64)>,
    /// The last refusal that did not say how long to wait.
    refusal: Option<Refusal>,
}

struct Refusal {
    /// How long the pause after it is, before that was lengthened by chance.
    length: Duration,
    until: Instant,
    /// From then on a refusal is a first one again.
    forgotten_at: Instant,
}

/// A wait that is kept in pauses of a bounded length, one after each call that leaves.
pub(super) struct Steps {
    pub(super) announced_at: Instant,
    pub(super) until: Instant,
    pub(super) length: Duration,
}

impl Pauses {
    pub(super) fn new(now: Instant) -> Self {
        let (steps, left, refusal) = (None, None, None);
        Self {
            began: now,
            until: now,
            steps,
            slow_until: now,
            spacing: Duration::ZERO,
            left,
            refusal,
        }
    }

    /// When the next call may leave.
    pub(super) fn end(&self) -> Instant {
        let spaced = self
            .left
            .filter(|(at, _)| *at < self.slow_until)
            .map(|(at, requests)| at + self.spaces(requests));
        spaced.map_or(self.until, |spaced| spaced.max(self.until))
    }

    /// Whether calls that wait were held by a pause.
    pub(super) fn have_held(&self) -> bool {
        self.until > self.began
    }

    fn spaces(&self, requests: u64) -> Duration {
        self.spacing
            .saturating_mul(u32::try_from(requests).unwrap_or(u32::MAX))
    }

    fn steps_left(&self, now: Instant) -> Option<&Steps> {
        self.steps.as_ref().filter(|steps| steps.until > now)
    }

    /// Whether a call that comes now is delayed, or delays those behind it.
    pub(super) fn is_active(&self, now: Instant) -> bool {
        self.delays(now) || self.steps_left(now).is_some()
    }

    fn delays(&self, now: Instant) -> bool {
        self.slow_until > now || self.end() > now
    }

    /// Whether they must not be forgotten. Steps of a key that no call uses are, after some of
    /// them: the next call is then refused, and they begin again.
    pub(super) fn is_needed(&self, now: Instant) -> bool {
        const UNUSED: u32 = 4;
        let is_used = |steps: &Steps| now < self.until + steps.length * UNUSED;
        let is_remembered = |refusal: &Refusal| now < refusal.forgotten_at;
        self.delays(now)
            || self.steps_left(now).is_some_and(is_used)
            || self.refusal.as_ref().is_some_and(is_remembered)
    }

    /// Pauses until then. Returns by how much that is later than before.
    pub(super) fn pause(&mut self, until: Instant, now: Instant) -> Duration {
        let more = until.saturating_duration_since(self.end().max(now));
        self.until = self.until.max(until);
        more
    }

    /// A call has left. Returns how long the pause is that follows.
    pub(super) fn left(&mut self, at: Instant, requests: u64) -> Duration {
        if self.slow_until > at {
            self.left = Some((at, requests));
        }
        match self.steps_left(at) {
            Some(steps) => {
                let until = steps.until.min(at + steps.length);
                self.pause(until, at)
            }
            None => Duration::ZERO,
        }
    }

    /// The response to a call that left before an announcement is no later word: it can only
    /// prolong the wait.
    pub(super) fn announce(&mut self, left: Instant, steps: Option<Steps>) {
        let earlier = self.steps.take_if(|former| left <= former.announced_at);
        self.steps = match (earlier, steps) {
            (Some(former), Some(steps)) => Some(Steps {
                until: steps.until.max(former.until),
                ..steps
            }),
            (former, steps) => steps.or(former),
        };
    }

    /// The end of the pause after a refusal that does not say how long to wait: at first as long as
    /// `first`, then twice as long for each refusal that comes after a pause, until a call
    /// succeeds. `lengthen` bounds a pause, and makes it longer by chance.
    ///
    /// The call left and was refused at these instants. One that left before a pause says nothing
    /// of the time after it, so its refusal does not prolong the pause.
    pub(super) fn refused(
        &mut self,
        [left, now]: [Instant; 2],
        first: Duration,
        lengthen: impl Fn(Duration) -> Duration,
    ) -> Instant {
        let length = match &self.refusal {
            Some(former) if left < former.until => return former.until,
            Some(former) if now < former.forgotten_at => former.length.saturating_mul(2),
            _ => first,
        };
        let pause = lengthen(length);
        let until = now + pause;
        let forgotten_at = until + pause.max(REMEMBERED);
        self.refusal = Some(Refusal {
            length: length.min(pause),
            until,
            forgotten_at,
        });
        until
    }

    /// A call was not refused. One that left before a wait was announced, or before a pause was
    /// over, says nothing about it.
    pub(super) fn succeeded(&mut self, left: Instant) {
        self.steps.take_if(|steps| left > steps.announced_at);
        self.refusal.take_if(|refusal| left >= refusal.until);
    }

    /// Before `until`, requests leave `spacing` apart, if that is slower than the `usual` spacing.
    pub(super) fn slow(
        &mut self,
        spacing: Duration,
        usual: Duration,
        until: Instant,
        now: Instant,
    ) {
        let was_slow = self.slow_until > now;
        if spacing > usual {
            let longer = was_slow && spacing >= self.spacing;
            self.slow_until = if longer {
                until.max(self.slow_until)
            } else {
                until
            };
            self.spacing = spacing;
        } else if was_slow {
            (self.slow_until, self.left) = (now, None);
        }
    }

    /// How long a call waits for a number of calls before it that begin to leave at an instant,
    /// because of what the upstream has asked. They have so many requests.
    pub(super) fn wait(
        &self,
        calls: u64,
        requests: u64,
        start: Instant,
        length: Duration,
    ) -> Duration {
        let stepped = self.steps_left(start).map_or(Duration::ZERO, |steps| {
            let calls = u32::try_from(calls).unwrap_or(u32::MAX);
            steps
                .length
                .saturating_mul(calls)
                .min(steps.until.saturating_duration_since(start))
        });
        let slow_for = self.slow_until.saturating_duration_since(start);
        if slow_for.is_zero() || requests == 0 || self.spacing.is_zero() {
            return stepped.max(length);
        }
        let slow = u64::try_from(slow_for.as_nanos().div_ceil(self.spacing.as_nanos()))
            .unwrap_or(u64::MAX);
        let slow = slow.min(requests);
        let rest = length.as_nanos() * u128::from(requests - slow) / u128::from(requests);
        let rest = u64::try_from(rest).map_or(FAR, Duration::from_nanos);
        stepped
            .max(length)
            .max(self.spaces(slow).saturating_add(rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[tokio::test(start_paused = true)]
    async fn shape_call_waits_for_the_slow_ones_before_it() {
        let now = Instant::now();
        let mut pauses = Pauses::new(now);
        pauses.slow(200 * MS, 100 * MS, now + 1_000 * MS, now);
        assert_eq!(pauses.wait(3, 3, now, 300 * MS), 600 * MS);
        assert_eq!(pauses.wait(10, 10, now, 1_000 * MS), 1_500 * MS);
    }

    const FIRST: Duration = Duration::from_millis(100);
    const LONGEST: Duration = Duration::from_secs(60);

    fn refused(pauses: &mut Pauses, left: Instant, now: Instant) -> Duration {
        let until = pauses.refused([left, now], FIRST, |length| length.min(LONGEST));
        until.saturating_duration_since(now)
    }

    #[tokio::test(start_paused = true)]
    async fn shape_pause_that_was_lengthened_by_chance_doubles_what_it_was_before() {
        let mut now = Instant::now();
        let mut pauses = Pauses::new(now);
        for doubled in [1, 2, 4] {
            let until = pauses.refused([now; 2], FIRST, |length| length * 3 / 2);
            assert_eq!(until - now, FIRST * doubled * 3 / 2);
            now = until;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn shape_refusals_long_ago_are_forgotten() {
        let start = Instant::now();
        let mut pauses = Pauses::new(start);
        let end = start + refused(&mut pauses, start, start) + REMEMBERED;
        let just_known = end - Duration::from_nanos(1);
        assert!(pauses.is_needed(just_known) && !pauses.is_needed(end));
        assert_eq!(refused(&mut pauses, just_known, just_known), FIRST * 2);
        let later = just_known + FIRST * 2 + REMEMBERED;
        assert_eq!(refused(&mut pauses, later, later), FIRST);
    }
}

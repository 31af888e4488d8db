use std::sync::Mutex;
use std::time::Duration;

use throttle_core::Rate;
use tokio::time::Instant;

use crate::lock::lock;

/// The schedule of [`Key::CONSTANT`](throttle_core::Key::CONSTANT) where no other shaper can use
/// it: a lock and an instant of tokio's timers, without a store. It decides as the store in memory
/// does.
pub(super) struct OneKey {
    rate: Rate,
    /// How long one request takes.
    one: Length,
    state: Mutex<State>,
}

/// A length of time, and the part of a nanosecond beyond it: so many of those of which the rate's
/// count make one. Without it the pace would drift.
type Length = (Duration, u64);

struct State {
    /// When the next turn begins, and the part of a nanosecond beyond it.
    next: (Instant, u64),
    /// Calls that have left at once. Counted here, because another atomic number would take as long
    /// as the lock.
    sent: u64,
}

impl OneKey {
    pub(super) fn new(rate: Rate) -> Self {
        Self {
            rate,
            one: length(rate, 1),
            state: Mutex::new(State {
                next: (Instant::now(), 0),
                sent: 0,
            }),
        }
    }

    /// Lets a single request leave now, if it can.
    #[inline]
    pub(super) fn leave(&self) -> bool {
        let now = Instant::now();
        let mut state = lock(&self.state);
        let leaves = state.next.0 <= now;
        if leaves {
            state.take(now, self.one, self.rate);
            state.sent += 1;
        }
        leaves
    }

    /// Lets requests leave as of an instant. Returns when the next turn begins then. The call is
    /// not counted.
    ///
    /// # Errors
    ///
    /// When their turn begins, if that is later.
    pub(super) fn leave_as_of(&self, at: Instant, requests: u64) -> Result<Instant, Instant> {
        let mut state = lock(&self.state);
        if state.next.0 > at {
            return Err(state.next.0);
        }
        state.take(at, length(self.rate, requests), self.rate);
        Ok(state.next.0)
    }

    /// Calls that have left at once.
    pub(super) fn sent(&self) -> u64 {
        lock(&self.state).sent
    }

    pub(super) fn reset(&self) {
        lock(&self.state).next = (Instant::now(), 0);
    }
}

impl State {
    #[inline]
    fn take(&mut self, at: Instant, (length, part): Length, rate: Rate) {
        let (next, rest) = self.next;
        let part = if next == at { part + rest } else { part };
        self.next = match part.checked_sub(rate.count()) {
            Some(part) => (at + length + Duration::from_nanos(1), part),
            None => (at + length, part),
        };
    }
}

fn length(rate: Rate, requests: u64) -> Length {
    let (parts, count) = (
        rate.period().as_nanos() * u128::from(requests),
        u128::from(rate.count()),
    );
    let nanos = u64::try_from(parts / count).unwrap_or(u64::MAX);
    (Duration::from_nanos(nanos), (parts % count) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One departure an hour.
    #[test]
    fn shape_threads_on_one_key_leave_no_more_often_than_the_pace() {
        let one_key = OneKey::new(Rate::per_hour(1));
        let leave_all = || (0..10).filter(|_| one_key.leave()).count();
        let left: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(leave_all)).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .sum()
        });
        assert_eq!((left, one_key.sent()), (1, 1));
    }

    /// Turns that are taken when they begin are a second apart in the end, to the nanosecond.
    #[tokio::test(start_paused = true)]
    async fn shape_turns_of_one_key_do_not_drift() {
        for (count, cost) in [(3, 1), (7, 1), (7, 3), (999_983, 1)] {
            let (one_key, start) = (OneKey::new(Rate::per_second(count)), Instant::now());
            let last = (0..count).try_fold(start, |at, _| one_key.leave_as_of(at, cost));
            assert_eq!(
                last,
                Ok(start + Duration::from_secs(cost)),
                "{count} and {cost}"
            );
            let early = start + Duration::from_secs(cost) - Duration::from_nanos(1);
            assert_eq!(one_key.leave_as_of(early, 1), last.and_then(Err));
        }
    }
}

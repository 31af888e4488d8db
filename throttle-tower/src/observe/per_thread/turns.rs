//! Which requests of a thread read the clock: reading it costs as much as counting.

use std::sync::atomic::{AtomicU64, Ordering};

use super::chance::Chance;

/// What a thread keeps of its turns to read the clock, and of the report that it has begun. Only the thread itself
/// writes it, except for [`due`](Self::due).
#[derive(Default)]
pub(in crate::observe) struct Turns {
    /// Requests until the next turn.
    left: AtomicU64,
    /// Requests between the last two turns.
    step: AtomicU64,
    /// Turns that came soon after the one before, with no request between them.
    quick: AtomicU64,
    /// The time of the last turn, in µs.
    last: AtomicU64,
    chance: Chance,
    /// When the report is due that a request of this thread has begun, in µs; [`NONE`] if none was.
    pub(super) due: AtomicU64,
}

/// Stands for no report that is due.
pub(in crate::observe) const NONE: u64 = 0;

/// How turns follow each other.
pub(in crate::observe) struct Pace {
    /// Where requests are many, the time between two turns, in µs.
    pub(in crate::observe) apart: u64,
    /// The most requests between two turns.
    pub(in crate::observe) most: u64,
    /// So many requests have a turn each before any is left out, however soon they come.
    pub(in crate::observe) first: u64,
    /// Whether the number of requests between two turns varies by chance. Then no client that sends in a rhythm has all
    /// turns, or none.
    pub(in crate::observe) varies: bool,
}

/// For requests that show an observer what it would not find out later, by a turn: the standing of a key. The first
/// ones of a burst have a turn each, and then one in 130 or more.
#[cfg(feature = "offenders")]
pub(in crate::observe) const PATIENT: Pace = Pace { apart: 4_000, most: 128, first: 64, varies: true };

impl Turns {
    /// Whether it is the turn of the present request. Where requests are few, each has one; where there are many, one in
    /// so many.
    #[inline(always)]
    pub(in crate::observe) fn is_turn(&self) -> bool {
        let (next, is_turn) = self.left.load(Ordering::Relaxed).overflowing_sub(1);
        self.left.store(next, Ordering::Relaxed);
        is_turn
    }

    #[cfg(feature = "offenders")]
    /// Whether the turn of the present request has come, and was not taken yet.
    pub(in crate::observe) fn has_come(&self) -> bool {
        self.left.load(Ordering::Relaxed) == u64::MAX
    }

    #[inline(always)]
    pub(in crate::observe) fn due(&self) -> u64 {
        self.due.load(Ordering::Relaxed)
    }

    /// Notes the time of a turn, in µs, and how many requests pass until the next one.
    pub(in crate::observe) fn taken(&self, now: u64, pace: &Pace) {
        let since = now.saturating_sub(self.last.swap(now, Ordering::Relaxed));
        let step = self.step.load(Ordering::Relaxed);
        let quick = self.quick.load(Ordering::Relaxed);
        let (step, quick) = if since >= pace.apart {
            let step = step * pace.apart / since;
            (step, if step == 0 { 0 } else { quick })
        } else if step == 0 && quick < pace.first {
            (0, quick + 1)
        } else {
            ((step * 2).clamp(1, pace.most), quick)
        };
        self.step.store(step, Ordering::Relaxed);
        self.quick.store(quick, Ordering::Relaxed);
        let left = if pace.varies { self.chance.up_to(2 * step) } else { step };
        self.left.store(left, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEADY: Pace = Pace { apart: 5_000, most: 1 << 16, first: 0, varies: false };

    /// Which of a thread's requests, so many µs apart, have a turn.
    fn turns(pace: &Pace, requests: u64, apart: u64) -> Vec<u64> {
        let turns = Turns::default();
        let have_one = (0..requests).filter(|_| turns.is_turn());
        have_one.inspect(|request| turns.taken(1_000_000 + request * apart, pace)).collect()
    }

    #[test]
    fn each_of_few_requests_reads_the_clock_and_one_in_many_of_many() {
        assert_eq!(turns(&STEADY, 5, STEADY.apart), [0, 1, 2, 3, 4]);
        assert_eq!(turns(&STEADY, 20, 0), [0, 1, 3, 6, 11]);
        let taken = turns(&STEADY, 1_000_000, 1);
        assert!(taken.len() < 250, "{}", taken.len());
        let longest = taken.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
        assert!(longest <= 2 * STEADY.apart, "{longest} requests, a µs apart");
    }

    #[cfg(feature = "offenders")]
    #[test]
    fn the_first_requests_have_a_turn_each_however_soon_they_come() {
        let taken = turns(&PATIENT, 1_000_000, 0);
        assert!(taken[..=64].iter().copied().eq(0..=64), "{:?}", &taken[..=64]);
        assert_eq!(turns(&PATIENT, 10_000, 2 * PATIENT.apart).len(), 10_000, "few come");

        let turns = Turns::default();
        let take = |now| turns.taken(now, &PATIENT);
        let are_sparse = || turns.step.load(Ordering::Relaxed) > 0;
        (0..1_000).for_each(|_| take(1_000_000));
        assert!(are_sparse());
        take(2_000_000);
        assert!(!are_sparse(), "after a pause");
        (0..64).for_each(|_| take(2_000_000));
        assert!(!are_sparse(), "the first of another burst");
        take(2_000_000);
        assert!(are_sparse());
    }

    #[cfg(feature = "offenders")]
    #[test]
    fn requests_between_two_turns_vary_by_chance_up_to_twice_the_most() {
        let taken = turns(&PATIENT, 1_000_000, 0);
        let gaps: Vec<u64> = taken.windows(2).skip(100).map(|pair| pair[1] - pair[0] - 1).collect();
        assert!(gaps.iter().all(|gap| *gap <= 2 * PATIENT.most), "{gaps:?}");
        let bounds = [PATIENT.most / 2, PATIENT.most * 3 / 2];
        assert!(gaps.iter().any(|gap| *gap < bounds[0]) && gaps.iter().any(|gap| *gap > bounds[1]), "they are alike");
        let mean = gaps.iter().sum::<u64>() / gaps.len() as u64;
        assert!((PATIENT.most - 1..=PATIENT.most + 1).contains(&mean), "{mean}");
        for phase in 0..16 {
            let hit = taken.iter().filter(|request| **request % 16 == phase).count();
            assert!((taken.len() / 20..taken.len() / 12).contains(&hit), "a client in a rhythm has {hit} turns");
        }
    }
}

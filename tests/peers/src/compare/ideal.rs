//! What an exact limiter admits of given arrivals: at most `count` in any period, or a bucket of
//! `count` units that is refilled evenly.

use std::collections::VecDeque;
use std::time::Duration;

/// The promise that a limiter makes.
#[derive(Clone, Copy, Debug)]
pub struct Quota {
    pub count: u32,
    pub period: Duration,
}

impl Quota {
    /// The time in which a bucket gains one unit.
    pub fn interval(self) -> Duration {
        self.period / self.count
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Bucket,
    Window,
}

/// How many of these arrivals, in order of time, the exact limiter of a kind admits.
pub fn admitted(kind: Kind, quota: Quota, arrivals: &[Duration]) -> usize {
    match kind {
        Kind::Bucket => bucket(quota, arrivals),
        Kind::Window => window(quota, arrivals),
    }
}

/// GCRA: the debt, as the time until all units are back.
fn bucket(quota: Quota, arrivals: &[Duration]) -> usize {
    let most = quota.interval() * (quota.count - 1);
    let mut all_back = Duration::ZERO;
    let admitted = arrivals.iter().filter(|now| {
        let admits = all_back.saturating_sub(**now) <= most;
        if admits {
            all_back = all_back.max(**now) + quota.interval();
        }
        admits
    });
    admitted.count()
}

/// The log of the last period.
fn window(quota: Quota, arrivals: &[Duration]) -> usize {
    let mut log = VecDeque::new();
    let admitted = arrivals.iter().filter(|now| {
        while log
            .front()
            .is_some_and(|first: &Duration| *first + quota.period <= **now)
        {
            log.pop_front();
        }
        let admits = log.len() < quota.count as usize;
        if admits {
            log.push_back(**now);
        }
        admits
    });
    admitted.count()
}

/// The most of these instants, in order of time, within any half-open period.
pub fn most_within(instants: &[Duration], period: Duration) -> usize {
    let mut first = 0;
    let counts = instants.iter().enumerate().map(|(last, at)| {
        while *at - instants[first] >= period {
            first += 1;
        }
        last - first + 1
    });
    counts.max().unwrap_or(0)
}

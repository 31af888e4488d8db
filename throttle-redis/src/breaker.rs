//! When to stop asking a server that does not answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};

use crate::counters::Counters;
use crate::stats::Count;

/// Counts failures in a row. At a threshold the breaker opens: no request asks the store until a
/// sign of life half opens the breaker. Then one decision at a time asks, and the first that
/// succeeds closes it.
///
/// The threshold is for what may be chance. A refusal is not: it opens the breaker at the second
/// failure, or a service with few requests would count as healthy while none of them is decided.
pub(crate) struct Breaker {
    state: AtomicU8,
    failures: AtomicU32,
    /// Whether one of those failures was an error, not a late answer.
    is_faulty: AtomicBool,
    on_trial: AtomicBool,
    threshold: u32,
    counters: Arc<Counters>,
}

/// How a call to the store failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The answer did not arrive in time. The server may be healthy but overloaded.
    Late,
    /// The server cannot be reached, or answers with errors.
    Fault,
    /// The server answered that it does not do what a decision needs.
    Refusal,
}

/// Failures in a row of which the last is a refusal that open the breaker.
const REFUSALS: u32 = 2;

const CLOSED: u8 = 0;
const HALF_OPEN: u8 = 1;
const OPEN: u8 = 2;

impl Breaker {
    pub(crate) fn new(threshold: u32, counters: Arc<Counters>) -> Self {
        counters.breaker(None, Some(CLOSED));
        Self {
            state: AtomicU8::new(CLOSED),
            failures: AtomicU32::new(0),
            is_faulty: AtomicBool::new(false),
            on_trial: AtomicBool::new(false),
            threshold,
            counters,
        }
    }

    /// Returns permission to ask, if the server may be asked.
    #[inline]
    pub(crate) fn permission(&self) -> Option<Permission<'_>> {
        match self.state.load(Ordering::Acquire) {
            CLOSED => Some(Permission(None)),
            HALF_OPEN if !self.on_trial.swap(true, Ordering::AcqRel) => {
                Some(Permission(Some(&self.on_trial)))
            }
            _ => None,
        }
    }

    /// Records an answer that arrived in time. Returns whether that closed the breaker.
    #[inline]
    pub(crate) fn succeed(&self) -> bool {
        if self.failures.load(Ordering::Relaxed) != 0 {
            self.failures.store(0, Ordering::Relaxed);
            self.is_faulty.store(false, Ordering::Relaxed);
        }
        // An answer that was on its way when the breaker opened says nothing about the present.
        self.state.load(Ordering::Relaxed) == HALF_OPEN && self.turns(HALF_OPEN, CLOSED)
    }

    /// Records an answer that was late or missing. Returns whether that opened the breaker.
    pub(crate) fn fail(&self, failure: Failure) -> bool {
        if failure != Failure::Late {
            self.is_faulty.store(true, Ordering::Relaxed);
        }
        let threshold = match failure {
            Failure::Refusal => self.threshold.min(REFUSALS),
            _ => self.threshold,
        };
        let failures = self
            .failures
            .fetch_add(1, Ordering::Relaxed)
            .saturating_add(1);
        match self.state.load(Ordering::Acquire) {
            CLOSED if failures >= threshold => self.turns(CLOSED, OPEN),
            HALF_OPEN => self.turns(HALF_OPEN, OPEN),
            _ => false,
        }
    }

    fn turns(&self, from: u8, to: u8) -> bool {
        let turned = self
            .state
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
        if turned.is_ok() {
            self.counters.breaker(Some(from), Some(to));
            if to == OPEN {
                self.counters.count(Count::BreakerOpened);
            }
        }
        turned.is_ok()
    }

    /// Whether all failures since the last success were late answers.
    pub(crate) fn is_late_only(&self) -> bool {
        !self.is_faulty.load(Ordering::Relaxed)
    }

    /// Forgets failures that were late answers only: they were the fault of a connection that has
    /// been replaced.
    pub(crate) fn excuse_late(&self) {
        if self.is_late_only() {
            self.failures.store(0, Ordering::Relaxed);
            let _ = self.turns(HALF_OPEN, CLOSED) || self.turns(OPEN, CLOSED);
        }
    }

    /// Records that the server gave a sign of life.
    pub(crate) fn half_open(&self) {
        self.turns(OPEN, HALF_OPEN);
    }

    pub(crate) fn is_open(&self) -> bool {
        self.state.load(Ordering::Acquire) == OPEN
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state.load(Ordering::Acquire) == CLOSED
    }
}

impl Drop for Breaker {
    fn drop(&mut self) {
        self.counters.breaker(Some(*self.state.get_mut()), None);
    }
}

/// Permission to ask once. A trial ends when this is dropped, whatever its outcome.
#[derive(Debug, Default)]
pub(crate) struct Permission<'a>(Option<&'a AtomicBool>);

impl Drop for Permission<'_> {
    fn drop(&mut self) {
        if let Some(on_trial) = self.0 {
            on_trial.store(false, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Failure::{Fault, Late, Refusal};
    use super::*;

    fn opening_at(threshold: u32) -> Breaker {
        Breaker::new(threshold, Counters::new(None))
    }

    #[test]
    fn failures_in_a_row_open_it_and_successes_start_the_count_anew() {
        let breaker = opening_at(3);
        for _ in 0..5 {
            assert!(!breaker.fail(Fault) && !breaker.fail(Late));
            assert!(!breaker.succeed(), "it was not open");
        }
        assert!(
            !breaker.fail(Late) && !breaker.fail(Fault) && breaker.fail(Late),
            "the third in a row"
        );
        assert!(breaker.permission().is_none());
        assert!(!breaker.fail(Fault), "it opens once");
        assert!(
            !breaker.succeed() && breaker.is_open(),
            "a late answer does not close it"
        );
    }

    #[test]
    fn refusal_opens_it_at_the_second_failure() {
        let breaker = opening_at(9);
        assert!(!breaker.fail(Refusal) && !breaker.succeed());
        assert!(!breaker.fail(Late) && breaker.fail(Refusal) && !breaker.is_late_only());
        assert!(opening_at(1).fail(Refusal), "the threshold is lower");
    }

    #[test]
    fn one_error_among_late_answers_is_remembered_until_a_success() {
        let breaker = opening_at(2);
        assert!(!breaker.fail(Late) && breaker.fail(Late) && breaker.is_late_only());
        breaker.half_open();
        assert!(breaker.fail(Late) && breaker.is_late_only());
        breaker.fail(Fault);
        breaker.fail(Late);
        assert!(!breaker.is_late_only());
        breaker.half_open();
        assert!(breaker.succeed() && breaker.is_late_only());
    }

    #[test]
    fn one_trial_at_a_time_decides() {
        let breaker = opening_at(1);
        assert!(breaker.fail(Fault));
        breaker.half_open();
        let trial = breaker.permission().expect("a trial");
        assert!(breaker.permission().is_none(), "one at a time");
        drop(trial);
        let trial = breaker.permission().expect("the one before was given up");
        assert!(breaker.fail(Fault) && breaker.is_open());
        drop(trial);
        breaker.half_open();
        assert!(breaker.succeed() && breaker.is_closed());
        assert!(breaker.permission().is_some() && breaker.permission().is_some());
        breaker.half_open();
        assert!(
            breaker.is_closed(),
            "only an open breaker becomes half open"
        );
    }

    /// An answer that was on its way begins the count of failures anew.
    #[test]
    fn one_trial_that_fails_opens_it_again_whatever_was_answered_meanwhile() {
        let breaker = opening_at(3);
        for _ in 0..3 {
            breaker.fail(Fault);
        }
        assert!(breaker.is_open() && !breaker.succeed());
        breaker.half_open();
        assert!(breaker.fail(Late) && breaker.is_open());
    }
}

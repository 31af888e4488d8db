//! What a backend and its clones have done: counted here, and reported to metrics if there are any.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use throttle_core::BackendErrorKind;

use crate::stats::{COUNTS, Count, Stats};

pub(crate) struct Counters {
    counts: [AtomicU64; COUNTS],
    reporter: Option<Box<dyn Reporter>>,
}

/// Reports what is counted to somewhere else.
pub(crate) trait Reporter: Send + Sync {
    fn count(&self, count: Count);

    fn failed(&self, why: BackendErrorKind);

    /// A call that carried some decisions has ended.
    fn called(&self, result: CallResult, decisions: usize);

    /// One more decision waits, or one less. Returns whether that was reported.
    fn waits(&self, more: bool) -> bool;

    /// A breaker begins, changes its state or ends. The states are closed, half open and open.
    fn breaker(&self, from: Option<u8>, to: Option<u8>);
}

/// How a call that carried decisions ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CallResult {
    Ok,
    Late,
    Fault,
    Malformed,
    Unsent,
    Abandoned,
}

impl Counters {
    pub(crate) fn new(reporter: Option<Box<dyn Reporter>>) -> Arc<Self> {
        Arc::new(Self {
            counts: Default::default(),
            reporter,
        })
    }

    #[inline]
    pub(crate) fn count(&self, count: Count) {
        self.counts[count as usize].fetch_add(1, Ordering::Relaxed);
        self.report(|reporter| reporter.count(count));
    }

    pub(crate) fn failed(&self, why: BackendErrorKind) {
        self.count(Count::Failed);
        self.report(|reporter| reporter.failed(why));
    }

    pub(crate) fn breaker(&self, from: Option<u8>, to: Option<u8>) {
        self.report(|reporter| reporter.breaker(from, to));
    }

    /// Counts a decision as waiting until the returned guard is dropped.
    #[inline]
    pub(crate) fn waiting(self: &Arc<Self>) -> WaitingDecision {
        let is_shown = self.reporter.as_ref().is_some_and(|to| to.waits(true));
        WaitingDecision(is_shown.then(|| Arc::clone(self)))
    }

    /// Counts a call that carries some decisions when the returned guard is dropped.
    #[inline]
    pub(crate) fn call(&self, decisions: usize) -> CallOutcome<'_> {
        CallOutcome {
            counters: self,
            decisions,
            result: CallResult::Abandoned,
        }
    }

    pub(crate) fn read(&self) -> Stats {
        Stats::of(
            self.counts
                .each_ref()
                .map(|count| count.load(Ordering::Relaxed)),
        )
    }

    #[inline]
    fn report(&self, report: impl FnOnce(&dyn Reporter)) {
        if let Some(reporter) = &self.reporter {
            report(&**reporter);
        }
    }
}

/// The outcome of a call that carries decisions: the last one that was seen.
pub(crate) struct CallOutcome<'a> {
    counters: &'a Counters,
    decisions: usize,
    result: CallResult,
}

impl CallOutcome<'_> {
    /// Notes how the call ended, and returns it.
    #[inline]
    pub(crate) fn see<T, E>(&mut self, outcome: Result<T, E>) -> Result<T, E>
    where
        for<'e> &'e E: Into<CallResult>,
    {
        self.result = outcome.as_ref().map_or_else(Into::into, |_| CallResult::Ok);
        outcome
    }
}

impl Drop for CallOutcome<'_> {
    fn drop(&mut self) {
        self.counters
            .report(|reporter| reporter.called(self.result, self.decisions));
    }
}

/// A decision that waits in this process. One that began to wait before there were metrics was not
/// added to them, and is not taken from them.
pub(crate) struct WaitingDecision(Option<Arc<Counters>>);

impl Drop for WaitingDecision {
    fn drop(&mut self) {
        if let Some(reporter) = self
            .0
            .as_ref()
            .and_then(|counters| counters.reporter.as_ref())
        {
            reporter.waits(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_event_is_counted_in_its_own_counter() {
        let counters = Counters::new(None);
        assert_eq!(counters.read(), Stats::default());
        let count: [&dyn Fn(); 11] = [
            &|| counters.count(Count::Decided),
            &|| counters.failed(BackendErrorKind::Timeout),
            &|| counters.count(Count::LeftUnknown),
            &|| counters.count(Count::Denied),
            &|| counters.count(Count::Called),
            &|| counters.count(Count::Repeated),
            &|| counters.count(Count::Loaded),
            &|| counters.count(Count::Connected),
            &|| counters.count(Count::ConnectingFailed),
            &|| counters.count(Count::BreakerOpened),
            &|| counters.count(Count::SettlingFailed),
        ];
        for (times, count) in count.into_iter().enumerate() {
            (0..=times).for_each(|_| count());
        }
        let expected = Stats {
            decisions: 1,
            failures: 2,
            unknown: 3,
            cached_refusals: 4,
            calls: 5,
            repeated: 6,
            scripts_loaded: 7,
            connections: 8,
            failed_connections: 9,
            breaker_openings: 10,
            failed_settlements: 11,
        };
        assert_eq!(counters.read(), expected);
    }
}

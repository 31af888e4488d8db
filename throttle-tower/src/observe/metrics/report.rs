//! Brings what a layer has counted to the recorder, a few times a second.
//!
//! Each thread sees to it that its counts are reported, by a task of the runtime that it runs: those of other threads
//! may stand still. A report brings the counts of all threads.
//!
//! The runtime of this thread may stand still, too, if the thread runs another one meanwhile. So the time at which the
//! report is due is kept beside the counts, and a request that finds it overdue reports at once. Reading the clock
//! costs as much as counting, so where requests follow each other within microseconds, not each of them looks.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::runtime::Handle;
use tokio::time::sleep;

use super::counts::Rows;
use super::handles::LookupHandles;
use super::level::show;
use super::own_place::own_place;
use super::schedule::DELAY;
use super::throttle::{Metrics, Reporting};
use crate::limit::LookupCounts;
use crate::lock::try_lock;
use crate::time::micros;

/// Stands for no report that is due.
const NONE: u64 = 0;

impl Reporting {
    /// Sees to it that the counts of this thread reach the recorder.
    #[inline(always)]
    pub(super) fn report_soon<const OWN: bool>(&self, rows: Rows<'_, OWN>) {
        if rows.due() == NONE {
            self.begin_report();
        } else if rows.is_turn_to_check() {
            self.check_report(rows);
        }
    }

    #[cold]
    fn begin_report(&self) {
        if let Some(report) = Report::begin(&self.0, NONE) {
            report.make_later();
        }
    }

    /// Reports what should have been reported long ago.
    #[cold]
    fn check_report<const OWN: bool>(&self, rows: Rows<'_, OWN>) {
        let now = self.0.schedule.now();
        rows.checked(now);
        let due = rows.due();
        if due != NONE
            && now > due + micros(DELAY)
            && let Some(report) = Report::begin(&self.0, due)
        {
            self.0.report();
            report.make_later();
        }
    }
}

/// Reports what has been counted when it is dropped: in time, at once without a runtime or its timers, or when the
/// runtime ends.
struct Report {
    metrics: Arc<Metrics>,
    /// Of the thread that has begun it.
    place: usize,
    due: u64,
}

impl Report {
    /// Begins a report of this thread, if the last one that it has begun is due at `last`.
    fn begin(metrics: &Arc<Metrics>, last: u64) -> Option<Self> {
        let (place, due) = (own_place(), metrics.schedule.now() + micros(DELAY));
        let is_last = metrics.counts.due_of(place).compare_exchange(last, due, Ordering::AcqRel, Ordering::Relaxed);
        is_last.is_ok().then(|| Self { metrics: Arc::clone(metrics), place, due })
    }

    fn make_later(self) {
        let Ok(runtime) = Handle::try_current() else { return };
        let Some(timer) = self.metrics.schedule.timer() else { return };
        drop(runtime.spawn(async move {
            timer.await;
            let metrics = Arc::clone(&self.metrics);
            drop(self);
            // A request that was being counted may have been overlooked, and have found that a report is due.
            sleep(DELAY).await;
            metrics.report();
        }));
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        // What is counted from here on begins another report, unless that was begun in the place of this one.
        let due = self.metrics.counts.due_of(self.place);
        let _ = due.compare_exchange(self.due, NONE, Ordering::AcqRel, Ordering::Relaxed);
        self.metrics.report();
    }
}

impl Metrics {
    /// Brings the counts and what other rooms count to the recorder: the facade can only be written to.
    fn report(&self) {
        let Some(handles) = self.handles.get() else { return };
        // Another thread may be reporting, and reports again.
        let Some(mut reported) = try_lock(&self.reported) else { return };
        for ((row, counters), reported) in handles.counters.iter().enumerate().zip(&mut *reported) {
            let sums = self.sums(row);
            for ((counter, count), reported) in counters.iter().zip(sums).zip(&mut *reported) {
                // A request that is being counted is in some of the sums.
                let more = count.saturating_sub(*reported);
                if more > 0 {
                    counter.increment(more);
                    *reported = count;
                }
            }
        }
        if self.backends.keys_held().is_some() {
            show(&handles.keys, || self.backends.keys_held().unwrap_or_default() as u64);
        }
        for (policy, watched) in handles.policies.iter().zip(&self.policies) {
            if let (Some(handles), Some(lookup)) = (&policy.lookups, &watched.lookup) {
                handles.report(lookup.counts());
            }
        }
    }
}

impl LookupHandles {
    fn report(&self, counts: LookupCounts) {
        self.remembered.absolute(counts.remembered);
        self.found.absolute(counts.found);
        self.unknown.absolute(counts.unknown);
        self.failed.absolute(counts.failed);
        self.turned_away.absolute(counts.turned_away);
    }
}

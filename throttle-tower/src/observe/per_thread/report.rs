//! Sees to it that what threads have counted is reported, a few times a second.
//!
//! Each thread sees to it that its counts are reported, by a task of the runtime that it runs: those of other threads
//! may stand still. A report brings the counts of all threads.
//!
//! The runtime of this thread may stand still, too, if the thread runs another one meanwhile. So the time at which the
//! report is due is kept beside the counts, and a request that finds it overdue reports at once. Where requests follow
//! each other within microseconds, not each of them looks.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::sleep;

use super::own_place::own_place;
use super::schedule::{DELAY, Schedule};
use super::turns::{NONE, Turns};
use crate::time::micros;

/// What has something to report of what threads have counted.
pub(in crate::observe) trait Reports: Send + Sync + 'static {
    /// The turns of the thread at a place.
    fn turns(&self, place: usize) -> &Turns;

    fn schedule(&self) -> &Schedule;

    /// Reports the counts of all threads. It waits for nothing: requests call it.
    fn report(&self);
}

/// Begins a report of the counts of this thread, if none is due.
#[cold]
pub(in crate::observe) fn begin_report(reports: &Arc<impl Reports>) {
    if let Some(report) = Report::begin(reports, NONE) {
        report.make_later();
    }
}

/// Reports what should have been reported long ago. `turns` are those of this thread.
pub(in crate::observe) fn report_if_overdue(reports: &Arc<impl Reports>, turns: &Turns, now: u64) {
    let due = turns.due();
    if due != NONE
        && now > due + micros(DELAY)
        && let Some(report) = Report::begin(reports, due)
    {
        reports.report();
        report.make_later();
    }
}

/// Reports what has been counted when it is dropped: in time, at once without a runtime or its timers, or when the
/// runtime ends.
struct Report<T: Reports> {
    reports: Arc<T>,
    /// Of the thread that has begun it.
    place: usize,
    wait: Duration,
    due: u64,
}

impl<T: Reports> Report<T> {
    /// Begins a report of this thread, if the last one that it has begun is due at `last`.
    fn begin(reports: &Arc<T>, last: u64) -> Option<Self> {
        let (place, now) = (own_place(), reports.schedule().now());
        let due = reports.schedule().due(now);
        let of_place = &reports.turns(place).due;
        let is_last = of_place.compare_exchange(last, due, Ordering::AcqRel, Ordering::Relaxed);
        let wait = Duration::from_micros(due.saturating_sub(now));
        is_last.is_ok().then(|| Self { reports: Arc::clone(reports), place, wait, due })
    }

    fn make_later(self) {
        let Ok(runtime) = Handle::try_current() else { return };
        let Some(timer) = self.reports.schedule().timer(self.wait) else { return };
        drop(runtime.spawn(async move {
            timer.await;
            let reports = Arc::clone(&self.reports);
            drop(self);
            // A request that was being counted may have been overlooked, and have found that a report is due.
            sleep(DELAY).await;
            reports.report();
        }));
    }
}

impl<T: Reports> Drop for Report<T> {
    fn drop(&mut self) {
        // What is counted from here on begins another report, unless that was begun in the place of this one.
        let due = &self.reports.turns(self.place).due;
        let _ = due.compare_exchange(self.due, NONE, Ordering::AcqRel, Ordering::Relaxed);
        self.reports.report();
    }
}

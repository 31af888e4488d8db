//! Sees to it that what threads have counted is reported, a few times a second.
//!
//! Each thread sees to it that its counts are reported, by a task of the runtime that it runs:
//! those of other threads may stand still. A report brings the counts of all threads.
//!
//! The runtime of this thread may stand still, too, if the thread runs another one meanwhile. So
//! the time at which the report is due is kept beside the counts, and a request that finds it
//! overdue reports at once. Where requests follow each other within microseconds, not each of them
//! looks.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::runtime::Handle;
use tokio::time::sleep;

use super::per_thread::counts::Rows;
use super::per_thread::own_place::own_place;
use super::per_thread::turns::NONE;
use super::schedule::DELAY;
use super::throttle::{Metrics, Reporting};
use crate::time::micros;

impl Reporting {
    /// Sees to it that the counts of this thread reach the recorder.
    #[inline(always)]
    pub(super) fn report_soon(&self, rows: Rows<'_>) {
        if rows.turns().due() == NONE {
            self.begin_report();
        } else if rows.is_turn() {
            self.take_turn(rows);
        }
    }

    /// Begins a report of the counts of this thread, if none is due.
    #[cold]
    fn begin_report(&self) {
        if let Some(report) = Report::begin(&self.0, NONE) {
            report.make_later();
        }
    }

    /// Reports what should have been reported long ago.
    #[cold]
    fn take_turn(&self, rows: Rows<'_>) {
        let (now, due) = (self.0.schedule.now(), rows.turns().due());
        rows.turns().taken(now);
        if due != NONE
            && now > due + micros(DELAY)
            && let Some(report) = Report::begin(&self.0, due)
        {
            self.0.report();
            report.make_later();
        }
    }
}

/// Reports what has been counted when it is dropped: in time, at once without a runtime or its
/// timers, or when the runtime ends.
struct Report {
    metrics: Arc<Metrics>,
    /// Of the thread that has begun it.
    place: usize,
    due: u64,
}

impl Report {
    /// Begins a report of this thread, if the last one that it has begun is due at `last`.
    fn begin(metrics: &Arc<Metrics>, last: u64) -> Option<Self> {
        let place = own_place();
        let due = metrics.schedule.now() + micros(DELAY);
        let of_place = &metrics.counts.turns_of(place).due;
        let is_last = of_place.compare_exchange(last, due, Ordering::AcqRel, Ordering::Relaxed);
        is_last.is_ok().then(|| Self {
            metrics: Arc::clone(metrics),
            place,
            due,
        })
    }

    fn make_later(self) {
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let Some(timer) = self.metrics.schedule.timer(DELAY) else {
            return;
        };
        drop(runtime.spawn(async move {
            timer.await;
            let metrics = Arc::clone(&self.metrics);
            drop(self);
            // A request that was being counted may have been overlooked, and have found that a
            // report is due.
            sleep(DELAY).await;
            metrics.report();
        }));
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        // What is counted from here on begins another report, unless that was begun in the place of
        // this one.
        let due = &self.metrics.counts.turns_of(self.place).due;
        let _ = due.compare_exchange(self.due, NONE, Ordering::AcqRel, Ordering::Relaxed);
        self.metrics.report();
    }
}

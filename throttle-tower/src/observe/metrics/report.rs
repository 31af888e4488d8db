//! Brings what a layer has counted to the recorder, a few times a second.

use super::handles::LookupHandles;
use super::level::show;
use super::throttle::{Metrics, Reporting};
use crate::limit::LookupCounts;
use crate::lock::{lock, try_lock};
use crate::observe::per_thread::counts::Rows;
use crate::observe::per_thread::report::{Reports, begin_report, report_if_overdue};
use crate::observe::per_thread::schedule::Schedule;
use crate::observe::per_thread::turns::{NONE, Pace, Turns};

const PACE: Pace = Pace { apart: 5_000, most: 1 << 16, first: 0, varies: false };

impl Reporting {
    /// Sees to it that the counts of this thread reach the recorder.
    #[inline(always)]
    pub(super) fn report_soon<const OWN: bool>(&self, rows: Rows<'_, OWN>) {
        if rows.turns().due() == NONE {
            begin_report(&self.0);
        } else if rows.is_turn() {
            self.take_turn(rows);
        }
    }

    #[cold]
    fn take_turn<const OWN: bool>(&self, rows: Rows<'_, OWN>) {
        let now = self.0.schedule.now();
        rows.turns().taken(now, &PACE);
        report_if_overdue(&self.0, rows.turns(), now);
    }
}

impl Reports for Metrics {
    fn turns(&self, place: usize) -> &Turns {
        self.counts.turns_of(place)
    }

    fn schedule(&self) -> &Schedule {
        &self.schedule
    }

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
                handles.report(lookup.counts(), &mut lock(&watched.lookups_reported));
            }
        }
    }
}

impl LookupHandles {
    /// Reports what has been counted since the last report: the counts begin anew where limits are replaced.
    fn report(&self, counts: LookupCounts, reported: &mut LookupCounts) {
        self.remembered.increment(counts.remembered.saturating_sub(reported.remembered));
        self.found.increment(counts.found.saturating_sub(reported.found));
        self.unknown.increment(counts.unknown.saturating_sub(reported.unknown));
        self.failed.increment(counts.failed.saturating_sub(reported.failed));
        self.invalid.increment(counts.invalid.saturating_sub(reported.invalid));
        self.turned_away.increment(counts.turned_away.saturating_sub(reported.turned_away));
        *reported = counts;
    }
}

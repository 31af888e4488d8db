//! Brings what a layer has counted to the recorder, a few times a second.

use super::level::show;
use super::throttle::Metrics;
use crate::lock::{lock, try_lock};

impl Metrics {
    /// Brings the counts and what other rooms count to the recorder: the facade can only be written to. It waits for
    /// nothing: requests call it.
    pub(super) fn report(&self) {
        let Some(handles) = self.handles.get() else { return };
        // Another thread may be reporting, and reports again.
        let Some(mut reported) = try_lock(&self.reported) else { return };
        for ((row, counters), reported) in handles.counters.iter().enumerate().zip(&mut *reported) {
            let sums = self.counts.sums(row);
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
        for (counters, candidate) in handles.candidates.iter().zip(&self.candidates.0) {
            candidate.counts.report(|result, more| counters[result].increment(more));
        }
        for (policy, watched) in handles.policies.iter().zip(&self.policies) {
            if let (Some(handles), Some(lookup)) = (&policy.lookups, &watched.lookup) {
                // They begin anew where limits are replaced.
                let (counts, mut reported) = (lookup.counts(), lock(&watched.lookups_reported));
                for ((counter, count), reported) in handles.iter().zip(counts).zip(&*reported) {
                    counter.increment(count.saturating_sub(*reported));
                }
                *reported = counts;
            }
        }
    }
}

//! Brings what a layer has counted to the recorder, a few times a second.

use super::handles::place;
use super::level::show;
use super::per_thread::counts::ROW;
use super::throttle::{Metrics, Watched};
use crate::event::DECIDED;
use crate::lock::{lock, try_lock};

impl Metrics {
    /// Brings the counts and what other rooms count to the recorder: the facade can only be written
    /// to. It waits for nothing: requests call it.
    pub(super) fn report(&self) {
        let Some(handles) = self.handles.get() else {
            return;
        };
        // Another thread may be reporting, and reports again.
        let Some(mut reported) = try_lock(&self.reported) else {
            return;
        };
        // Read first: of each request that it counts, the rows of policies have the results.
        let requests = self.counts.sums(place::REQUESTS);
        let decided = DECIDED.iter().map(|outcome| requests[*outcome]).sum();
        let store = match self.backends.can_fail() {
            true => self.store.get(),
            false => None,
        };
        for ((row, counters), reported) in handles.counters.iter().enumerate().zip(&mut *reported) {
            let of_store = match (store, row) {
                (Some(store), place::REQUESTS) => &store.requests[..],
                (Some(store), place::DEGRADED) => &store.degraded,
                _ => &[],
            };
            let counters = counters.iter().chain(of_store);
            let mut sums = self.counts.sums(row);
            if let Some(policy) = row
                .checked_sub(place::POLICIES)
                .and_then(|policy| self.policies.get(policy))
            {
                sums[place::SKIPPED] = self.skipped(decided, &sums, policy);
            }
            for ((counter, count), reported) in counters.zip(sums).zip(&mut *reported) {
                // A request that is being counted is in some of the sums.
                let more = count.saturating_sub(*reported);
                if more > 0 {
                    counter.increment(more);
                    *reported = count;
                }
            }
        }
        if self.backends.keys_held().is_some() {
            self.keys.with(|keys| {
                show(keys, || {
                    self.backends.keys_held().unwrap_or_default() as u64
                });
            });
        }
        for (counters, candidate) in handles.candidates.iter().zip(&self.candidates.0) {
            candidate
                .counts
                .report(|result, more| counters[result].increment(more));
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

    /// How many of the requests that were decided a policy did not apply to.
    fn skipped(&self, decided: u64, sums: &[u64; ROW], policy: &Watched) -> u64 {
        let results =
            |sums: &[u64; ROW]| sums[place::ADMITTED] + sums[place::NEAR] + sums[place::REFUSED];
        let of_classes = policy
            .lower_classes
            .iter()
            .map(|(_, row)| results(&self.counts.sums(*row)));
        decided.saturating_sub(results(sums) + of_classes.sum::<u64>())
    }
}

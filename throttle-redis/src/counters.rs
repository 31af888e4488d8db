use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use throttle_core::BackendErrorKind;

use crate::observed::{Label, Observed};
use crate::stats::{COUNTS, Count, Stats};

#[derive(Debug)]
pub(crate) struct Counters {
    counts: [AtomicU64; COUNTS],
    pub(crate) observed: Observed,
}

impl Counters {
    pub(crate) fn new(label: Label) -> Arc<Self> {
        Arc::new(Self {
            counts: Default::default(),
            observed: Observed::new(label),
        })
    }

    #[inline]
    pub(crate) fn count(&self, count: Count) {
        self.counts[count as usize].fetch_add(1, Ordering::Relaxed);
        self.observed.count(count);
    }

    pub(crate) fn read(&self) -> Stats {
        Stats::of(
            self.counts
                .each_ref()
                .map(|count| count.load(Ordering::Relaxed)),
        )
    }

    pub(crate) fn failed(&self, kind: BackendErrorKind) {
        self.count(Count::Failed);
        self.observed.failed(kind);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_event_is_counted_in_its_own_counter() {
        let counters = Counters::new(Label::default());
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

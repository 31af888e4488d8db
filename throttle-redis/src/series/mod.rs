//! Reports what a backend does to the recorder of the `metrics` facade.

use std::sync::Arc;

use metrics::{
    Counter, Gauge, Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram,
    gauge, histogram,
};
use parking_lot::Mutex;
use throttle_core::BackendErrorKind;
use throttle_core::metrics::Registered;

use crate::counters::{CallResult, Reporter};
use crate::stats::{Count, METRICS};

const FAILED: &str = "throttle_redis_failed_decisions_total";
const CALLS: &str = "throttle_redis_calls_total";
const BATCH: &str = "throttle_redis_batch_decisions";
const WAITING: &str = "throttle_redis_waiting_decisions";
const BREAKERS: &str = "throttle_redis_breakers";

/// By the number of the [`CallResult`].
const RESULTS: [&str; 6] = ["ok", "late", "fault", "malformed", "unsent", "abandoned"];
/// By the number of a breaker's state.
const STATES: [&str; 3] = ["closed", "half_open", "open"];

/// The series of one backend and its clones. All are registered together.
pub(crate) struct Series {
    handles: Registered<Handles>,
    breakers: Arc<Mutex<BreakerTally>>,
}

struct Handles {
    /// By the number of the [`Count`].
    counted: [Counter; METRICS.len()],
    /// By the number of their kind.
    failed: Box<[Counter]>,
    calls: [Counter; RESULTS.len()],
    batch: Histogram,
    waiting: Gauge,
    breakers: [Gauge; STATES.len()],
}

/// How many breakers are in each state, and how many of them the gauges show. The gauges move by
/// the difference, so those of several backends with one name add up.
#[derive(Default)]
struct BreakerTally {
    present: [i32; STATES.len()],
    shown: [i32; STATES.len()],
}

impl BreakerTally {
    fn show(&mut self, gauges: &[Gauge]) {
        for ((gauge, from), to) in gauges.iter().zip(self.shown).zip(self.present) {
            if to < from {
                gauge.decrement(from - to);
            } else {
                gauge.increment(to - from);
            }
        }
        self.shown = self.present;
    }
}

impl Series {
    pub(crate) fn new(backend: String) -> Self {
        let breakers = Arc::<Mutex<BreakerTally>>::default();
        let tally = Arc::clone(&breakers);
        Self {
            handles: Registered::new(move || {
                let handles = Handles::register(&backend);
                tally.lock().show(&handles.breakers);
                handles
            }),
            breakers,
        }
    }
}

impl Handles {
    fn register(backend: &str) -> Self {
        describe_counter!(FAILED, Unit::Count, "Decisions that failed.");
        let text = "Script calls that carried decisions, by how they ended.";
        describe_counter!(CALLS, Unit::Count, text);
        describe_histogram!(BATCH, Unit::Count, "Decisions in a script call.");
        let text = "Decisions that wait in this process for a call, or for room at the server.";
        describe_gauge!(WAITING, Unit::Count, text);
        describe_gauge!(BREAKERS, Unit::Count, "Breakers in each state.");
        let backend = || backend.to_owned();
        Self {
            counted: METRICS.map(|(metric, text)| {
                let Some(metric) = metric else {
                    return Counter::noop();
                };
                describe_counter!(metric, Unit::Count, text.trim());
                counter!(metric, "backend" => backend())
            }),
            failed: BackendErrorKind::ALL
                .iter()
                .map(|kind| match kind {
                    // Every step is supported.
                    BackendErrorKind::Unsupported => Counter::noop(),
                    _ => counter!(FAILED, "backend" => backend(), "why" => kind.label()),
                })
                .collect(),
            calls: RESULTS
                .map(|result| counter!(CALLS, "backend" => backend(), "result" => result)),
            batch: histogram!(BATCH, "backend" => backend()),
            waiting: gauge!(WAITING, "backend" => backend()),
            breakers: STATES
                .map(|state| gauge!(BREAKERS, "backend" => backend(), "state" => state)),
        }
    }
}

impl Reporter for Series {
    fn count(&self, count: Count) {
        self.handles
            .with(|handles| handles.counted[count as usize].increment(1));
    }

    fn failed(&self, why: BackendErrorKind) {
        self.handles
            .with(|handles| handles.failed[why as usize].increment(1));
    }

    fn called(&self, result: CallResult, decisions: usize) {
        self.handles.with(|handles| {
            handles.calls[result as usize].increment(1);
            handles.batch.record(decisions as f64);
        });
    }

    fn waits(&self, more: bool) -> bool {
        let gauge = self.handles.get().map(|handles| &handles.waiting);
        gauge.iter().for_each(|gauge| match more {
            true => gauge.increment(1),
            false => gauge.decrement(1),
        });
        gauge.is_some()
    }

    fn breaker(&self, from: Option<u8>, to: Option<u8>) {
        let mut tally = self.breakers.lock();
        let mut add =
            |state: Option<u8>, by: i32| state.map(|state| tally.present[usize::from(state)] += by);
        add(from, -1);
        add(to, 1);
        let is_shown = tally.shown != [0; STATES.len()];
        // Registering shows the tally.
        drop(tally);
        // A backend that has shown nothing must not register its series when it ends.
        if to.is_some() || is_shown {
            self.handles
                .with(|handles| self.breakers.lock().show(&handles.breakers));
        }
    }
}

#[cfg(test)]
mod tests;

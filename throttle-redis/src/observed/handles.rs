//! The series of a backend: their names, units and texts, and the handles to them.

use metrics::{
    Counter, Gauge, Histogram, SharedString, Unit, counter, describe_counter, describe_gauge,
    describe_histogram, gauge, histogram,
};
use throttle_core::BackendErrorKind;

use crate::call_result::CallResult;
use crate::stats::METRICS;

/// All handles, registered at once.
pub(super) struct Handles {
    /// By the number of the [`Count`](crate::stats::Count).
    pub(super) counted: [Counter; METRICS.len()],
    /// By the number of their kind.
    failed: Box<[Counter]>,
    calls: [Counter; RESULTS.len()],
    pub(super) batch: Histogram,
    pub(super) waiting: Gauge,
    /// The breakers that are closed, half open and open.
    pub(super) breakers: [Gauge; 3],
}

const FAILED: &str = "throttle_redis_failed_decisions_total";
const CALLS: &str = "throttle_redis_calls_total";
const BATCH: &str = "throttle_redis_batch_decisions";
const WAITING: &str = "throttle_redis_waiting_decisions";
const BREAKERS: &str = "throttle_redis_breakers";

/// By the number of the [`CallResult`].
const RESULTS: [&str; 6] = ["ok", "late", "fault", "malformed", "unsent", "abandoned"];
const STATES: [&str; 3] = ["closed", "half_open", "open"];

impl Handles {
    pub(super) fn register(backend: &SharedString) -> Self {
        describe_counter!(FAILED, Unit::Count, "Decisions that failed.");
        describe_counter!(
            CALLS,
            Unit::Count,
            "Script calls that carried decisions, by how they ended."
        );
        describe_histogram!(BATCH, Unit::Count, "Decisions in a script call.");
        describe_gauge!(
            WAITING,
            Unit::Count,
            "Decisions that wait in this process for a call, or for room at the server."
        );
        describe_gauge!(BREAKERS, Unit::Count, "Breakers in each state.");
        Self {
            counted: METRICS.map(|(metric, text)| {
                let Some(metric) = metric else {
                    return Counter::noop();
                };
                describe_counter!(metric, Unit::Count, text.trim());
                counter!(metric, "backend" => backend.clone())
            }),
            failed: BackendErrorKind::ALL
                .iter()
                .map(|kind| match kind {
                    // Every step is supported.
                    BackendErrorKind::Unsupported => Counter::noop(),
                    _ => counter!(FAILED, "backend" => backend.clone(), "why" => kind.label()),
                })
                .collect(),
            calls: RESULTS
                .map(|result| counter!(CALLS, "backend" => backend.clone(), "result" => result)),
            batch: histogram!(BATCH, "backend" => backend.clone()),
            waiting: gauge!(WAITING, "backend" => backend.clone()),
            breakers: STATES
                .map(|state| gauge!(BREAKERS, "backend" => backend.clone(), "state" => state)),
        }
    }

    pub(super) fn failed(&self, kind: BackendErrorKind) -> &Counter {
        &self.failed[kind as usize]
    }

    pub(super) fn call(&self, result: CallResult) -> &Counter {
        &self.calls[result as usize]
    }
}

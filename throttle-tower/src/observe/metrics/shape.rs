use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram};
use metrics::{gauge, histogram};
use throttle_core::metrics::Registered;

use super::level::show;

/// Counts what a shaper does.
pub(crate) struct ShapeMetrics(Registered<Handles>);

struct Handles {
    sent: Counter,
    refused: Counter,
    cancelled: Counter,
    degraded: Counter,
    waiting: Gauge,
    wait: Histogram,
}

impl ShapeMetrics {
    pub(crate) fn new(layer: String) -> Self {
        Self(Registered::new(move || {
            describe();
            let layer = || layer.clone();
            let calls = |outcome| counter!("throttle_shape_calls_total", "layer" => layer(), "outcome" => outcome);
            Handles {
                sent: calls("sent"),
                refused: calls("refused"),
                cancelled: calls("cancelled"),
                degraded: counter!("throttle_shape_degraded_total", "layer" => layer()),
                waiting: gauge!("throttle_shape_waiting_calls", "layer" => layer()),
                wait: histogram!("throttle_shape_wait_seconds", "layer" => layer()),
            }
        }))
    }

    #[inline]
    pub(crate) fn sent(&self) {
        self.0.with(|handles| handles.sent.increment(1));
    }

    pub(crate) fn refused(&self) {
        self.0.with(|handles| handles.refused.increment(1));
    }

    pub(crate) fn cancelled(&self) {
        self.0.with(|handles| handles.cancelled.increment(1));
    }

    pub(crate) fn degraded(&self) {
        self.0.with(|handles| handles.degraded.increment(1));
    }

    /// The number of waiting calls has changed.
    pub(crate) fn waiting(&self, waiting: impl Fn() -> u64) {
        self.0.with(|handles| show(&handles.waiting, waiting));
    }

    /// A call has waited for so long.
    pub(crate) fn waited(&self, wait: Duration) {
        self.0.with(|handles| handles.wait.record(wait));
    }
}

fn describe() {
    describe_counter!("throttle_shape_calls_total", Unit::Count, "Calls by what became of them.");
    describe_counter!("throttle_shape_degraded_total", Unit::Count, "Calls that the store did not decide.");
    describe_gauge!("throttle_shape_waiting_calls", Unit::Count, "Calls that wait now.");
    describe_histogram!("throttle_shape_wait_seconds", Unit::Seconds, "How long calls waited, of those that had to.");
}

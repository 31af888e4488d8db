use metrics::{
    Counter, Gauge, Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram,
};
use metrics::{gauge, histogram};
use throttle_core::metrics::Registered;

use super::level::show;

/// The metrics of a shaper.
pub(crate) struct ShapeMetrics {
    pub(crate) sent: Counter,
    pub(crate) refused: Counter,
    pub(crate) cancelled: Counter,
    pub(crate) degraded: Counter,
    waiting: Gauge,
    pub(crate) wait: Histogram,
}

impl ShapeMetrics {
    pub(crate) fn registered(layer: String) -> Registered<Self> {
        Registered::new(move || {
            describe();
            let layer = || layer.clone();
            let calls = |outcome| counter!("throttle_shape_calls_total", "layer" => layer(), "outcome" => outcome);
            Self {
                sent: calls("sent"),
                refused: calls("refused"),
                cancelled: calls("cancelled"),
                degraded: counter!("throttle_shape_degraded_total", "layer" => layer()),
                waiting: gauge!("throttle_shape_waiting_calls", "layer" => layer()),
                wait: histogram!("throttle_shape_wait_seconds", "layer" => layer()),
            }
        })
    }

    /// The number of waiting calls has changed.
    pub(crate) fn show_waiting(&self, waiting: impl Fn() -> u64) {
        show(&self.waiting, waiting);
    }
}

fn describe() {
    describe_counter!(
        "throttle_shape_calls_total",
        Unit::Count,
        "Calls by what became of them."
    );
    describe_counter!(
        "throttle_shape_degraded_total",
        Unit::Count,
        "Calls that the store did not decide."
    );
    describe_gauge!(
        "throttle_shape_waiting_calls",
        Unit::Count,
        "Calls that wait now."
    );
    describe_histogram!(
        "throttle_shape_wait_seconds",
        Unit::Seconds,
        "How long calls waited, of those that had to."
    );
}

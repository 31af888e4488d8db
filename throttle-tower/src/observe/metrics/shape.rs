use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use throttle_core::metrics::Registered;

use super::describe::describe;
use super::level::show;

/// The metrics of a shaper.
pub(crate) struct ShapeMetrics {
    pub(crate) sent: Counter,
    refused: Counter,
    paused: Counter,
    /// By whether the refusal told a wait, a reset, or nothing.
    refusals: [Counter; 3],
    paused_keys: Gauge,
    pub(crate) cancelled: Counter,
    pub(crate) degraded: Counter,
    waiting: Gauge,
    pub(crate) wait: Histogram,
}

impl ShapeMetrics {
    pub(crate) fn registered(layer: String) -> Registered<Self> {
        Registered::new(move || {
            describe_shaper();
            let layer = || layer.clone();
            let calls = |outcome| counter!("throttle_shape_calls_total", "layer" => layer(), "outcome" => outcome);
            let refusals = |told| counter!("throttle_shape_refusals_total", "layer" => layer(), "told" => told);
            Self {
                sent: calls("sent"),
                refused: calls("refused"),
                paused: calls("paused"),
                refusals: ["wait", "reset", "nothing"].map(refusals),
                paused_keys: gauge!("throttle_shape_paused_keys", "layer" => layer()),
                cancelled: calls("cancelled"),
                degraded: counter!("throttle_shape_degraded_total", "layer" => layer()),
                waiting: gauge!("throttle_shape_waiting_calls", "layer" => layer()),
                wait: histogram!("throttle_shape_wait_seconds", "layer" => layer()),
            }
        })
    }

    /// Calls that were refused here, by whether a pause was the cause.
    pub(crate) fn refused(&self, is_paused: bool) -> &Counter {
        if is_paused {
            &self.paused
        } else {
            &self.refused
        }
    }

    /// Calls that the upstream refused, by what it stated.
    pub(crate) fn refusal(&self, states_wait: bool, states_reset: bool) -> &Counter {
        match (states_wait, states_reset) {
            (true, _) => &self.refusals[0],
            (false, true) => &self.refusals[1],
            (false, false) => &self.refusals[2],
        }
    }

    /// The number of paused keys may have changed.
    pub(crate) fn show_paused(&self, paused: impl Fn() -> u64) {
        show(&self.paused_keys, paused);
    }

    /// The number of waiting calls has changed.
    pub(crate) fn show_waiting(&self, waiting: impl Fn() -> u64) {
        show(&self.waiting, waiting);
    }
}

fn describe_shaper() {
    let counters = [
        (
            "throttle_shape_calls_total",
            "Calls by what became of them.",
        ),
        (
            "throttle_shape_degraded_total",
            "Calls that the store did not decide.",
        ),
        (
            "throttle_shape_refusals_total",
            "Calls that the upstream refused, by what it stated.",
        ),
    ];
    let gauges = [
        (
            "throttle_shape_paused_keys",
            "Keys that are paused, as of the last call or response of each.",
        ),
        ("throttle_shape_waiting_calls", "Calls that wait now."),
    ];
    let times = [(
        "throttle_shape_wait_seconds",
        "How long calls waited, of those that had to.",
    )];
    describe(&counters, &gauges, &times);
}

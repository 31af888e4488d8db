use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

/// A metric's name and what it counts.
type Help = (&'static str, &'static str);

/// Describes metrics to the recorder. Histograms are of seconds.
pub(super) fn describe(counters: &[Help], gauges: &[Help], histograms: &[Help]) {
    for (name, help) in counters {
        describe_counter!(*name, Unit::Count, *help);
    }
    for (name, help) in gauges {
        describe_gauge!(*name, Unit::Count, *help);
    }
    for (name, help) in histograms {
        describe_histogram!(*name, Unit::Seconds, *help);
    }
}

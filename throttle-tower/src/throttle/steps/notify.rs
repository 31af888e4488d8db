use http::request::Parts;
use throttle_core::Backend;
use throttle_core::backend::Call;

use crate::event::{Event, Outcome, RequestSet};
use crate::throttle::limit_report::LimitReport;
use crate::throttle::shared_layer::SharedLayer;

/// Calls the observers, if there are any.
pub(super) fn notify<B: Backend>(
    shared: &SharedLayer<B>,
    outcome: Outcome<'_>,
    report: Option<&LimitReport>,
    calls: &[Call],
    parts: &Parts,
) {
    if !shared.options.observers.is_empty() {
        report_decided(shared, outcome, report, calls, parts);
    }
}

fn report_decided<B: Backend>(
    shared: &SharedLayer<B>,
    outcome: Outcome<'_>,
    report: Option<&LimitReport>,
    calls: &[Call],
    parts: &Parts,
) {
    let announced = report.map_or(&*shared.announced, LimitReport::announced);
    let near = report.map(LimitReport::near_indices).unwrap_or_default();
    shared.options.observers.decided(&Event {
        outcome,
        decision: report.map(LimitReport::decision),
        parts,
        near: &near,
        set: RequestSet {
            policies: &announced.policies,
            calls,
            indices: &announced.limit_indices,
        },
        layer: shared.version.info(),
    });
}

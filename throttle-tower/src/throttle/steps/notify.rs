use http::request::Parts;
use smallvec::SmallVec;
use throttle_core::Backend;
use throttle_core::backend::Call;

use crate::event::{Event, Outcome};
use crate::throttle::limit_report::LimitReport;
use crate::throttle::shared::Shared;

/// Calls the hook for decisions and the observers, if there are any.
#[inline(always)]
pub(super) fn notify<B: Backend>(
    shared: &Shared<B>,
    outcome: Outcome<'_>,
    report: Option<&LimitReport>,
    calls: &[Call],
    parts: &Parts,
) {
    if shared.options.on_decision.is_some() || !shared.options.observers.is_empty() {
        tell(shared, outcome, report, calls, parts);
    }
}

#[inline(never)]
fn tell<B: Backend>(
    shared: &Shared<B>,
    outcome: Outcome<'_>,
    report: Option<&LimitReport>,
    calls: &[Call],
    parts: &Parts,
) {
    let announced = report.map_or(&*shared.announced, LimitReport::announced);
    let decision = report.map(LimitReport::decided);
    let near = report
        .filter(|_| !announced.warn_at.is_empty())
        .map(LimitReport::near_places)
        .unwrap_or_default();
    let places = announced.places();
    let event = Event {
        outcome,
        policies: &announced.policies,
        decision,
        parts,
        near: &near,
        places,
    };
    match (&shared.options.on_decision, &announced.part) {
        (Some(hook), None) => hook(&event),
        (Some(hook), Some(part)) => {
            let (policies, decision) =
                (part.policies(announced), report.map(LimitReport::decision));
            let near: SmallVec<[usize; 2]> = near.iter().map(|here| event.place(*here)).collect();
            hook(&Event {
                policies: &policies,
                decision,
                near: &near,
                places: &[],
                ..event
            });
        }
        (None, _) => {}
    }
    shared
        .options
        .observers
        .each(|observer| observer.passed_or_refused(&event, calls));
}

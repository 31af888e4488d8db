use http::request::Parts;
use smallvec::SmallVec;
use throttle_core::Backend;
use throttle_core::backend::Call;

use crate::event::{Event, Outcome, RequestSet};
use crate::throttle::limit_report::LimitReport;
use crate::throttle::shared::Shared;

/// Calls the observers, if there are any.
#[inline(always)]
pub(super) fn notify<B: Backend>(
    shared: &Shared<B>,
    outcome: Outcome<'_>,
    report: Option<&LimitReport>,
    calls: &[Call],
    parts: &Parts,
) {
    if !shared.options.observers.is_empty() {
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
    let set = RequestSet {
        policies: &announced.policies,
        decision,
        calls,
        places: announced.places(),
    };
    let event = Event {
        outcome,
        policies: set.policies,
        decision,
        parts,
        near: &near,
        set,
        version: &shared.version,
    };
    let observers = &shared.options.observers;
    match &announced.part {
        None => observers.decided_given(&event),
        Some(part) if observers.has_given() => {
            let (policies, decision) =
                (part.policies(announced), report.map(LimitReport::decision));
            let near: SmallVec<[usize; 2]> = near.iter().map(|here| event.place(*here)).collect();
            observers.decided_given(&Event {
                policies: &policies,
                decision,
                near: &near,
                ..event
            });
        }
        Some(_) => {}
    }
    observers.decided(&event);
}

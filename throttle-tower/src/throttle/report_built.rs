//! Reports to observers that a layer was built, and lets its lookups report.

use std::sync::Arc;

use throttle_core::Backend;

use super::shared::Shared;
use crate::event::{Activity, Observer, Observers};
use crate::limit::{Applied, Keying, LookupResult};

/// Reports to the observers that a layer was built, or that its `former` version was replaced.
pub(super) fn report_built<B: Backend>(
    shared: &mut Shared<B>,
    former: Option<&Shared<B>>,
    observers: &[Arc<dyn Observer>],
) {
    let former = former.map(|former| former.version.info());
    shared.options.observers = Observers::of_version(observers, shared.version.info(), former);
    report_lookups(shared);
}

/// Lets the layer's lookups of plans report to its observers, apart from those of other layers with
/// the same plans.
fn report_lookups<B: Backend>(shared: &mut Shared<B>) {
    let observers = &shared.options.observers;
    let is_tiered = |limit: &Applied| matches!(limit.keying, Keying::Tiered(_));
    if observers.is_empty() || !shared.applied.iter().any(is_tiered) {
        return;
    }
    let reporting = |limit: &Applied| match &limit.keying {
        Keying::Tiered(lookup) => {
            let (observers, index) = (observers.clone(), limit.index);
            let report = move |result| {
                observers.happened(Activity::LookedUp {
                    limit: index,
                    result: LookupResult::LABELS[result as usize],
                });
            };
            Applied {
                keying: Keying::Tiered(lookup.reporting(Arc::new(report))),
                ..limit.clone()
            }
        }
        Keying::Extracted(_) | Keying::Future(_) => limit.clone(),
    };
    shared.applied = shared.applied.iter().map(reporting).collect();
}

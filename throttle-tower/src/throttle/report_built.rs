//! Reports to observers that a layer was built, and lets its lookups report.

use std::sync::Arc;

use throttle_core::Backend;

use super::shared_layer::SharedLayer;
use crate::event::{Activity, Observer, Observers};
use crate::limit::{KeySource, LimitSettings, LookupResult};

/// Reports to the observers that a layer was built, or that its `former` version was replaced.
pub(super) fn report_built<B: Backend>(
    shared: &mut SharedLayer<B>,
    former: Option<&SharedLayer<B>>,
    observers: &[Arc<dyn Observer>],
) {
    let former = former.map(|former| former.version.info());
    shared.options.observers = Observers::of_version(observers, shared.version.info(), former);
    report_lookups(shared);
}

/// Lets the layer's lookups of plans report to its observers, apart from those of other layers with
/// the same plans.
fn report_lookups<B: Backend>(shared: &mut SharedLayer<B>) {
    let observers = &shared.options.observers;
    let is_tiered = |limit: &LimitSettings| matches!(limit.key_source, KeySource::Tiered(_));
    if observers.is_empty() || !shared.applied.iter().any(is_tiered) {
        return;
    }
    let reporting = |limit: &LimitSettings| match &limit.key_source {
        KeySource::Tiered(lookup) => {
            let (observers, index) = (observers.clone(), limit.limit_index);
            let report = move |result| {
                observers.happened(Activity::LookedUp {
                    limit: index,
                    result: LookupResult::LABELS[result as usize],
                });
            };
            LimitSettings {
                key_source: KeySource::Tiered(lookup.reporting(Arc::new(report))),
                ..limit.clone()
            }
        }
        KeySource::Extracted(_) | KeySource::Future(_) => limit.clone(),
    };
    shared.applied = shared.applied.iter().map(reporting).collect();
}

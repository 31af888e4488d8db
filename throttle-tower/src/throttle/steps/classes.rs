//! The classes of a request: what it leaves free for the classes above.

use std::mem;

use http::request::Parts;
use throttle_core::Backend;
use throttle_core::backend::Call;

use crate::throttle::shared_layer::SharedLayer;
use crate::throttle::warning::Warning;

/// Adds their reserves to the calls whose keys are known. A call that is looked up gets its own
/// then.
pub(super) fn reserve<B: Backend>(shared: &SharedLayer<B>, calls: &mut [Call], parts: &Parts) {
    for (limit, call) in shared.applied.iter().zip(calls) {
        *call = limit.in_class(mem::replace(call, Call::SKIP), parts);
    }
    let permits = shared.permits.limits().iter().map(|limit| &limit.applied);
    for limit in shared.applied.iter().chain(permits) {
        if let Some(lowest) = limit.priority.as_ref().and_then(|own| own.unwarned()) {
            let warning = Warning::UnknownClass {
                policy: shared.name_of(limit).clone(),
                class: lowest.to_owned(),
            };
            shared.announced.options.watch.warn(&warning);
        }
    }
}

//! The classes of a request: what it leaves free for the classes above.

use std::mem;

use http::request::Parts;
use throttle_core::Backend;
use throttle_core::backend::Call;

use crate::throttle::shared::Shared;
use crate::throttle::warning::Warning;

/// Adds their reserves to the calls whose keys are known. A call that is looked up gets its own
/// then.
pub(super) fn reserve<B: Backend>(shared: &Shared<B>, calls: &mut [Call], parts: &Parts) {
    for (limit, call) in shared.applied.iter().zip(calls) {
        *call = limit.in_class(mem::replace(call, Call::SKIP), parts);
    }
    let of_rates = shared.announced.policies.iter().zip(&*shared.applied);
    let of_rates = of_rates
        .filter_map(|(policy, limit)| Some((policy.policy_name(), &**limit.priority.as_ref()?)));
    for (name, priority) in of_rates.chain(shared.permits.priorities()) {
        if let Some(lowest) = priority.unwarned() {
            let warning = Warning::UnknownClass {
                policy: name.clone(),
                class: lowest.to_owned(),
            };
            shared.announced.options.watch.warn(&warning);
        }
    }
}

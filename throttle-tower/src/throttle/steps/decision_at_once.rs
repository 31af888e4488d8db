//! The decision alone, where nothing has to be waited for.

use throttle_core::backend::Call;
use throttle_core::{Backend, Decision};

use crate::throttle::shared_layer::SharedLayer;

/// The decision, if the backend makes one without waiting. No share of this process is charged.
pub(super) fn decision_at_once<B: Backend>(
    shared: &SharedLayer<B>,
    calls: &[Call],
) -> Option<Decision> {
    if is_not_limited(calls) {
        return Some(not_limited(calls));
    }
    shared.backend.decide_at_once(&shared.prepared, calls)
}

#[inline]
pub(super) fn is_not_limited(calls: &[Call]) -> bool {
    calls.iter().all(|call| call.key().is_none())
}

#[cold]
pub(super) fn not_limited(calls: &[Call]) -> Decision {
    Decision::not_limited(calls.len())
}

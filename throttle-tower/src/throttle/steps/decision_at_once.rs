//! The decision alone, where nothing has to be waited for.

use throttle_core::Decision;
use throttle_core::backend::Call;

use crate::throttle::shared_layer::ErasedLayer;

/// The decision, if the backend makes one without waiting. No share of this process is charged.
pub(super) fn decision_at_once<L: ErasedLayer + ?Sized>(
    shared: &L,
    calls: &[Call],
) -> Option<Decision> {
    if is_not_limited(calls) {
        return Some(not_limited(calls));
    }
    shared.decide_at_once(calls)
}

#[inline]
pub(super) fn is_not_limited(calls: &[Call]) -> bool {
    calls.iter().all(|call| call.key().is_none())
}

#[cold]
pub(super) fn not_limited(calls: &[Call]) -> Decision {
    Decision::not_limited(calls.len())
}

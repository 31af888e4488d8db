use std::time::Duration;

use smallvec::SmallVec;
use throttle_core::Key;
use throttle_core::backend::Call;

/// What one call needs for its turn.
///
/// In this order, because an absent deadline is written in part. A key behind it would be copied in
/// words that straddle those in which it was written, and the processor waits for both.
#[derive(Clone)]
#[repr(C)]
pub(super) struct Wanted {
    pub(super) key: Key,
    /// Requests. At least one, unless the call costs of another unit.
    pub(super) cost: u64,
    /// How long the call may wait, if that is less than the bucket's longest wait.
    pub(super) deadline: Option<Duration>,
    /// Of each other unit; `None` where requests alone are paced.
    pub(super) units: Option<Box<[u64]>>,
}

impl Wanted {
    /// One call for each pace.
    pub(super) fn calls(&self) -> SmallVec<[Call; 3]> {
        let costs = [self.cost]
            .into_iter()
            .chain(self.units.iter().flatten().copied());
        costs
            .map(|cost| {
                if cost == 0 {
                    Call::SKIP
                } else {
                    Call::from(self.key.clone()).costing(cost)
                }
            })
            .collect()
    }
}

/// The place of a call's class, the highest first, and the requests that must still find room
/// behind the call.
#[derive(Clone, Copy, Default)]
pub(super) struct Class {
    pub(super) place: u16,
    pub(super) reserve: u64,
}

pub(super) type ClassOf<Req> = dyn Fn(&Req) -> Class + Send + Sync;

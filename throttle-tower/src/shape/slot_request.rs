use std::time::Duration;

use throttle_core::{Cost, Key};

/// What one call asks of the schedule.
///
/// In this order, because an absent deadline is written in part. A key behind it would be copied in words that straddle
/// those in which it was written, and the processor waits for both.
#[derive(Clone)]
#[repr(C)]
pub(super) struct SlotRequest {
    pub(super) key: Key,
    pub(super) cost: Cost,
    /// How long the call may wait, if that is less than the bucket's longest wait.
    pub(super) deadline: Option<Duration>,
    /// Whether the call gets a slot even if it may leave at once.
    pub(super) always_slot: bool,
    /// Whether a smaller call is tried next if this one is refused: the refusal is not the last word, and not counted.
    pub(super) may_shrink: bool,
}

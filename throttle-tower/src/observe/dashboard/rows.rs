use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use super::flows::{Flow, TenSecondCounts};
use crate::{LayerInfo, LimitInfo};

/// The limits of one version of a layer.
pub(super) struct LayerRows {
    pub(super) info: LayerInfo,
    /// By the index of the limit.
    pub(super) limits: Box<[Arc<LimitRow>]>,
}

impl LayerRows {
    pub(super) fn rows(&self) -> impl Iterator<Item = (&LimitInfo, &Arc<LimitRow>)> {
        self.info.limits().iter().zip(&self.limits)
    }
}

/// What limits of one name do, at 2.5 KB.
#[derive(Default)]
pub(super) struct LimitRow {
    pub(super) flow: Flow,
    /// Requests of which the limit was the binding one, or that lacked its permits.
    pub(super) bound_refused: TenSecondCounts,
    pub(super) bound_admitted: TenSecondCounts,
    queued: AtomicI64,
    pub(super) longest_wait_ms: TenSecondCounts,
    taken: AtomicI64,
    pub(super) most_taken: TenSecondCounts,
}

impl LimitRow {
    pub(super) fn queued(&self) -> u64 {
        not_negative(self.queued.load(Ordering::Relaxed))
    }

    pub(super) fn taken(&self) -> u64 {
        not_negative(self.taken.load(Ordering::Relaxed))
    }

    pub(super) fn join_queue(&self) {
        self.queued.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn leave_queue(&self, after: Duration, ten_seconds: u32) {
        self.queued.fetch_sub(1, Ordering::Relaxed);
        self.longest_wait_ms.raise(ten_seconds, whole_millis(after));
    }

    /// Counts permits that a request takes, in the running ten seconds, which have this number.
    pub(super) fn take(&self, permits: u64, ten_seconds: u32) {
        let permits = i64::try_from(permits).unwrap_or(i64::MAX);
        let former = self.taken.fetch_add(permits, Ordering::Relaxed);
        let taken = former.saturating_add(permits);
        self.most_taken.raise(ten_seconds, not_negative(taken));
    }

    pub(super) fn give_back(&self, permits: u64) {
        let permits = i64::try_from(permits).unwrap_or(i64::MAX);
        self.taken.fetch_sub(permits, Ordering::Relaxed);
    }
}

/// What came in by another order for a moment counts as nothing.
fn not_negative(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

pub(super) fn whole_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

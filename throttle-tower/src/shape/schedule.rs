use std::sync::Arc;
use std::time::Duration;

use throttle_core::backend::{Receipt, ReceiptItem};
use throttle_core::{Backend, LocalShare, Rate};

use super::paused_keys::PausedKeys;
use super::stats::Counters;
use crate::limit::OnError;
use crate::usage::Background;

/// What the clones of a shaper share: the backend that keeps the schedule, its bounds, and the keys that are paused.
pub(super) struct Schedule<B: Backend> {
    pub(super) backend: B,
    pub(super) prepared: Arc<B::Prepared>,
    /// Decides in this process while the store fails, if the shaper is configured so.
    pub(super) share: Option<LocalShare>,
    pub(super) on_error: OnError,
    pub(super) rate: Rate,
    pub(super) max_wait: Duration,
    pub(super) max_waiting: usize,
    pub(super) counters: Arc<Counters>,
    /// Sends slots back to the store.
    pub(super) background: Background,
    pub(super) paused_keys: PausedKeys,
}

impl<B: Backend> Schedule<B> {
    /// Gives back a slot that no call will use. The schedule closes up if nothing was scheduled behind it.
    pub(super) fn give_back(&self, item: Option<ReceiptItem>) {
        let Some(item) = item else { return };
        let receipt = Receipt::from(item).actual(0);
        self.background.settle(&self.backend, &self.prepared, self.share.as_ref(), receipt, None);
    }
}

use std::sync::Arc;
use std::time::Duration;

use throttle_core::backend::Receipt;
use throttle_core::{Backend, Key, LocalShare, Rate};

use super::backoff::Backoff;
use super::one_key::OneKey;
use super::paused_keys::PausedKeys;
use super::slot_charge::SlotCharge;
use super::stats::Counters;
use crate::limit::OnError;
use crate::usage::{Background, Settling};

/// What the clones of a shaper share: the backend that keeps the schedule, its bounds, and the keys that are paused.
pub(super) struct Schedule<B: Backend> {
    pub(super) backend: B,
    pub(super) prepared: Arc<B::Prepared>,
    /// Keeps the constant key in the place of the backend, if nothing else can use that.
    pub(super) one_key: Option<OneKey>,
    /// Decides in this process while the store fails, if the shaper is configured so.
    pub(super) share: Option<LocalShare>,
    pub(super) on_error: OnError,
    pub(super) rate: Rate,
    pub(super) max_wait: Duration,
    pub(super) max_waiting: usize,
    pub(super) counters: Counters,
    /// Sends slots back to the store.
    pub(super) background: Background,
    pub(super) paused_keys: PausedKeys,
    pub(super) backoff: Backoff,
}

impl<B: Backend> Schedule<B> {
    /// The place of a key that the backend does not keep.
    #[inline]
    pub(super) fn one_key(&self, key: &Key) -> Option<&OneKey> {
        self.one_key.as_ref().filter(|_| key.expose_bytes().is_empty())
    }

    /// Gives back a slot that no call will use. The schedule closes up if nothing was scheduled behind it.
    pub(super) fn give_back(&self, charge: SlotCharge) {
        match charge {
            SlotCharge::Item(item) => {
                let receipt = Receipt::from(item).actual(0);
                let (backend, prepared, share) = (&self.backend, &self.prepared, self.share.as_ref());
                self.background.settle(Settling { backend, prepared, share, receipt }, None, || ());
            }
            SlotCharge::OneKey(departure) => {
                if let Some(one_key) = &self.one_key {
                    one_key.give_back(departure);
                }
            }
            SlotCharge::Nothing { .. } => {}
        }
    }
}

use std::sync::Arc;
use std::time::Duration;

use throttle_core::backend::Receipt;
use throttle_core::{Backend, Key, LocalShare, Rate};

use super::backoff::Backoff;
use super::one_key::OneKey;
use super::paused_keys::PausedKeys;
use super::shared_pauses::SharedPauses;
use super::slot_charge::SlotCharge;
use super::stats::Counters;
use super::units::Units;
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
    /// Of requests.
    pub(super) rate: Rate,
    /// The other units that are paced, if there are any. The schedule then counts time.
    pub(super) units: Option<Units>,
    pub(super) max_wait: Duration,
    pub(super) max_waiting: usize,
    pub(super) counters: Counters,
    /// Sends slots back to the store.
    pub(super) background: Background,
    pub(super) paused_keys: PausedKeys,
    pub(super) backoff: Backoff,
    /// What a fleet keeps together of its pauses, if it does.
    pub(super) shared_pauses: Option<SharedPauses<B>>,
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
            SlotCharge::Item(item) => self.settle(Receipt::from(item).actual(0)),
            SlotCharge::OneKey(departure) => {
                if let Some(one_key) = &self.one_key {
                    one_key.give_back(departure);
                }
            }
            SlotCharge::Units(turn) => {
                let charge = self.units.as_ref().and_then(|units| units.accounts.release(&turn));
                charge.into_iter().for_each(|charge| self.give_back(charge));
            }
            SlotCharge::Nothing { .. } => {}
        }
    }

    pub(super) fn settle(&self, receipt: Receipt) {
        let (backend, prepared, share) = (&self.backend, &self.prepared, self.share.as_ref());
        self.background.settle(Settling { backend, prepared, share, receipt }, None, || ());
    }
}

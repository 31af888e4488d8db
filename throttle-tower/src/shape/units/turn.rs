use std::sync::{Arc, Mutex, MutexGuard};

use smallvec::SmallVec;
use throttle_core::Key;
use tokio::time::Instant;

use super::super::slot_charge::SlotCharge;
use crate::lock::lock;

/// A call of several units on the schedule. Its slot holds it until it leaves, and its key's account while nothing is
/// scheduled behind it.
pub(in super::super) struct Turn {
    key: Key,
    state: Mutex<TurnState>,
}

pub(super) struct TurnState {
    pub(super) booking: Booking,
    /// What the schedule charged, once it has decided.
    pub(super) charge: Option<SlotCharge>,
}

/// What a call takes of its key's account. Times are in ns.
pub(super) struct Booking {
    /// Time on the schedule, in µs.
    pub(super) micros: u64,
    /// The part that is needed for its requests.
    pub(super) requests: u64,
    /// Of each unit: what was taken from the balance, to be restored if the call is dropped.
    pub(super) restores: SmallVec<[i64; 2]>,
    /// When it ends.
    pub(super) ends: Option<Instant>,
    /// The slot before it, while this one may still be given back.
    pub(super) before: Option<Arc<Turn>>,
    /// Of each unit: the part of the time that it does not need.
    pub(super) slacks: SmallVec<[i64; 2]>,
}

impl Turn {
    pub(super) fn new(key: Key, booking: Booking) -> Arc<Self> {
        Arc::new(Self { key, state: Mutex::new(TurnState { booking, charge: None }) })
    }

    pub(in super::super) const fn key(&self) -> &Key {
        &self.key
    }

    /// Units of the schedule, which are µs.
    pub(in super::super) fn cost(&self) -> u64 {
        self.lock().booking.micros
    }

    /// The call has left: its slot is not given back any more.
    pub(in super::super) fn leave(&self) {
        drop(self.lock().booking.before.take());
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, TurnState> {
        lock(&self.state)
    }
}

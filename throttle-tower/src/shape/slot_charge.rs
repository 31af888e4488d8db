use std::sync::Arc;

use throttle_core::Key;
use throttle_core::algorithm::Departure;
use throttle_core::backend::ReceiptItem;

use super::slot_request::SlotRequest;
use super::units::Turn;

/// What the schedule charged for a slot.
pub(super) enum SlotCharge {
    /// A charge at the backend or at this process's share. It names its key.
    Item(ReceiptItem),
    /// A charge of the constant key where the backend does not keep it.
    OneKey(Departure),
    /// A charge for several units, which one of the others is part of.
    Units(Arc<Turn>),
    /// Nothing, because the store failed and is left open then.
    Nothing { key: Key, cost: u64 },
}

impl SlotCharge {
    pub(super) fn nothing(request: &SlotRequest) -> Self {
        Self::Nothing { key: request.key.clone(), cost: request.cost.get() }
    }

    pub(super) fn key(&self) -> &Key {
        static CONSTANT: Key = Key::CONSTANT;
        match self {
            Self::Item(item) => item.key(),
            Self::OneKey(_) => &CONSTANT,
            Self::Units(turn) => turn.key(),
            Self::Nothing { key, .. } => key,
        }
    }

    /// The call's units of the schedule.
    pub(super) fn cost(&self) -> u64 {
        match self {
            Self::Item(item) => item.taken(),
            Self::OneKey(departure) => departure.cost(),
            Self::Units(turn) => turn.cost(),
            Self::Nothing { cost, .. } => *cost,
        }
    }
}

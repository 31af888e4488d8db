use throttle_core::Key;
use throttle_core::algorithm::Departure;
use throttle_core::backend::ReceiptItem;

use super::slot_request::SlotRequest;

/// What the schedule charged for a slot.
pub(super) enum SlotCharge {
    /// A charge at the backend or at this process's share. It names its key.
    Item(ReceiptItem),
    /// A charge of the constant key where the backend does not keep it.
    OneKey(Departure),
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
            Self::Nothing { key, .. } => key,
        }
    }

    /// The call's units.
    pub(super) fn cost(&self) -> u64 {
        match self {
            Self::Item(item) => item.taken(),
            Self::OneKey(departure) => departure.cost(),
            Self::Nothing { cost, .. } => *cost,
        }
    }
}

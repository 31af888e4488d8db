//! What a decision has charged goes back, where the request is refused after all or was dropped.

use throttle_core::backend::{Call, Receipt};
use throttle_core::{BackendError, Decision};

use super::correct_charges::{self, ChargeChanges};
use crate::throttle::shared_layer::ErasedLayer;

/// Gives back all that a decision has charged, in the background.
pub(super) fn refund_all(shared: &dyn ErasedLayer, decision: &Decision, calls: &[Call]) {
    if let Some(receipt) = Receipt::of(decision, calls) {
        ChargeChanges::tell_charged(shared, &receipt);
        correct_charges::settle_receipt(shared, receipt.actual(0), None);
    }
}

/// Gives back what limits that refund aborted requests took of one that was dropped while the store
/// decided.
pub(super) async fn refund_aborted(
    shared: &dyn ErasedLayer,
    decided: Result<Decision, BackendError>,
    calls: &[Call],
) -> Result<(), BackendError> {
    let decision = match decided {
        Ok(decision) => decision,
        Err(error) if error.is_uncharged() => return Ok(()),
        Err(error) => return Err(error),
    };
    let Some(receipt) = Receipt::of(&decision, calls) else {
        return Ok(());
    };
    ChargeChanges::tell_charged(shared, &receipt);
    let refunded = shared
        .applied
        .iter()
        .enumerate()
        .filter(|(_, limit)| limit.charge_rules.refund_aborted);
    let receipt = refunded.fold(receipt, |receipt, (index, _)| receipt.actual_of(index, 0));
    let changes = ChargeChanges::by(shared, &receipt);
    let mut receipt = Some(receipt);
    if let Some(share) = shared.share() {
        share.note(&decision, calls);
        receipt = receipt.and_then(|receipt| share.for_receipts().settle(receipt));
    }
    if let Some(receipt) = receipt {
        shared.settle(receipt).await?;
    }
    changes.tell();
    Ok(())
}

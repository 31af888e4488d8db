//! What the rules on charges bring into a program: see [`ErasedLayer`].

use std::sync::Arc;

use http::request::Parts;
use throttle_core::Decision;
use throttle_core::backend::{Answer, Call};

use super::correct_charges::{count_each_refusal, open_account};
use super::dropped_decision::RefundOnDrop;
use crate::throttle::shared_layer::ErasedLayer;
use crate::usage::Open;

/// The steps of limits whose charges may change after the decision, or that charge refusals.
pub(crate) struct ChargeSteps {
    pub(super) open_account: fn(Arc<dyn ErasedLayer>, &Decision, &[Call], &mut Parts) -> Open,
    pub(super) count_refused: fn(&Arc<dyn ErasedLayer>, &Decision, &[Call]),
    pub(super) refund_on_drop: GuardDecision,
}

type GuardDecision = fn(&Arc<dyn ErasedLayer>, &[Call], Answer<Decision>) -> Answer<Decision>;

pub(crate) static CHARGE_STEPS: ChargeSteps = ChargeSteps {
    open_account,
    count_refused: count_each_refusal,
    refund_on_drop: RefundOnDrop::start,
};

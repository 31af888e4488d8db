//! What limits on requests in flight, and rules on charges, bring into a program: see
//! [`ErasedLayer`].

use std::sync::Arc;

use http::request::Parts;
use throttle_core::Decision;
use throttle_core::backend::{Answer, Call};

use super::correct_charges::{count_each_refusal, open_account};
use super::dropped_decision::RefundOnDrop;
use super::give_back_unserved::refund_all;
use crate::event::Observers;
use crate::throttle::permits::{HeldPermits, Indices, Permits};
use crate::throttle::shared_layer::ErasedLayer;
use crate::usage::Open;

/// The steps of limits on requests in flight.
#[derive(Debug)]
#[expect(unnameable_types, reason = "a part of what seals a trait")]
pub struct PermitSteps {
    pub(in crate::throttle) look: fn(&Permits, &[Call]) -> Result<(), Indices>,
    pub(in crate::throttle) take: TakePermits,
    pub(super) refund_all: fn(&dyn ErasedLayer, &Decision, &[Call]),
}

type TakePermits =
    fn(&Arc<Permits>, &[Call], &Observers) -> Result<Option<Arc<HeldPermits>>, Indices>;

pub(crate) static PERMIT_STEPS: PermitSteps = PermitSteps {
    look: Permits::look_at_all,
    take: Permits::take,
    refund_all,
};

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

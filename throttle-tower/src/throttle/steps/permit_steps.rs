//! What limits on requests in flight bring into a program: see [`ErasedLayer`].

use std::sync::Arc;

use throttle_core::Decision;
use throttle_core::backend::Call;

use super::give_back_unserved::refund_all;
use crate::event::Observers;
use crate::throttle::permits::{HeldPermits, Indices, Permits};
use crate::throttle::shared_layer::ErasedLayer;

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

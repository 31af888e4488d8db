//! Stands in the place of `observed/mod.rs` without the feature `metrics`, and does nothing.

use std::sync::Arc;

use throttle_core::BackendErrorKind;

use crate::breaker::Breaker;
use crate::stats::Count;

#[derive(Debug, Default)]
pub(crate) struct Label {}

#[derive(Debug)]
pub(crate) struct Observed;

impl Observed {
    pub(crate) fn new(_: Label) -> Self {
        Self
    }

    pub(crate) fn count(&self, _: Count) {}

    pub(crate) fn failed(&self, _: BackendErrorKind) {}

    pub(crate) fn breaker_begins(&self, _: &Arc<Breaker>) {}

    pub(crate) fn breaker_ends(&self, _: &Arc<Breaker>) {}

    pub(crate) fn breaker_changed(&self) {}

    pub(crate) fn call(&self, _: usize) -> ObservedCall {
        ObservedCall
    }

    pub(crate) fn waiting(&self) -> WaitingDecision {
        WaitingDecision
    }
}

pub(crate) struct ObservedCall;

impl ObservedCall {
    pub(crate) fn see<T, E>(&mut self, outcome: Result<T, E>) -> Result<T, E> {
        outcome
    }
}

pub(crate) struct WaitingDecision;

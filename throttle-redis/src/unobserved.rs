//! Stands in the place of `observed/mod.rs` without the feature `metrics`, and does nothing.

use std::sync::Arc;

use throttle_core::BackendErrorKind;

use crate::breaker::Breaker;

#[derive(Debug, Default)]
pub(crate) struct Label {}

#[derive(Debug)]
pub(crate) struct Observed;

impl Observed {
    pub(crate) fn new(_: Label, _: &Arc<[Breaker]>) -> Self {
        Self
    }

    pub(crate) fn failed(&self, _: BackendErrorKind) {}

    pub(crate) fn breaker_changed(&self) {}

    pub(crate) fn call(&self, _: usize) -> ObservedCall {
        ObservedCall
    }

    pub(crate) fn waiting(&self) -> WaitingDecision {
        WaitingDecision
    }

    pub(crate) fn queued(&self) -> (WaitingDecision, WaitBegins) {
        (WaitingDecision, WaitBegins)
    }
}

macro_rules! not_counted {
    ($($count:ident),*) => {
        impl Observed {
            $(pub(crate) fn $count(&self) {})*
        }
    };
}

not_counted!(
    decided,
    left_unknown,
    denied,
    called,
    repeat,
    loaded,
    connected,
    connecting_failed,
    breaker_opened,
    settling_failed
);

pub(crate) struct ObservedCall;

impl ObservedCall {
    pub(crate) fn see<T, E>(&mut self, outcome: Result<T, E>) -> Result<T, E> {
        outcome
    }
}

pub(crate) struct WaitingDecision;

pub(crate) struct WaitBegins;

impl WaitBegins {
    pub(crate) fn now(self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_the_feature_nothing_is_kept() {
        let sizes =
            [size_of::<Label>(), size_of::<Observed>(), size_of::<ObservedCall>(), size_of::<WaitingDecision>()];
        assert_eq!(sizes, [0; 4]);
        assert!(!std::mem::needs_drop::<ObservedCall>() && !std::mem::needs_drop::<WaitingDecision>());
    }
}

//! Asks the backend whether calls may leave now.

use std::time::Duration;

use futures_util::FutureExt;
use smallvec::SmallVec;
use throttle_core::backend::{Call, Receipt};
use throttle_core::{Backend, BackendError, Decision, Status, Timestamp};

use super::schedule::Schedule;
use crate::limit::OnError;

/// What the backend says.
pub(super) enum TurnAnswer {
    /// The calls may leave. The next turn is due after that time, counted from the decision.
    Granted {
        next: Duration,
        receipt: Option<Box<Receipt>>,
    },
    /// Not before that time has passed.
    Wait(Duration),
    /// No wait helps.
    Never,
    /// The store does not answer, and calls are sent at no pace then.
    Unpaced,
    Failed(BackendError),
}

pub(super) type PaceCalls = SmallVec<[Call; 3]>;

impl Schedule {
    /// Asks for one call, as of an instant if one is given. `None` if the backend has to be waited
    /// for.
    pub(super) fn ask_now(
        &self,
        calls: &PaceCalls,
        as_of: Option<Timestamp>,
    ) -> Option<TurnAnswer> {
        let decision = match as_of.filter(|_| !self.backend.can_fail()) {
            Some(at) => {
                let deciding = self.backend.decide_as_of(&self.prepared, calls, at);
                deciding.now_or_never()?.ok()?
            }
            None => self.backend.decide_at_once(&self.prepared, calls)?,
        };
        // Only what may be corrected later is kept.
        Some(conclude(&decision, calls, self.paces.has_units()))
    }

    /// Asks a backend that has to be waited for.
    pub(super) async fn ask(
        &self,
        calls: &PaceCalls,
        as_of: Option<Timestamp>,
    ) -> Result<TurnAnswer, BackendError> {
        let decision = match as_of {
            Some(at) => self.backend.decide_as_of(&self.prepared, calls, at),
            None => self.backend.decide(&self.prepared, calls),
        };
        let decision = decision.await?;
        if let Some(share) = &self.share {
            share.note(&decision, calls);
        }
        Ok(conclude(&decision, calls, true))
    }

    pub(super) fn without_the_store(&self, error: BackendError, calls: &PaceCalls) -> TurnAnswer {
        let is_busy = error.kind().is_busy();
        match (self.on_error, &self.share) {
            (OnError::Open, share) if share.is_none() || !is_busy => TurnAnswer::Unpaced,
            (OnError::Open | OnError::Local { .. }, Some(share)) => {
                conclude(&share.decide(calls, error.kind()), calls, true)
            }
            _ => TurnAnswer::Failed(error),
        }
    }

    /// Gives back what no call uses.
    pub(super) fn give_back(&self, receipts: impl IntoIterator<Item = Box<Receipt>>) {
        receipts
            .into_iter()
            .for_each(|receipt| self.settle((*receipt).actual(0), || ()));
    }
}

fn conclude(decision: &Decision, calls: &[Call], keeps_receipt: bool) -> TurnAnswer {
    if decision.is_admitted() {
        // The next call may not use the other units of this one.
        let requests = decision
            .statuses()
            .first()
            .filter(|status| status.applies());
        let next = requests.map_or(Duration::ZERO, Status::reset_after);
        let receipt = keeps_receipt.then(|| Receipt::of(decision, calls));
        let receipt = receipt.flatten().map(Box::new);
        return TurnAnswer::Granted { next, receipt };
    }
    decision
        .retry_after()
        .map_or(TurnAnswer::Never, TurnAnswer::Wait)
}

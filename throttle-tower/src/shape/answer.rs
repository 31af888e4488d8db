//! Asks the backend whether calls may leave now.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use smallvec::SmallVec;
use throttle_core::backend::{Call, Receipt};
use throttle_core::{Backend, BackendError, Decision, Status, Timestamp};

use super::schedule::Schedule;
use super::wanted::Wanted;
use crate::limit::OnError;

/// What the backend says.
pub(super) enum Answer {
    /// The calls may leave. The turn behind them is due after that time, counted from the decision.
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

pub(super) type Calls = SmallVec<[Call; 3]>;

impl<B: Backend> Schedule<B> {
    /// The present instant by the clock that decides about a call, if it is known.
    pub(super) fn backend_now(&self, wanted: &Wanted) -> Option<Timestamp> {
        self.backend.now(&self.prepared, &wanted.calls())
    }

    /// Asks for one call, as of an instant if one is given. `None` if the backend has to be waited
    /// for.
    pub(super) fn ask_at_once(&self, wanted: &Wanted, as_of: Option<Timestamp>) -> Option<Answer> {
        let calls = wanted.calls();
        let decision = match as_of.filter(|_| !self.backend.can_fail()) {
            Some(at) => {
                let deciding = pin!(self.backend.decide_as_of(&self.prepared, &calls, at));
                let Poll::Ready(decided) = deciding.poll(&mut Context::from_waker(Waker::noop()))
                else {
                    return None;
                };
                decided.ok()?
            }
            None => self.backend.decide_at_once(&self.prepared, &calls)?,
        };
        // Only what may be corrected later is kept.
        Some(conclude(&decision, &calls, wanted.units.is_some()))
    }

    /// Asks a backend that has to be waited for. If it fails, the first call `alone` is decided
    /// without it.
    pub(super) async fn ask(
        &self,
        calls: &Calls,
        alone: &Calls,
        as_of: Option<Timestamp>,
    ) -> (Answer, bool) {
        let deciding = match as_of {
            Some(at) => self.backend.decide_as_of(&self.prepared, calls, at),
            None => self.backend.decide(&self.prepared, calls),
        };
        match deciding.await {
            Ok(decision) => {
                if let Some(share) = &self.share {
                    share.note(&decision, calls);
                }
                (conclude(&decision, calls, true), false)
            }
            Err(error) => (self.without_the_store(error, alone), true),
        }
    }

    #[cold]
    fn without_the_store(&self, error: BackendError, calls: &Calls) -> Answer {
        let is_busy = error.kind().is_busy();
        match (self.on_error, &self.share) {
            (OnError::Open, share) if share.is_none() || !is_busy => Answer::Unpaced,
            (OnError::Open | OnError::Local { .. }, Some(share)) => {
                conclude(&share.decide(calls, error.kind()), calls, true)
            }
            _ => Answer::Failed(error),
        }
    }

    /// Gives back what no call uses.
    pub(super) fn give_back(&self, receipts: impl IntoIterator<Item = Box<Receipt>>) {
        receipts
            .into_iter()
            .for_each(|receipt| self.settle((*receipt).actual(0), || ()));
    }
}

fn conclude(decision: &Decision, calls: &[Call], keeps_receipt: bool) -> Answer {
    if decision.is_admitted() {
        // The next call may not use the other units of this one.
        let requests = decision
            .statuses()
            .first()
            .filter(|status| status.applies());
        let next = requests.map_or(Duration::ZERO, Status::reset_after);
        let receipt = if keeps_receipt {
            Receipt::of(decision, calls).map(Box::new)
        } else {
            None
        };
        return Answer::Granted { next, receipt };
    }
    decision.retry_after().map_or(Answer::Never, Answer::Wait)
}

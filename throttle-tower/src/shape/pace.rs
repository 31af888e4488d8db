use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use throttle_core::backend::{Call, Receipt, ReceiptItem};
use throttle_core::{Backend, BackendError, Cost, Decision, Key, LocalShare, Rate};
use tokio::time::Instant;

use super::asking::Asking;
use super::counters::{Counters, Waiting};
use super::error::{Bound, QueueFull, ShapeError};
use super::pauses::{Pauses, spread};
use super::slot::{Slot, Turn};
use crate::OnError;
use crate::usage::Background;

/// Everything that the clones of a shaper share.
pub(crate) struct Pace<B: Backend> {
    pub(crate) backend: B,
    pub(crate) prepared: Arc<B::Prepared>,
    /// What this process decides by when the store fails, if it is to.
    pub(crate) share: Option<LocalShare>,
    pub(crate) on_error: OnError,
    pub(crate) rate: Rate,
    pub(crate) max_wait: Duration,
    pub(crate) max_waiting: usize,
    pub(crate) counters: Arc<Counters>,
    /// For slots that are given back.
    pub(crate) post: Background,
    pub(crate) pauses: Pauses,
}

/// One call's question.
#[derive(Clone)]
pub(crate) struct Ask {
    pub(crate) key: Key,
    pub(crate) cost: Cost,
    /// How long it may wait, if that is less than others may.
    pub(crate) within: Option<Duration>,
    /// Whether it wants a slot even if it may leave at once.
    pub(crate) holds: bool,
}

/// What becomes of a call that is not refused.
pub(crate) enum Answer<B: Backend> {
    /// It leaves now.
    Go,
    /// It leaves later, or when it likes.
    Wait(Slot<B>),
}

impl<B: Backend> Answer<B> {
    /// What to await, if there is anything to.
    #[inline]
    pub(crate) fn into_turn(self) -> Option<Turn<B>> {
        match self {
            Self::Go => None,
            Self::Wait(slot) => Some(slot.into_future()),
        }
    }
}

pub(crate) type Answered<B> = Result<Answer<B>, ShapeError>;

impl<B: Backend> Pace<B> {
    /// The answer, if the backend has it at once.
    #[inline]
    pub(crate) fn ask_at_once(self: &Arc<Self>, ask: &Ask) -> Option<Answered<B>> {
        if let Some(within) = self.tighter(ask) {
            // Looking first: what is taken and given back leaves a gap when others came in between.
            let peek = self.backend.decide_at_once(&self.prepared, &[Call::peek(ask.key.clone())])?;
            if let Err(full) = self.check_peek(&peek, ask, within) {
                return Some(self.count(Err(full.into())));
            }
        }
        let calls = [Call::new(ask.key.clone(), ask.cost)];
        let decision = self.backend.decide_at_once(&self.prepared, &calls)?;
        Some(self.count(self.answer(&decision, &calls, ask, None)))
    }

    /// The answer of a backend that has to be waited for: one round trip, and one more to look first for a call that may
    /// wait less than others.
    ///
    /// It always comes with a slot, also for a call that may leave at once: whoever is gone by then gives it back.
    pub(crate) fn ask(self: &Arc<Self>, ask: Ask) -> Asking<B> {
        let ask = Ask { holds: true, ..ask };
        let pace = Arc::clone(self);
        Asking::new(async move {
            let answered = pace.ask_and_wait(&ask).await;
            pace.count(answered)
        })
    }

    async fn ask_and_wait(self: &Arc<Self>, ask: &Ask) -> Answered<B> {
        // Counted from here on, so that those who wait for the store are bounded too.
        let place = self.counters.wait(self.max_waiting).ok_or(TOO_MANY)?;
        if let Some(within) = self.tighter(ask) {
            // A store that fails here fails below too, and is asked there what that means.
            if let Ok(peek) = self.backend.decide(&self.prepared, &[Call::peek(ask.key.clone())]).await {
                self.check_peek(&peek, ask, within)?;
            }
        }
        let calls = [Call::new(ask.key.clone(), ask.cost)];
        match self.backend.decide(&self.prepared, &calls).await {
            Ok(decision) => {
                if let Some(share) = &self.share {
                    share.note(&decision, &calls);
                }
                self.answer(&decision, &calls, ask, Some(place))
            }
            Err(error) => self.answer_failure(error, &calls, ask, place),
        }
    }

    #[cold]
    fn answer_failure(self: &Arc<Self>, error: BackendError, calls: &[Call], ask: &Ask, place: Waiting) -> Answered<B> {
        self.counters.degraded();
        match (self.on_error, &self.share) {
            (OnError::Open, None) => self.enter(None, ask, Duration::ZERO, Some(place)),
            (OnError::Open, Some(_)) if !error.kind().is_busy() => self.enter(None, ask, Duration::ZERO, Some(place)),
            (OnError::Open | OnError::Local { .. }, Some(share)) => {
                self.answer(&share.decide(calls, error.kind()), calls, ask, Some(place))
            }
            (OnError::Closed | OnError::Local { .. }, _) => Err(ShapeError::Store(error)),
        }
    }

    #[inline]
    fn answer(self: &Arc<Self>, decision: &Decision, calls: &[Call], ask: &Ask, place: Option<Waiting>) -> Answered<B> {
        if !decision.is_admitted() {
            let (bound, allowed) = (Bound::MaxWait, self.max_wait);
            return Err(QueueFull { bound, retry_after: decision.retry_after(), allowed }.into());
        }
        let delay = decision.delay();
        if delay.is_zero() && self.pauses.is_empty() && !ask.holds && ask.within.is_none() {
            return Ok(Answer::Go);
        }
        let item = Receipt::of(decision, calls).and_then(|receipt| receipt.into_items().next());
        self.enter(item, ask, delay, place)
    }

    /// Makes a slot of what was reserved, unless that is too far away after all: then it is given back.
    fn enter(
        self: &Arc<Self>,
        item: Option<ReceiptItem>,
        ask: &Ask,
        delay: Duration,
        place: Option<Waiting>,
    ) -> Answered<B> {
        let now = Instant::now();
        let put_off = self.pauses.finish(&ask.key, ask.cost.get(), delay, now);
        let place = self.check_bounds(ask, delay, put_off).and_then(|()| {
            let leaves_now = delay.is_zero() && put_off.is_none() && !ask.holds;
            let join = || self.counters.wait(self.max_waiting).ok_or(TOO_MANY);
            if leaves_now { Ok(None) } else { place.map_or_else(join, Ok).map(Some) }
        });
        match place {
            Ok(None) => Ok(Answer::Go),
            Ok(Some(place)) => Ok(Answer::Wait(Slot::new(Arc::clone(self), item, ask, now + delay, place))),
            Err(full) => {
                self.give_back(item);
                Err(full.into())
            }
        }
    }

    fn check_bounds(&self, ask: &Ask, delay: Duration, put_off: Option<Duration>) -> Result<(), QueueFull> {
        let finish = put_off.unwrap_or_else(|| delay.saturating_add(self.tail(ask)));
        match self.tighter(ask) {
            Some(within) => self.check(Bound::Deadline, ask, finish, within),
            // The schedule knows nothing of pauses, otherwise the store has checked it, and exactly.
            None if put_off.is_some() => self.check(Bound::MaxWait, ask, finish, self.max_wait),
            None => Ok(()),
        }
    }

    /// Refuses what would miss its deadline as things stand.
    fn check_peek(&self, peek: &Decision, ask: &Ask, within: Duration) -> Result<(), QueueFull> {
        // A schedule is as good as unused when its first free slot has come.
        self.check(Bound::Deadline, ask, peek.reset_after().saturating_add(self.tail(ask)), within)
    }

    /// Whether the last unit leaves in time.
    fn check(&self, bound: Bound, ask: &Ask, finish: Duration, allowed: Duration) -> Result<(), QueueFull> {
        if finish <= allowed {
            return Ok(());
        }
        let retry_after = (self.tail(ask) <= allowed).then(|| finish - allowed);
        Err(QueueFull { bound, retry_after, allowed })
    }

    /// From the first unit of a call to its last.
    fn tail(&self, ask: &Ask) -> Duration {
        spread(self.rate, ask.cost.get() - 1)
    }

    /// The call's own bound, where it is the tighter one.
    #[inline]
    fn tighter(&self, ask: &Ask) -> Option<Duration> {
        ask.within.filter(|within| *within < self.max_wait)
    }

    #[inline]
    fn count(&self, answered: Answered<B>) -> Answered<B> {
        match &answered {
            Ok(Answer::Go) => self.counters.sent(),
            Ok(Answer::Wait(_)) | Err(ShapeError::Store(_)) => {}
            Err(_) => self.counters.refused(),
        }
        answered
    }

    /// Gives back a slot that nobody will use. The schedule closes up if nothing was scheduled behind it.
    pub(crate) fn give_back(&self, item: Option<ReceiptItem>) {
        let Some(item) = item else { return };
        let receipt = Receipt::from(item).actual(0);
        self.post.settle(&self.backend, &self.prepared, self.share.as_ref(), receipt, None);
    }
}

const TOO_MANY: QueueFull = QueueFull { bound: Bound::MaxWaiting, retry_after: None, allowed: Duration::ZERO };

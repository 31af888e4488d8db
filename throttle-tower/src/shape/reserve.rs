//! Reserves a slot in the schedule: one decision of the backend, checked against deadlines, pauses and the number of
//! waiting calls.

use std::sync::Arc;
use std::time::Duration;

use throttle_core::backend::{Call, Receipt};
use throttle_core::{Backend, BackendError, Decision};
use tokio::time::Instant;

use super::error::{Bound, QueueFull, ShapeError};
use super::one_key::Admitted;
use super::pending_reservation::PendingReservation;
use super::schedule::Schedule;
use super::slot::Slot;
use super::slot_charge::SlotCharge;
use super::slot_request::SlotRequest;
use super::waiting_permit::WaitingPermit;
use crate::limit::OnError;
use crate::time::time_for;

/// The result for a call that is not refused.
pub(super) enum Reservation<B: Backend> {
    LeaveNow,
    /// The call leaves when the slot is ready.
    Wait(Slot<B>),
}

pub(super) type Reserved<B> = Result<Reservation<B>, ShapeError>;

impl<B: Backend> Schedule<B> {
    /// Reserves a slot if that is decided without waiting.
    #[inline]
    pub(super) fn reserve_at_once(self: &Arc<Self>, request: &SlotRequest) -> Option<Reserved<B>> {
        if let Some(deadline) = self.tighter_deadline(request) {
            // A peek first: a slot that is taken and given back leaves a gap if another call came in between.
            let reset_after = self.peek_at_once(request)?;
            if let Err(full) = self.check_peek(reset_after, request, deadline) {
                return Some(self.count(request, Err(full.into())));
            }
        }
        let Some(one_key) = self.one_key(&request.key) else { return self.reserve_at_backend(request) };
        let reserved = match one_key.reserve(request.cost, self.may_leave_at_once(request)) {
            Ok(Admitted::Left) => {
                self.counters.sent_at_once();
                return Some(Ok(Reservation::LeaveNow));
            }
            Ok(Admitted::Later(departure)) => {
                self.enter(departure.delay(), SlotCharge::OneKey(departure), request, None)
            }
            Err(retry_after) => Err(self.exceeds_max_wait(retry_after)),
        };
        Some(self.count(request, reserved))
    }

    // Not inlined, so that what it keeps does not enlarge the frame of a call that leaves at once.
    #[inline(never)]
    fn reserve_at_backend(self: &Arc<Self>, request: &SlotRequest) -> Option<Reserved<B>> {
        let calls = [Call::new(request.key.clone(), request.cost)];
        let decision = self.backend.decide_at_once(&self.prepared, &calls)?;
        let reserved = self.count(request, self.conclude(&decision, &calls, request, None));
        if matches!(reserved, Ok(Reservation::LeaveNow)) {
            self.look_for_pauses(&request.key);
        }
        Some(reserved)
    }

    /// How long until the schedule equals an unused one.
    #[inline(never)]
    fn peek_at_once(&self, request: &SlotRequest) -> Option<Duration> {
        match self.one_key(&request.key) {
            Some(one_key) => Some(one_key.reset_after()),
            None => {
                let peek = self.backend.decide_at_once(&self.prepared, &[Call::peek(request.key.clone())])?;
                Some(peek.reset_after())
            }
        }
    }

    /// Reserves a slot at a backend that has to be waited for: one round trip, and one more to peek for a call with a
    /// deadline.
    ///
    /// The result always has a slot, even for a call that may leave at once: if the call is dropped meanwhile, its slot
    /// is given back.
    pub(super) fn reserve(self: &Arc<Self>, request: SlotRequest) -> PendingReservation<Reserved<B>> {
        let request = SlotRequest { always_slot: true, ..request };
        let schedule = Arc::clone(self);
        PendingReservation::new(async move {
            let reserved = schedule.reserve_at_store(&request).await;
            schedule.count(&request, reserved)
        })
    }

    async fn reserve_at_store(self: &Arc<Self>, request: &SlotRequest) -> Reserved<B> {
        // Counted from here on, so that the calls that wait for the store are bounded too.
        let permit = WaitingPermit::of(self).ok_or(TOO_MANY)?;
        if let Some(deadline) = self.tighter_deadline(request) {
            // If the peek fails, so will the decision below, and `on_error` applies there.
            if let Ok(peek) = self.backend.decide(&self.prepared, &[Call::peek(request.key.clone())]).await {
                self.check_peek(peek.reset_after(), request, deadline)?;
            }
        }
        let calls = [Call::new(request.key.clone(), request.cost)];
        match self.backend.decide(&self.prepared, &calls).await {
            Ok(decision) => {
                if let Some(share) = &self.share {
                    share.note(&decision, &calls);
                }
                self.conclude(&decision, &calls, request, Some(permit))
            }
            Err(error) => self.conclude_failure(error, &calls, request, permit),
        }
    }

    #[cold]
    fn conclude_failure(
        self: &Arc<Self>,
        error: BackendError,
        calls: &[Call],
        request: &SlotRequest,
        permit: WaitingPermit<B>,
    ) -> Reserved<B> {
        self.counters.degraded();
        let is_busy = error.kind().is_busy();
        match (self.on_error, &self.share) {
            (OnError::Open, share) if share.is_none() || !is_busy => {
                self.enter(Duration::ZERO, SlotCharge::nothing(request), request, Some(permit))
            }
            (OnError::Open | OnError::Local { .. }, Some(share)) => {
                self.conclude(&share.decide(calls, error.kind()), calls, request, Some(permit))
            }
            _ => Err(ShapeError::Store(error)),
        }
    }

    #[inline]
    fn conclude(
        self: &Arc<Self>,
        decision: &Decision,
        calls: &[Call],
        request: &SlotRequest,
        permit: Option<WaitingPermit<B>>,
    ) -> Reserved<B> {
        if !decision.is_admitted() {
            return Err(self.exceeds_max_wait(decision.retry_after()));
        }
        let delay = decision.delay();
        if delay.is_zero() && self.may_leave_at_once(request) {
            return Ok(Reservation::LeaveNow);
        }
        let item = Receipt::of(decision, calls).and_then(|receipt| receipt.into_items().next());
        let charge = item.map_or_else(|| SlotCharge::nothing(request), SlotCharge::Item);
        self.enter(delay, charge, request, permit)
    }

    /// Whether a call without a delay needs no slot.
    #[inline]
    fn may_leave_at_once(&self, request: &SlotRequest) -> bool {
        self.paused_keys.is_empty() && !request.always_slot
    }

    fn exceeds_max_wait(&self, retry_after: Option<Duration>) -> ShapeError {
        QueueFull { bound: Bound::MaxWait, retry_after, allowed: self.max_wait, unit: None }.into()
    }

    /// Makes a slot of what was reserved. If that would leave too late because of a pause, or if too many calls wait
    /// already, the reservation is given back.
    fn enter(
        self: &Arc<Self>,
        delay: Duration,
        charge: SlotCharge,
        request: &SlotRequest,
        permit: Option<WaitingPermit<B>>,
    ) -> Reserved<B> {
        let now = Instant::now();
        let paused = self.paused_keys.finish(&request.key, request.cost.get(), delay, now);
        let permit = self.check_bounds(request, delay, paused).and_then(|()| {
            let leaves_now = delay.is_zero() && paused.is_none() && !request.always_slot;
            let take = || WaitingPermit::of(self).ok_or(TOO_MANY);
            if leaves_now { Ok(None) } else { permit.map_or_else(take, Ok).map(Some) }
        });
        match permit {
            Ok(None) => Ok(Reservation::LeaveNow),
            Ok(Some(permit)) => Ok(Reservation::Wait(Slot::new(permit, charge, now + delay))),
            Err(full) => {
                self.give_back(charge);
                Err(full.into())
            }
        }
    }

    /// `paused` is when the last unit leaves the queue of a key that is paused, or was until a moment ago.
    fn check_bounds(&self, request: &SlotRequest, delay: Duration, paused: Option<Duration>) -> Result<(), QueueFull> {
        let finish = delay.saturating_add(self.tail(request)).max(paused.unwrap_or_default());
        match self.tighter_deadline(request) {
            Some(deadline) => self.check(Bound::Deadline, request, finish, deadline),
            // The store knows nothing of pauses. Without one it has checked this bound already, and exactly.
            None if paused.is_some() => self.check(Bound::MaxWait, request, finish, self.max_wait),
            None => Ok(()),
        }
    }

    /// Refuses a call that would miss its deadline as things stand.
    fn check_peek(&self, reset_after: Duration, request: &SlotRequest, deadline: Duration) -> Result<(), QueueFull> {
        // A schedule equals an unused one when its first free slot has come.
        self.check(Bound::Deadline, request, reset_after.saturating_add(self.tail(request)), deadline)
    }

    /// Whether the last unit leaves in time.
    fn check(&self, bound: Bound, request: &SlotRequest, finish: Duration, allowed: Duration) -> Result<(), QueueFull> {
        if finish <= allowed {
            return Ok(());
        }
        let retry_after = (self.tail(request) <= allowed).then(|| finish - allowed);
        Err(QueueFull { bound, retry_after, allowed, unit: None })
    }

    /// The time from the first unit of a call to its last.
    fn tail(&self, request: &SlotRequest) -> Duration {
        match &self.units {
            None => time_for(self.rate, request.cost.get() - 1),
            Some(units) => units.tail(request.cost.get()),
        }
    }

    /// The call's own deadline, where it is tighter than the bucket's longest wait.
    #[inline]
    fn tighter_deadline(&self, request: &SlotRequest) -> Option<Duration> {
        request.deadline.filter(|deadline| *deadline < self.max_wait)
    }

    #[inline]
    fn count(&self, request: &SlotRequest, reserved: Reserved<B>) -> Reserved<B> {
        match &reserved {
            Ok(Reservation::LeaveNow) => self.counters.sent(),
            Ok(Reservation::Wait(_)) | Err(ShapeError::Store(_)) => {}
            Err(ShapeError::QueueFull(_)) if request.may_shrink => {}
            Err(_) => self.counters.refused(),
        }
        reserved
    }
}

const TOO_MANY: QueueFull =
    QueueFull { bound: Bound::MaxWaiting, retry_after: None, allowed: Duration::ZERO, unit: None };

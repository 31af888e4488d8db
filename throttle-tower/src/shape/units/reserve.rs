//! Reserves a slot for a call of several units, and corrects it when it is known what the call has used.

use std::sync::Arc;
use std::time::Duration;

use throttle_core::{Backend, Cost, Key};

use super::super::error::{Bound, QueueFull, ShapeError};
use super::super::pending_reservation::PendingReservation;
use super::super::reserve::{Reservation, Reserved};
use super::super::schedule::Schedule;
use super::super::slot_charge::SlotCharge;
use super::super::slot_request::SlotRequest;
use super::paces::Needs;
use super::{ShapeUsage, Turn, UnitCosts, Units};
use crate::time::micros;
use crate::usage::UsageError;

/// What a reservation of several units is while it is made.
pub(in super::super) enum Reserving<B: Backend> {
    Done(Reserved<B>),
    Pending(PendingReservation<Reserved<B>>),
}

/// A booked call whose slot is not reserved yet. It is released when it is dropped.
struct Booked<B: Backend> {
    schedule: Arc<Schedule<B>>,
    turn: Option<Arc<Turn>>,
    request: SlotRequest,
    /// The part of its cost that only pays a debt, in µs. The call can leave without some of it.
    spare: u64,
    /// The most µs that fit an empty schedule within the call's bounds.
    most: u64,
    is_first: bool,
    needs: Needs,
    usage: Option<ShapeUsage>,
}

impl<B: Backend> Schedule<B> {
    /// Reserves a slot for the longest of the times that the call's units take: one decision of the backend.
    pub(in super::super) fn reserve_units(
        self: &Arc<Self>,
        units: &Units,
        key: Key,
        costs: &UnitCosts,
        deadline: Option<Duration>,
        usage: Option<&ShapeUsage>,
    ) -> Reserving<B> {
        let (needs, capacity) = (units.needs(costs), units.capacity());
        if needs.longest.div_ceil(1_000) > capacity {
            self.counters.refused();
            let (bound, unit) = (Bound::MaxWait, needs.slowest);
            let full = QueueFull { bound, retry_after: None, allowed: self.max_wait, unit };
            return Reserving::Done(Err(full.into()));
        }
        let most = deadline.map_or(capacity, |deadline| units.most_until(deadline).min(capacity));
        let (turn, spare) = units.accounts.book(key.clone(), &needs, most);
        // A slot even for a call that may leave at once: what it takes may have to be corrected.
        let (cost, may_shrink) = (Cost::at_least_one(turn.cost()), spare > 0);
        let request = SlotRequest { key, cost, deadline, always_slot: true, may_shrink };
        let (schedule, turn, usage) = (Arc::clone(self), Some(turn), usage.cloned());
        let mut booked = Booked { schedule, turn, request, spare, most, is_first: true, needs, usage };
        while let Some(reserved) = self.reserve_at_once(&booked.request) {
            if !booked.shrinks(&reserved) {
                return Reserving::Done(booked.conclude(reserved));
            }
        }
        Reserving::Pending(PendingReservation::new(async move {
            loop {
                let reserved = booked.schedule.reserve(booked.request.clone()).await;
                if !booked.shrinks(&reserved) {
                    return booked.conclude(reserved);
                }
            }
        }))
    }

    pub(in super::super) fn unknown_unit(&self, unit: &str) -> UsageError {
        let known = self.units.iter().flat_map(Units::names).map(str::to_owned).collect();
        UsageError::UnknownUnit { name: unit.to_owned(), known }
    }

    /// A call has used `actual` of a unit of which it was charged `taken`.
    pub(super) fn settle_unit(&self, turn: &Turn, unit: usize, taken: u64, actual: u64) {
        let Some(units) = &self.units else { return };
        let unused = units.need(unit, taken).cast_signed() - units.need(unit, actual).cast_signed();
        if let Some((turn, micros)) = units.accounts.settle(turn, unit, unused) {
            self.shorten(&turn, micros);
        }
    }

    fn shorten(&self, turn: &Turn, micros: u64) {
        let mut state = turn.lock();
        // If the call was dropped meanwhile, all of its slot was given back.
        let receipt = match &mut state.charge {
            Some(SlotCharge::OneKey(departure)) => {
                if let Some(one_key) = &self.one_key {
                    one_key.shorten(departure, micros);
                }
                return;
            }
            Some(SlotCharge::Item(item)) => item.give_back(micros),
            Some(SlotCharge::Nothing { .. } | SlotCharge::Units(_)) | None => return,
        };
        drop(state);
        self.settle(receipt);
    }
}

impl<B: Backend> Booked<B> {
    /// If it was refused, and less of a debt may fit beside it: books that. So a debt locks nobody out; what is not
    /// paid is left to later calls. But a quarter of what fits beside it on an empty schedule is paid: otherwise callers that
    /// come just in time would never pay.
    fn shrinks(&mut self, reserved: &Reserved<B>) -> bool {
        let (Err(ShapeError::QueueFull(full)), true) = (reserved, self.spare > 0) else { return false };
        let Some(units) = self.schedule.units.as_ref().filter(|_| full.bound != Bound::MaxWaiting) else {
            self.schedule.counters.refused();
            return false;
        };
        let excess = full.retry_after.map_or(u64::MAX, |wait| micros(wait).saturating_add(1));
        let cost = self.request.cost.get();
        let own = cost - self.spare;
        let least = own + self.spare.min(self.most.saturating_sub(own) / 4);
        // If other calls come in between, the second attempt is refused as well.
        let wanted = if self.is_first { cost.saturating_sub(excess).max(least) } else { least };
        if wanted >= cost {
            self.schedule.counters.refused();
            return false;
        }
        if let Some(turn) = self.turn.take() {
            units.accounts.release(&turn);
        }
        let (turn, spare) = units.accounts.book(self.request.key.clone(), &self.needs, wanted);
        (self.request.cost, self.request.may_shrink) = (Cost::at_least_one(turn.cost()), spare > 0);
        (self.turn, self.spare, self.is_first) = (Some(turn), spare, false);
        true
    }

    fn conclude(mut self, reserved: Reserved<B>) -> Reserved<B> {
        match reserved {
            Ok(Reservation::Wait(mut slot)) => {
                if let (Some(units), Some(turn)) = (&self.schedule.units, self.turn.take()) {
                    if let Some(usage) = &self.usage {
                        usage.left_in(&turn);
                    }
                    slot.count_by_units(&units.accounts, turn);
                }
                Ok(Reservation::Wait(slot))
            }
            Err(ShapeError::QueueFull(full)) => Err(QueueFull { unit: self.needs.slowest, ..full }.into()),
            other => other,
        }
    }
}

impl<B: Backend> Drop for Booked<B> {
    fn drop(&mut self) {
        if let (Some(units), Some(turn)) = (&self.schedule.units, self.turn.take()) {
            units.accounts.release(&turn);
        }
    }
}

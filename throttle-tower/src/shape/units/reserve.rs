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
use super::{Turn, UnitCosts, Units};
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
    slowest: Option<&'static str>,
}

impl<B: Backend> Schedule<B> {
    /// Reserves a slot for the longest of the times that the call's units take: one decision of the backend.
    pub(in super::super) fn reserve_units(
        self: &Arc<Self>,
        units: &Units,
        key: Key,
        costs: &UnitCosts,
        deadline: Option<Duration>,
    ) -> Reserving<B> {
        let (needs, capacity) = (units.needs(costs), units.capacity());
        if needs.longest.div_ceil(1_000) > capacity {
            self.counters.refused();
            let (bound, unit) = (Bound::MaxWait, needs.slowest);
            let full = QueueFull { bound, retry_after: None, allowed: self.max_wait, unit };
            return Reserving::Done(Err(full.into()));
        }
        let turn = units.accounts.book(key.clone(), &needs, capacity);
        // A slot even for a call that may leave at once: what it takes may have to be corrected.
        let request = SlotRequest { key, cost: Cost::at_least_one(turn.cost()), deadline, always_slot: true };
        let booked = Booked { schedule: Arc::clone(self), turn: Some(turn), slowest: needs.slowest };
        match self.reserve_at_once(&request) {
            Some(reserved) => Reserving::Done(booked.conclude(reserved)),
            None => {
                let reserved = self.reserve(request);
                Reserving::Pending(PendingReservation::new(async move { booked.conclude(reserved.await) }))
            }
        }
    }

    pub(in super::super) fn unknown_unit(&self, unit: &str) -> UsageError {
        let known = self.units.iter().flat_map(Units::names).map(str::to_owned).collect();
        UsageError::UnknownUnit { name: unit.to_owned(), known }
    }

    /// A call has used `actual` of a unit of which it was charged `taken`.
    pub(super) fn settle_unit(&self, key: &Key, unit: usize, taken: u64, actual: u64) {
        let Some(units) = &self.units else { return };
        let unused = units.need(unit, taken).cast_signed() - units.need(unit, actual).cast_signed();
        if let Some((turn, micros)) = units.accounts.settle(key, unit, unused) {
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
    fn conclude(mut self, reserved: Reserved<B>) -> Reserved<B> {
        match reserved {
            Ok(Reservation::Wait(mut slot)) => {
                if let (Some(units), Some(turn)) = (&self.schedule.units, self.turn.take()) {
                    slot.count_by_units(&units.accounts, turn);
                }
                Ok(Reservation::Wait(slot))
            }
            Err(ShapeError::QueueFull(full)) => Err(QueueFull { unit: self.slowest, ..full }.into()),
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

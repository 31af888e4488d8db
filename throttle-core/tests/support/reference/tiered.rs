//! A key with one state, decided under several parameters, by the definitions: parameters that did
//! not write the state read it as used units, and write it anew with the first charge. Waits are
//! found by search.

use super::{Model, Paid, Place, model};
use crate::support::spec::Spec;

#[derive(Debug)]
pub(super) struct Tiered {
    parameters: Vec<Spec>,
    /// How many of the parameters are tiers; the others are the key's own.
    tiers: usize,
    state: Box<dyn Model>,
    writer: usize,
    asked: usize,
}

impl Tiered {
    pub(super) fn new(tiers: &[Spec]) -> Self {
        Self {
            state: model(&tiers[0]),
            parameters: tiers.to_vec(),
            tiers: tiers.len(),
            writer: 0,
            asked: 0,
        }
    }

    /// Whether the selected parameters have written the state. Parameters that count alike are the
    /// same.
    fn is_own(&self) -> bool {
        self.is_by(self.asked)
    }

    fn is_by(&self, number: usize) -> bool {
        self.parameters[self.writer].counts_like(&self.parameters[number])
    }

    /// Units that the writer counts. What remains is rounded down, so they are rounded up; and
    /// while the state is not as unused, there is one at least.
    fn counted(&self, t: i128) -> i128 {
        (self.state.capacity() - self.state.remaining(t)).max((self.state.reset(t) > 0).into())
    }

    fn used(&self, t: i128) -> i128 {
        self.counted(t).min(self.capacity())
    }

    /// Whether the selected parameters admit a cost only while nothing is used.
    fn is_idle_only(&self) -> bool {
        matches!(self.parameters[self.asked], Spec::Undelayed { .. })
    }

    fn admits(&self, t: i128, cost: i128) -> bool {
        let most = if self.is_idle_only() {
            0
        } else {
            self.capacity() - cost
        };
        self.counted(t) <= most
    }

    /// The state as the selected parameters would have written it now.
    fn begun(&self, t: i128) -> Box<dyn Model> {
        let mut state = model(&self.parameters[self.asked]);
        let used = self.used(t);
        if used > 0 {
            state.take(t, used);
        }
        state
    }

    /// The time until something holds, if nothing else happens. Use only drains, so it holds from
    /// then on, and at the latest when nothing is counted.
    fn until(&self, t: i128, holds: impl Fn(i128) -> bool) -> i128 {
        if holds(t) {
            return 0;
        }
        let (mut before, mut after) = (0, self.state.reset(t));
        assert!(holds(t + after), "{self:?} has recovered after {after} µs");
        while after - before > 1 {
            let middle = (before + after) / 2;
            if holds(t + middle) {
                after = middle;
            } else {
                before = middle;
            }
        }
        after
    }

    /// Settles a charge in the state, whose writer may have charged the key since. Nothing is
    /// settled of a charge whose window is over.
    fn settle(&mut self, t: i128, receipt: Paid, units: i128, is_debit: bool) {
        if self.is_by(receipt.tier) {
            settle(&mut *self.state, t, receipt, units, is_debit);
            return;
        }
        let mut by = model(&self.parameters[receipt.tier]);
        if by.is_over(t, receipt.place) {
            return;
        }
        if self.state.reset(t) > 0 {
            // The charge may be of more than the writer holds.
            let most = self.state.capacity();
            let receipt = Paid {
                cost: receipt.cost.min(most),
                ..receipt
            };
            let receipt = Paid {
                place: self.state.latest(t, receipt),
                ..receipt
            };
            settle(
                &mut *self.state,
                t,
                receipt,
                if is_debit { units } else { units.min(most) },
                is_debit,
            );
            return;
        }
        settle(&mut *by, t, receipt, units, is_debit);
        if by.reset(t) > 0 {
            (self.state, self.writer) = (by, receipt.tier);
        }
    }
}

fn settle(model: &mut dyn Model, t: i128, receipt: Paid, units: i128, is_debit: bool) {
    if is_debit {
        model.debit(t, receipt, units);
    } else {
        model.give_back(t, receipt, units);
    }
}

impl Model for Tiered {
    fn capacity(&self) -> i128 {
        model(&self.parameters[self.asked]).capacity()
    }

    fn can(&self, t: i128, cost: i128) -> bool {
        if self.is_own() {
            self.state.can(t, cost)
        } else {
            self.admits(t, cost)
        }
    }

    fn remaining(&self, t: i128) -> i128 {
        match self.used(t) {
            _ if self.is_own() => self.state.remaining(t),
            used if used > 0 && self.is_idle_only() => 0,
            used => self.capacity() - used,
        }
    }

    fn retry(&self, t: i128, cost: i128) -> i128 {
        if self.is_own() {
            self.state.retry(t, cost)
        } else {
            self.until(t, |at| self.admits(at, cost))
        }
    }

    fn reset(&self, t: i128) -> i128 {
        if self.is_own() {
            self.state.reset(t)
        } else {
            self.until(t, |at| self.used(at) == 0)
        }
    }

    fn delay(&self, t: i128) -> i128 {
        if self.is_own() {
            self.state.delay(t)
        } else {
            self.begun(t).delay(t)
        }
    }

    fn take(&mut self, t: i128, cost: i128) -> Place {
        if !self.is_own() {
            self.state = self.begun(t);
        }
        self.writer = self.asked;
        self.state.take(t, cost)
    }

    fn give_back(&mut self, t: i128, receipt: Paid, units: i128) {
        self.settle(t, receipt, units, false);
    }

    fn debit(&mut self, t: i128, receipt: Paid, units: i128) {
        self.settle(t, receipt, units, true);
    }

    fn ask_in(&mut self, number: usize) {
        self.asked = if number < self.parameters.len() {
            number
        } else {
            0
        };
    }

    fn number_of_tier(&self, tier: usize) -> usize {
        if tier < self.tiers { tier } else { 0 }
    }

    fn number_of_own(&mut self, own: Spec) -> usize {
        let known = self.parameters.iter().skip(self.tiers);
        let index = known.clone().position(|known| *known == own);
        let number = self.tiers + index.unwrap_or(known.len());
        if index.is_none() {
            self.parameters.push(own);
        }
        number
    }

    fn forget(&mut self, unused_at: Option<i128>) {
        if unused_at.is_none_or(|t| self.state.reset(t) == 0) {
            self.state = model(&self.parameters[0]);
            self.writer = 0;
        }
    }

    fn number(&self) -> usize {
        self.asked
    }

    fn is_under_own(&self) -> bool {
        self.asked >= self.tiers
    }
}

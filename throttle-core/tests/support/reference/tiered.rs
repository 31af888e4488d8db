//! A limit with tiers, by the definitions: use is converted by the rule, and waits are found by search.

use throttle_core::Carry;

use super::{Model, Paid, Place, Q, ceil, floor, model};
use crate::support::spec::Spec;

/// A key is in the tier that it was last charged in. Decisions in another tier only read it until one of them charges.
#[derive(Debug)]
pub(super) struct Tiered {
    tiers: Vec<Spec>,
    carry: Carry,
    held: Box<dyn Model>,
    held_in: usize,
    asked: usize,
}

impl Tiered {
    pub(super) fn new(tiers: &[Spec], carry: Carry) -> Self {
        Self { tiers: tiers.to_vec(), carry, held: model(&tiers[0]), held_in: 0, asked: 0 }
    }

    /// Whether a tier's limits are those of the key's state. A state is identified by its limits, so tiers with equal
    /// limits are one tier.
    fn holds(&self, tier: usize) -> bool {
        self.tiers[self.held_in].counts_like(&self.tiers[tier])
    }

    fn is_unused(&self, t: i128) -> bool {
        self.held.reset(t) == 0
    }

    fn start(&mut self, tier: usize) {
        (self.held, self.held_in) = (model(&self.tiers[tier]), tier);
    }

    /// Units that count as used in the selected tier. The remaining units are whole and rounded down, so the used units
    /// are rounded up.
    fn used(&self, t: i128) -> i128 {
        let (old, new) = (self.held.capacity(), self.capacity());
        let used = old - self.held.remaining(t);
        match self.carry {
            Carry::Keep => used.min(new),
            Carry::Proportional => ceil(Q::new(used * new, old)),
            _ => 0,
        }
    }

    /// The time until something holds, if nothing else happens. Use only drains, so the condition stays true from then
    /// on, and it is true at the latest when all use has drained.
    fn until(&self, t: i128, holds: impl Fn(&Self, i128) -> bool) -> i128 {
        if holds(self, t) {
            return 0;
        }
        let (mut before, mut after) = (0, self.held.reset(t));
        assert!(holds(self, t + after), "{self:?} has recovered after {after} µs");
        while after - before > 1 {
            let middle = (before + after) / 2;
            if holds(self, t + middle) { after = middle } else { before = middle }
        }
        after
    }

    /// Converts units of a charge from one tier to the tier that holds the key; 0 if the use was forgotten, or if the
    /// window of the charge is over.
    fn units(&self, t: i128, receipt: Paid, units: i128, round: fn(Q) -> i128) -> Option<i128> {
        let by = model(&self.tiers[receipt.tier]);
        if by.is_over(t, receipt.place) {
            return None;
        }
        match self.carry {
            Carry::Keep => Some(units),
            Carry::Proportional => Some(round(Q::new(units.min(by.capacity()) * self.held.capacity(), by.capacity()))),
            _ => None,
        }
    }
}

impl Model for Tiered {
    fn capacity(&self) -> i128 {
        model(&self.tiers[self.asked]).capacity()
    }

    fn can(&self, t: i128, cost: i128) -> bool {
        if self.holds(self.asked) { self.held.can(t, cost) } else { self.used(t) + cost <= self.capacity() }
    }

    fn remaining(&self, t: i128) -> i128 {
        if self.holds(self.asked) { self.held.remaining(t) } else { self.capacity() - self.used(t) }
    }

    fn retry(&self, t: i128, cost: i128) -> i128 {
        match self.holds(self.asked) {
            true => self.held.retry(t, cost),
            false => self.until(t, |key, at| key.used(at) + cost <= key.capacity()),
        }
    }

    fn reset(&self, t: i128) -> i128 {
        if self.holds(self.asked) { self.held.reset(t) } else { self.until(t, |key, at| key.used(at) == 0) }
    }

    fn take(&mut self, t: i128, cost: i128) -> Place {
        if !self.holds(self.asked) {
            let used = self.used(t);
            self.start(self.asked);
            if used > 0 {
                self.held.take(t, used);
            }
        }
        self.held.take(t, cost)
    }

    /// The converted units of a refund are rounded down: never more than was taken.
    fn give_back(&mut self, t: i128, receipt: Paid, units: i128) {
        if self.holds(receipt.tier) {
            self.held.give_back(t, receipt, units);
        } else if !self.is_unused(t)
            && let Some(units) = self.units(t, receipt, units, floor)
        {
            self.held.give_back(t, receipt, units);
        }
    }

    /// The converted units of a debit are rounded up. If the key is idle, the tier that used it last does not matter.
    fn debit(&mut self, t: i128, receipt: Paid, units: i128) {
        if !self.holds(receipt.tier) && self.is_unused(t) {
            self.start(receipt.tier);
        }
        if self.holds(receipt.tier) {
            self.held.debit(t, receipt, units);
        } else if let Some(units) = self.units(t, receipt, units, ceil) {
            self.held.debit(t, receipt, units);
        }
    }

    fn ask_in(&mut self, tier: usize) {
        self.asked = if tier < self.tiers.len() { tier } else { 0 };
    }

    fn tier(&self) -> usize {
        self.asked
    }
}

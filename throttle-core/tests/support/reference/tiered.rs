//! A limit with tiers, or one whose parameters change, by the definitions: each tier that was charged counts all charges,
//! use is converted by the rule for a tier that counts nothing yet, and waits are found by search.

use throttle_core::Carry;

use super::{Model, Paid, Place, Q, ceil, floor, model};
use crate::support::spec::Spec;

/// The states of a key. The tier that was charged last stands first. Decisions in a tier without a state read the others
/// until it is charged. Only under [`Carry::Keep`] is there more than one state.
#[derive(Debug)]
pub(super) struct Tiered {
    tiers: Vec<Spec>,
    carry: Carry,
    held: Vec<Held>,
    asked: usize,
}

#[derive(Debug)]
struct Held {
    model: Box<dyn Model>,
    tier: usize,
    /// When it was charged in its own tier; `None` while it is the only one.
    since: Option<i128>,
    /// When it last could not hold all that it should count.
    cut: Option<i128>,
}

/// Most states beside that of the tier that was charged last.
const MOST: usize = 7;

impl Held {
    fn new(tiers: &[Spec], tier: usize) -> Self {
        Self { model: model(&tiers[tier]), tier, since: None, cut: None }
    }

    fn is_idle(&self, t: i128) -> bool {
        self.model.reset(t) == 0
    }
}

/// When a limit of which all is used at an instant is as good as unused.
fn full_until(spec: &Spec, t: i128) -> i128 {
    let mut all = model(spec);
    all.take(t, all.capacity());
    t + all.reset(t)
}

impl Tiered {
    pub(super) fn new(tiers: &[Spec], carry: Carry) -> Self {
        Self { tiers: tiers.to_vec(), carry, held: vec![Held::new(tiers, 0)], asked: 0 }
    }

    /// The place of a tier's state. A state is identified by its limits, so tiers with equal limits are one tier.
    fn place(&self, tier: usize) -> Option<usize> {
        self.held.iter().position(|held| self.tiers[held.tier].counts_like(&self.tiers[tier]))
    }

    fn own(&self) -> Option<&Held> {
        self.place(self.asked).map(|place| &self.held[place])
    }

    fn is_unused(&self, t: i128) -> bool {
        self.held.iter().all(|held| held.is_idle(t))
    }

    /// Units that count as used in the selected tier, which has no state, and whether not all of them fit. The remaining
    /// units are whole and rounded down, so the used units are rounded up.
    fn used(&self, t: i128) -> (i128, bool) {
        let new = self.capacity();
        let each = self.held.iter().map(|held| {
            let old = held.model.capacity();
            let used = old - held.model.remaining(t);
            let converted = match self.carry {
                Carry::Keep => used.min(new),
                Carry::Proportional => ceil(Q::new(used * new, old)),
                _ => 0,
            };
            (converted, used > new)
        });
        each.fold((0, false), |(most, cut), (used, cuts)| (most.max(used), cut || cuts))
    }

    /// Whether the other tiers' states would refuse a cost for longer than the selected tier takes to recover.
    fn is_locked(&self, t: i128, cost: i128) -> bool {
        let end = full_until(&self.tiers[self.asked], t);
        self.own().is_none() && self.carry == Carry::Keep && self.used(end).0 + cost > self.capacity()
    }

    /// The state of the selected tier, as it begins now.
    fn begun(&self, t: i128) -> Held {
        let (used, cuts) = self.used(t);
        let mut held = Held::new(&self.tiers, self.asked);
        if used > 0 {
            held.model.take(t, used);
        }
        (held.since, held.cut) = (Some(t), cuts.then_some(t));
        held
    }

    /// The time until something holds, if nothing else happens. Use only drains, so the condition stays true from then
    /// on, and it is true at the latest when all use has drained.
    fn until(&self, t: i128, holds: impl Fn(&Self, i128) -> bool) -> i128 {
        if holds(self, t) {
            return 0;
        }
        let (mut before, mut after) = (0, self.held.iter().map(|held| held.model.reset(t)).max().unwrap_or(0));
        assert!(holds(self, t + after), "{self:?} has recovered after {after} µs");
        while after - before > 1 {
            let middle = (before + after) / 2;
            if holds(self, t + middle) { after = middle } else { before = middle }
        }
        after
    }

    /// Whether a state counts nothing that was charged in its own tier, and tells no more than the others do.
    fn is_forgotten(&self, held: &Held, t: i128) -> bool {
        let spec = &self.tiers[held.tier];
        match held.since {
            None => false,
            Some(since) => {
                full_until(spec, since) <= t && (held.is_idle(t) || held.model.capacity() <= self.capacity())
            }
        }
    }

    fn evict(&mut self, kept: usize) {
        while self.held.len() > MOST + 1 {
            let capacity = |place: &usize| self.held[*place].model.capacity();
            let least = (1..self.held.len()).rev().filter(|place| *place != kept).min_by_key(capacity);
            self.held.remove(least.expect("several are left"));
        }
    }

    /// Settles a charge in the states of all tiers: in that of its own, and in the others as far as they are known to
    /// hold it.
    fn settle(&mut self, t: i128, receipt: Paid, units: i128, is_debit: bool) {
        let by = model(&self.tiers[receipt.tier]);
        let (own, is_over) = (self.place(receipt.tier), by.is_over(t, receipt.place));
        for (place, held) in self.held.iter_mut().enumerate() {
            if own == Some(place) {
                settle(&mut *held.model, t, receipt, units, is_debit);
                continue;
            }
            let new = held.model.capacity();
            let share = |round: fn(Q) -> i128| round(Q::new(units.min(by.capacity()) * new, by.capacity()));
            let units = match self.carry {
                Carry::Keep => units,
                Carry::Proportional if is_debit => share(ceil),
                Carry::Proportional => share(floor),
                _ => continue,
            };
            if is_over || (!is_debit && held.cut.is_some_and(|cut| cut >= receipt.from(&self.tiers[receipt.tier]))) {
                continue;
            }
            if is_debit && units > held.model.remaining(t) {
                held.cut = Some(t);
            }
            settle(&mut *held.model, t, receipt, units, is_debit);
        }
        if let [alone] = &mut *self.held {
            alone.cut = None;
        }
    }
}

fn settle(model: &mut dyn Model, t: i128, receipt: Paid, units: i128, is_debit: bool) {
    if is_debit { model.debit(t, receipt, units) } else { model.give_back(t, receipt, units) }
}

impl Model for Tiered {
    fn capacity(&self) -> i128 {
        model(&self.tiers[self.asked]).capacity()
    }

    fn can(&self, t: i128, cost: i128) -> bool {
        self.own().map_or_else(|| self.used(t).0 + cost <= self.capacity(), |own| own.model.can(t, cost))
    }

    fn remaining(&self, t: i128) -> i128 {
        self.own().map_or_else(|| self.capacity() - self.used(t).0, |own| own.model.remaining(t))
    }

    fn retry(&self, t: i128, cost: i128) -> i128 {
        match self.own() {
            Some(own) => own.model.retry(t, cost),
            None if self.is_locked(t, cost) => self.begun(t).model.retry(t, cost),
            None => self.until(t, |key, at| key.used(at).0 + cost <= key.capacity()),
        }
    }

    fn reset(&self, t: i128) -> i128 {
        self.own().map_or_else(|| self.until(t, |key, at| key.used(at).0 == 0), |own| own.model.reset(t))
    }

    fn refuse(&mut self, t: i128, cost: i128) {
        if self.is_locked(t, cost) {
            self.held.push(self.begun(t));
            self.evict(self.held.len() - 1);
        }
    }

    fn take(&mut self, t: i128, cost: i128) -> Place {
        let is_unused = self.is_unused(t);
        let mut own = match self.place(self.asked) {
            Some(place) => self.held.remove(place),
            None => self.begun(t),
        };
        if is_unused {
            self.held.clear();
        }
        own.tier = self.asked;
        let place = own.model.take(t, cost);
        let others = std::mem::take(&mut self.held).into_iter();
        if self.carry == Carry::Keep {
            self.held = others.filter(|held| !self.is_forgotten(held, t)).collect();
        }
        for held in &mut self.held {
            held.since = held.since.or(Some(t));
            if cost <= held.model.remaining(t) {
                held.model.take(t, cost);
            } else {
                held.model.fill(t);
                held.cut = Some(t);
            }
        }
        own.since = Some(t);
        if self.held.is_empty() {
            (own.since, own.cut) = (None, None);
        }
        self.held.insert(0, own);
        self.evict(0);
        place
    }

    /// If the key is idle, nothing of the charge is left.
    fn give_back(&mut self, t: i128, receipt: Paid, units: i128) {
        if self.held.len() == 1 || !self.is_unused(t) {
            self.settle(t, receipt, units, false);
        }
    }

    /// If the key is idle, the tiers that used it do not matter.
    fn debit(&mut self, t: i128, receipt: Paid, units: i128) {
        if self.place(receipt.tier) == Some(0) && self.held.len() == 1 || !self.is_unused(t) {
            self.settle(t, receipt, units, true);
            return;
        }
        let mut held = match self.place(receipt.tier) {
            Some(place) => self.held.remove(place),
            None => Held::new(&self.tiers, receipt.tier),
        };
        held.model.debit(t, receipt, units);
        if !held.is_idle(t) {
            (held.since, held.cut) = (None, None);
            self.held.clear();
        }
        self.held.push(held);
    }

    fn ask_in(&mut self, tier: usize) {
        self.asked = if tier < self.tiers.len() { tier } else { 0 };
    }

    fn tier(&self) -> usize {
        self.asked
    }
}

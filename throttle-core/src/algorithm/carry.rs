//! A state that other parameters wrote, as a tier's parameters see it. Nothing is written until it is charged, so all
//! that is said of a later instant goes by the parameters that wrote it.

use super::dispatch::Algorithm;
use super::stored::Repr;
use super::verdict::{NEVER, Standing, Taken};
use crate::time::Timestamp;

/// What becomes of what a key has used when its tier changes, or the limits of its tier do.
///
/// The change happens with the first request that is charged. Until then the key is where it was: a refused request and
/// a look change nothing. The wait that a refused request is told is true: it is when what was used before will have
/// drained far enough, at the pace of the tier it was used in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Carry {
    /// Units used stay used: 30 used of 60 are 30 used of 600. Somebody who is moved to a tier that holds less than they
    /// have used waits until enough of it has drained.
    Keep,
    /// The share that is used stays used: 30 used of 60 are 300 used of 600. Rounded up, so that no change is a gift.
    ///
    /// A tier that holds more must not take longer to recover than one that holds less, or a stay in the small one would
    /// give back what was used in the large one; and the product of two capacities must be below 2^53.
    Proportional,
    /// What was used is forgotten. Whoever can choose their tier can have any amount so: only for changes that cost
    /// something, such as a purchase. A limit that is changed is such a change too, and while processes with the former one
    /// run beside those with the new one on one store, each charge in turn forgets: change limits under another rule.
    ///
    /// Keys that share an overflow bucket of a full [`MemoryBackend`](crate::MemoryBackend) forget nothing.
    Reset,
}

/// Products from here on are not exact as doubles, which scripts count in.
const EXACT: u128 = 1 << 53;

pub(crate) struct Carried<'a> {
    pub(crate) new: &'a Algorithm,
    pub(crate) old: &'a Algorithm,
    pub(crate) rule: Carry,
    pub(crate) repr: &'a Repr,
    /// More may have been used than the state tells.
    pub(crate) clipped: bool,
}

impl Carried<'_> {
    /// µs until `cost` is admitted.
    pub(crate) fn wait(&self, now: Timestamp, cost: u64) -> u64 {
        if cost == 0 {
            return 0;
        }
        if cost > self.new.capacity() {
            return NEVER;
        }
        // The old parameters would admit so much exactly when no more is used than leaves room for the cost.
        match self.old.capacity() - self.most(cost) {
            0 => 0,
            room => self.old.wait(self.repr, now, room),
        }
    }

    /// Where the key stands for the new parameters.
    pub(crate) fn standing(&self, now: Timestamp) -> Standing {
        let used = self.used(now);
        if used == 0 {
            return self.new.standing(&self.new.fresh_repr(), now);
        }
        let remaining = self.new.capacity() - used;
        let reset = self.old.standing(self.repr, now).reset;
        Standing { remaining, reset, next: self.wait(now, remaining + 1) }
    }

    /// What a charge starts with, and whether more may have been used than that tells.
    pub(crate) fn start(&self, now: Timestamp) -> (Repr, bool) {
        let mut start = self.new.fresh_repr();
        let used = self.used(now);
        if used > 0 {
            self.new.take(&mut start, now, used);
        }
        (start, used > 0 && self.clipped && !self.is_all())
    }

    /// Units that count as used.
    fn used(&self, now: Timestamp) -> u64 {
        let (new, old) = (self.new.capacity(), self.old.capacity());
        // What is left is rounded down, so this is rounded up.
        let told = old.saturating_sub(self.old.standing(self.repr, now).remaining);
        match self.rule {
            Carry::Reset => 0,
            _ if told == 0 => 0,
            _ if self.is_all() => new,
            Carry::Keep => told.min(new),
            Carry::Proportional => scale_up(told, new, old),
        }
    }

    /// Most units used by the old parameters with which the new ones admit `cost`, which is at most their capacity.
    fn most(&self, cost: u64) -> u64 {
        let (new, old) = (self.new.capacity(), self.old.capacity());
        match self.rule {
            Carry::Reset => old,
            _ if self.is_all() => 0,
            Carry::Keep => old.min(new - cost),
            Carry::Proportional => scale_down(new - cost, old, new),
        }
    }

    /// Whether it counts as all used until it has recovered: it is not known how much was, or it cannot be told exactly.
    fn is_all(&self) -> bool {
        let (new, old) = (self.new.capacity(), self.old.capacity());
        let exact = u128::from(new) * u128::from(old) < EXACT;
        (self.clipped && new > old) || (self.rule == Carry::Proportional && !exact)
    }
}

/// What is to be settled of a charge that was made by the parameters `by` where others hold the state by now; nothing
/// where the charge is not in there any more, or may not be: it was not carried over if its own window had ended before.
pub(crate) fn settled_elsewhere(
    rule: Carry,
    by: &Algorithm,
    held: &Algorithm,
    now: Timestamp,
    taken: Taken,
    actual: u64,
) -> Option<(Taken, u64)> {
    if by.is_over(now, taken.mark) {
        return None;
    }
    let (by, held) = (by.capacity(), held.capacity());
    let exact = u128::from(by) * u128::from(held) < EXACT;
    match rule {
        Carry::Keep => Some((taken, actual)),
        Carry::Proportional if exact && actual <= taken.cost => {
            let back = scale_down((taken.cost - actual).min(by), held, by);
            Some((Taken { cost: back, ..taken }, 0))
        }
        Carry::Proportional if exact => {
            Some((Taken { cost: 0, ..taken }, scale_up((actual - taken.cost).min(by), held, by)))
        }
        Carry::Proportional | Carry::Reset => None,
    }
}

/// `units` · `to` / `from`, rounded down; at most `to` if the units are at most `from`.
fn scale_down(units: u64, to: u64, from: u64) -> u64 {
    u64::try_from(u128::from(units) * u128::from(to) / u128::from(from.max(1))).unwrap_or(u64::MAX)
}

/// The same, rounded up.
fn scale_up(units: u64, to: u64, from: u64) -> u64 {
    u64::try_from((u128::from(units) * u128::from(to)).div_ceil(u128::from(from.max(1)))).unwrap_or(u64::MAX)
}

//! How units that one limit counted count under another: the arithmetic of a change of tier or of limits.

/// How a key's used units carry over when its tier, or the limits of its tier, change.
///
/// The change takes effect with the first request that is charged. Until then the key stays in its former tier, because
/// a refused request and a peek change nothing. The `retry_after` of a refusal is exact: the time until enough of the
/// former use has drained at the former tier's rate. If that would be longer than the tier that refuses takes to recover
/// from full use, the tier's own state begins with the refusal, under [`Keep`](Self::Keep): no tier and no changed limit
/// locks a key out for longer than its own window, from the first refusal on.
///
/// ```
/// use throttle_core::backend::Call;
/// use throttle_core::{Backend, Carry, Gcra, Key, MemoryBackend, Policy, PolicySet, Rate};
///
/// let tiers = [("free", Gcra::new(Rate::per_day(60))), ("pro", Gcra::new(Rate::per_day(600)))];
/// let backend = MemoryBackend::new();
/// let set = backend.prepare(PolicySet::new(Policy::tiered("per-user", tiers, Carry::Keep)?)?)?;
///
/// let call = Call::from(Key::from("ada"));
/// assert_eq!(backend.decide_now(&set, &[call.clone().costing(30)]).remaining(), 30);
/// assert_eq!(backend.decide_now(&set, &[call.costing(1).in_tier(1)]).remaining(), 569);
/// # Ok::<(), throttle_core::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Carry {
    /// Used units stay used: 30 used of 60 become 30 used of 600. This is also the rule for a limit without tiers that
    /// is changed.
    ///
    /// A key keeps a state for each tier, or version of a limit, that has charged it. A charge in one is debited to the
    /// others, as far as units remain there. So each decides as if the key had been in it all along, and a key that
    /// changes and changes back has lost nothing. If one tier is larger and no slower than the others, and of their
    /// kind, a key gets no more than that tier allows. Otherwise each tier admits no more than it would alone.
    ///
    /// A refund is given back in every state that is known to hold the charge. A state that could not hold it in full
    /// keeps it until it has drained.
    ///
    /// A key has at most eight states; the one with the smallest capacity is forgotten first. A state that was not
    /// charged in its own tier for that tier's window is forgotten too, once it is unused or a tier that holds as much
    /// charges the key. What a tier without a state counts as used is what the others count.
    Keep,
    /// The used proportion stays used: 30 used of 60 become 300 used of 600, rounded up, so that no change frees units.
    /// A key has one state, which the first charge in another tier converts.
    ///
    /// A tier with a larger capacity must not take longer to recover than one with a smaller capacity, or a key could
    /// regain units of the large tier by a stay in the small one. The product of two capacities must be below 2^53.
    Proportional,
    /// Used units are forgotten, with the first charge in another tier, in every tier. A client that can choose its tier
    /// can then use any amount, so use this rule only where a change of tier costs the client something, such as a
    /// purchase. A changed limit counts as a change of tier.
    /// While some processes have the former limit and others the new one, charges from the two sides reset the key
    /// again and again. Before you change limits, deploy another rule to every process.
    ///
    /// Keys that share an overflow bucket of a full [`MemoryBackend`](crate::MemoryBackend) forget nothing.
    Reset,
}

/// Products from here on are not exact as doubles, which Redis scripts count in.
const EXACT: u128 = 1 << 53;

/// A conversion of used units from a limit of capacity `from` to one of capacity `to`.
#[derive(Clone, Copy)]
pub(super) struct Conversion {
    pub(super) rule: Carry,
    pub(super) from: u64,
    pub(super) to: u64,
}

impl Conversion {
    /// Units that count as used under the new limit, where the old one counts this many.
    pub(super) fn used(self, counted: u64) -> u64 {
        match self.rule {
            Carry::Reset => 0,
            _ if counted == 0 => 0,
            _ if self.is_all() => self.to,
            Carry::Keep => counted.min(self.to),
            Carry::Proportional => scale_up(counted, self.to, self.from),
        }
    }

    /// The most units that the old limit may count as used for the new one to admit `cost`, which is at most its
    /// capacity.
    pub(super) fn most(self, cost: u64) -> u64 {
        match self.rule {
            Carry::Reset => self.from,
            _ if self.is_all() => 0,
            Carry::Keep => self.from.min(self.to - cost),
            Carry::Proportional => scale_down(self.to - cost, self.from, self.to),
        }
    }

    /// A settlement of `actual` instead of `cost` units, as a settlement on the converted state: the cost and the actual
    /// units there. `None` where the converted state holds nothing of the charge, or an amount that is not known exactly.
    pub(super) fn settlement(self, cost: u64, actual: u64) -> Option<(u64, u64)> {
        let scaled = self.rule == Carry::Proportional && self.is_exact();
        match self.rule {
            Carry::Keep => Some((cost, actual)),
            Carry::Proportional if scaled && actual <= cost => {
                Some((scale_down((cost - actual).min(self.from), self.to, self.from), 0))
            }
            Carry::Proportional if scaled => Some((0, scale_up((actual - cost).min(self.from), self.to, self.from))),
            Carry::Proportional | Carry::Reset => None,
        }
    }

    /// Whether everything counts as used until the key has recovered, because the proportion cannot be converted
    /// exactly.
    fn is_all(self) -> bool {
        self.rule == Carry::Proportional && !self.is_exact()
    }

    fn is_exact(self) -> bool {
        u128::from(self.from) * u128::from(self.to) < EXACT
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

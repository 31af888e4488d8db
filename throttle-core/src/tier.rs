//! Tiers: one policy with several limits; each request names one of them.

use std::sync::Arc;

use crate::algorithm::{Algorithm, Carry, Cell, IntoAlgorithm, State, Writer, Writers};
use crate::error::ConfigError;
use crate::policy::{Policy, PolicyName, Tier, Tiers, printable};
use crate::time::Timestamp;

/// What parameters that belong to no tier are called. A tier may have that name, too; their numbers tell them apart.
const OWN_NAME: &str = "own";

impl Policy {
    /// Most tiers a policy may have.
    pub const MAX_TIERS: usize = 16;
    /// The number in place of a tier's where a request was decided by [parameters of its own](Self::with_own). No tier
    /// has it: there are [at most 16](Self::MAX_TIERS), numbered from 0.
    pub const OWN: u8 = u8::MAX;

    /// A policy of several limits under one name. Each request names one of them with
    /// [`Call::in_tier`](crate::backend::Call::in_tier). A key has one budget, whatever its tier. When its tier
    /// changes, `carry` sets how the units that it has used count in the new tier.
    ///
    /// For a policy with tiers, methods such as [`algorithm`](Self::algorithm) return that of the first tier.
    ///
    /// A tier is identified by its number. If you change the tiers while a process still uses the former ones, add new
    /// tiers at the end; otherwise that process decides in the wrong tier.
    ///
    /// ```
    /// use throttle_core::{Carry, Gcra, Policy, Rate};
    ///
    /// let tiers = [("free", Gcra::new(Rate::per_minute(60))), ("pro", Gcra::new(Rate::per_minute(600)))];
    /// let policy = Policy::tiered("per-user", tiers, Carry::Keep)?;
    /// assert_eq!(policy.tier_named("pro"), Some(1));
    /// assert_eq!(policy.tier(1).algorithm().capacity(), 600);
    /// # Ok::<(), throttle_core::ConfigError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the name is not 1 to 64 printable ASCII characters, or a tier's is not; if there are no tiers, more than 16,
    /// or two of one name; if an algorithm's configuration is out of range; or if the tiers do not meet the conditions
    /// of [`Carry::Proportional`].
    pub fn tiered<N: AsRef<str>, A: IntoAlgorithm>(
        name: &str,
        tiers: impl IntoIterator<Item = (N, A)>,
        carry: Carry,
    ) -> Result<Self, ConfigError> {
        let wrong = |field, value: &dyn std::fmt::Display, rule: &str| {
            Err(ConfigError::new(field, value, rule.to_owned()).in_policy(name))
        };
        let mut each: Vec<Tier> = Vec::new();
        for (tier, algorithm) in tiers {
            let tier = tier.as_ref();
            printable("tier", tier, PolicyName::MAX_LEN).map_err(|error| error.in_policy(name))?;
            if each.iter().any(|other| &*other.name == tier) {
                return wrong("tier", &format_args!("{tier:?} twice"), "each tier has a name of its own; rename one");
            }
            each.push(Tier { name: tier.into(), policy: Self::new(name, algorithm)? });
        }
        let Some(first) = each.first() else {
            return wrong("tiers", &"none", "a policy with tiers has at least one");
        };
        if each.len() > Self::MAX_TIERS {
            return wrong("tiers", &each.len(), "a policy has at most 16 tiers");
        }
        if carry == Carry::Proportional {
            for (place, one) in each.iter().enumerate() {
                each[..place].iter().try_for_each(|other| in_proportion(name, one, other))?;
            }
        }
        let mut policy = first.policy.clone();
        policy.tiers = Some(Arc::new(Tiers { each: each.into(), carry, is_own: false }));
        Ok(policy)
    }

    /// Whether it has tiers.
    #[inline]
    #[must_use]
    pub const fn is_tiered(&self) -> bool {
        self.tiers.is_some()
    }

    /// The policy in one tier: the same name with that tier's algorithm. An unknown number stands for the first tier. A
    /// policy without tiers returns itself.
    #[inline]
    #[must_use]
    pub fn tier(&self, tier: u8) -> &Self {
        match &self.tiers {
            Some(tiers) => tiers.each.get(usize::from(tier)).map_or(&tiers.each[0].policy, |tier| &tier.policy),
            None => self,
        }
    }

    /// The number of the tier of that name.
    #[must_use]
    pub fn tier_named(&self, name: &str) -> Option<u8> {
        let place = self.tiers.as_ref()?.each.iter().position(|tier| &*tier.name == name)?;
        u8::try_from(place).ok()
    }

    /// The name of a tier; `own` for the policy of keys with [parameters of their own](Self::with_own). A tier may be
    /// called `own`, too. [`Status::tier`](crate::Status::tier) tells them apart: it is [`OWN`](Self::OWN) for such a
    /// key.
    #[must_use]
    pub fn tier_name(&self, tier: u8) -> Option<&str> {
        let tiers = self.tiers.as_ref()?;
        tiers.each.get(if tiers.is_own { 0 } else { usize::from(tier) }).map(|tier| &*tier.name)
    }

    /// The tiers by name, in the order given; none for a policy without tiers.
    pub fn tiers(&self) -> impl Iterator<Item = (&str, &Self)> {
        let each = self.tiers.as_ref().map_or(&[][..], |tiers| &tiers.each);
        each.iter().map(|tier| (&*tier.name, &tier.policy))
    }

    /// How used units are carried over when the tier changes; [`Carry::Keep`] for a policy without tiers.
    #[must_use]
    pub fn carry(&self) -> Carry {
        self.tiers.as_ref().map_or(Carry::Keep, |tiers| tiers.carry)
    }

    /// The policy for keys with parameters of their own, for example the numbers in a customer's row of a database.
    /// They belong to no tier. A key has one budget in the tiers and under its own parameters: when it moves between
    /// them, or its own parameters change, the policy's [`Carry`] applies as between two tiers. Sets with the result
    /// stand [beside](Self::beside_existing) those with the tiers, and a store needs no room for it once no set has it.
    /// Prepare the set with the tiers first: this one puts nothing in force, so a backend that has not seen the tiers
    /// does not know what they are.
    ///
    /// ```
    /// use throttle_core::backend::Call;
    /// use throttle_core::{Backend, Carry, Gcra, Key, MemoryBackend, Policy, PolicySet, Rate};
    ///
    /// let tiers = [("free", Gcra::new(Rate::per_day(60))), ("pro", Gcra::new(Rate::per_day(600)))];
    /// let plan = Policy::tiered("per-user", tiers, Carry::Keep)?;
    /// let own = plan.with_own(Gcra::new(Rate::per_day(250)))?;
    /// let backend = MemoryBackend::new();
    /// let [tiers, own] = [backend.prepare(PolicySet::new(plan)?)?, backend.prepare(PolicySet::new(own)?)?];
    ///
    /// let call = [Call::from(Key::from("ada")).costing(30)];
    /// assert_eq!(backend.decide_now(&tiers, &call).remaining(), 30);
    /// assert_eq!(backend.decide_now(&own, &call).remaining(), 190);
    /// assert_eq!(backend.decide_now(&tiers, &call.map(|call| call.costing(0))).remaining(), 0);
    /// # Ok::<(), throttle_core::ConfigError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the algorithm's configuration is out of range, if no tier has such an algorithm, or if the tiers are carried
    /// over by [`Carry::Proportional`]: two customers' numbers would have to be in proportion too, and neither knows
    /// the other.
    pub fn with_own(&self, algorithm: impl IntoAlgorithm) -> Result<Self, ConfigError> {
        let algorithm = algorithm.into_algorithm().map_err(|error| error.in_policy(self.name()))?;
        let mut own = self.clone().beside_existing();
        own.tiers = None;
        own.change_algorithms(|_| algorithm);
        let tiers = self.tiers.as_ref().map_or(&[][..], |tiers| &tiers.each);
        let mut known = tiers.iter().map(|tier| &tier.policy).chain([self]).map(|policy| policy.algorithm().name());
        if known.all(|known| known != algorithm.name()) {
            let rule = format!("own numbers have the algorithm of a tier; use {}", self.algorithm().name());
            return Err(ConfigError::new("algorithm", algorithm.name(), rule).in_policy(self.name()));
        }
        if self.carry() == Carry::Proportional {
            let rule = "numbers of a key's own are in proportion with no other key's; use Carry::Keep or Carry::Reset";
            return Err(ConfigError::new("carry", "Proportional", rule).in_policy(self.name()));
        }
        let mut policy = own.clone();
        let own = Tier { name: OWN_NAME.into(), policy: own };
        policy.tiers = Some(Arc::new(Tiers { each: [own].into(), carry: self.carry(), is_own: true }));
        Ok(policy)
    }

    /// The number of the tier that decides a call; an unknown number stands for the first tier. [`OWN`](Self::OWN) for
    /// parameters that belong to none.
    #[inline]
    pub(crate) fn effective_tier(&self, tier: u8) -> u8 {
        match &self.tiers {
            Some(tiers) if tiers.is_own => Self::OWN,
            Some(tiers) if usize::from(tier) < tiers.each.len() => tier,
            _ => 0,
        }
    }

    /// The policy with only one of its tiers.
    pub(crate) fn only_tier(&self, tier: u8) -> Self {
        let Some(tiers) = &self.tiers else { return self.clone() };
        let only = tiers.each.get(usize::from(tier)).unwrap_or(&tiers.each[0]).clone();
        let mut policy = only.policy.clone();
        policy.tiers = Some(Arc::new(Tiers { each: [only].into(), ..**tiers }));
        policy
    }
}

/// Checks that a key cannot gain units by moving between two tiers and back.
fn in_proportion(policy: &str, one: &Tier, other: &Tier) -> Result<(), ConfigError> {
    let capacity = |tier: &Tier| u128::from(tier.policy.algorithm().capacity());
    let (large, small) = if capacity(one) > capacity(other) { (one, other) } else { (other, one) };
    // How long it takes to recover from using all, in µs.
    let recovers = |tier: &Tier| {
        let rate = tier.policy.algorithm().rate();
        capacity(tier) * u128::from(rate.period_micros()) / u128::from(rate.count().max(1))
    };
    let wrong = |rule: &'static str| {
        let tiers = format!("{:?} and {:?}", &*small.name, &*large.name);
        Err(ConfigError::new("carry", format_args!("Proportional between {tiers}"), rule).in_policy(policy))
    };
    if capacity(large) * capacity(small) >= 1 << 53 {
        return wrong("the product of their capacities must be below 2^53 to be exact; use Carry::Keep");
    }
    if capacity(large) > capacity(small) && recovers(large) > recovers(small) {
        return wrong(
            "the tier that holds more must not take longer to recover, or a stay in the smaller one would give back \
             what was used in the larger one; use Carry::Keep",
        );
    }
    Ok(())
}

/// States as cells of a policy that may have tiers.
impl Policy {
    /// Moves a state into a cell, to be decided in a tier. `writers` are those of the state.
    pub(crate) fn cell<'a>(&'a self, tier: u8, state: &mut State, writers: &'a Writers, at: Timestamp) -> Cell<'a> {
        Cell::of(Writer::of(self.tier(tier).algorithm()), self.carry(), state.take(writers), at)
    }

    /// Moves a cell back into its state.
    pub(crate) fn put_back(&self, cell: Cell<'_>, state: &mut State, charged: bool) {
        state.put(cell.into_states(), self.algorithm(), charged);
    }
}

impl State {
    /// Reads a state of a policy that [`to_wire`](Self::to_wire) wrote, under whatever parameters. `tier` is the one to
    /// try first. `None` if the bytes are no state.
    #[must_use]
    pub fn from_wire_of(policy: &Policy, tier: u8, bytes: &[u8]) -> Option<Self> {
        let own = policy.tier(tier).algorithm();
        let (under, state) = match Self::from_wire(own, bytes) {
            Some(state) => (*own, state),
            None => {
                let written = Algorithm::from_tag(bytes)?;
                (written, Self::from_wire(&written, bytes)?)
            }
        };
        let first = under.is_alike(policy.algorithm());
        Some(Self { under: if first { None } else { Some(Arc::new(under)) }, ..state })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::algorithm::Gcra;
    use crate::rate::Rate;

    fn tiered(tiers: &[(&str, u64, u64)], carry: Carry) -> Result<Policy, ConfigError> {
        let gcra = |(name, count, seconds): &(&str, u64, u64)| {
            ((*name).to_owned(), Gcra::new(Rate::new(*count, Duration::from_secs(*seconds))))
        };
        Policy::tiered("p", tiers.iter().map(gcra), carry)
    }

    #[test]
    fn errors_of_tiers_say_what_to_do() {
        let error = |tiers: &[(&str, u64, u64)], carry| tiered(tiers, carry).expect_err("wrong tiers").to_string();
        let keep = Carry::Keep;
        assert_eq!(error(&[], keep), "policy \"p\": tiers is none: a policy with tiers has at least one");
        let twice = "policy \"p\": tier is \"a\" twice: each tier has a name of its own; rename one";
        assert_eq!(error(&[("a", 1, 1), ("a", 2, 1)], keep), twice);
        let names: Vec<String> = (0..17).map(|n| n.to_string()).collect();
        let many: Vec<_> = names.iter().map(|name| (name.as_str(), 1, 1)).collect();
        assert_eq!(error(&many, keep), "policy \"p\": tiers is 17: a policy has at most 16 tiers");
    }

    /// The smaller tier is named first, wherever it stands.
    #[test]
    fn tiers_that_are_not_in_proportion_are_named_with_the_condition_that_they_miss() {
        let exact = "the product of their capacities must be below 2^53 to be exact; use Carry::Keep";
        let recovers = "the tier that holds more must not take longer to recover, or a stay in the smaller one would \
                        give back what was used in the larger one; use Carry::Keep";
        let half = 1 << 26;
        for (small, large, rule) in
            [(("small", half, 1), ("large", 2 * half, 1), exact), (("small", 10, 60), ("large", 100, 61), recovers)]
        {
            for tiers in [[small, large], [large, small]] {
                let error = tiered(&tiers, Carry::Proportional).expect_err("out of proportion");
                let text = "policy \"p\": carry is Proportional between \"small\" and \"large\": ";
                assert_eq!(error.to_string(), format!("{text}{rule}"));
                assert!(tiered(&tiers, Carry::Keep).is_ok() && tiered(&tiers, Carry::Reset).is_ok());
            }
        }
    }

    #[test]
    fn an_unknown_number_stands_for_the_first_tier() {
        let policy = tiered(&[("a", 1, 1), ("b", 2, 1)], Carry::Reset).expect("tiers");
        let plain = Policy::new("p", Gcra::new(Rate::per_second(7))).expect("a policy");
        let tiers = [0, 1, 2, 255];
        assert_eq!(tiers.map(|tier| policy.effective_tier(tier)), [0, 1, 0, 0]);
        assert_eq!(tiers.map(|tier| plain.effective_tier(tier)), [0; 4]);
        assert_eq!(tiers.map(|tier| policy.only_tier(tier).tiers().count()), [1; 4]);
        assert_eq!(
            tiers.map(|tier| policy.only_tier(tier).tier_name(0).map(str::to_owned)),
            ["a", "b", "a", "a"].map(|name| Some(name.to_owned()))
        );
        assert_eq!((policy.only_tier(1).carry(), plain.only_tier(1)), (Carry::Reset, plain.clone()));
        assert!(policy.is_tiered() && !plain.is_tiered());
        assert_eq!((plain.tier_named("a"), plain.tier_name(0), plain.tiers().count()), (None, None, 0));
        let names = policy.tiers().map(|(name, tier)| (name, tier.algorithm().capacity()));
        assert_eq!(names.collect::<Vec<_>>(), [("a", 1), ("b", 2)]);
    }
}

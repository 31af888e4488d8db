//! Tiers: one policy with several limits; each request names one of them, or brings parameters of
//! its key's own.

use std::sync::Arc;
use std::time::Duration;

use crate::algorithm::{Algorithm, IntoAlgorithm};
use crate::error::ConfigError;
use crate::policy::{Policy, PolicyName, Tier, printable};

/// What parameters that belong to no tier are called. A tier may have that name, too; their numbers
/// tell them apart.
const OWN_NAME: &str = "own";

/// How many times longer one tier may take to recover than another.
const MOST_TIMES_LONGER: u128 = 100;

impl Policy {
    /// Most tiers a policy may have.
    pub const MAX_TIERS: usize = 16;
    /// The number in place of a tier's where a request was decided by [parameters of its
    /// own](Self::own). No tier has it: there are [at most 16](Self::MAX_TIERS), numbered from 0.
    pub const OWN: u8 = u8::MAX;

    /// A policy of several limits under one name. Each request names one of them with
    /// [`Call::in_tier`](crate::backend::Call::in_tier). A key has one budget, whatever its tier:
    /// units that were used in one tier stay used in another, up to its capacity, until they have
    /// recovered in the tier that was charged last. A key that changes between tiers is admitted no
    /// more than the largest of them would admit, provided that this one is no slower than the
    /// others.
    ///
    /// For a policy with tiers, methods such as [`algorithm`](Self::algorithm) return that of the
    /// first tier. A tier is identified by its number.
    ///
    /// ```
    /// use throttle_core::{Gcra, Policy, Rate};
    ///
    /// let tiers = [
    ///     ("free", Gcra::new(Rate::per_minute(60))),
    ///     ("pro", Gcra::new(Rate::per_minute(600))),
    /// ];
    /// let policy = Policy::tiered("per-user", tiers)?;
    /// assert_eq!(policy.tier_named("pro"), Some(1));
    /// assert_eq!(policy.tier(1).algorithm().capacity(), 600);
    /// # Ok::<(), throttle_core::ConfigError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the name is not 1 to 64 printable ASCII characters, or a tier's is not; if there are no
    /// tiers, more than 16, or two of one name; if an algorithm's configuration is out of range; or
    /// if one tier takes more than 100 times as long as another to recover from full use. A key
    /// that moves out of such a tier would be refused for its long window; compose two limits with
    /// `all` instead.
    pub fn tiered<N: AsRef<str>, A: IntoAlgorithm>(
        name: &str,
        tiers: impl IntoIterator<Item = (N, A)>,
    ) -> Result<Self, ConfigError> {
        let wrong = |field, value: &dyn std::fmt::Display, rule: &str| {
            Err(ConfigError::new(field, value, rule.to_owned()).in_policy(name))
        };
        let mut each: Vec<Tier> = Vec::new();
        for (tier, algorithm) in tiers {
            let tier = tier.as_ref();
            printable("tier", tier, PolicyName::MAX_LEN).map_err(|error| error.in_policy(name))?;
            if each.iter().any(|other| &*other.name == tier) {
                return wrong(
                    "tier",
                    &format_args!("{tier:?} twice"),
                    "each tier has a name of its own; rename one",
                );
            }
            let policy = Self::new(name, algorithm)?;
            for other in &each {
                check_windows(
                    name,
                    (tier, &policy.algorithm),
                    (&other.name, &other.policy.algorithm),
                )?;
            }
            each.push(Tier {
                name: tier.into(),
                policy,
            });
        }
        let Some(first) = each.first() else {
            return wrong("tiers", &"none", "a policy with tiers has at least one");
        };
        if each.len() > Self::MAX_TIERS {
            return wrong("tiers", &each.len(), "a policy has at most 16 tiers");
        }
        let mut policy = first.policy.clone();
        policy.tiers = Some(each.into());
        Ok(policy)
    }

    /// Checks parameters of a key's own, for example the numbers in a customer's row of a database,
    /// to be passed with [`Call::under`](crate::backend::Call::under).
    ///
    /// # Errors
    ///
    /// If the algorithm's configuration is out of range, or if it takes more than 100 times as long
    /// as the policy, or one of its tiers, to recover from full use, or the reverse.
    pub fn own(&self, algorithm: impl IntoAlgorithm) -> Result<Arc<Algorithm>, ConfigError> {
        let own = algorithm
            .into_algorithm()
            .map_err(|error| error.in_policy(self.name()))?;
        match &self.tiers {
            None => check_windows(
                self.name(),
                (OWN_NAME, &own),
                (self.name(), &self.algorithm),
            )?,
            Some(tiers) => tiers.iter().try_for_each(|tier| {
                check_windows(
                    self.name(),
                    (OWN_NAME, &own),
                    (&tier.name, &tier.policy.algorithm),
                )
            })?,
        }
        Ok(Arc::new(own))
    }

    /// The policy of a key with [parameters of its own](Self::own): the same name and unit, without
    /// tiers.
    #[must_use]
    pub fn under(&self, parameters: &Algorithm) -> Self {
        let mut policy = self.clone();
        (policy.algorithm, policy.tiers) = (*parameters, None);
        policy
    }

    /// Whether it has tiers.
    #[inline]
    #[must_use]
    pub const fn is_tiered(&self) -> bool {
        self.tiers.is_some()
    }

    /// The policy in one tier: the same name with that tier's algorithm. An unknown number stands
    /// for the first tier. A policy without tiers returns itself.
    #[inline]
    #[must_use]
    pub fn tier(&self, tier: u8) -> &Self {
        match &self.tiers {
            Some(tiers) => tiers
                .get(usize::from(tier))
                .map_or(&tiers[0].policy, |tier| &tier.policy),
            None => self,
        }
    }

    /// The number of the tier of that name.
    #[must_use]
    pub fn tier_named(&self, name: &str) -> Option<u8> {
        let index = self
            .tiers
            .as_ref()?
            .iter()
            .position(|tier| &*tier.name == name)?;
        u8::try_from(index).ok()
    }

    /// The name of a tier; `own` for [`OWN`](Self::OWN), if the policy has tiers. A tier may be
    /// called `own`, too; the numbers tell them apart.
    #[must_use]
    pub fn tier_name(&self, tier: u8) -> Option<&str> {
        match &self.tiers {
            Some(_) if tier == Self::OWN => Some(OWN_NAME),
            tiers => tiers
                .as_ref()?
                .get(usize::from(tier))
                .map(|tier| &*tier.name),
        }
    }

    /// The tiers by name, in the order given; none for a policy without tiers.
    pub fn tiers(&self) -> impl Iterator<Item = (&str, &Self)> {
        self.tiers
            .iter()
            .flat_map(|tiers| tiers.iter())
            .map(|tier| (&*tier.name, &tier.policy))
    }

    /// The parameters that decide: a key's own, or those of a tier.
    #[inline]
    pub(crate) fn parameters<'a>(
        &'a self,
        tier: u8,
        own: Option<&'a Arc<Algorithm>>,
    ) -> &'a Algorithm {
        match own {
            Some(own) => own,
            None => &self.tier(tier).algorithm,
        }
    }

    /// The number of the tier that decides a call; an unknown number stands for the first tier.
    #[inline]
    pub(crate) fn effective_tier(&self, tier: u8) -> u8 {
        let known = self.tiers.as_ref().map_or(1, |tiers| tiers.len());
        if usize::from(tier) < known { tier } else { 0 }
    }
}

/// Checks that two sets of parameters recover within times of one order.
fn check_windows(
    policy: &str,
    one: (&str, &Algorithm),
    other: (&str, &Algorithm),
) -> Result<(), ConfigError> {
    // How long it takes to recover from using all, in µs.
    let recovers = |algorithm: &Algorithm| {
        let rate = algorithm.rate();
        let micros = u128::from(algorithm.capacity()) * u128::from(rate.period_micros());
        micros.div_ceil(u128::from(rate.count().max(1))).max(1)
    };
    let (long, short) = if recovers(one.1) > recovers(other.1) {
        (one, other)
    } else {
        (other, one)
    };
    if recovers(long.1) <= recovers(short.1) * MOST_TIMES_LONGER {
        return Ok(());
    }
    let rule = format!(
        "a tier may take at most {MOST_TIMES_LONGER} times as long as another to recover from \
            full use, because a key \
         that leaves it can be refused for that long; for limits of unlike windows, compose two \
         policies with all"
    );
    let time =
        |algorithm| Duration::from_micros(u64::try_from(recovers(algorithm)).unwrap_or(u64::MAX));
    let value = format_args!(
        "{:?} of {:?} and {:?} of {:?}",
        long.0,
        time(long.1),
        short.0,
        time(short.1)
    );
    Err(ConfigError::new("tier", value, rule).in_policy(policy))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::Gcra;
    use crate::rate::Rate;

    fn gcra(count: u64, seconds: u64) -> Gcra {
        Gcra::new(Rate::new(count, Duration::from_secs(seconds)))
    }

    fn tiered(tiers: &[(&str, u64, u64)]) -> Result<Policy, ConfigError> {
        Policy::tiered(
            "p",
            tiers
                .iter()
                .map(|(name, count, seconds)| (*name, gcra(*count, *seconds))),
        )
    }

    #[test]
    fn errors_of_tiers_say_what_to_do() {
        let error =
            |tiers: &[(&str, u64, u64)]| tiered(tiers).expect_err("wrong tiers").to_string();
        assert_eq!(
            error(&[]),
            "policy \"p\": tiers is none: a policy with tiers has at least one"
        );
        let twice =
            "policy \"p\": tier is \"a\" twice: each tier has a name of its own; rename one";
        assert_eq!(error(&[("a", 1, 1), ("a", 2, 1)]), twice);
        let names: Vec<String> = (0..17).map(|n| n.to_string()).collect();
        let many: Vec<_> = names.iter().map(|name| (name.as_str(), 1, 1)).collect();
        assert_eq!(
            error(&many),
            "policy \"p\": tiers is 17: a policy has at most 16 tiers"
        );
    }

    #[test]
    fn tiers_of_unlike_windows_are_refused() {
        assert!(tiered(&[("short", 1, 1), ("long", 9, 100)]).is_ok());
        let error = tiered(&[("short", 1, 1), ("long", 9, 101)])
            .expect_err("unlike")
            .to_string();
        let value = "policy \"p\": tier is \"long\" of 101s and \"short\" of 1s: ";
        assert!(error.starts_with(value), "{error}");
        let policy = tiered(&[("a", 1, 10), ("b", 1, 1_000)]).expect("tiers");
        assert!(policy.own(gcra(5, 500)).is_ok());
        assert!(policy.own(gcra(5, 1_001)).is_err() && policy.own(gcra(5, 9)).is_err());
    }

    #[test]
    fn unknown_tier_stands_for_the_first() {
        let policy = tiered(&[("a", 1, 1), ("b", 2, 1)]).expect("tiers");
        let plain = Policy::new("p", gcra(7, 1)).expect("a policy");
        let tiers = [0, 1, 2, Policy::OWN];
        assert_eq!(tiers.map(|tier| policy.effective_tier(tier)), [0, 1, 0, 0]);
        assert_eq!(tiers.map(|tier| plain.effective_tier(tier)), [0; 4]);
        assert_eq!(
            tiers.map(|tier| policy.tier_name(tier)),
            [Some("a"), Some("b"), None, Some("own")]
        );
    }
}

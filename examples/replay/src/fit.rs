//! Which limits fit a log: for each rate, the least burst that refuses few enough of the keys.

use std::collections::HashMap;

use throttle_tower::{ConfigError, Gcra, Rate};

use crate::percent::Percent;

/// What the keys of a log need, in one pass: for each rate, the most that a key has used beyond
/// what the rate gives back.
///
/// The sum is that of GCRA: a unit is q grains, of which p drain each microsecond, where p/q is the
/// rate in lowest terms. So it is exact.
pub struct Needs {
    rates: Vec<Fraction>,
    keys: HashMap<Box<str>, KeyNeeds>,
}

struct Fraction {
    rate: Rate,
    drained: u64,
    grains: u64,
}

struct KeyNeeds {
    last: i64,
    /// For each rate, the grains that are used now and at most.
    used: Box<[(u64, u64)]>,
}

/// A limit that fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fit {
    pub rate: Rate,
    /// The least burst that refuses at most as many keys as may be.
    pub burst: u64,
    /// How many keys it refuses.
    pub refused_keys: usize,
    /// The least burst that refuses none.
    pub burst_for_all: u64,
}

impl Needs {
    pub fn new(rates: &[Rate]) -> Self {
        let fraction = |rate: &Rate| {
            let common = gcd(rate.count(), rate.period_micros());
            Fraction {
                rate: *rate,
                drained: rate.count() / common,
                grains: rate.period_micros() / common,
            }
        };
        Self {
            rates: rates.iter().map(fraction).collect(),
            keys: HashMap::new(),
        }
    }

    /// Counts a request of a key at an instant that is not before those of former calls.
    pub fn add(&mut self, key: &str, at: i64) {
        if !self.keys.contains_key(key) {
            let used = vec![(0, 0); self.rates.len()].into();
            self.keys.insert(key.into(), KeyNeeds { last: at, used });
        }
        let Some(key) = self.keys.get_mut(key) else {
            return;
        };
        let passed = u64::try_from(at - key.last).unwrap_or(0);
        key.last = key.last.max(at);
        for ((used, most), rate) in key.used.iter_mut().zip(&self.rates) {
            *used = used
                .saturating_sub(passed.saturating_mul(rate.drained))
                .saturating_add(rate.grains);
            *most = (*most).max(*used);
        }
    }

    pub fn keys(&self) -> usize {
        self.keys.len()
    }

    /// The curve: a limit for each rate.
    pub fn fits(&self, refuse_at_most: Percent) -> Vec<Fit> {
        let most = refuse_at_most.of(self.keys.len());
        let fit = |(place, rate): (usize, &Fraction)| {
            let burst = |key: &KeyNeeds| key.used[place].1.div_ceil(rate.grains);
            let mut bursts: Vec<u64> = self.keys.values().map(burst).collect();
            bursts.sort_unstable_by(|one, other| other.cmp(one));
            let burst_for_all = bursts.first().copied().unwrap_or(1);
            // If every key may be refused, the least burst there is.
            let burst = bursts.get(most).copied().unwrap_or(1);
            let refused_keys = bursts.partition_point(|need| *need > burst);
            Fit {
                rate: rate.rate,
                burst,
                refused_keys,
                burst_for_all,
            }
        };
        self.rates.iter().enumerate().map(fit).collect()
    }
}

impl Fit {
    /// The limit in the notation of rule files.
    ///
    /// # Errors
    ///
    /// If the burst is too large to be counted exactly at this rate.
    pub fn rule(&self) -> Result<String, ConfigError> {
        throttle_tower::throttle_core::Policy::new("fit", Gcra::new(self.rate).burst(self.burst))?;
        Ok(format!(
            "gcra = {{ rate = \"{}\", burst = {} }}",
            self.rate, self.burst
        ))
    }

    /// The fit that serves whichever of two assumptions holds.
    pub fn of_both(self, other: Self) -> Self {
        let larger = if other.burst > self.burst {
            other
        } else {
            self
        };
        Self {
            burst_for_all: self.burst_for_all.max(other.burst_for_all),
            ..larger
        }
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a.max(1) } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use throttle_tower::throttle_core::{Limiter, Policy, PolicySet};
    use throttle_tower::{ManualClock, MemoryBackend, Timestamp};

    use super::*;

    /// How many keys a limit refuses anything, when refused requests come no more.
    fn refused_keys(rate: Rate, burst: u64, requests: &[(u8, i64)]) -> usize {
        let clock = ManualClock::default();
        let store = MemoryBackend::builder().clock(clock.clone()).build();
        let set =
            PolicySet::new(Policy::new("fit", Gcra::new(rate).burst(burst)).unwrap()).unwrap();
        let limiter = Limiter::new(store, set).unwrap();
        let mut refused = std::collections::BTreeSet::new();
        for (key, at) in requests {
            clock.set(Timestamp::from_micros(*at));
            if !limiter.check(u64::from(*key), 1).is_admitted() {
                refused.insert(key);
            }
        }
        refused.len()
    }

    proptest! {
        #[test]
        fn fit_refuses_what_may_be_and_a_unit_less_refuses_more(
            steps in prop::collection::vec((0_u8..6, 0_i64..700_000), 1..120),
            count in 1_u64..8,
            period in 1_u64..3_000,
            percent in 0_u8..60,
        ) {
            let rate = Rate::new(count, Duration::from_millis(period));
            let mut at = 1_700_000_000_000_000;
            let requests: Vec<_> = steps.into_iter().map(|(key, step)| { at += step; (key, at) }).collect();
            let mut needs = Needs::new(&[rate]);
            requests.iter().for_each(|(key, at)| needs.add(&key.to_string(), *at));
            let percent: Percent = format!("{percent}%").parse().unwrap();
            let (fit, may_be) = (needs.fits(percent)[0], percent.of(needs.keys()));
            prop_assert_eq!(refused_keys(rate, fit.burst, &requests), fit.refused_keys);
            prop_assert!(fit.refused_keys <= may_be);
            prop_assert_eq!(refused_keys(rate, fit.burst_for_all, &requests), 0);
            for (burst, least) in [(fit.burst, may_be), (fit.burst_for_all, 0)] {
                prop_assert!(burst == 1 || refused_keys(rate, burst - 1, &requests) > least);
            }
        }
    }

    #[test]
    fn curve_falls_as_rates_rise_and_is_a_rule_file() {
        use throttle_rules::{Registry, Rules};

        let rates =
            ["1/minute", "1/second", "2/second", "50/second"].map(|rate| rate.parse().unwrap());
        let mut needs = Needs::new(&rates);
        (0..10).for_each(|second| needs.add("ada", second * 1_000_000));
        let fits = needs.fits("0%".parse().unwrap());
        assert_eq!(
            fits.iter().map(|fit| fit.burst).collect::<Vec<_>>(),
            [10, 1, 1, 1]
        );
        for fit in fits {
            let limit = format!(
                "version = 1\n[[limit]]\nname = \"a\"\nby = \"client-ip\"\n{}",
                fit.rule().unwrap()
            );
            assert!(
                Rules::from_str("throttle.toml", &limit, Registry::new()).is_ok(),
                "{limit}"
            );
        }
    }
}

//! Several paces in one turn: requests, and other units such as tokens. Open it to see how long a
//! call's turn takes.

// Each pace is a policy of one set, so the backend decides about all of them in one step. A turn is
// due when every pace that the call uses has had its time.

use std::cmp::Reverse;
use std::time::Duration;

use throttle_core::{ConfigError, LeakyBucket, Policy, PolicyName, PolicySet, PolicyTree, Rate};

use super::demand::Demand;
use crate::time::time_for;
use crate::usage::UsageError;

/// The paces of a shaper, headroom included: that of requests, and those of other units.
pub(super) struct UnitPaces {
    pub(super) requests: Rate,
    units: Box<[(&'static str, Rate)]>,
}

/// What was used beyond the estimates is paid by waiting, for this time at most, or for the longest
/// wait if that is longer.
const LONGEST_DEBT: Duration = Duration::from_secs(60);

impl UnitPaces {
    /// # Errors
    ///
    /// If a name is invalid or stands twice.
    pub(super) fn new(
        requests: Rate,
        units: Vec<(&'static str, Rate)>,
    ) -> Result<Self, ConfigError> {
        for (index, (unit, _)) in units.iter().enumerate() {
            check_name(&units[..index], unit)?;
        }
        Ok(Self {
            requests,
            units: units.into(),
        })
    }

    /// The policies of a schedule, one for each pace.
    ///
    /// # Errors
    ///
    /// If a rate cannot be counted exactly, or the schedule's name could be read as that of a unit,
    /// or is too long for one.
    pub(super) fn policies(
        &self,
        name: &str,
        max_wait: Duration,
    ) -> Result<PolicySet, ConfigError> {
        if self.has_units() && name.contains('+') {
            let rule =
                "with by_unit it has no '+', because the names of the units are added with it";
            return Err(ConfigError::new("name", format_args!("{name:?}"), rule).in_policy(name));
        }
        let policy = |name: &str, rate, longest| {
            let pace = LeakyBucket::new(rate).max_wait(longest).without_delay();
            Policy::new(name, pace).map(PolicyTree::from)
        };
        let mut policies = vec![policy(name, self.requests, max_wait)?];
        for (unit, rate) in &self.units {
            check_length(name, &format!("+{unit}"), "by_unit")?;
            let name = format!("{name}+{unit}");
            policies.push(policy(&name, *rate, max_wait.max(LONGEST_DEBT))?);
        }
        // A policy alone is decided in fewer steps than an `all` of one.
        PolicySet::new(if self.has_units() {
            PolicyTree::All(policies)
        } else {
            policies.remove(0)
        })
    }

    /// How long the turn of a call takes: until each of its paces allows the next one.
    pub(super) fn length(&self, demand: &Demand) -> Duration {
        let requests = time_for(self.requests, demand.cost);
        let slowest = self.slowest_unit(demand);
        slowest.map_or(requests, |(_, units)| requests.max(units))
    }

    /// The unit whose time is the longest, unless that is requests.
    pub(super) fn slowest(&self, demand: &Demand) -> Option<&'static str> {
        let (unit, length) = self.slowest_unit(demand)?;
        (length > time_for(self.requests, demand.cost)).then_some(unit)
    }

    /// How much later the last unit of a call is due than the call leaves, in terms of the longest
    /// wait.
    pub(super) fn tail(&self, demand: &Demand) -> Duration {
        let requests = time_for(self.requests, demand.cost.saturating_sub(1));
        let slowest = self.slowest_unit(demand);
        slowest.map_or(requests, |(_, units)| {
            requests.max(units.saturating_sub(time_for(self.requests, 1)))
        })
    }

    /// The other unit of a call that takes the longest, the first of equals, with its time.
    fn slowest_unit(&self, demand: &Demand) -> Option<(&'static str, Duration)> {
        let units = self.units.iter().zip(demand.units.as_ref()?);
        let times = units.map(|((name, rate), count)| (*name, time_for(*rate, *count)));
        times.min_by_key(|(_, time)| Reverse(*time))
    }

    /// How long so many of a unit take.
    pub(super) fn time_of(&self, unit: usize, count: u64) -> Duration {
        self.units.get(unit).map_or(Duration::ZERO, |(_, rate)| {
            time_for(*rate, count).min(LONGEST_DEBT)
        })
    }

    /// Whether other units than requests are paced.
    pub(super) fn has_units(&self) -> bool {
        !self.units.is_empty()
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.units.iter().map(|(name, _)| *name)
    }

    pub(super) fn index(&self, unit: &str) -> Option<usize> {
        self.names().position(|name| name == unit)
    }

    pub(super) fn unknown_unit(&self, unit: &str) -> UsageError {
        UsageError::UnknownUnit {
            name: unit.to_owned(),
            known: self.names().map(str::to_owned).collect(),
        }
    }

    /// Nothing of each other unit; `None` where there is none.
    pub(super) fn no_units(&self) -> Option<Box<[u64]>> {
        self.has_units().then(|| vec![0; self.units.len()].into())
    }
}

fn check_name(units: &[(&'static str, Rate)], unit: &'static str) -> Result<(), ConfigError> {
    let rule = if unit == "requests" {
        "the shaper's first pace is the pace of requests; name another unit"
    } else if units.iter().any(|(other, _)| *other == unit) {
        "each unit has one pace; remove one of them, or name another unit"
    } else if unit.is_empty()
        || !unit
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
    {
        "a unit is named by ASCII letters, digits, '-', '_' and '.', at least one of them"
    } else {
        return Ok(());
    };
    Err(ConfigError::new("unit", format_args!("{unit:?}"), rule))
}

/// Checks that a suffix can be added to the name of a schedule. `option` is the reason.
pub(super) fn check_length(name: &str, suffix: &str, option: &str) -> Result<(), ConfigError> {
    let most = PolicyName::MAX_LEN.saturating_sub(suffix.len());
    if name.len() <= most {
        return Ok(());
    }
    let rule = format!(
        "with {option} it has at most {most} characters, because {suffix:?} is added; shorten it"
    );
    Err(ConfigError::new("name", format_args!("{name:?}"), rule).in_policy(name))
}

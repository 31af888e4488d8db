use std::time::Duration;

use smallvec::{SmallVec, smallvec};
use throttle_core::{ConfigError, Cost, LeakyBucket, PolicyName, Rate};

use super::Accounts;
use crate::time::{micros, time_for};

/// The paces of a shaper that counts several units. One unit of its schedule is a microsecond.
pub(in super::super) struct Units {
    requests: Rate,
    paces: Box<[(&'static str, Rate)]>,
    max_wait: Duration,
    pub(in super::super) accounts: Accounts,
}

/// What a call costs: requests, and each of the other units in their order.
pub(in super::super) struct UnitCosts {
    pub(in super::super) requests: u64,
    pub(in super::super) units: SmallVec<[u64; 2]>,
}

impl UnitCosts {
    /// Nothing of any of so many units.
    pub(in super::super) fn none(units: usize) -> Self {
        Self { requests: 0, units: smallvec![0; units] }
    }

    pub(in super::super) fn is_zero(&self) -> bool {
        self.requests == 0 && self.units.iter().all(|units| *units == 0)
    }
}

/// How long each pace needs for a call, in ns.
pub(super) struct Needs {
    pub(super) requests: u64,
    pub(super) units: SmallVec<[u64; 2]>,
    /// The longest of them.
    pub(super) longest: u64,
    /// The unit that needs the longest, unless that is requests.
    pub(super) slowest: Option<&'static str>,
}

impl Units {
    /// The rates include the headroom. `decides_alone` says that nothing else can use the schedule.
    pub(in super::super) fn new(
        requests: Rate,
        paces: Vec<(&'static str, Rate)>,
        max_wait: Duration,
        decides_alone: bool,
    ) -> Self {
        let accounts = Accounts::new(paces.len(), time_for(requests, 1), decides_alone);
        Self { requests, paces: paces.into(), max_wait, accounts }
    }

    /// A name that no schedule with other units has, whatever the order in which they are given.
    ///
    /// # Errors
    ///
    /// If the shaper's name could be read as one with units, or is too long with them.
    pub(in super::super) fn schedule_name(name: &str, units: &[(&'static str, Rate)]) -> Result<String, ConfigError> {
        let mut names: Vec<&str> = units.iter().map(|(unit, _)| *unit).collect();
        names.sort_unstable();
        let suffix: String = names.iter().flat_map(|unit| ["+", unit]).collect();
        let error = |rule: String| Err(ConfigError::new("name", format_args!("{name:?}"), rule).in_policy(name));
        if name.contains('+') {
            return error("with by_unit it has no '+', because the names of the units are added with it".to_owned());
        }
        if name.len() + suffix.len() > PolicyName::MAX_LEN {
            let most = PolicyName::MAX_LEN.saturating_sub(suffix.len());
            return error(format!(
                "with these units it has at most {most} characters, because {suffix:?} is added; shorten it, or them"
            ));
        }
        Ok(format!("{name}{suffix}"))
    }

    pub(in super::super) fn check_name(units: &[(&'static str, Rate)], unit: &'static str) -> Result<(), ConfigError> {
        let rule = if unit == "requests" {
            "the shaper's bucket is the pace of requests; give another unit a name of its own"
        } else if units.iter().any(|(other, _)| *other == unit) {
            "each unit has one pace; remove one of them, or name another unit"
        } else if unit.is_empty() || !unit.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)) {
            "a unit is named by ASCII letters, digits, '-', '_' and '.', at least one of them"
        } else {
            return Ok(());
        };
        Err(ConfigError::new("unit", format_args!("{unit:?}"), rule))
    }

    /// The bucket of the schedule. A call may end so late that one of a single request would leave after the longest
    /// wait.
    pub(in super::super) fn bucket(&self) -> LeakyBucket {
        self.bucket_for(1)
    }

    /// The bucket of which one of so many processes takes a share. The share is as much slower, and the bound on a
    /// call's end is later by as much.
    pub(in super::super) fn bucket_for(&self, processes: u32) -> LeakyBucket {
        let request = Duration::from_micros(self.request_micros() - 1);
        let max_wait = self.max_wait.saturating_add(request.saturating_mul(processes));
        LeakyBucket::new(Rate::new(1, Duration::from_micros(1))).max_wait(max_wait)
    }

    /// The rate at which units of the schedule leave.
    pub(in super::super) fn rate(&self) -> Rate {
        self.bucket().rate()
    }

    /// The most units of the schedule that a call can take.
    pub(super) fn capacity(&self) -> u64 {
        micros(self.bucket().longest_wait()).saturating_add(1)
    }

    /// The most units of the schedule that a call can take by a deadline.
    pub(super) fn most_until(&self, deadline: Duration) -> u64 {
        micros(deadline).saturating_add(self.request_micros())
    }

    pub(in super::super) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.paces.iter().map(|(name, _)| *name)
    }

    pub(in super::super) fn place(&self, unit: &str) -> Option<usize> {
        self.names().position(|name| name == unit)
    }

    pub(in super::super) fn count(&self) -> usize {
        self.paces.len()
    }

    /// What requests alone cost on the schedule.
    pub(in super::super) fn cost_of_requests(&self, requests: u64) -> Cost {
        Cost::at_least_one(time_for(self.requests, requests).as_nanos().div_ceil(1_000).try_into().unwrap_or(u64::MAX))
    }

    /// How much later the last unit of a call is due than the call leaves, in terms of the longest wait.
    pub(in super::super) fn tail(&self, cost: u64) -> Duration {
        Duration::from_micros(cost.saturating_sub(self.request_micros()))
    }

    pub(super) fn needs(&self, costs: &UnitCosts) -> Needs {
        let requests = nanos(self.requests, costs.requests);
        let units = costs.units.iter().enumerate().map(|(unit, count)| self.need(unit, *count)).collect();
        let mut needs = Needs { requests, longest: requests, slowest: None, units };
        for (need, name) in needs.units.iter().zip(self.names()) {
            if *need > needs.longest {
                (needs.longest, needs.slowest) = (*need, Some(name));
            }
        }
        needs
    }

    /// How long so many of a unit take, in ns.
    pub(super) fn need(&self, unit: usize, count: u64) -> u64 {
        nanos(self.paces[unit].1, count)
    }

    fn request_micros(&self) -> u64 {
        self.cost_of_requests(1).get()
    }
}

/// At most a third of what a signed number holds, so that sums of a few do not overflow.
fn nanos(rate: Rate, units: u64) -> u64 {
    u64::try_from(time_for(rate, units).as_nanos()).map_or(MOST, |nanos| nanos.min(MOST))
}

const MOST: u64 = i64::MAX.unsigned_abs() / 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shape_call_of_any_unit_costs_something() {
        for (requests, tokens, bytes) in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)] {
            let costs = UnitCosts { requests, units: smallvec![tokens, bytes] };
            assert_eq!(costs.is_zero(), requests + tokens + bytes == 0, "{requests} {tokens} {bytes}");
        }
    }

    /// Never earlier than its rate allows.
    #[test]
    fn shape_request_takes_whole_microseconds_and_no_less_than_its_time() {
        let cost = |per_second, requests| {
            let units = Units::new(Rate::per_second(per_second), Vec::new(), Duration::from_secs(1), true);
            units.cost_of_requests(requests).get()
        };
        let expected = [333_334, 666_667, 1_000_000, 100_000];
        assert_eq!([cost(3, 1), cost(3, 2), cost(3, 3), cost(10, 1)], expected);
        assert_eq!(cost(10, 0), 1, "there is no slot without a unit");
    }

    /// Of several that take equally long, requests or the first unit is to blame.
    #[test]
    fn shape_slowest_unit_is_the_first_that_takes_longer_than_all_before_it() {
        let paces = vec![("tokens", Rate::per_second(100)), ("bytes", Rate::per_second(1_000))];
        let units = Units::new(Rate::per_second(10), paces, Duration::from_secs(1), true);
        for (requests, tokens, bytes, slowest) in
            [(1, 10, 100, None), (1, 11, 110, Some("tokens")), (1, 11, 111, Some("bytes")), (2, 20, 199, None)]
        {
            let needs = units.needs(&UnitCosts { requests, units: smallvec![tokens, bytes] });
            assert_eq!(needs.slowest, slowest, "{requests} {tokens} {bytes}");
        }
    }

    #[test]
    fn shape_name_without_room_for_its_units_is_an_error_of_the_name() {
        let pace = Rate::per_second(1);
        let longest: &'static str = "u".repeat(PolicyName::MAX_LEN).leak();
        for (name, unit, rule) in [
            ("a+b", "tokens", "with by_unit it has no '+'"),
            (&*"n".repeat(PolicyName::MAX_LEN), "tokens", "at most 57 characters"),
            ("n", longest, "at most 0 characters"),
        ] {
            let error = Units::schedule_name(name, &[(unit, pace)]).unwrap_err();
            assert_eq!(error.field(), "name");
            assert!(error.to_string().contains(rule), "{error}");
        }
    }
}

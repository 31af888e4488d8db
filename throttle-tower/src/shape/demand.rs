use std::time::Duration;

use smallvec::SmallVec;
use throttle_core::Key;
use throttle_core::backend::Call;

/// What one call needs for its turn.
#[derive(Clone)]
pub(super) struct Demand {
    pub(super) key: Key,
    /// Requests. At least one, unless the call costs of another unit.
    pub(super) cost: u64,
    /// How long the call may wait, if that is less than the longest wait of the pace.
    pub(super) deadline: Option<Duration>,
    /// Of each other unit; `None` where requests alone are paced.
    pub(super) units: Option<Box<[u64]>>,
    pub(super) class: CallClass,
}

impl Demand {
    /// Returns what a call without a request needs, such as that of a job: it is in the highest
    /// class, and takes at least one turn.
    pub(super) fn new(key: Key, cost: u64, units: Option<Box<[u64]>>) -> Self {
        Self {
            key,
            cost: cost.max(1),
            deadline: None,
            units,
            class: CallClass::default(),
        }
    }

    /// One call for each pace.
    pub(super) fn calls(&self) -> SmallVec<[Call; 3]> {
        let units = self.units.iter().flatten();
        [&self.cost]
            .into_iter()
            .chain(units)
            .map(|cost| match cost {
                0 => Call::SKIP,
                cost => Call::from(self.key.clone()).costing(*cost),
            })
            .collect()
    }
}

/// The class of a call.
#[derive(Clone, Copy, Default)]
pub(super) struct CallClass {
    /// The highest class has index 0.
    pub(super) index: u16,
    /// The requests that still find room after the call.
    pub(super) reserve: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demand_is_charged_each_cost_and_a_pace_without_cost_is_skipped() {
        let demand = Demand::new(Key::from("key"), 2, Some(Box::new([0, 500])));
        let charged = |cost| Call::from(Key::from("key")).costing(cost);
        assert_eq!(demand.calls()[..], [charged(2), Call::SKIP, charged(500)]);
    }
}

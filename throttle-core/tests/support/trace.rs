//! Random traces, relative to the configuration they run on, so that they shrink.

use std::fmt;

use proptest::collection::vec;
use proptest::prelude::*;
use throttle_core::Timestamp;

use super::spec::{TODAY, Tree};

/// One step of a trace before it is applied to a configuration.
#[derive(Clone, Copy)]
pub(crate) struct Raw {
    pub(crate) step: (u8, u32),
    pub(crate) what: u8,
    pub(crate) cost: (u8, u32),
    /// Varies costs and skips between the members of a composition.
    pub(crate) members: u32,
    pub(crate) pick: u8,
}

impl fmt::Debug for Raw {
    /// On one line, so that a failing trace can be read.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            step,
            what,
            cost,
            members,
            pick,
        } = self;
        f.write_str(&format!(
            "Raw {{ step: {step:?}, what: {what}, cost: {cost:?}, members: {members}, pick: \
                {pick} }}"
        ))
    }
}

prop_compose! {
    pub(crate) fn raw()(
        step in (0_u8..12, any::<u32>()), what in 0_u8..10, cost in (0_u8..12, any::<u32>()),
        members in any::<u32>(), pick in any::<u8>(),
    ) -> Raw {
        Raw { step, what, cost, members, pick }
    }
}

pub(crate) fn raws(length: usize) -> impl Strategy<Value = Vec<Raw>> {
    vec(raw(), 1..length)
}

fn part(of: i64, part: u32) -> i64 {
    ((i128::from(of) * i128::from(part)) >> 32) as i64
}

impl Raw {
    /// µs to move the clock by: mostly little, sometimes far, and back if the clock may lie.
    pub(crate) fn micros(&self, step: i64, hostile: bool) -> i64 {
        let fraction = self.step.1;
        let micros = match self.step.0 {
            0..=2 => 0,
            3 => 1,
            4 => step,
            5 | 6 => part(step + 1, fraction),
            7 => part(step.saturating_mul(3), fraction),
            8 => part(step.saturating_mul(30), fraction),
            9 => -part(step + 1, fraction),
            10 => -part(step.saturating_mul(3), fraction),
            _ => -part(step.saturating_mul(30), fraction),
        };
        if hostile { micros } else { micros.abs() }
    }

    /// A cost: mostly 1, sometimes nothing, everything, or more than that.
    pub(crate) fn cost(&self, capacity: u64) -> u64 {
        match self.cost.0 {
            0..=4 => 1,
            5 => 0,
            6 => 2,
            7 => 3,
            8 => capacity,
            9 => capacity.saturating_add(1),
            10 => 1 + part(capacity.min(1 << 53) as i64, self.cost.1) as u64,
            _ => {
                if self.cost.1.is_multiple_of(8) {
                    u64::MAX
                } else {
                    1
                }
            }
        }
    }

    /// A cost for each leaf: now and then its own, or none.
    pub(crate) fn costs(&self, capacities: &[u64]) -> Vec<Option<u64>> {
        let own = |(leaf, capacity): (usize, &u64)| {
            let die = self.members.rotate_left(leaf as u32 * 5) % 16;
            match die {
                _ if capacities.len() == 1 => Some(self.cost(*capacity)),
                0 | 1 => None,
                2 => Some(0),
                3 => Some(
                    Self {
                        cost: (die as u8 + self.cost.0 % 8, self.cost.1),
                        ..*self
                    }
                    .cost(*capacity),
                ),
                _ => Some(self.cost(*capacity)),
            }
        };
        capacities.iter().enumerate().map(own).collect()
    }
}

/// A configuration, where its clock starts, and what happens.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) tree: Tree,
    pub(crate) start: i64,
    pub(crate) raws: Vec<Raw>,
}

pub(crate) fn starts() -> impl Strategy<Value = i64> {
    let (min, max) = (Timestamp::MIN.as_micros(), Timestamp::MAX.as_micros());
    prop_oneof![
        4 => TODAY..TODAY + (1 << 42),
        1 => Just(0_i64),
        1 => -1_000_i64..1_000,
        1 => min..max,
        1 => min..min + 1_000,
        1 => max - 1_000..max,
    ]
}

pub(crate) fn cases(trees: BoxedStrategy<Tree>, length: usize) -> impl Strategy<Value = Case> {
    (trees, starts(), raws(length)).prop_map(|(tree, start, raws)| Case { tree, start, raws })
}

/// Clamps an instant to the range of timestamps.
pub(crate) fn clamp(t: i64) -> i64 {
    Timestamp::from_micros(t).as_micros()
}

//! The steps of a trace. Each is complete by itself, so that a failing trace can be shortened.

use std::fmt;

use super::subject::{DropPoint, Manner};
use crate::algorithm::Treatment;
use crate::backend::{Call, KeyStep};
use crate::key::{Key, KeyPart};

/// Where the clock goes.
#[derive(Clone, Copy, Debug)]
pub(super) enum ClockMove {
    /// µs forward, or back as far as forgotten keys allow.
    By(i64),
    /// The wait of the last refusal forward.
    Wait,
    /// One µs less than that.
    AlmostTheWait,
    /// What the last decision says until all is free, forward.
    Reset,
    /// One µs less than that.
    AlmostTheReset,
}

#[derive(Clone)]
pub(super) enum TraceStep {
    Clock(ClockMove),
    /// This set decides from here on: the same policies, some of them lower, or prepared again.
    Set(usize),
    Decide {
        /// A number by which a settlement finds the charge.
        charge: usize,
        calls: Vec<Call>,
        manner: Manner,
    },
    Settle {
        charge: usize,
        actual: u64,
    },
    /// An exception is set until so many µs after the step.
    OnKeys {
        policy: usize,
        step: KeyStep,
    },
    ResetAll {
        prefix: String,
    },
    Drain {
        policy: usize,
        call: Call,
    },
    ReadClock {
        calls: Vec<Call>,
    },
    /// Drops the future of a request of a key that no other step uses.
    DropDecision {
        key: Key,
        dropped: DropPoint,
    },
    /// The same, and of the settlement of a charge.
    DropSettlement {
        key: Key,
        dropped: DropPoint,
    },
    /// Lets the store forget what may be forgotten.
    Forget,
}

impl TraceStep {
    /// The same step with one thing less.
    pub(super) fn simpler(&self) -> Vec<Self> {
        let Self::Decide {
            charge,
            calls,
            manner,
        } = self
        else {
            return Vec::new();
        };
        let decide = |calls: Vec<Call>, manner| Self::Decide {
            charge: *charge,
            calls,
            manner,
        };
        let mut simpler = vec![decide(calls.clone(), Manner::Awaited)];
        for (index, call) in calls
            .iter()
            .enumerate()
            .filter(|(_, call)| **call != Call::SKIP)
        {
            let one = call.clone().reserving(0).in_tier(0).costing(1);
            let simpler_calls = [
                Call::SKIP,
                one,
                call.clone().reserving(0),
                call.clone().in_tier(0),
                call.clone().costing(1),
            ];
            for other in simpler_calls.into_iter().filter(|other| other != call) {
                let mut calls = calls.clone();
                calls[index] = other;
                simpler.push(decide(calls, *manner));
            }
        }
        simpler.retain(|other| !matches!(other, Self::Decide { calls: other, manner: by, .. } if other == calls && by == manner));
        simpler
    }
}

impl fmt::Debug for TraceStep {
    /// On one line, as short as it can be read.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Clock(to) => write!(f, "clock {to:?}"),
            Self::Set(set) => write!(f, "set {set} decides"),
            Self::Decide {
                charge,
                calls,
                manner,
            } => {
                write!(f, "#{charge} decide {manner:?}")?;
                calls.iter().try_for_each(|call| write_call(f, call))
            }
            Self::Settle { charge, actual } => write!(f, "settle #{charge} at {actual}"),
            Self::OnKeys { policy, step } => {
                write!(f, "policy {policy}: ")?;
                write_key_step(f, step)
            }
            Self::ResetAll { prefix } => write!(f, "reset all of {prefix:?}"),
            Self::Drain { policy, call } => {
                write!(f, "drain policy {policy}")?;
                write_call(f, call)
            }
            Self::ReadClock { .. } => f.write_str("read the clock"),
            Self::DropDecision { key, dropped } => {
                write!(f, "drop decision of {:?}, {dropped:?}", shown(key))
            }
            Self::DropSettlement { key, dropped } => {
                write!(f, "drop settlement of {:?}, {dropped:?}", shown(key))
            }
            Self::Forget => f.write_str("forget"),
        }
    }
}

/// The parts of a key, which its `Debug` hides: the keys of traces are the kit's own.
fn shown(key: &Key) -> Vec<KeyPart<'_>> {
    key.expose_parts().collect()
}

fn write_key_step(f: &mut fmt::Formatter<'_>, step: &KeyStep) -> fmt::Result {
    match step {
        KeyStep::Reset(key) => write!(f, "reset {:?}", shown(key)),
        KeyStep::Except(key, None) => write!(f, "lift {:?}", shown(key)),
        KeyStep::Except(key, Some(exception)) => {
            write!(f, "except {:?}: ", shown(key))?;
            match &exception.treatment {
                Treatment::Limit(limit) => write!(f, "{} of {}", limit.name(), limit.rate())?,
                treatment => write!(f, "{treatment:?}")?,
            }
            write!(f, " for {} µs", exception.until.as_micros())
        }
        KeyStep::Strike(key, ban) => write!(f, "strike {:?}, {ban:?}", shown(key)),
        KeyStep::Exceptions { most } => write!(f, "list {most} exceptions"),
    }
}

fn write_call(f: &mut fmt::Formatter<'_>, call: &Call) -> fmt::Result {
    let Some(key) = call.key() else {
        return f.write_str(" [skip]");
    };
    write!(f, " [{} units of {:?}", call.cost(), shown(key))?;
    if call.reserve() > 0 {
        write!(f, ", reserve {}", call.reserve())?;
    }
    match call.own() {
        Some(own) => {
            write!(
                f,
                ", under {} of {}, {}",
                own.name(),
                own.rate(),
                own.capacity()
            )?;
        }
        None if call.tier() > 0 => write!(f, ", tier {}", call.tier())?,
        None => {}
    }
    f.write_str(if call.is_peek() && call.cost() > 0 {
        ", peek]"
    } else {
        "]"
    })
}

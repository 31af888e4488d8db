//! The fleets that the table shows, each simulated once.

use std::sync::OnceLock;

use super::outcome::Outcome;
use super::settings::{CLUSTER, IS_SMALL, MILLI, OnError, Return, SECOND, Settings};
use super::simulation::simulate;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Case {
    Healthy,
    WholeFleet,
    Heavy,
    SlowZone,
    Stops,
    Killed,
    Hung,
    KilledFew,
    HungFew,
    HungHundred,
    KilledByClient,
    Open,
    OpenHung,
    Closed,
    Emptied,
}

pub(super) const CASES: [Case; 15] = [
    Case::Healthy,
    Case::WholeFleet,
    Case::Heavy,
    Case::SlowZone,
    Case::Stops,
    Case::Killed,
    Case::Hung,
    Case::KilledFew,
    Case::HungFew,
    Case::HungHundred,
    Case::KilledByClient,
    Case::Open,
    Case::OpenHung,
    Case::Closed,
    Case::Emptied,
];

impl Case {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Healthy => "nothing fails",
            Self::WholeFleet => "nothing fails, all 64 servers, one second",
            Self::Heavy => "load × 5.6",
            Self::SlowZone => "a third of the processes 10 ms farther away",
            Self::Stops => "each server stands still for 34 ms once",
            Self::Killed => "a server is killed, a replica has its slots after 3.5 s",
            Self::Hung => "a server hangs, then the same",
            Self::KilledFew => "killed, 10 processes",
            Self::HungFew => "hangs, 10 processes",
            Self::HungHundred => "hangs, 100 processes",
            Self::KilledByClient => {
                "killed, a key's requests reach 4 processes, `OnError::local(4)`"
            }
            Self::Open => "killed, `OnError::Open`",
            Self::OpenHung => "hangs, `OnError::Open`",
            Self::Closed => "killed, `OnError::Closed`",
            Self::Emptied => "killed, started again empty after 3.5 s",
        }
    }

    pub(super) fn settings(self) -> Settings {
        let fleet = Settings::new();
        match self {
            Self::Healthy => fleet,
            Self::WholeFleet => Settings {
                servers: CLUSTER,
                rate: fleet.rate * CLUSTER as f64 / fleet.servers as f64,
                keys: fleet.keys * CLUSTER / fleet.servers,
                length: if IS_SMALL { SECOND / 4 } else { SECOND },
                ..fleet
            },
            Self::Heavy => Settings {
                // 93 % of what four servers do, however few the processes are.
                rate: 350_000.0,
                length: fleet.length / 8,
                ..fleet
            },
            Self::SlowZone => Settings {
                slow_zone: 10 * MILLI,
                ..fleet
            },
            Self::Stops => Settings {
                stop: Some((SECOND, 34 * MILLI)),
                ..fleet
            },
            Self::Killed => fleet.loses(true, Return::Replica),
            Self::Hung => fleet.loses(false, Return::Replica),
            Self::KilledFew => fleet.processes(10).loses(true, Return::Replica),
            Self::HungFew => fleet.processes(10).loses(false, Return::Replica),
            Self::HungHundred => fleet.processes(100).loses(false, Return::Replica),
            Self::KilledByClient => Settings {
                reach: 4,
                on_error: OnError::local(4),
                ..Self::Killed.settings()
            },
            Self::Open => Settings {
                on_error: OnError::Open,
                ..Self::Killed.settings()
            },
            Self::OpenHung => Settings {
                on_error: OnError::Open,
                ..Self::Hung.settings()
            },
            Self::Closed => Settings {
                on_error: OnError::Closed,
                ..Self::Killed.settings()
            },
            Self::Emptied => fleet.loses(true, Return::Empty),
        }
    }

    pub(super) fn outcome(self) -> &'static Outcome {
        static OUTCOMES: [OnceLock<Outcome>; CASES.len()] =
            [const { OnceLock::new() }; CASES.len()];
        OUTCOMES[self as usize].get_or_init(|| simulate(&self.settings()))
    }

    /// The cases in which the store is there all the time.
    pub(super) fn healthy() -> [Case; 4] {
        [Self::Healthy, Self::WholeFleet, Self::Heavy, Self::SlowZone]
    }

    /// The cases in which a server is away for a while.
    pub(super) fn of_a_loss() -> impl Iterator<Item = Case> {
        let all = CASES.into_iter();
        all.filter(|case| case.settings().loss.is_some())
    }
}

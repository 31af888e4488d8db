//! What a fleet is made of, and what happens to it.

use std::num::NonZeroU32;

/// Nanoseconds since the beginning.
pub(super) type Nanos = u64;

pub(super) const MICRO: Nanos = 1_000;
pub(super) const MILLI: Nanos = 1_000 * MICRO;
pub(super) const SECOND: Nanos = 1_000 * MILLI;

/// Processor time of a server for a call of one decision: see `benches/RESULTS.md`.
pub(super) const DECISION: Nanos = 10_600;
/// For `CLUSTER SLOTS` on a cluster of 64 primaries, each with a replica.
pub(super) const SLOTS_ANSWER: Nanos = 78 * MICRO;
/// For a connection without TLS.
pub(super) const CONNECTION: Nanos = 59 * MICRO;
pub(super) const ROUND_TRIP: Nanos = 500 * MICRO;

/// The defaults of a backend.
pub(super) const DEADLINE: Nanos = 25 * MILLI;
pub(super) const THRESHOLD: u32 = 5;
pub(super) const CONNECT_TIMEOUT: Nanos = SECOND;
/// Deadlines that an answer is waited for while the server answers others.
pub(super) const PATIENCE: Nanos = 4;

/// Servers of the cluster. Only some of them are simulated: the keys are spread by a hash, so the
/// load of a server does not depend on that of the others.
pub(super) const CLUSTER: usize = 64;

#[derive(Clone)]
pub(super) struct Settings {
    pub(super) processes: usize,
    /// How many of the processes the requests about one key reach: all, or a few if a client's
    /// requests are balanced by client.
    pub(super) reach: usize,
    /// The first servers of the cluster are simulated.
    pub(super) servers: usize,
    /// Requests a second about the keys of the simulated servers, from all processes.
    pub(super) rate: f64,
    pub(super) length: Nanos,
    pub(super) keys: usize,
    /// Units a second, and the burst.
    pub(super) limit: (u64, u64),
    pub(super) on_error: OnError,
    pub(super) loss: Option<Loss>,
    /// When each server stands still for a while, and for how long: one after the other.
    pub(super) stop: Option<(Nanos, Nanos)>,
    /// What the round trips of a third of the processes take longer.
    pub(super) slow_zone: Nanos,
    pub(super) seed: u64,
}

/// As `throttle_tower::OnError`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnError {
    Open,
    Closed,
    Local(NonZeroU32),
}

/// The first server is lost for a while.
#[derive(Clone, Copy)]
pub(super) struct Loss {
    pub(super) from: Nanos,
    pub(super) until: Nanos,
    /// Whether its connections end, or it only stops to answer.
    pub(super) is_killed: bool,
    pub(super) then: Return,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Return {
    /// A replica has its slots and all charges, at another address.
    Replica,
    /// It is started again where it was, empty.
    Empty,
}

/// How large the fleet is: a build without optimisation simulates a quarter of it.
pub(super) const IS_SMALL: bool = cfg!(debug_assertions);

impl Settings {
    /// A fleet of 1,000 processes that share 64 servers and decide a million requests a second: four
    /// of the servers, with their part of the load.
    pub(super) fn new() -> Self {
        let processes = if IS_SMALL { 250 } else { 1_000 };
        Self {
            processes,
            reach: processes,
            servers: 4,
            rate: processes as f64 * 1_000.0 * 4.0 / CLUSTER as f64,
            length: if IS_SMALL { 4_500 * MILLI } else { 8 * SECOND },
            keys: processes * 20,
            limit: (2, 4),
            on_error: OnError::local(processes),
            loss: None,
            stop: None,
            slow_zone: 0,
            seed: 1,
        }
    }

    pub(super) fn processes(mut self, processes: usize) -> Self {
        self.processes = processes;
        self.reach = processes;
        self.on_error = OnError::local(processes);
        self
    }

    pub(super) fn loses(mut self, is_killed: bool, then: Return) -> Self {
        let (from, length) = if IS_SMALL {
            (SECOND, 1_500 * MILLI)
        } else {
            (2 * SECOND, 3_500 * MILLI)
        };
        self.loss = Some(Loss {
            from,
            until: from + length,
            is_killed,
            then,
        });
        self
    }

    /// Most units of one key that the limit allows in so much time.
    pub(super) fn allowed(&self, time: Nanos) -> u64 {
        self.limit.1 + self.limit.0 * time / SECOND
    }
}

impl OnError {
    pub(super) fn local(processes: usize) -> Self {
        Self::Local(NonZeroU32::new(processes as u32).expect("some processes"))
    }

    /// The part of a limit that a process decides by: as `throttle_tower` has it.
    pub(super) fn processes(self) -> Option<NonZeroU32> {
        match self {
            Self::Open => Some(NonZeroU32::MIN),
            Self::Closed => None,
            Self::Local(processes) => Some(processes),
        }
    }
}

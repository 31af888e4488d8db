//! The link to the store: one connection, which is watched, reopened when it breaks, and not used
//! while the store is down.
//!
//! `permission` says whether the store may be asked, `in_use` which connection to use, `send` waits
//! for room and sends, and `learn` notes what an answer, or none, says about the server.
//! `reconnect` mends the link.

pub(crate) mod call_error;
pub(crate) mod connection;
mod doubt;
pub(crate) mod hash_slot;
pub(crate) mod in_flight_limit;
mod in_use;
mod learn;
pub(crate) mod live_connection;
mod moving_slots;
mod permission;
mod reconnect;
mod reconnect_pauses;
pub(crate) mod script;
pub(crate) mod script_call;
mod send;
pub(crate) mod sent_command;
mod server_clock;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use connection::{Connector, Fault};
use doubt::Doubt;
use hash_slot::{RANGES, SLOTS};
use in_flight_limit::InFlightLimit;
use live_connection::LiveConnection;
use moving_slots::MovingSlots;
use reconnect_pauses::{Pauses, Reconnecting};
use server_clock::ServerClock;

use crate::breaker::Breaker;
use crate::counters::Counters;
use crate::observed::Label;
use crate::once_per_minute::OncePerMinute;

/// The work under way to a server at a time is a deadline's time divided by this. Further work
/// waits here, and can still be given up uncharged.
const SHARE: u32 = 4;
/// The same share for one of the ranges, of which a server may have several.
const SHARE_OF_RANGE: u32 = 8;

pub(crate) struct Link {
    connector: Box<dyn Connector>,
    current: ArcSwapOption<LiveConnection>,
    /// Since when the connection is being replaced because nothing arrives on it, in microseconds
    /// since the beginning; 0 for not at all. Never set for a cluster, whose connection covers
    /// several servers.
    silent_since: AtomicU64,
    /// When a silent connection was last replaced, in microseconds since the beginning; 0 for
    /// never.
    renewed: AtomicU64,
    /// The outcomes of attempts to connect, for requests that wait for a connection.
    attempts: watch::Sender<Attempts>,
    /// A request waits for a connection.
    wanted: Arc<Notify>,
    breakers: Arc<[Breaker]>,
    /// For each breaker's slots, the slot that failed last and a key in it: it shows best whether
    /// that server is healthy. A probe needs a key that the user may write, too.
    suspects: Vec<Mutex<Suspect>>,
    /// For each breaker's slots, the late answers of a server that is being asked for a sign of
    /// life.
    doubts: Vec<Doubt>,
    began: Instant,
    /// For each breaker's slots, when a command was last answered, in microseconds since the
    /// beginning.
    answered: Vec<AtomicU64>,
    /// For each breaker's slots, the clock of their server.
    clocks: Vec<ServerClock>,
    /// For each breaker's slots, the work that may be under way.
    pub(crate) room: InFlightLimit,
    pub(crate) moving: MovingSlots,
    reconnecting: Mutex<Reconnecting>,
    pauses: Mutex<Pauses>,
    generation: AtomicU64,
    /// That a connection has ended.
    ends: OncePerMinute,
    pub(crate) deadlines: Deadlines,
    pub(crate) counters: Counters,
}

/// How long requests wait for decisions, corrections for their answers, and the task that
/// reconnects for a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadlines {
    pub(crate) decision: Duration,
    pub(crate) correction: Duration,
    pub(crate) connect: Duration,
}

pub(crate) const CORRECTION: Duration = Duration::from_secs(1);
pub(crate) const CONNECT: Duration = Duration::from_secs(1);

/// The defaults, but for decisions.
#[cfg(test)]
impl From<Duration> for Deadlines {
    fn from(decision: Duration) -> Self {
        Self {
            decision,
            correction: CORRECTION,
            connect: CONNECT,
        }
    }
}

/// A slot and a key in it.
#[derive(Clone, Debug, Default)]
struct Suspect {
    slot: u16,
    name: Vec<u8>,
}

/// The outcomes of attempts to connect.
#[derive(Clone, Debug, Default)]
struct Attempts {
    failed: u64,
    /// Why the last attempt failed.
    why: Option<Fault>,
}

impl Link {
    pub(crate) fn new(
        connector: Box<dyn Connector>,
        deadlines: Deadlines,
        threshold: u32,
        label: Label,
    ) -> Arc<Self> {
        let ranges = if connector.is_cluster() { RANGES } else { 1 };
        let breakers: Arc<[Breaker]> = (0..ranges).map(|_| Breaker::new(threshold)).collect();
        let share = if ranges > 1 { SHARE_OF_RANGE } else { SHARE };
        let link = Arc::new(Self {
            connector,
            current: ArcSwapOption::empty(),
            silent_since: AtomicU64::new(0),
            renewed: AtomicU64::new(0),
            wanted: Arc::default(),
            attempts: watch::Sender::new(Attempts::default()),
            counters: Counters::new(label, &breakers),
            breakers,
            suspects: (0..ranges).map(|_| Mutex::default()).collect(),
            doubts: (0..ranges).map(|_| Doubt::default()).collect(),
            began: Instant::now(),
            answered: (0..ranges).map(|_| AtomicU64::new(0)).collect(),
            clocks: (0..ranges).map(|_| ServerClock::default()).collect(),
            room: InFlightLimit::new(ranges, deadlines.decision / share),
            moving: MovingSlots::new(),
            reconnecting: Mutex::default(),
            pauses: Mutex::default(),
            generation: AtomicU64::new(0),
            ends: OncePerMinute::default(),
            deadlines,
        });
        // If the backend is built inside a runtime, the connection is ready before the first
        // request.
        link.reconnect_here();
        link
    }

    pub(crate) fn is_cluster(&self) -> bool {
        self.connector.is_cluster()
    }

    /// The limit on the work under way of one set that is not batched: half of the total, so that
    /// no set takes all of it.
    pub(crate) fn room_of_set(&self) -> InFlightLimit {
        self.room.half()
    }

    pub(crate) fn range(&self, slot: u16) -> usize {
        usize::from(slot) * self.breakers.len() / SLOTS
    }

    /// The clock of the server that a slot is at.
    pub(crate) fn clock(&self, slot: u16) -> &ServerClock {
        &self.clocks[self.range(slot)]
    }

    /// Microseconds since the beginning.
    fn micros(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
pub(crate) mod tests;

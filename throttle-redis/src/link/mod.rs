//! The link to one server: a connection, which is watched, reopened when it breaks, and not used
//! while the server is down.
//!
//! `in_use` says which connection to use, `send` whether the server may be asked, and then waits for
//! room and sends, and `learn` notes what an answer, or none, says about the server. `reconnect`
//! mends the link.

pub(crate) mod call_error;
pub(crate) mod connection;
pub(crate) mod in_flight_limit;
mod in_use;
mod learn;
pub(crate) mod live_connection;
mod reconnect;
pub(crate) mod reconnect_pauses;
pub(crate) mod script;
mod send;
pub(crate) mod sent_command;
mod server_clock;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use connection::{Connector, Fault};
use in_flight_limit::InFlightLimit;
use live_connection::LiveConnection;
use reconnect_pauses::{Pauses, ReconnectTask};
use server_clock::{Moment, ServerClock};

use crate::breaker::Breaker;
use crate::counters::Counters;
use crate::once_per_minute::OncePerMinute;

/// The work under way to a server at a time is a deadline's time divided by this. Further work
/// waits here, and can still be given up uncharged.
const SHARE: u32 = 4;

pub(crate) struct Link {
    connector: Box<dyn Connector>,
    current: ArcSwapOption<LiveConnection>,
    /// Since when the connection is being replaced because nothing arrives on it.
    silent_since: Moment,
    /// When a silent connection was last replaced.
    renewed: Moment,
    /// The outcomes of attempts to connect, for requests that wait for a connection.
    attempts: watch::Sender<Attempts>,
    /// A request waits for a connection.
    wanted: Arc<Notify>,
    breaker: Breaker,
    /// The name of the key that failed last: it shows best whether the server is healthy. A probe
    /// needs a key that the user may write.
    suspect: Mutex<Vec<u8>>,
    /// When a command was last answered.
    answered: Moment,
    pub(crate) clock: ServerClock,
    /// The work that may be under way.
    pub(crate) room: InFlightLimit,
    /// The part of it that corrections may take.
    pub(crate) correction_room: InFlightLimit,
    reconnecting: Mutex<ReconnectTask>,
    pauses: Mutex<Pauses>,
    generation: AtomicU64,
    /// That a connection has ended.
    ends: OncePerMinute,
    deadlines: Deadlines,
    kind: LinkKind,
    counters: Arc<Counters>,
}

/// What the links of a backend have in common.
#[derive(Clone)]
pub(crate) struct LinkSettings {
    pub(crate) deadlines: Deadlines,
    /// Failures that open a breaker.
    pub(crate) threshold: u32,
    pub(crate) kind: LinkKind,
    pub(crate) counters: Arc<Counters>,
}

/// What a link is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkKind {
    /// The only server.
    Single,
    /// Finding the servers of a cluster. No decision is sent over it.
    Finder,
    /// One server of a cluster. Its connections are not counted.
    Member,
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

/// The outcomes of attempts to connect.
#[derive(Clone, Debug, Default)]
struct Attempts {
    failed: u64,
    /// Why the last attempt failed.
    why: Option<Fault>,
}

impl Link {
    pub(crate) fn new(connector: Box<dyn Connector>, settings: LinkSettings) -> Arc<Self> {
        let LinkSettings {
            deadlines,
            threshold,
            kind,
            counters,
        } = settings;
        let room = InFlightLimit::new(deadlines.decision / SHARE);
        let link = Arc::new(Self {
            connector,
            current: ArcSwapOption::empty(),
            silent_since: Moment::default(),
            renewed: Moment::default(),
            wanted: Arc::default(),
            attempts: watch::Sender::new(Attempts::default()),
            breaker: Breaker::new(threshold, Arc::clone(&counters)),
            suspect: Mutex::default(),
            answered: Moment::default(),
            clock: ServerClock::default(),
            correction_room: room.half(),
            room,
            reconnecting: Mutex::default(),
            pauses: Mutex::default(),
            generation: AtomicU64::new(0),
            ends: OncePerMinute::default(),
            deadlines,
            kind,
            counters,
        });
        // If the backend is built inside a runtime, the connection is ready before the first
        // request.
        link.reconnect_here();
        link
    }
}

#[cfg(test)]
pub(crate) mod tests;

//! The link of one process to one server, by the rules of `crate::link`: its breaker, its
//! connection, and when it is opened again.

use std::time::Duration;

use super::settings::{DEADLINE, Nanos};
use crate::link::reconnect_pauses::Pauses;

/// A link, without its breaker.
#[derive(Default)]
pub(super) struct SimulatedLink {
    pub(super) is_connected: bool,
    /// The number of the connection.
    pub(super) connection: u32,
    silent_since: Option<Nanos>,
    renewed: Option<Nanos>,
    pub(super) answered: Option<Nanos>,
    /// Whether the last attempt to connect failed.
    pub(super) has_failed: bool,
    pub(super) pauses: Pauses,
    /// Whether the task that reconnects is at work.
    pub(super) is_reconnecting: bool,
    /// The number of the attempt that is due, if one is.
    pub(super) due: Option<u32>,
    pub(super) attempts: u32,
    /// A request has asked for an attempt.
    pub(super) is_wanted: bool,
    /// The requests that wait for a connection.
    pub(super) waiting: Vec<u64>,
    /// Whether the server has no more slots.
    pub(super) is_dropped: bool,
}

impl SimulatedLink {
    pub(super) fn connected() -> Self {
        Self {
            is_connected: true,
            ..Self::default()
        }
    }

    /// How long nothing has arrived while the connection is being replaced.
    pub(super) fn silent_for(&self, now: Nanos) -> Option<Nanos> {
        let since = self.silent_since?;
        (self.answered <= Some(since)).then(|| now - since)
    }

    pub(super) fn is_usable(&self, now: Nanos) -> bool {
        self.is_connected && self.silent_for(now).is_none()
    }

    pub(super) fn has_answered_since(&self, sent: Nanos) -> bool {
        self.answered > Some(sent)
    }

    /// Notes that a command was not answered in a deadline. Returns whether that says something
    /// about the connection.
    pub(super) fn note_silence(&mut self, sent: Nanos, connection: u32, now: Nanos) -> bool {
        let may_help = self.renewed.is_none() || self.answered > self.renewed;
        let is_silent = now - sent >= DEADLINE - super::settings::MILLI
            && may_help
            && self.connection == connection
            && !self.has_answered_since(sent);
        if is_silent {
            self.silent_since = Some(now);
        }
        is_silent
    }

    /// A connection is open. Returns whether it replaces one that was silent.
    pub(super) fn open(&mut self, now: Nanos) -> bool {
        let was_silent = self.silent_for(now).is_some();
        self.is_connected = true;
        self.connection += 1;
        self.silent_since = None;
        self.has_failed = false;
        if was_silent {
            self.renewed = Some(now);
        }
        was_silent
    }

    pub(super) fn end(&mut self) {
        self.is_connected = false;
        self.silent_since = None;
    }

    /// An attempt to connect has failed. A connection that is silent stays in use.
    pub(super) fn fail_to_open(&mut self) {
        self.silent_since = None;
        self.has_failed = true;
    }
}

pub(super) fn nanos(duration: Duration) -> Nanos {
    duration.as_nanos() as Nanos
}

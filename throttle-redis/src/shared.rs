//! What all clones of a backend share.

use std::sync::Arc;

use throttle_core::Timestamp;
use tokio::sync::Semaphore;

use crate::keyspace::Keyspace;
use crate::link::in_flight_limit::InFlightLimit;
use crate::link::{Link, hash_slot};
use crate::shortcut::Shortcut;

pub(crate) struct Shared {
    /// Distinguishes the backends of a process: a set that one backend has prepared is invalid for
    /// another.
    pub(crate) id: u64,
    pub(crate) link: Arc<Link>,
    pub(crate) keyspace: Keyspace,
    pub(crate) options: Options,
    pub(crate) shortcut: Shortcut,
    /// The part of the room at the servers that settlements may take.
    pub(crate) correction_room: InFlightLimit,
    pub(crate) settlements: Semaphore,
}

pub(crate) struct Options {
    /// Most decisions in one script call.
    pub(crate) max_batch: usize,
    /// Most decisions that wait for a call.
    pub(crate) queue: usize,
    /// Milliseconds that a key is kept beyond its reset, in decimal.
    pub(crate) slack: String,
    /// The source of the time, if it is not the server.
    pub(crate) clock: Option<Box<dyn Fn() -> Timestamp + Send + Sync>>,
}

impl Shared {
    /// The time that scripts are given; `None` if they read the server's clock.
    pub(crate) fn time(&self) -> Option<Timestamp> {
        self.options.clock.as_ref().map(|clock| clock())
    }

    /// The present instant of the clock that decides about keys of a slot, if it is known.
    pub(crate) fn now(&self, slot: u16) -> Option<Timestamp> {
        self.time().or_else(|| self.link.clock(slot).now())
    }

    /// The hash slot of a name; without a cluster, all names are in one slot.
    #[inline]
    pub(crate) fn slot(&self, name: &[u8]) -> u16 {
        if self.link.is_cluster() {
            hash_slot::of(name)
        } else {
            0
        }
    }
}

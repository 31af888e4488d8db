//! What all clones of a backend share.

use throttle_core::Timestamp;
use tokio::sync::Semaphore;

use crate::keyspace::Keyspace;
use crate::links::{Links, hash_slot};
use crate::shortcut::Shortcut;

pub(crate) struct SharedBackend {
    /// Distinguishes the backends of a process: a set that one backend has prepared is invalid for
    /// another.
    pub(crate) id: u64,
    pub(crate) links: Links,
    pub(crate) keyspace: Keyspace,
    /// The slot that counts as that of every key: on a single server, or if a tag keeps all keys in
    /// one slot of a cluster. `None` if keys are spread over a cluster.
    pub(crate) one_slot: Option<u16>,
    pub(crate) options: Options,
    pub(crate) shortcut: Shortcut,
    pub(crate) settlements: Semaphore,
}

pub(crate) struct Options {
    /// Most decisions in one script call.
    pub(crate) max_batch: usize,
    /// Most decisions that wait for a call.
    pub(crate) queue: usize,
    /// Milliseconds that a key is kept beyond the five seconds of its reset, in decimal.
    pub(crate) slack: String,
    /// The source of the time, if it is not the server.
    pub(crate) clock: Option<Box<dyn Fn() -> Timestamp + Send + Sync>>,
}

impl SharedBackend {
    /// The time that scripts are given; `None` if they read the server's clock.
    pub(crate) fn time(&self) -> Option<Timestamp> {
        self.options.clock.as_ref().map(|clock| clock())
    }

    /// The present instant of the clock that decides about keys of a slot, if it is known.
    pub(crate) fn now(&self, slot: u16) -> Option<Timestamp> {
        self.time().or_else(|| self.links.of(slot).clock.now())
    }

    /// The hash slot of a name.
    #[inline]
    pub(crate) fn slot(&self, name: &[u8]) -> u16 {
        self.one_slot.unwrap_or_else(|| hash_slot::of(name))
    }
}

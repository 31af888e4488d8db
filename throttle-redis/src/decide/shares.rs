//! What a set may have under way at each server, so that no set takes all of the room there.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::link::Link;
use crate::link::in_flight_limit::InFlightLimit;

/// The shares of a set at the servers that it has asked.
#[derive(Default)]
pub(crate) struct Shares(Mutex<Vec<(Weak<Link>, Arc<Share>)>>);

pub(crate) struct Share {
    /// Places for decisions.
    pub(crate) waiting: Semaphore,
    /// The work of those that are under way: half of what the server may have.
    pub(crate) room: InFlightLimit,
}

impl Shares {
    /// The share at a server, where at most `queue` decisions wait.
    pub(crate) fn of(&self, link: &Arc<Link>, queue: usize) -> Arc<Share> {
        let mut shares = self.0.lock();
        let is_of = |(of, _): &&(Weak<Link>, Arc<Share>)| of.as_ptr() == Arc::as_ptr(link);
        if let Some((_, share)) = shares.iter().find(is_of) {
            return Arc::clone(share);
        }
        // Links to servers that have left the cluster.
        shares.retain(|(of, _)| of.strong_count() > 0);
        let share = Arc::new(Share {
            waiting: Semaphore::new(queue),
            room: link.room.half(),
        });
        shares.push((Arc::downgrade(link), Arc::clone(&share)));
        share
    }
}

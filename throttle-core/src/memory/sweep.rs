//! The sweep: requests forget the keys whose state equals that of an unused one.
//!
//! A table that is full is looked through once before it grows, so each of its slots is looked at
//! no more often than growing would move it. In a store that is nearly full, every new key also
//! sweeps a few slots of its shard, and more when the store is full. A key that found no room
//! sweeps a part of another shard, for later keys.

use std::sync::atomic::Ordering;

use super::policies::Policies;
use super::shard::{LockedFields, LockedShard, SharedStore};
use super::slot::Content;
use super::store::Store;
use crate::time::Timestamp;

/// Slots looked at for each new key of a store that is nearly full. One key in, up to four stale
/// ones out.
pub(super) const SWEEP: usize = 4;
/// Slots looked at when the store is full.
pub(super) const SWEEP_WHEN_FULL: usize = 32;
/// Slots of another shard that are looked at for each key that found no room.
pub(super) const SWEEP_ELSEWHERE: usize = 64;

impl LockedShard<'_> {
    /// Makes room for one key; `false` if the store is full of live keys. Slots of `kept` keys stay.
    pub(super) fn make_room(
        &mut self,
        now: Timestamp,
        kept: &[u128],
        shared: &SharedStore,
    ) -> bool {
        if shared.is_nearly_full() {
            self.sweep(now, SWEEP, kept, shared);
        }
        let reserved = shared.reserve()
            || (self.sweep(now, SWEEP_WHEN_FULL, kept, shared) && shared.reserve());
        // The slot of a stale key may do, and else the table grows.
        if reserved && self.table.is_full() {
            self.forget_all_stale(now, kept, shared);
        }
        reserved
    }

    /// Forgets all stale keys of the shard, except `kept`, and puts the others in place again.
    fn forget_all_stale(&mut self, now: Timestamp, kept: &[u128], shared: &SharedStore) {
        let (rest, absent) = (&mut *self.rest, self.absent);
        let mut forgotten = 0;
        self.table.rebuild(|content| {
            let Some(fresh_at) = rest.stale(content, &shared.policies, (now, kept)) else {
                return true;
            };
            absent.raise_horizon(fresh_at);
            forgotten += rest.forget(content, absent, &shared.policies);
            false
        });
        shared.release(forgotten);
    }

    /// Forgets the stale keys among the next `count` slots, except `kept`. Returns whether there
    /// were any.
    fn sweep(&mut self, now: Timestamp, count: usize, kept: &[u128], shared: &SharedStore) -> bool {
        let mut forgotten = false;
        for _ in 0..count.min(self.table.end()) {
            let at = if self.rest.cursor < self.table.end() {
                self.rest.cursor
            } else {
                0
            };
            let slot = self.table.get(at);
            match slot.and_then(|slot| self.rest.stale(&slot, &shared.policies, (now, kept))) {
                // Closing the gap may have moved another slot here, so the cursor stays.
                Some(fresh_at) => {
                    self.absent.raise_horizon(fresh_at);
                    self.remove(at, shared);
                    forgotten = true;
                }
                None => self.rest.cursor = at + 1,
            }
        }
        forgotten
    }

    /// Where the sweep continues, and of how many slots.
    #[cfg(test)]
    pub(super) fn sweep_position(&self) -> (usize, usize) {
        (self.rest.cursor, self.table.end())
    }
}

impl LockedFields {
    /// The instant at which a key's state became fresh, if it has.
    #[inline]
    fn stale(
        &self,
        content: &Content,
        policies: &Policies,
        (now, kept): (Timestamp, &[u128]),
    ) -> Option<Timestamp> {
        let (repr, writer) = self.state(content, policies)?;
        let fresh_at = writer.repr_fresh_at(&repr);
        // The last instant stands for all that come after it, so nothing is known to be fresh
        // there.
        let stale = fresh_at <= now
            && fresh_at < Timestamp::MAX
            && !kept.contains(&content.label().number());
        stale.then_some(fresh_at)
    }
}

impl Store {
    /// Makes room in another shard, for later keys. It does not wait for a lock that another thread
    /// holds.
    pub(super) fn sweep_elsewhere(&self, now: Timestamp) {
        let next = self.next_swept.0.fetch_add(1, Ordering::Relaxed) % self.shards.len();
        if let Some(mut shard) = self.shards[next].try_lock() {
            shard.sweep(now, SWEEP_ELSEWHERE, &[], &self.shared);
        }
    }
}

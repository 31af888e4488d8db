//! The sweep: forgets keys that cannot be told from unused ones, a few slots at a time, inside requests.
//!
//! Every new key sweeps a few slots of its shard, and more when the store is full. A key that found no room also sweeps
//! a part of another shard, for later keys. No request looks at more slots than these numbers say.

use std::sync::atomic::Ordering;

use super::policies::Policies;
use super::shard::{LockedShard, Shared};
use super::slot::Label;
use super::store::Store;
use crate::algorithm::Repr;
use crate::time::Timestamp;

/// Slots looked at for each new key. One key in, up to four stale ones out: stale keys never pile up.
pub(super) const SWEEP: usize = 4;
/// Slots looked at when the store is full.
pub(super) const SWEEP_WHEN_FULL: usize = 32;
/// Slots of another shard that are looked at for each key that found no room.
pub(super) const SWEEP_ELSEWHERE: usize = 64;

impl LockedShard<'_> {
    /// Makes room for one key; `false` if the store is full of live keys. Slots of `kept` labels stay.
    pub(super) fn make_room(&mut self, now: Timestamp, kept: &[Label], shared: &Shared) -> bool {
        self.sweep(now, SWEEP, kept, shared);
        shared.reserve() || (self.sweep(now, SWEEP_WHEN_FULL, kept, shared) && shared.reserve())
    }

    /// Forgets the stale keys among the next `count` slots, except `kept`. Returns whether there were any.
    fn sweep(&mut self, now: Timestamp, count: usize, kept: &[Label], shared: &Shared) -> bool {
        let mut forgotten = false;
        for _ in 0..count.min(self.table.end()) {
            let at = if self.rest.cursor < self.table.end() { self.rest.cursor } else { 0 };
            match self.stale(at, now, kept, &shared.policies) {
                // Closing the gap may have moved another slot here, so the cursor stays.
                Some((fresh_at, small)) => {
                    self.rest.horizon = self.rest.horizon.max(fresh_at);
                    self.remove(at, small, shared);
                    forgotten = true;
                }
                None => self.rest.cursor = at + 1,
            }
        }
        forgotten
    }

    /// The instant at which a slot's state became fresh, if it has, and whether the state is small.
    fn stale(
        &mut self,
        index: usize,
        now: Timestamp,
        kept: &[Label],
        policies: &Policies,
    ) -> Option<(Timestamp, bool)> {
        let content = self.table.get(index)?;
        let algorithm = policies.algorithm(content.version())?;
        let small = algorithm.is_small();
        let fresh_at = if small {
            algorithm.repr_fresh_at(&Repr::Words(content.words()))
        } else {
            algorithm.repr_fresh_at(self.rest.large_state(content.words())?)
        };
        // The last instant stands for all that come after it, so nothing is known to be fresh there.
        let stale = fresh_at <= now && fresh_at < Timestamp::MAX && !kept.contains(&content.label());
        stale.then_some((fresh_at, small))
    }

    /// Where the sweep continues, and of how many slots.
    #[cfg(test)]
    pub(super) fn sweep_position(&self) -> (usize, usize) {
        (self.rest.cursor, self.table.end())
    }
}

impl Store {
    /// Makes room in another shard, for later keys. It does not wait for a lock that another thread holds.
    #[cold]
    pub(super) fn sweep_elsewhere(&self, now: Timestamp) {
        let next = self.next_swept.0.fetch_add(1, Ordering::Relaxed) % self.shards.len();
        if let Some(mut shard) = self.shards[next].try_lock() {
            shard.sweep(now, SWEEP_ELSEWHERE, &[], &self.shared);
        }
    }
}

//! Batches the decisions of a set that may travel together: on a cluster, those about keys in one
//! hash slot; and only those that are in the same tiers.
//!
//! Each slot has a queue and calls under way of its own, so that keys in other slots wait for none
//! of them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::batch::Batcher;
use crate::link::call_error::CallError;
use crate::script::reply::Part;
use crate::script::request::{Ask, Tiers};
use crate::shared_backend::SharedBackend;

/// The batchers of the slots and tiers that decisions ask about now.
#[derive(Default)]
pub(crate) struct Batchers(Mutex<HashMap<Together, InUse>>);

/// What the decisions of one batcher have in common.
type Together = (u16, Tiers);

#[derive(Default)]
struct InUse {
    batcher: Batcher,
    /// Decisions that wait for their answer.
    decisions: usize,
}

impl Batchers {
    pub(crate) async fn ask(
        &self,
        shared: &Arc<SharedBackend>,
        ask: &Arc<Ask>,
        tiers: Tiers,
        until: Instant,
    ) -> Result<Part, CallError> {
        self.enter((ask.slot, tiers))
            .batcher
            .ask(shared, ask, until)
            .await
    }

    fn enter(&self, of: Together) -> BatcherGuard<'_> {
        let mut batchers = self.0.lock();
        let in_use = batchers.entry(of.clone()).or_default();
        in_use.decisions += 1;
        BatcherGuard {
            batchers: self,
            of,
            batcher: in_use.batcher.clone(),
        }
    }
}

/// A decision in a batcher. The last one to leave removes the batcher: a hot key keeps it, and keys
/// that come and go leave nothing behind.
struct BatcherGuard<'a> {
    batchers: &'a Batchers,
    of: Together,
    batcher: Batcher,
}

impl Drop for BatcherGuard<'_> {
    fn drop(&mut self) {
        if let Entry::Occupied(mut in_use) = self.batchers.0.lock().entry(self.of.clone()) {
            in_use.get_mut().decisions -= 1;
            if in_use.get().decisions == 0 {
                in_use.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests;

//! Batches the decisions of a set on a cluster: those about keys in one hash slot travel in one call.
//!
//! Each slot has a queue and calls under way of its own, so that keys in other slots wait for none of them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::batch::Batcher;
use crate::link::call_error::CallError;
use crate::script::reply::Part;
use crate::script::request::Ask;
use crate::shared::Shared;

/// The batchers of the slots that decisions ask about now.
#[derive(Default)]
pub(crate) struct SlotBatchers(Mutex<HashMap<u16, InUse>>);

#[derive(Default)]
struct InUse {
    batcher: Batcher,
    /// Decisions that wait for their answer.
    decisions: usize,
}

impl SlotBatchers {
    pub(crate) async fn ask(&self, shared: &Arc<Shared>, ask: &Arc<Ask>, until: Instant) -> Result<Part, CallError> {
        self.enter(ask.slot).batcher.ask(shared, ask, until).await
    }

    fn enter(&self, slot: u16) -> Entered<'_> {
        let mut slots = self.0.lock();
        let in_use = slots.entry(slot).or_default();
        in_use.decisions += 1;
        Entered { slots: self, slot, batcher: in_use.batcher.clone() }
    }
}

/// A decision about a slot. The last one to leave removes the slot's batcher: a hot key keeps it, and keys that come
/// and go leave nothing behind.
struct Entered<'a> {
    slots: &'a SlotBatchers,
    slot: u16,
    batcher: Batcher,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if let Entry::Occupied(mut in_use) = self.slots.0.lock().entry(self.slot) {
            in_use.get_mut().decisions -= 1;
            if in_use.get().decisions == 0 {
                in_use.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests;

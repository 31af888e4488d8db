//! Settles charges with actual usage.

use std::sync::Arc;

use throttle_core::DecidedBy;
use throttle_core::backend::{Receipt, ReceiptItem};
use tokio::time::Instant;

use super::call::{run, time_word};
use super::set::RedisSet;
use crate::link::call_error::CallError;
use crate::script::prepared::Prepared;
use crate::script::request::MOST;
use crate::shared::Shared;

pub(crate) async fn settle(shared: &Arc<Shared>, set: &RedisSet, receipt: &Receipt) -> Result<(), CallError> {
    let settled = settle_by_slot(shared, set, receipt).await;
    if settled.is_err() {
        shared.link.counters.settling_failed();
    }
    settled
}

async fn settle_by_slot(shared: &Arc<Shared>, set: &RedisSet, receipt: &Receipt) -> Result<(), CallError> {
    let prepared = set.prepared(shared);
    let named = |item| name_of(shared, set, item);
    if shared.keyspace.is_single_slot() || !shared.link.is_cluster() {
        let items: Vec<_> = receipt.items().iter().filter_map(|item| Some((named(item)?, item))).collect();
        return settle_in_one_slot(shared, &prepared, &items).await;
    }
    // A server that fails must not prevent the charges of other slots from being settled.
    let mut settled = Ok(());
    for item in receipt.items() {
        if let Some(name) = named(item) {
            settled = settled.and(settle_in_one_slot(shared, &prepared, &[(name, item)]).await);
        }
    }
    settled
}

/// Returns `None` also for what was charged to the process's own share, because the store holds nothing of it.
fn name_of(shared: &Shared, set: &RedisSet, item: &ReceiptItem) -> Option<Vec<u8>> {
    if item.decided_by() != DecidedBy::Store {
        return None;
    }
    Some(shared.keyspace.name(set.names.get(item.policy())?, item.key()))
}

async fn settle_in_one_slot(
    shared: &Arc<Shared>,
    prepared: &Prepared,
    items: &[(Vec<u8>, &ReceiptItem)],
) -> Result<(), CallError> {
    let Some((first, _)) = items.first() else { return Ok(()) };
    let slot = shared.slot(first);
    let _leave = shared.link.leave(slot)?;
    // A settlement is not given up because many others wait: the units that it gives back would be lost. Its deadline
    // begins when it is sent.
    let work = items.iter().filter_map(|(_, item)| prepared.work.get(item.policy())).sum();
    let _room = shared.link.room.take(shared.link.range(slot), work).await;
    let until = Instant::now() + shared.link.deadline;
    let keys: Vec<&[u8]> = items.iter().map(|(name, _)| name.as_slice()).collect();
    let words: Vec<String> = items.iter().flat_map(|(_, item)| words(item)).collect();
    let words: Vec<&[u8]> = words.iter().map(String::as_bytes).collect();
    let (scripts, time) = (&prepared.scripts, time_word(shared, None));
    // A request that was refused before the settlement may be admitted after it.
    let _forgetting = shared.shortcut.forgetting(|| items.iter().map(|(name, _)| name.as_slice()).collect());
    for script in [&scripts.settle, &scripts.settle_carried] {
        match run(shared, prepared, script, &keys, (&time, &words), slot, until).await?.as_slice() {
            b"A" => return Ok(()),
            // A value was written under other parameters.
            b"C" => {}
            b"W" => return Err(CallError::Malformed("a key holds something that is no state of a limit")),
            _ => break,
        }
    }
    Err(CallError::Malformed("the script's reply has no flag"))
}

/// The policy, the place of the charge, the units taken, and the units used.
pub(crate) fn words(item: &ReceiptItem) -> [String; 5] {
    let (at, frac) = item.mark();
    let policy = item.policy() + 1;
    [
        policy.to_string(),
        at.to_string(),
        frac.to_string(),
        item.taken().to_string(),
        item.actual().min(MOST).to_string(),
    ]
}

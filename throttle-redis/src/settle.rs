//! Charges that turn out to be other than they were taken for.

use std::sync::Arc;

use throttle_core::DecidedBy;
use throttle_core::backend::{Receipt, ReceiptItem};
use tokio::time::Instant;

use crate::ask::MOST;
use crate::deny_cache::OnDrop;
use crate::line::Trouble;
use crate::linked::Linked;
use crate::set::RedisSet;
use crate::shared::Shared;

pub(crate) async fn settle(shared: &Arc<Shared>, set: &RedisSet, receipt: &Receipt) -> Result<(), Trouble> {
    let settled = settle_by_slot(shared, set, receipt).await;
    if settled.is_err() {
        shared.line.counters.settling_failed();
    }
    settled
}

async fn settle_by_slot(shared: &Arc<Shared>, set: &RedisSet, receipt: &Receipt) -> Result<(), Trouble> {
    let linked = set.linked(shared);
    let named = |item| name_of(shared, set, item);
    if shared.keyspace.is_together() || !shared.line.is_cluster() {
        let items: Vec<_> = receipt.items().iter().filter_map(|item| Some((named(item)?, item))).collect();
        return settle_in_one_slot(shared, &linked, &items).await;
    }
    // A server that fails must not keep those of the other slots from what is theirs.
    let mut settled = Ok(());
    for item in receipt.items() {
        if let Some(name) = named(item) {
            settled = settled.and(settle_in_one_slot(shared, &linked, &[(name, item)]).await);
        }
    }
    settled
}

/// `None` also for what a process charged to its own share: nothing of that is here.
fn name_of(shared: &Shared, set: &RedisSet, item: &ReceiptItem) -> Option<Vec<u8>> {
    if item.decided_by() != DecidedBy::Store {
        return None;
    }
    Some(shared.keyspace.name(set.names.get(item.policy())?, item.key()))
}

async fn settle_in_one_slot(
    shared: &Arc<Shared>,
    linked: &Linked,
    items: &[(Vec<u8>, &ReceiptItem)],
) -> Result<(), Trouble> {
    let Some((first, _)) = items.first() else { return Ok(()) };
    let slot = shared.slot(first);
    let _leave = shared.line.leave(slot)?;
    // A settlement is not given up because many wait: what it gives back would be lost. Its deadline begins when it is sent.
    let work = items.iter().filter_map(|(_, item)| linked.work.get(item.policy())).sum();
    let _room = shared.line.room.take(shared.line.range(slot), work).await;
    let until = Instant::now() + shared.line.deadline;
    let keys: Vec<&[u8]> = items.iter().map(|(name, _)| name.as_slice()).collect();
    let words: Vec<String> = items.iter().flat_map(|(_, item)| words(item)).collect();
    let words: Vec<&[u8]> = words.iter().map(String::as_bytes).collect();
    let (scripts, time) = (&linked.scripts, shared.time_word(None));
    // What was refused until then may be admitted afterwards.
    let _unrefuse = OnDrop(|| items.iter().for_each(|(name, _)| shared.unrefuse(name)));
    for script in [&scripts.settle, &scripts.settle_carried] {
        match shared.run(linked, script, &keys, (&time, &words), slot, until).await?.as_slice() {
            b"A" => return Ok(()),
            // Other parameters wrote a value.
            b"C" => {}
            b"W" => return Err(Trouble::Nonsense("a key holds something that is no state of a limit")),
            _ => break,
        }
    }
    Err(Trouble::Nonsense("the script's reply has no flag"))
}

/// Policy, where the charge is, what was taken, what it shall have been.
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

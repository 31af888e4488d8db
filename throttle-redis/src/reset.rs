//! Resets keys.

use std::sync::Arc;
use std::time::Duration;

use throttle_core::Key;
use tokio::time::Instant;

use crate::decide::set::RedisSet;
use crate::link::call_error::CallError;
use crate::link::connection::{Command, Reply, Route};
use crate::link::live_connection::LiveConnection;
use crate::shared::Shared;

/// A step of going through all keys may take longer than a decision.
const STEP: Duration = Duration::from_secs(1);
/// Keys looked at in one step.
const COUNT: &str = "500";

/// Redirections followed for one command.
const REDIRECTIONS: u32 = 4;

/// Forgets one key.
pub(crate) async fn reset(shared: &Arc<Shared>, set: &RedisSet, policy: usize, key: &Key) -> Result<(), CallError> {
    let Some(names) = set.names.get(policy) else { return Ok(()) };
    let name = shared.keyspace.name(names, key);
    let until = Instant::now() + shared.link.deadline;
    let live = shared.link.live(until).await?;
    // What was refused until then may be admitted afterwards.
    let _forgetting = shared.shortcut.forgetting(|| vec![&name]);
    delete(shared, &live, std::slice::from_ref(&name), until).await
}

/// Forgets every key of every policy whose name starts with `prefix`, going through each primary's keys step by step.
pub(crate) async fn reset_all(shared: &Arc<Shared>, prefix: &str) -> Result<(), CallError> {
    let _forgetting = shared.shortcut.forgetting_all();
    let pattern = shared.keyspace.pattern(prefix);
    let live = shared.link.live(Instant::now() + STEP).await?;
    for primary in primaries(shared, &live).await? {
        let mut cursor = b"0".to_vec();
        loop {
            let scan = Command::new("SCAN").arg(&cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(COUNT);
            let reply = live.call(scan.to(primary.clone()), Instant::now() + STEP).await?;
            let (next, names) = scanned(reply).ok_or(CallError::Malformed("SCAN answered something else"))?;
            delete(shared, &live, &names, Instant::now() + STEP).await?;
            if next == b"0" {
                break;
            }
            cursor = next;
        }
    }
    Ok(())
}

fn scanned(reply: Reply) -> Option<(Vec<u8>, Vec<Vec<u8>>)> {
    let mut parts = reply.into_array()?.into_iter();
    let cursor = parts.next()?.into_bytes()?;
    let names = parts.next()?.into_array()?.into_iter().map(Reply::into_bytes).collect::<Option<_>>()?;
    Some((cursor, names))
}

async fn delete(shared: &Shared, live: &LiveConnection, names: &[Vec<u8>], until: Instant) -> Result<(), CallError> {
    // Keys of a cluster can be deleted together only where they share a slot.
    let at_once = if shared.link.is_cluster() && !shared.keyspace.is_single_slot() { 1 } else { 500 };
    for names in names.chunks(at_once) {
        let (mut route, mut redirections) = (Route::Slot(shared.slot(&names[0])), 0);
        loop {
            let delete = names.iter().fold(Command::new("DEL"), |command, name| command.arg(name)).to(route.clone());
            match live.call(delete, until).await {
                Ok(_) => break,
                Err(CallError::Fault(fault)) if redirections < REDIRECTIONS => {
                    route = fault.redirection().ok_or(CallError::Fault(fault))?;
                }
                Err(error) => return Err(error),
            }
            redirections += 1;
        }
    }
    Ok(())
}

/// Where all keys are.
async fn primaries(shared: &Shared, live: &LiveConnection) -> Result<Vec<Route>, CallError> {
    if !shared.link.is_cluster() {
        return Ok(vec![Route::Any]);
    }
    Ok(live.ask_for_slots(Route::Any, Instant::now() + STEP).await?.routes())
}

//! Decisions about keys that one script call can reach: one atomic step.

use std::sync::Arc;

use throttle_core::Decision;
use tokio::time::Instant;

use super::call;
use super::set::RedisSet;
use crate::link::call_error::CallError;
use crate::script::reply::{Part, answer};
use crate::script::request::Ask;
use crate::shared::Shared;

pub(crate) async fn decide_in_one_slot(
    shared: &Arc<Shared>,
    set: &RedisSet,
    ask: Ask,
    until: Instant,
) -> Result<Decision, CallError> {
    let asked = shared.shortcut.asking(&ask);
    let (part, ask) = ask_in_one_slot(shared, set, ask, until).await?;
    let decision = answer(&ask, &part)?;
    shared.shortcut.note(&ask, &part, &decision, asked);
    Ok(decision)
}

/// Asks the store. Returns its answer together with the question.
pub(crate) async fn ask_in_one_slot(
    shared: &Arc<Shared>,
    set: &RedisSet,
    ask: Ask,
    until: Instant,
) -> Result<(Part, Ask), CallError> {
    let _leave = shared.link.leave(ask.slot)?;
    // All decisions in one call are made as of one instant.
    let (part, ask) = if shared.options.max_batch > 1 && ask.as_of.is_none() {
        set.batcher.ask(shared, ask, until).await?
    } else {
        let _place = set.waiting.try_acquire().map_err(|_| CallError::Saturated)?;
        let room = set.room.take_by(shared.link.range(ask.slot), ask.work(), until).await;
        let _room = room.ok_or(CallError::Expired)?;
        (call::decide_one(shared, &ask, until).await?, ask)
    };
    if part.flag() == Some(b'C') {
        // One of the values was written under other parameters, and the script did nothing.
        return Ok((Box::pin(call::carry_over(shared, &ask, until)).await?, ask));
    }
    Ok((part, ask))
}

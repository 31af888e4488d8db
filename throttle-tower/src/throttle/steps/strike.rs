//! Strikes, which are counted after refusals and responses.

use std::sync::Arc;
use std::time::Duration;

use throttle_core::backend::{Ban, Call, KeyStep};
use throttle_core::{DecidedBy, Key, Status};
use tokio::runtime::Handle;

use crate::event::Activity;
use crate::throttle::shared_layer::ErasedLayer;
use crate::usage::StepFuture;

/// The strike of a key that a limit with a ban has refused.
pub(super) fn of_refused(
    shared: &Arc<dyn ErasedLayer>,
    index: usize,
    call: &Call,
    status: &Status,
) -> Option<StepFuture> {
    let (key, ban) = (call.key()?, shared.applied[index].charge_rules.ban?);
    // A store counts nothing for an excepted or banned key, and need not be called.
    // It shortens a ban that is too long, because the clock was set back or the longest ban was
    // lowered. Many keys share an overflow bucket, so its refusal says nothing of this key.
    let is_asked = !status.is_excepted() || status.is_banned() && is_too_long(status, &ban);
    if !status.is_violated() || status.is_overflow() || !is_asked {
        return None;
    }
    Some(count(shared, index, key.clone(), ban, status.decided_by()))
}

fn is_too_long(status: &Status, ban: &Ban) -> bool {
    let [.., up_to, _] = ban.numbers();
    status.retry_after() > Some(Duration::from_micros(up_to))
}

/// Counts a strike, in the background, where the request was decided.
pub(super) fn strike(
    shared: &Arc<dyn ErasedLayer>,
    index: usize,
    key: Key,
    decided_by: DecidedBy,
    runtime: Option<&Handle>,
) {
    let Some(ban) = shared.applied[index].charge_rules.ban else {
        return;
    };
    let step = count(shared, index, key, ban, decided_by);
    shared
        .options
        .background
        .send(step, runtime, shared.can_fail());
}

fn count(
    shared: &Arc<dyn ErasedLayer>,
    index: usize,
    key: Key,
    ban: Ban,
    decided_by: DecidedBy,
) -> StepFuture {
    let striking = Arc::clone(shared);
    Box::pin(async move {
        let begun = match (decided_by, striking.share()) {
            (DecidedBy::Store, _) => {
                let strike = KeyStep::Strike(key, ban);
                striking.run(index, strike).await?
            }
            (DecidedBy::Local(_), Some(share)) => share.strike(index, key, ban).await?,
            _ => Vec::new(),
        };
        if !begun.is_empty() {
            let limit = striking.applied[index].limit_index;
            striking
                .options
                .observers
                .happened(Activity::Banned { limit });
        }
        Ok(())
    })
}

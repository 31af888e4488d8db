//! Strikes, which are counted behind refusals and responses.

use std::sync::Arc;
use std::time::Duration;

use throttle_core::backend::{Ban, Call};
use throttle_core::{Backend, DecidedBy, Decision, Key, Status};
use tokio::runtime::Handle;

use crate::throttle::shared::Shared;

/// Counts a strike of each key that a limit with a ban has refused.
pub(super) fn strike_refused<B: Backend>(
    shared: &Arc<Shared<B>>,
    decision: &Decision,
    calls: &[Call],
) {
    for (place, (limit, call)) in shared.applied.iter().zip(calls).enumerate() {
        let (Some(key), Some(ban)) = (call.key(), &limit.charge_rules.ban) else {
            continue;
        };
        // A store counts nothing for a key that is treated otherwise or banned, and need not be
        // asked. It shortens a ban that is too long, because the clock was set back or the longest
        // ban was lowered. Many keys share an overflow bucket, so its refusal says nothing of this
        // key.
        let counts = |status: &&Status| {
            let is_asked = !status.is_excepted() || status.is_banned() && is_too_long(status, ban);
            status.is_violated() && !status.is_overflow() && is_asked
        };
        if let Some(status) = decision.statuses().get(place).filter(counts) {
            strike(shared, place, key.clone(), status.decided_by(), None);
        }
    }
}

fn is_too_long(status: &Status, ban: &Ban) -> bool {
    let [.., up_to, _] = ban.numbers();
    status.retry_after() > Some(Duration::from_micros(up_to))
}

/// Counts a strike, in the background, where the request was decided.
pub(super) fn strike<B: Backend>(
    shared: &Arc<Shared<B>>,
    place: usize,
    key: Key,
    decided_by: DecidedBy,
    runtime: Option<&Handle>,
) {
    let Some(ban) = shared.applied[place].charge_rules.ban else {
        return;
    };
    let striking = Arc::clone(shared);
    let step = async move {
        let begun = match (decided_by, &striking.share) {
            (DecidedBy::Store, _) => {
                striking
                    .backend
                    .strike(&striking.prepared, place, &key, &ban)
                    .await?
            }
            (DecidedBy::Local(_), Some(share)) => share.strike(place, &key, &ban).await?,
            _ => None,
        };
        if begun.is_some() {
            let place = striking.announced.place(place);
            striking
                .options
                .observers
                .each(|observer| observer.banned(place));
        }
        Ok(())
    };
    shared
        .options
        .background
        .send(Box::pin(step), runtime, shared.backend.can_fail());
}

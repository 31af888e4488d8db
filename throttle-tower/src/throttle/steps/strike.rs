//! Strikes, which are counted behind refusals and responses.

use std::sync::Arc;

use throttle_core::backend::Call;
use throttle_core::{Backend, DecidedBy, Decision, Key, Status};
use tokio::runtime::Handle;

use crate::throttle::shared::Shared;

/// Counts a strike of each key that a limit with a ban has refused.
pub(super) fn strike_refused<B: Backend>(shared: &Arc<Shared<B>>, decision: &Decision, calls: &[Call]) {
    for (place, (limit, call)) in shared.applied.iter().zip(calls).enumerate() {
        let Some(key) = call.key().filter(|_| limit.charge_rules.ban.is_some()) else { continue };
        // A store counts nothing for a key that is banned or treated otherwise, and need not be asked.
        let counts = |status: &&Status| status.is_violated() && !status.is_excepted();
        if let Some(status) = decision.statuses().get(place).filter(counts) {
            strike(shared, place, key.clone(), status.decided_by(), None);
        }
    }
}

/// Counts a strike, in the background, where the request was decided.
pub(super) fn strike<B: Backend>(
    shared: &Arc<Shared<B>>,
    place: usize,
    key: Key,
    decided_by: DecidedBy,
    runtime: Option<&Handle>,
) {
    let Some(ban) = shared.applied[place].charge_rules.ban else { return };
    let striking = Arc::clone(shared);
    let step = async move {
        let begun = match (decided_by, &striking.share) {
            (DecidedBy::Store, _) => striking.backend.strike(&striking.prepared, place, &key, &ban).await?,
            (DecidedBy::Local(_), Some(share)) => share.strike(place, &key, &ban).await?,
            _ => None,
        };
        if begun.is_some() {
            striking.options.observers.each(|observer| observer.banned(place));
        }
        Ok(())
    };
    shared.options.background.send(Box::pin(step), runtime, shared.backend.can_fail());
}

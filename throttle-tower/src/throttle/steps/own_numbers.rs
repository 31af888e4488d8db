use std::borrow::Cow;
use std::sync::Arc;

use throttle_core::{Backend, ConfigError, Policy};

use super::ask::Asked;
use crate::limit::Keying;
use crate::log;
use crate::throttle::shared::Shared;

/// What a request is decided by: the limits of the layer, or those with its own numbers.
pub(super) fn decided_by<'a, B: Backend>(shared: &'a Arc<Shared<B>>, asked: &mut Asked) -> Cow<'a, Arc<Shared<B>>> {
    let Some(own) = &asked.own else { return Cow::Borrowed(shared) };
    match shared.with_own(own) {
        Ok(own) => Cow::Owned(own),
        Err(error) => {
            refuse(shared, asked, &error);
            Cow::Borrowed(shared)
        }
    }
}

/// The backend does not enforce these numbers: the request is decided as if its lookups had failed.
fn refuse<B: Backend>(shared: &Shared<B>, asked: &mut Asked, error: &ConfigError) {
    for (place, _) in asked.own.take().unwrap_or_default().into_iter() {
        if let Some(Keying::Tiered(lookup)) = shared.applied.get(place).map(|limit| &limit.keying) {
            asked.calls[place] = asked.calls[place].clone().in_tier(lookup.unknown_tier());
        }
        if shared.own_sets.is_first_failure() {
            let policy = B::set(&shared.prepared).policies().get(place).map_or("", Policy::name);
            log::warn(&format_args!(
                "a lookup of the limit {policy:?} returned numbers that the backend refuses: {error}. The tier of \
                 unknown identities applies. This is logged once"
            ));
        }
    }
}

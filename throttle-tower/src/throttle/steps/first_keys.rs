//! The first requests with a key, which show whether their addresses are those of clients.

use http::request::Parts;
use throttle_core::Backend;

use crate::throttle::shared::Shared;
use crate::throttle::warning;

#[cold]
pub(super) fn key_found<B: Backend>(shared: &Shared<B>, policy: usize, parts: &Parts) {
    let (limit, name) = (
        &shared.applied[policy],
        shared.announced.policies[policy].policy_name(),
    );
    if let Some(warning) = warning::key_found(limit, name, &shared.sources, parts) {
        shared.announced.options.watch.warn(&warning);
    }
}

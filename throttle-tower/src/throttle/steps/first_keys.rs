//! The first requests with a key, which show whether their addresses are those of clients.

use http::request::Parts;
use throttle_core::Backend;

use crate::limit::Applied;
use crate::throttle::shared::Shared;
use crate::throttle::warning;

#[cold]
pub(super) fn key_found<B: Backend>(shared: &Shared<B>, limit: &Applied, parts: &Parts) {
    let name = shared.name_of(limit);
    if let Some(warning) = warning::key_found(limit, name, &shared.sources, parts) {
        shared.announced.options.watch.warn(&warning);
    }
}

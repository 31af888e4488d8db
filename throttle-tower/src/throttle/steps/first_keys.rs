//! The first requests with a key, which show whether their addresses are those of clients.

use http::request::Parts;
use throttle_core::Backend;

use crate::limit::LimitSettings;
use crate::throttle::shared_layer::SharedLayer;
use crate::throttle::warning;

#[cold]
pub(super) fn key_found<B: Backend>(shared: &SharedLayer<B>, limit: &LimitSettings, parts: &Parts) {
    let name = shared.name_of(limit);
    if let Some(warning) = warning::key_found(limit, name, &shared.sources, parts) {
        shared.announced.options.watch.warn(&warning);
    }
}

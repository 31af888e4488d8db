//! A request in which an extractor finds no key, such as one without a known client address.

use http::request::Parts;
use throttle_core::Backend;
use throttle_core::backend::Call;

use super::refuse;
use crate::limit::{LimitSettings, OnMissing};
use crate::throttle::response_builder::RefusalResponse;
use crate::throttle::shared_layer::SharedLayer;
use crate::throttle::warning;

/// The call that [`OnMissing`] prescribes; `shared_budget` is the one on the budget of all requests
/// without a key.
///
/// # Errors
///
/// The refusal, where a key is required.
#[cold]
pub(super) fn call_without_key<B: Backend>(
    shared: &SharedLayer<B>,
    limit: &LimitSettings,
    shared_budget: Call,
    parts: &Parts,
) -> Result<Call, Box<RefusalResponse>> {
    let name = shared.name_of(limit);
    if let Some(warning) = warning::missing_key(limit, name, &shared.sources, parts) {
        shared.announced.options.watch.warn(&warning);
    }
    match limit.on_missing {
        OnMissing::Share => Ok(shared_budget),
        OnMissing::Skip => Ok(Call::SKIP),
        OnMissing::Reject(status) => Err(refuse::missing_key(shared, name, status, parts)),
    }
}

#[cold]
pub(super) fn key_found<B: Backend>(shared: &SharedLayer<B>, limit: &LimitSettings, parts: &Parts) {
    let name = shared.name_of(limit);
    if let Some(warning) = warning::key_found(limit, name, &shared.sources, parts) {
        shared.announced.options.watch.warn(&warning);
    }
}

use std::borrow::Cow;
use std::sync::Arc;

use http::request::Parts;
use throttle_core::Backend;

use super::ask::Asked;
use super::refuse;
use crate::throttle::response_builder::Refused;
use crate::throttle::shared::Shared;

/// What a request is decided by: the limits of the layer, or those with its own numbers.
///
/// # Errors
///
/// The refusal, if the backend does not enforce its numbers. A tier would not do instead: it may forget what the
/// numbers have counted. Nor does the rule for a store that fails: this one is healthy and stays so, so to pass the
/// request on would lift all of the limits for as long as the numbers are what they are.
pub(super) fn decided_by<'a, B: Backend>(
    shared: &'a Arc<Shared<B>>,
    asked: &Asked,
    parts: &Parts,
) -> Result<Cow<'a, Arc<Shared<B>>>, Box<Refused>> {
    let Some(own) = &asked.own else { return Ok(Cow::Borrowed(shared)) };
    shared.with_own(own).map(Cow::Owned).map_err(|error| {
        let policies = &shared.announced.policies;
        let closed: Vec<_> = own.iter().filter_map(|(place, _)| policies.get(*place).cloned()).collect();
        Box::new(refuse::failed(shared, &error, &closed, parts))
    })
}

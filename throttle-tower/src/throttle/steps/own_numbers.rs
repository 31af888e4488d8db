use std::borrow::Cow;
use std::sync::Arc;

use throttle_core::{Backend, BackendError};

use super::ask::Asked;
use crate::throttle::shared::Shared;

/// What a request is decided by: the limits of the layer, or those with its own numbers.
///
/// # Errors
///
/// If the backend does not enforce its numbers. A tier would not do instead: it may forget what the numbers have
/// counted.
pub(super) fn decided_by<'a, B: Backend>(
    shared: &'a Arc<Shared<B>>,
    asked: &Asked,
) -> Result<Cow<'a, Arc<Shared<B>>>, BackendError> {
    match &asked.own {
        None => Ok(Cow::Borrowed(shared)),
        Some(own) => shared.with_own(own).map(Cow::Owned),
    }
}

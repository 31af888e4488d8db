//! Builds what replaces the limits of a layer while requests run.

use std::sync::Arc;

use throttle_core::{Backend, ConfigError};

use super::beside::beside;
use crate::limit::Compiled;
#[cfg(any(feature = "metrics", feature = "offenders", feature = "tracing"))]
use crate::throttle::observed;
use crate::throttle::{Next, Shared, make_share, report_built, unshared};

/// What replaces the limits of a layer, on the same backend and with its options.
///
/// # Errors
///
/// If the limits cannot be enforced on this backend.
pub(super) fn rebuild<B: Backend>(
    former: &Shared<B>,
    next: &Next<'_>,
) -> Result<Shared<B>, ConfigError> {
    let Compiled {
        set,
        applied,
        permits,
    } = next.limits.clone().compile()?;
    let permits = Arc::new(former.permits.replaced_by(permits));
    let (mut options, mut responses) = (former.options.clone(), former.announced.options.clone());
    (next.adjust)(&mut options, &mut responses);
    options.observers = beside(former, next.candidate)?;
    if let Some(share) = &former.share {
        options.local_store = Some(share.store().clone());
    }
    let on = (former.backend.clone(), former.built_on.renewed());
    let mut shared = unshared(on, set, applied, permits, (options, responses))?;
    make_share(&mut shared)?;
    #[cfg(any(feature = "metrics", feature = "offenders", feature = "tracing"))]
    renew_observers(&mut shared, former);
    report_built(&mut shared, Some(former.version.info()));
    Ok(shared)
}

/// The observers of the former limits, for these.
#[cfg(any(feature = "metrics", feature = "offenders", feature = "tracing"))]
fn renew_observers<B: Backend>(shared: &mut Shared<B>, former: &Shared<B>) {
    let (former, now) = (observed(former), observed(shared));
    shared.options.observers = shared.options.observers.renewed(&former, &now);
}

use http::request::Parts;
use throttle_core::{Backend, Decision};

use crate::throttle::event::{Event, Outcome};
use crate::throttle::shared::Shared;

/// Calls the hook for decisions, if there is one.
#[inline]
pub(super) fn notify<B: Backend>(shared: &Shared<B>, outcome: Outcome<'_>, decision: Option<&Decision>, parts: &Parts) {
    if let Some(hook) = &shared.options.on_decision {
        hook(&Event { outcome, policies: &shared.announced.policies, decision, parts });
    }
}

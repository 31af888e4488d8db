use http::request::Parts;
use throttle_core::backend::Call;
use throttle_core::{Backend, Decision};

use crate::event::{Event, Outcome};
use crate::throttle::announced::Announced;
use crate::throttle::shared::Shared;

/// Calls the hook for decisions and the observers, if there are any.
#[inline]
pub(super) fn notify<B: Backend>(
    shared: &Shared<B>,
    outcome: Outcome<'_>,
    decided: Option<(&Announced, &Decision)>,
    calls: &[Call],
    parts: &Parts,
) {
    let (announced, decision) = match decided {
        Some((announced, decision)) => (announced, Some(decision)),
        None => (&*shared.announced, None),
    };
    let event = Event { outcome, policies: &announced.policies, decision, parts };
    if let Some(hook) = &shared.options.on_decision {
        hook(&event);
    }
    shared.options.observers.each(|observer| observer.judged(&event, calls));
}

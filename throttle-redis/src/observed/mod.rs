//! Reports what a backend does to the recorder of the `metrics` facade, if the backend has a name.
//!
//! Without the feature `metrics`, `unobserved.rs` stands in the place of this file, with the same
//! names and without any effect, so that no other file has to know which of the two it is.

mod breaker_states;
mod handles;

use std::sync::Arc;

use metrics::{Gauge, SharedString};
use throttle_core::BackendErrorKind;
use throttle_core::metrics::Registered;

use crate::breaker::Breaker;
use crate::call_result::CallResult;
use crate::stats::Count;
use breaker_states::BreakerStates;
use handles::Handles;

/// The name of a backend in its metrics; without one, it reports nothing.
#[derive(Debug, Default)]
pub(crate) struct Label(Option<SharedString>);

impl Label {
    pub(crate) fn new(backend: String) -> Self {
        Self(Some(SharedString::from(backend)))
    }
}

/// What is reported of one backend and its clones.
#[derive(Debug)]
pub(crate) struct Observed(Option<Reporting>);

#[derive(Debug)]
struct Reporting {
    handles: Registered<Handles>,
    breakers: Arc<BreakerStates>,
}

impl Observed {
    pub(crate) fn new(label: Label) -> Self {
        let Some(backend) = label.0 else {
            return Self(None);
        };
        let breakers = Arc::<BreakerStates>::default();
        let states = Arc::clone(&breakers);
        let handles = Registered::new(move || {
            let handles = Handles::register(&backend);
            states.show(&handles.breakers);
            handles
        });
        // If there is a recorder already, every series exists before the first event.
        handles.with(|_| {});
        Self(Some(Reporting { handles, breakers }))
    }

    #[inline]
    fn handles(&self) -> Option<&Handles> {
        self.0
            .as_ref()
            .and_then(|reporting| reporting.handles.get())
    }

    #[inline]
    pub(crate) fn count(&self, count: Count) {
        if let Some(handles) = self.handles() {
            handles.counted[count as usize].increment(1);
        }
    }

    pub(crate) fn failed(&self, kind: BackendErrorKind) {
        if let Some(handles) = self.handles() {
            handles.failed(kind).increment(1);
        }
    }

    /// Shows one more breaker.
    pub(crate) fn breaker_begins(&self, breaker: &Arc<Breaker>) {
        if let Some(reporting) = &self.0 {
            reporting.breakers.add(breaker);
        }
        self.breaker_changed();
    }

    /// Shows a breaker no longer.
    pub(crate) fn breaker_ends(&self, breaker: &Arc<Breaker>) {
        if let Some(reporting) = &self.0 {
            reporting.breakers.remove(breaker);
            // A backend that has shown nothing must not register its series now.
            if reporting.breakers.are_shown() {
                self.breaker_changed();
            }
        }
    }

    /// Call this after a breaker has changed its state.
    pub(crate) fn breaker_changed(&self) {
        if let (Some(reporting), Some(handles)) = (&self.0, self.handles()) {
            reporting.breakers.show(&handles.breakers);
        }
    }

    /// Observes a call that carries some decisions, until the returned guard is dropped.
    #[inline]
    pub(crate) fn call(&self, decisions: usize) -> ObservedCall<'_> {
        ObservedCall {
            handles: self.handles(),
            decisions,
            result: CallResult::Abandoned,
        }
    }

    /// Counts a decision as waiting until the returned guard is dropped.
    #[inline]
    pub(crate) fn waiting(&self) -> WaitingDecision {
        let gauge = self.handles().map(|handles| handles.waiting.clone());
        gauge.iter().for_each(|gauge| gauge.increment(1));
        WaitingDecision(gauge)
    }
}

/// A call that carries decisions. It is counted when this is dropped, by the last outcome that was
/// seen.
pub(crate) struct ObservedCall<'a> {
    handles: Option<&'a Handles>,
    decisions: usize,
    result: CallResult,
}

impl ObservedCall<'_> {
    /// Notes how the call ended, and returns it.
    #[inline]
    pub(crate) fn see<T, E>(&mut self, outcome: Result<T, E>) -> Result<T, E>
    where
        for<'e> &'e E: Into<CallResult>,
    {
        self.result = outcome.as_ref().map_or_else(Into::into, |_| CallResult::Ok);
        outcome
    }
}

impl Drop for ObservedCall<'_> {
    fn drop(&mut self) {
        if let Some(handles) = self.handles {
            handles.call(self.result).increment(1);
            // A call carries at most 64.
            handles
                .batch
                .record(u32::try_from(self.decisions).unwrap_or(u32::MAX));
        }
    }
}

/// A decision that waits in this process. It holds its own gauge: one that began to wait before
/// there was a recorder was not added to the gauge, and is not taken from it.
pub(crate) struct WaitingDecision(Option<Gauge>);

impl Drop for WaitingDecision {
    fn drop(&mut self) {
        if let Some(waiting) = &self.0 {
            waiting.decrement(1);
        }
    }
}

#[cfg(test)]
mod tests;

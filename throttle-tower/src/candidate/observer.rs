//! Asks the candidates of a layer about each of its requests.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use throttle_core::{Backend, ConfigError};

use super::flips::{Counts, Verdict};
use crate::event::{BuiltInObserver, Event};

/// The candidates of a layer. They are an observer, so that a layer without a candidate pays
/// nothing for them.
#[derive(Clone, Default)]
pub(crate) struct Candidates(pub(crate) Vec<Candidate>);

#[derive(Clone)]
pub(crate) struct Candidate {
    pub(crate) name: Arc<str>,
    pub(crate) counts: Arc<Counts>,
    pub(crate) trial: Arc<dyn Trial>,
    /// Whether the layer's rule file names it.
    pub(crate) is_of_rules: bool,
}

impl Candidates {
    /// # Errors
    ///
    /// If there is one of its name.
    pub(crate) fn add(&mut self, candidate: Candidate) -> Result<(), ConfigError> {
        let name = &*candidate.name;
        if self.0.iter().any(|other| *other.name == *name) {
            let rule = "the name tells the counts of candidates apart; choose another one";
            return Err(ConfigError::new(
                "candidate",
                format_args!("{name:?} twice"),
                rule,
            ));
        }
        self.0.push(candidate);
        Ok(())
    }

    /// # Errors
    ///
    /// If one of them may have its keys in the backend of the live layer, or cannot be beside it.
    pub(crate) fn check<B: Backend>(&self, backend: &B) -> Result<(), ConfigError> {
        self.0
            .iter()
            .filter(|own| own.is_of_rules)
            .try_for_each(|own| store_beside(backend, &own.name).map(drop))?;
        let Some(Candidate { name, .. }) = self
            .0
            .iter()
            .find(|candidate| candidate.trial.shares_keys_with(backend))
        else {
            return Ok(());
        };
        let rule = "it would charge the budgets of the live limits; give it a MemoryBackend of \
            its own, or on Redis \
                    another key prefix";
        Err(ConfigError::new(
            "candidate",
            format_args!("{name:?} on the store of the live layer"),
            rule,
        ))
    }
}

/// A store for the candidate of a rule file.
///
/// # Errors
///
/// If the backend of the live layer makes none.
pub(crate) fn store_beside<B: Backend>(backend: &B, name: &str) -> Result<B, ConfigError> {
    let rule = "the backend of this layer makes no store beside its own; remove it, and in the \
        program pass a layer of \
                that file to ThrottleLayer::candidate, on Redis with another key prefix";
    backend
        .unused()
        .ok_or_else(|| ConfigError::new("candidate", format_args!("{name:?}"), rule))
}

/// A layer whose limits are on trial.
pub(crate) trait Trial: Any + Send + Sync {
    /// Decides a request of the live layer, charges it if it is admitted, and counts whether the
    /// two agree.
    fn ask(&self, event: &Event<'_>, counts: &Arc<Counts>);

    /// Whether it may share keys with a backend.
    fn shares_keys_with(&self, backend: &dyn Any) -> bool;
}

impl BuiltInObserver for Candidates {
    fn decided(&self, event: &Event<'_>) {
        self.0.iter().for_each(|candidate| candidate.compare(event));
    }
}

impl Candidate {
    fn compare(&self, event: &Event<'_>) {
        // A panic of the candidate's closures is not one of the request.
        if catch_unwind(AssertUnwindSafe(|| self.trial.ask(event, &self.counts))).is_err() {
            self.counts.compare(event, None);
        }
    }
}

/// Compares a decision that is made in the background when it is dropped, even if that is before
/// the decision.
pub(crate) struct Comparing {
    counts: Arc<Counts>,
    live: Verdict,
    candidate: Option<Verdict>,
}

impl Comparing {
    pub(crate) fn new(counts: &Arc<Counts>, event: &Event<'_>) -> Self {
        Self {
            counts: Arc::clone(counts),
            live: Verdict::of(event),
            candidate: None,
        }
    }

    pub(crate) fn end(mut self, candidate: Option<Verdict>) {
        self.candidate = candidate;
    }
}

impl Drop for Comparing {
    fn drop(&mut self) {
        self.counts.add(&self.live, self.candidate.as_ref());
    }
}

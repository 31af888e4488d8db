//! Asks the candidates of a layer about each of its requests.

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;

use http::request::Parts;
use throttle_core::ConfigError;
use throttle_core::backend::Call;

use super::flips::{Counts, Verdict};
use crate::event::{Event, Observer, Outcome};
use crate::usage::Background;

/// The candidates of a layer. They are an observer, so that a layer without a candidate pays nothing for them.
#[derive(Clone, Default)]
pub(crate) struct Candidates(pub(crate) Vec<Candidate>);

#[derive(Clone)]
pub(crate) struct Candidate {
    pub(crate) name: Arc<str>,
    pub(crate) counts: Arc<Counts>,
    pub(crate) trial: Arc<dyn Trial>,
}

impl Candidates {
    /// # Errors
    ///
    /// If one of them may have its keys in the backend of the live layer.
    pub(crate) fn check(&self, backend: &dyn Any) -> Result<(), ConfigError> {
        let Some(Candidate { name, .. }) = self.0.iter().find(|candidate| candidate.trial.shares_keys_with(backend))
        else {
            return Ok(());
        };
        let rule = "it would charge the budgets of the live limits; give it a MemoryBackend of its own, or on Redis \
                    another key prefix";
        Err(ConfigError::new("candidate", format_args!("{name:?} on the store of the live layer"), rule))
    }
}

/// A layer whose limits are on trial.
pub(crate) trait Trial: Send + Sync {
    /// Decides a request, and charges it if it is admitted.
    fn ask(&self, parts: &Parts) -> Answer;

    /// Whether it may share keys with a backend.
    fn shares_keys_with(&self, backend: &dyn Any) -> bool;
}

pub(crate) enum Answer {
    Now(Verdict),
    /// In the background. It is `None` if the store fails.
    Later {
        deciding: Deciding,
        background: Background,
        needs_runtime: bool,
    },
    Never,
}

type Deciding = Pin<Box<dyn Future<Output = Option<Verdict>> + Send>>;

impl Verdict {
    fn of(event: &Event<'_>) -> Self {
        match event.outcome {
            Outcome::NoPermit(limits) => Self::Refused(limits.first().cloned()),
            outcome if outcome.is_passed_on() => Self::Admitted,
            _ => Self::Refused(event.binding().map(|policy| policy.policy_name().clone())),
        }
    }
}

impl Observer for Candidates {
    fn passed_or_refused(&self, event: &Event<'_>, _: &[Call]) {
        self.0.iter().for_each(|candidate| candidate.compare(event));
    }
}

impl Candidate {
    fn compare(&self, event: &Event<'_>) {
        // A panic of the candidate's closures is not one of the request.
        match catch_unwind(AssertUnwindSafe(|| self.trial.ask(event.parts))) {
            Ok(Answer::Now(verdict)) => self.counts.compare(&Verdict::of(event), Some(&verdict)),
            Ok(Answer::Later { deciding, background, needs_runtime }) => {
                let live = Verdict::of(event);
                let comparing = Comparing { counts: Arc::clone(&self.counts), live, candidate: None };
                let step = async move {
                    comparing.end(deciding.await);
                    Ok(())
                };
                background.send(Box::pin(step), None, needs_runtime);
            }
            Ok(Answer::Never) | Err(_) => self.counts.compare(&Verdict::Admitted, None),
        }
    }
}

/// Compares the verdicts when it is dropped, even if the decision was dropped before it was made.
struct Comparing {
    counts: Arc<Counts>,
    live: Verdict,
    candidate: Option<Verdict>,
}

impl Comparing {
    fn end(mut self, candidate: Option<Verdict>) {
        self.candidate = candidate;
    }
}

impl Drop for Comparing {
    fn drop(&mut self) {
        self.counts.compare(&self.live, self.candidate.as_ref());
    }
}

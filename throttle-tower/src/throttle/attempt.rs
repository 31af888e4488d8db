//! Asking: for permits, and the backend.

use std::sync::Arc;

use throttle_core::{Backend, BackendError, Call, Decision, Rung};

use super::LimitReport;
use super::in_flight::{InFlight, Needs, Saturated};
use super::rules::Rules;

/// One question to the backend, and what it has said.
pub(crate) struct Attempt {
    pub(crate) answer: Answer,
    /// Held by a request that is admitted.
    pub(crate) permits: Option<InFlight>,
}

pub(crate) enum Answer {
    Decided(LimitReport),
    Failed(BackendError),
    /// The backend was not asked.
    Saturated(Saturated),
}

impl Attempt {
    #[inline]
    pub(super) fn of(answer: Answer, permits: Option<InFlight>) -> Self {
        Self { answer, permits }
    }
}

impl<B: Backend> Rules<B> {
    /// The permits that a request needs; an attempt that ends here if there are not enough.
    #[inline]
    pub(crate) fn enter(&self, needs: &Needs) -> Result<Option<InFlight>, Attempt> {
        if self.gates.is_empty() {
            return Ok(None);
        }
        self.gates.enter(needs).map_err(|full| Attempt::of(Answer::Saturated(full), None))
    }

    /// One attempt, if it needs no waiting.
    #[inline]
    pub(crate) fn attempt_at_once(&self, calls: &[Call], needs: &Needs) -> Option<Attempt> {
        let permits = match self.enter(needs) {
            Ok(permits) => permits,
            Err(saturated) => return Some(saturated),
        };
        let report = self.decide_at_once(calls)?;
        Some(Attempt::of(Answer::Decided(report), permits))
    }

    /// One attempt.
    pub(super) async fn attempt(&self, calls: &[Call], needs: &Needs) -> Attempt {
        // Only looked for: held meanwhile, those whom a limit refuses would keep others out for as long as the store takes.
        if let Err(saturated) = self.enter(needs) {
            return saturated;
        }
        let decided = match self.decide_at_once(calls) {
            Some(report) => Ok(report),
            None => self.backend.decide(&self.prepared, calls).await.map(|decision| self.told(decision, calls)),
        };
        self.admit(decided, calls, needs)
    }

    /// The permits of a request, once the store has answered. Where they are gone by then, what was charged is given back.
    pub(super) fn admit(&self, decided: Result<LimitReport, BackendError>, calls: &[Call], needs: &Needs) -> Attempt {
        if let Ok(report) = &decided
            && !report.decision().is_allowed()
        {
            return Attempt::of(decided.map_or_else(Answer::Failed, Answer::Decided), None);
        }
        match self.enter(needs) {
            Ok(permits) => Attempt::of(decided.map_or_else(Answer::Failed, Answer::Decided), permits),
            Err(saturated) => {
                if let Ok(report) = decided {
                    self.give_back(report.decision(), calls);
                }
                saturated
            }
        }
    }

    /// The decision, if it can be had without waiting: from the backend, or because no policy applies.
    #[inline]
    pub(crate) fn decide_at_once(&self, calls: &[Call]) -> Option<LimitReport> {
        if calls.iter().all(|call| call.key().is_none()) {
            return Some(self.not_limited(calls.len()));
        }
        // Taken before the decision, so that nothing stands between it and its place in the report.
        let answers = Arc::clone(&self.answers);
        let report = LimitReport::new(self.backend.decide_at_once(&self.prepared, calls)?, answers);
        self.note(&report, calls);
        Some(report)
    }

    /// Keeps this process's share warm.
    #[inline]
    pub(crate) fn note(&self, report: &LimitReport, calls: &[Call]) {
        if let Some(share) = &self.answers.share {
            share.note(report.decision(), calls);
        }
    }

    #[cold]
    fn not_limited(&self, policies: usize) -> LimitReport {
        self.report(Decision::not_limited(policies))
    }

    /// A decision is large, so it goes where it will stay before anybody looks at it.
    pub(crate) fn report(&self, decision: Decision) -> LimitReport {
        LimitReport::new(decision, Arc::clone(&self.answers))
    }

    /// What this process's share says of limits of which none is closed, where the store has failed.
    pub(super) fn told_by_share(&self, error: &BackendError, calls: &[Call]) -> Option<LimitReport> {
        let decision = self.answers.share.as_ref()?.decide(calls, error.kind());
        matches!(decision.rung(), Rung::Local(_)).then(|| self.report(decision))
    }

    /// What the backend has said after it was waited for.
    pub(super) fn told(&self, decision: Decision, calls: &[Call]) -> LimitReport {
        let report = self.report(decision);
        self.note(&report, calls);
        report
    }
}

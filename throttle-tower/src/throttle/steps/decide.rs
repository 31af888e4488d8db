//! Deciding: a look at the permits, then one question to the backend.

use std::sync::Arc;

use throttle_core::backend::Call;
use throttle_core::{Backend, BackendError, Decision, Timestamp};

use crate::throttle::LimitReport;
use crate::throttle::answers::Answers;
use crate::throttle::permits::{Needs, Places};
use crate::throttle::shared::Shared;
use crate::throttle::steps::refund_dropped::RefundedIfDropped;

/// What is known about a request once it was decided. It holds no permit yet.
pub(crate) enum Answer {
    Decided(LimitReport),
    Failed(BackendError),
    /// There were too few permits, so the backend was not asked.
    Saturated(Places),
}

impl<B: Backend> Shared<B> {
    /// The answer to a request for which too few permits are free at this instant.
    ///
    /// This only looks: a request takes its permits after the limits have admitted it, so one that they refuse never holds
    /// a permit that another request needs.
    #[inline]
    pub(in crate::throttle) fn saturated(&self, needs: &Needs) -> Option<Answer> {
        if self.gates.is_empty() {
            return None;
        }
        self.gates.look(needs).err().map(Answer::Saturated)
    }

    /// The answer, if it needs no waiting.
    #[inline]
    pub(crate) fn answer_at_once(&self, calls: &[Call], needs: &Needs) -> Option<Answer> {
        if let Some(saturated) = self.saturated(needs) {
            return Some(saturated);
        }
        self.decide_at_once(calls).map(Answer::Decided)
    }

    pub(in crate::throttle) async fn answer(self: &Arc<Self>, calls: &[Call], needs: &Needs) -> Answer {
        if let Some(answer) = self.answer_at_once(calls, needs) {
            return answer;
        }
        self.wait_for(self.backend.decide(&self.prepared, calls), calls).await
    }

    /// The answer as of an instant that has passed.
    pub(super) async fn answer_as_of(self: &Arc<Self>, calls: &[Call], at: Timestamp) -> Answer {
        self.wait_for(self.backend.decide_as_of(&self.prepared, calls, at), calls).await
    }

    async fn wait_for(self: &Arc<Self>, deciding: B::Decide, calls: &[Call]) -> Answer {
        let decided = if self.wanted.refunds_aborted {
            RefundedIfDropped::new(self, calls.into(), deciding).await
        } else {
            deciding.await
        };
        self.decided(decided, calls)
    }

    /// The answer of a backend that was waited for.
    pub(in crate::throttle) fn decided(&self, decision: Result<Decision, BackendError>, calls: &[Call]) -> Answer {
        match decision {
            Ok(decision) => {
                let report = self.report(decision);
                self.note(&report, calls);
                Answer::Decided(report)
            }
            Err(error) => Answer::Failed(error),
        }
    }

    /// The decision, if it can be had without waiting: from the backend, or because no policy applies.
    #[inline]
    pub(crate) fn decide_at_once(&self, calls: &[Call]) -> Option<LimitReport> {
        if calls.iter().all(|call| call.key().is_none()) {
            return Some(self.not_limited(calls.len()));
        }
        // Taken before the decision, so that nothing stands between it and its place in the report.
        let answers = self.current_answers();
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
        LimitReport::new(decision, self.current_answers())
    }

    /// What answers are made of, of the parameters in force.
    #[inline]
    fn current_answers(&self) -> Arc<Answers> {
        match self.backend.in_force(&self.prepared) {
            None => Arc::clone(&self.answers),
            Some(set) => self.replaced.answers(&self.answers, set),
        }
    }

    /// What this process's share says of limits of which none is closed, where the store has failed.
    pub(in crate::throttle) fn told_by_share(&self, error: &BackendError, calls: &[Call]) -> Option<LimitReport> {
        let decision = self.answers.share.as_ref()?.decide(calls, error.kind())?;
        Some(self.report(decision))
    }
}

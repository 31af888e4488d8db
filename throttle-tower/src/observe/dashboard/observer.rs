use std::sync::Arc;

use throttle_core::Decision;

use super::board::{Board, Moment};
use super::rows::{LayerRows, whole_millis};
use crate::{Activity, Event, Observer, Offenders, Outcome};

/// Counts by the indices of one version of a layer's limits.
pub(super) struct PageObserver {
    pub(super) board: Arc<Board>,
    /// If the page counts them itself.
    pub(super) offenders: Option<Offenders>,
    pub(super) rows: Arc<LayerRows>,
}

impl Observer for PageObserver {
    fn decided(&self, event: &Event<'_>) {
        let moment = self.board.moment();
        self.board.flows.count(moment.second(), event);
        if let Some(offenders) = &self.offenders {
            offenders.decided(event);
        }
        if let Outcome::NoPermit(full) = event.outcome {
            let rows = self.rows.rows();
            rows.filter(|(limit, _)| full.contains(&limit.name))
                .for_each(|(_, row)| row.bound_refused.count(moment.ten_seconds()));
        }
        self.count_limits(event, &moment);
    }

    fn happened(&self, activity: &Activity) {
        let ten_seconds = self.board.moment().ten_seconds();
        let (store, limits) = (&self.board.store, &self.rows.limits);
        match *activity {
            Activity::Answered {
                after,
                failed: None,
            } => {
                store.answers.count(ten_seconds);
                store.slowest_ms.raise(ten_seconds, whole_millis(after));
            }
            Activity::Answered { .. } => store.failures.count(ten_seconds),
            Activity::Queued { limit } => limits[limit].join_queue(),
            Activity::LeftQueue { limit, after } => limits[limit].leave_queue(after, ten_seconds),
            Activity::TookPermits { limit, permits } => limits[limit].take(permits, ten_seconds),
            Activity::ReturnedPermits { limit, permits } => limits[limit].give_back(permits),
            _ => {}
        }
    }
}

impl PageObserver {
    fn count_limits(&self, event: &Event<'_>, moment: &Moment) {
        let is_admitted = event.decision.is_some_and(Decision::is_admitted);
        for limit in event.limits() {
            let Some(units) = limit.units() else {
                continue;
            };
            let status = units.status;
            let flow = &self.rows.limits[limit.index].flow;
            // A member of an `any` that refuses a request which another one admits did neither.
            if is_admitted && !status.refuses() {
                flow.admitted.count(moment.second());
            } else if status.is_violated() || status.would_refuse() {
                flow.refused.count(moment.second());
            }
            if let Some(key) = units.key {
                let tightest = &self.board.tightest;
                tightest.note(&limit.info.name, key, status, units.most(), moment.micros);
            }
        }
        if let Some(binding) = event.binding() {
            let row = &self.rows.limits[binding.index];
            let bound = match is_admitted {
                true => &row.bound_admitted,
                false => &row.bound_refused,
            };
            bound.count(moment.ten_seconds());
        }
    }
}

use http::HeaderMap;
use throttle_core::backend::Call;
use throttle_core::{Decision, Status};

use crate::throttle::LimitReport;

/// What a handler or the head of the response has made of a charge.
pub(crate) struct ChargeChange {
    pub(crate) index: usize,
    /// A peek at the charge's key.
    pub(crate) peek: Call,
    /// Whether the store made the charge, and not the share of this process.
    pub(crate) is_at_store: bool,
    /// The units beyond those that admission took.
    pub(crate) debit: u64,
}

/// Where keys stand whose charges have changed between the decision and the head of the response.
pub(crate) struct Standings {
    pub(super) changes: Vec<ChargeChange>,
    /// A peek at their keys, if the backend peeks without waiting.
    pub(super) peek: Option<Decision>,
    /// Writes headers of it. A program without late charges does not contain it.
    pub(crate) write: fn(&LimitReport, &Self, &mut HeaderMap, bool),
}

impl Standings {
    /// Returns the status of the policy at an index, which was `decided`, and the units that are
    /// used beyond it. Over a store a debit is under way, and a refund may fail.
    pub(crate) fn of<'a>(&'a self, index: usize, decided: &'a Status) -> (&'a Status, u64) {
        let peeked = self
            .peek
            .as_ref()
            .and_then(|peek| peek.statuses().get(index));
        if let Some(status) = peeked.filter(|status| status.applies()) {
            return (status, 0);
        }
        let change = self.changes.iter().find(|change| change.index == index);
        (decided, change.map_or(0, |change| change.debit))
    }
}

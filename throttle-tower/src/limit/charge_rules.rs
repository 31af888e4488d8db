use std::sync::Arc;

use http::{HeaderMap, StatusCode};

/// What a limit says about the charges of requests that have ended. By default nothing: what was taken stays taken.
#[derive(Clone, Default)]
pub(crate) struct ChargeRules {
    pub(crate) refund_if: Option<RefundIf>,
    pub(crate) refund_aborted: bool,
    pub(crate) charge_refused: bool,
    pub(crate) settled_later: bool,
}

type RefundIf = Arc<dyn Fn(StatusCode, &HeaderMap) -> bool + Send + Sync>;

impl ChargeRules {
    /// Whether an admitted request's charge may change.
    pub(crate) fn may_change(&self) -> bool {
        self.refund_if.is_some() || self.refund_aborted || self.settled_later
    }

    pub(crate) fn refunds(&self, status: StatusCode, headers: &HeaderMap) -> bool {
        self.refund_if.as_ref().is_some_and(|refunds| refunds(status, headers))
    }
}

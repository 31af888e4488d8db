//! What the limits of a layer make use of.

use super::permits::Permits;
use crate::limit::{ChargeRules, KeySource, LimitSettings};

/// Which optional steps some limit of the layer uses. A step that none uses costs a request
/// nothing.
#[derive(Clone, Copy, Debug)]
pub(super) struct OptionalSteps {
    /// A charge may change after the decision, or a response counts toward a ban.
    pub(super) accounts: bool,
    /// A handler may change a charge.
    pub(super) handlers: bool,
    /// A refusal is charged, or counts toward a ban.
    pub(super) counts_refusals: bool,
    pub(super) refund_aborted: bool,
    /// A key depends on the route, or whether a limit applies does.
    pub(super) routes: bool,
    /// Whether a limit applies depends on the route.
    pub(super) for_some_routes: bool,
    /// Requests may wait in a queue.
    pub(super) queues: bool,
    /// A request needs permits, or is in a class. One test for both, as most layers have neither.
    pub(super) permits_or_classes: bool,
    /// A call may have parameters of its own or a reserve, so that it is announced other terms.
    pub(super) terms: bool,
}

impl OptionalSteps {
    pub(super) fn of(applied: &[LimitSettings], permits: &Permits) -> Self {
        let has_classes = applied.iter().any(|limit| limit.priority.is_some());
        let any =
            |uses: fn(&ChargeRules) -> bool| applied.iter().any(|limit| uses(&limit.charge_rules));
        let all = permits.limits().iter().map(|limit| &limit.applied);
        let mut selections = applied
            .iter()
            .chain(all)
            .filter_map(|limit| limit.selection.as_ref());
        let for_some_routes = selections.any(|own| own.select.uses_route());
        Self {
            accounts: any(ChargeRules::may_change),
            handlers: any(|rules| rules.settled_later),
            counts_refusals: any(|rules| rules.charge_refused || rules.ban.is_some()),
            refund_aborted: any(|rules| rules.refund_aborted),
            routes: applied.iter().any(|limit| limit.by_route) || for_some_routes,
            for_some_routes,
            queues: applied.iter().any(|limit| limit.wait_up_to.is_some()),
            permits_or_classes: !permits.is_empty() || has_classes,
            terms: has_classes
                || applied
                    .iter()
                    .any(|limit| matches!(limit.key_source, KeySource::Tiered(_))),
        }
    }
}

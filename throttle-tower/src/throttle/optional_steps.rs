//! What the limits of a layer make use of.

use super::permits::Permits;
use super::steps::optional::ChargeSteps;
use super::steps::wait_queue::QueueSteps;
use crate::limit::{ChargeRules, KeySource, LimitSettings};

/// Which optional steps some limit of the layer uses. A step that none uses costs a request
/// nothing.
#[derive(Clone, Copy)]
pub(super) struct OptionalSteps {
    /// A charge may change after the decision, or a response counts toward a ban.
    pub(super) accounts: Option<&'static ChargeSteps>,
    /// A handler may change a charge.
    pub(super) handlers: bool,
    /// A refusal is charged, or counts toward a ban.
    pub(super) counts_refusals: Option<&'static ChargeSteps>,
    pub(super) refund_aborted: Option<&'static ChargeSteps>,
    /// A key depends on the route, or whether a limit applies does.
    pub(super) routes: bool,
    /// Whether a limit applies depends on the route.
    pub(super) for_some_routes: bool,
    /// Requests may wait in a queue.
    pub(super) queues: Option<&'static QueueSteps>,
    /// A request needs permits, or is in a class. One test for both, as most layers have neither.
    pub(super) permits_or_classes: bool,
    /// A call may have parameters of its own or a reserve, so that it is announced other terms.
    pub(super) terms: bool,
}

impl OptionalSteps {
    pub(super) fn of(applied: &[LimitSettings], permits: &Permits) -> Self {
        let has_classes = applied.iter().any(|limit| limit.priority.is_some());
        let charging = |uses: fn(&ChargeRules) -> bool| {
            let mut rules = applied.iter().map(|limit| &limit.charge_rules);
            rules.find(|rules| uses(rules))?.steps
        };
        let all = permits.limits().iter().map(|limit| &limit.applied);
        let mut selections = applied
            .iter()
            .chain(all)
            .filter_map(|limit| limit.selection.as_ref());
        let for_some_routes = selections.any(|own| own.select.uses_route());
        Self {
            accounts: charging(ChargeRules::may_change),
            handlers: charging(|rules| rules.settled_later).is_some(),
            counts_refusals: charging(|rules| rules.charge_refused || rules.ban.is_some()),
            refund_aborted: charging(|rules| rules.refund_aborted),
            routes: applied.iter().any(|limit| limit.by_route) || for_some_routes,
            for_some_routes,
            queues: applied.iter().find_map(|limit| limit.queue_steps),
            permits_or_classes: !permits.is_empty() || has_classes,
            terms: has_classes
                || applied
                    .iter()
                    .any(|limit| matches!(limit.key_source, KeySource::Tiered(_))),
        }
    }
}

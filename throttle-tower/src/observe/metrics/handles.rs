//! The metrics of a throttle: their handles, their labels and their descriptions.

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use throttle_core::{BackendErrorKind, Policy};

use super::describe::describe;
use crate::event::{LayerInfo, LimitInfo, Outcome};
use crate::limit::LookupResult;
use crate::observe::decider::Decider;

/// The handles of a layer. What can never count has handles that do nothing.
pub(super) struct Handles {
    /// By the index of the outcome.
    pub(super) requests: Box<[Counter]>,
    /// If the store can fail.
    pub(super) store: Option<StoreHandles>,
    /// By the index of the limit.
    pub(super) limits: Box<[LimitHandles]>,
}

pub(super) struct StoreHandles {
    /// By what decided and why. None are by the store.
    degraded: [Box<[Counter]>; Decider::ALL.len()],
    pub(super) decided: Histogram,
    /// By the number of their kind.
    pub(super) failed: Box<[Histogram]>,
}

pub(super) struct LimitHandles {
    /// By the index of the request's class, or alone.
    pub(super) decisions: Box<[[Counter; RESULTS]]>,
    pub(super) binding: Counter,
    pub(super) charged: Counter,
    pub(super) refunded: Counter,
    pub(super) settled_short: Counter,
    pub(super) overflow: Counter,
    pub(super) bans: Counter,
    pub(super) queued: Gauge,
    pub(super) queue_time: Histogram,
    pub(super) in_flight: Gauge,
    /// By the number of their result.
    pub(super) lookups: Box<[Counter]>,
}

/// What a limit that applies does with a request.
#[derive(Clone, Copy)]
pub(super) enum DecisionResult {
    Admitted,
    Near,
    /// Of an audited limit: that it would have refused.
    Refused,
}

const RESULTS: usize = 3;

type Labels = Vec<(&'static str, String)>;

fn labels<const N: usize>(labels: [(&'static str, &str); N]) -> Labels {
    labels
        .map(|(label, value)| (label, value.to_owned()))
        .into()
}

fn with(mut labels: Labels, label: &'static str, value: &str) -> Labels {
    labels.push((label, value.to_owned()));
    labels
}

/// Registers the counter if it can count.
fn counter_if(can_count: bool, name: &'static str, labels: &Labels) -> Counter {
    if can_count {
        counter!(name, labels)
    } else {
        Counter::noop()
    }
}

impl Handles {
    pub(super) fn register(layer: &str, info: &LayerInfo) -> Self {
        describe_throttle();
        let limits = info.limits();
        let requires_key = limits.iter().any(|limit| limit.requires_key);
        let has_permits = limits.iter().any(|limit| limit.permits.is_some());
        let can_fail = info.can_fail();
        let can_count = [true, true, requires_key, has_permits, can_fail, can_fail];
        let outcomes = Outcome::LABELS.into_iter().zip(can_count);
        let request = |(outcome, can_count)| {
            let labels = labels([("layer", layer), ("outcome", outcome)]);
            counter_if(can_count, "throttle_requests_total", &labels)
        };
        let limits = limits.iter();
        Self {
            requests: outcomes.map(request).collect(),
            store: can_fail.then(|| StoreHandles::register(layer)),
            limits: limits
                .map(|own| LimitHandles::register(layer, own))
                .collect(),
        }
    }
}

impl StoreHandles {
    fn register(layer: &str) -> Self {
        let store = |result, why| {
            let labels = labels([("layer", layer), ("result", result), ("why", why)]);
            histogram!("throttle_store_seconds", &labels)
        };
        let reasons = BackendErrorKind::ALL.iter().map(|why| why.label());
        let degraded = |decider: Decider| {
            let reasons = reasons.clone().filter(|_| decider != Decider::Store);
            let register = |why| {
                let by = ("decided_by", decider.label());
                let labels = labels([("layer", layer), by, ("why", why)]);
                counter!("throttle_degraded_total", &labels)
            };
            reasons.map(register).collect()
        };
        Self {
            degraded: Decider::ALL.map(degraded),
            decided: store("decided", "none"),
            failed: reasons.clone().map(|why| store("failed", why)).collect(),
        }
    }

    pub(super) fn count_degraded(&self, decider: Decider, why: BackendErrorKind) {
        if let Some(counter) = self.degraded[decider as usize].get(why as usize) {
            counter.increment(1);
        }
    }
}

impl LimitHandles {
    fn register(layer: &str, limit: &LimitInfo) -> Self {
        let own = || labels([("layer", layer), ("policy", limit.name.as_str())]);
        let is_rate = limit.policy.is_some();
        let is_audited = limit.policy.as_ref().is_some_and(Policy::is_audited);
        let count = |can_count, name| counter_if(can_count, name, &own());
        let units = |can_count, kind| {
            let labels = with(own(), "kind", kind);
            counter_if(can_count, "throttle_units_total", &labels)
        };
        let refused = if is_audited {
            "would_refuse"
        } else {
            "refused"
        };
        let decisions = |class: Option<&str>| {
            ["admitted", "near", refused].map(|result| {
                let labels = with(own(), "result", result);
                let labels = match class {
                    Some(class) => with(labels, "class", class),
                    None => labels,
                };
                counter_if(is_rate, "throttle_decisions_total", &labels)
            })
        };
        let classes = limit.classes.iter();
        let mut by_class: Vec<_> = classes.map(|(class, _)| decisions(Some(class))).collect();
        if by_class.is_empty() {
            by_class.push(decisions(None));
        }
        let (mut queued, mut queue_time) = (Gauge::noop(), Histogram::noop());
        if limit.wait_up_to.is_some() {
            queued = gauge!("throttle_queued_requests", &own());
            queue_time = histogram!("throttle_queue_seconds", &own());
        }
        let mut in_flight = Gauge::noop();
        if limit.permits.is_some() {
            let labels = labels([("layer", layer), ("name", limit.name.as_str())]);
            in_flight = gauge!("throttle_in_flight", &labels);
        }
        let results = LookupResult::LABELS.iter().filter(|_| limit.looks_up);
        let lookup = |result: &&str| {
            let labels = with(own(), "result", result);
            counter!("throttle_plan_lookups_total", &labels)
        };
        Self {
            decisions: by_class.into(),
            binding: count(is_rate && !is_audited, "throttle_binding_total"),
            charged: units(is_rate, "charged"),
            refunded: units(limit.gives_back, "refunded"),
            settled_short: units(limit.settled_later, "settled_short"),
            overflow: count(is_rate, "throttle_overflow_total"),
            bans: count(limit.bans, "throttle_bans_total"),
            queued,
            queue_time,
            in_flight,
            lookups: results.map(lookup).collect(),
        }
    }
}

pub(super) fn keys_gauge(layer: &str) -> Gauge {
    gauge!("throttle_keys", "layer" => layer.to_owned())
}

fn describe_throttle() {
    let counters = [
        (
            "throttle_requests_total",
            "Requests by what became of them.",
        ),
        ("throttle_decisions_total", "Decisions of each policy."),
        (
            "throttle_binding_total",
            "Refusals by the policy that they come from.",
        ),
        (
            "throttle_units_total",
            "Units charged, given back, and used beyond what was charged.",
        ),
        (
            "throttle_overflow_total",
            "Decisions about keys that share an overflow bucket because the store in memory is full.",
        ),
        ("throttle_bans_total", "Bans that strikes have begun."),
        (
            "throttle_degraded_total",
            "Requests that the store did not decide, by what decided them and why.",
        ),
        (
            "throttle_plan_lookups_total",
            "Tiers of plans by how they were found.",
        ),
    ];
    let gauges = [
        ("throttle_keys", "Keys that the store in memory holds."),
        (
            "throttle_queued_requests",
            "Requests that wait for their turn.",
        ),
        (
            "throttle_in_flight",
            "Permits that requests in flight have taken.",
        ),
    ];
    let times = [
        (
            "throttle_store_seconds",
            "How long decisions of a store took.",
        ),
        (
            "throttle_queue_seconds",
            "How long requests waited for their turn.",
        ),
    ];
    describe(&counters, &gauges, &times);
}

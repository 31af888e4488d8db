//! The metrics of a throttle: their handles, their labels and their descriptions.

use metrics::{
    Counter, Gauge, Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram,
};
use metrics::{gauge, histogram};
use throttle_core::{BackendErrorKind, Policy};

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
    /// By what decided and why.
    degraded: Box<[Counter]>,
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

/// Registers the counter if it can count.
fn counter_if(can_count: bool, register: impl FnOnce() -> Counter) -> Counter {
    if can_count {
        register()
    } else {
        Counter::noop()
    }
}

impl StoreHandles {
    fn register(layer: &str) -> Self {
        let layer = || layer.to_owned();
        let store = |result: &'static str, why: &'static str| histogram!("throttle_store_seconds", "layer" => layer(), "result" => result, "why" => why);
        let degraded = |decider: &'static str, why: BackendErrorKind| {
            let name = "throttle_degraded_total";
            counter!(name, "layer" => layer(), "decided_by" => decider, "why" => why.label())
        };
        let [_, fallbacks @ ..] = Decider::ALL;
        let reasons = BackendErrorKind::ALL.iter();
        Self {
            degraded: fallbacks
                .iter()
                .flat_map(|by| reasons.clone().map(|why| degraded(by.label(), *why)))
                .collect(),
            decided: store("decided", "none"),
            failed: reasons.map(|kind| store("failed", kind.label())).collect(),
        }
    }

    pub(super) fn count_degraded(&self, decider: Decider, why: BackendErrorKind) {
        // Requests that the store decided are not degraded.
        let row = (decider as usize).checked_sub(1);
        let counter = row.and_then(|row| {
            let kinds = BackendErrorKind::ALL.len();
            self.degraded.get(row * kinds + why as usize)
        });
        if let Some(counter) = counter {
            counter.increment(1);
        }
    }
}

impl Handles {
    pub(super) fn register(layer: &str, info: &LayerInfo) -> Self {
        describe();
        let limits = info.limits();
        let requires_key = limits.iter().any(|limit| limit.requires_key);
        let has_permits = limits.iter().any(|limit| limit.permits.is_some());
        let can_fail = info.can_fail();
        let can_count = [true, true, requires_key, has_permits, can_fail, can_fail];
        let outcomes = Outcome::LABELS.into_iter().zip(can_count);
        let request = |(outcome, can_count)| {
            let labels = [
                ("layer", layer.to_owned()),
                ("outcome", String::from(outcome)),
            ];
            counter_if(can_count, || counter!("throttle_requests_total", &labels))
        };
        let of_limit = |limit: &LimitInfo| match limit.permits {
            Some(_) => LimitHandles::of_permits(layer, limit),
            None => LimitHandles::of_rate(layer, limit),
        };
        Self {
            requests: outcomes.map(request).collect(),
            store: can_fail.then(|| StoreHandles::register(layer)),
            limits: limits.iter().map(of_limit).collect(),
        }
    }
}

/// Of a class, or of all requests.
fn decisions(layer: &str, limit: &LimitInfo, class: Option<&String>) -> [Counter; RESULTS] {
    let refused = if is_audited(limit) {
        "would_refuse"
    } else {
        "refused"
    };
    ["admitted", "near", refused].map(|result| {
        let mut labels = with(labels(layer, limit), "result", result);
        labels.extend(class.map(|class| ("class", class.clone())));
        counter!("throttle_decisions_total", &labels)
    })
}

fn is_audited(limit: &LimitInfo) -> bool {
    limit.policy.as_ref().is_some_and(Policy::is_audited)
}

fn labels(layer: &str, limit: &LimitInfo) -> [(&'static str, String); 2] {
    let name = limit.name.as_str().to_owned();
    [("layer", layer.to_owned()), ("policy", name)]
}

fn with(
    labels: [(&'static str, String); 2],
    label: &'static str,
    value: &str,
) -> Vec<(&'static str, String)> {
    let last = (label, value.to_owned());
    labels.into_iter().chain([last]).collect()
}

impl LimitHandles {
    fn of_rate(layer: &str, limit: &LimitInfo) -> Self {
        let labels = || labels(layer, limit);
        let units = |kind| counter!("throttle_units_total", &with(labels(), "kind", kind));
        let lookup = |result: &&str| {
            let labels = with(labels(), "result", result);
            counter!("throttle_plan_lookups_total", &labels)
        };
        let (queued, queue_time) = match limit.wait_up_to {
            Some(_) => (
                gauge!("throttle_queued_requests", &labels()),
                histogram!("throttle_queue_seconds", &labels()),
            ),
            None => (Gauge::noop(), Histogram::noop()),
        };
        let classes = limit.classes.iter();
        let mut by_class: Vec<_> = classes
            .map(|(class, _)| decisions(layer, limit, Some(class)))
            .collect();
        if by_class.is_empty() {
            by_class.push(decisions(layer, limit, None));
        }
        let looked_up = LookupResult::LABELS.iter().filter(|_| limit.looks_up);
        Self {
            decisions: by_class.into(),
            binding: counter_if(!is_audited(limit), || {
                counter!("throttle_binding_total", &labels())
            }),
            charged: units("charged"),
            refunded: counter_if(limit.gives_back, || units("refunded")),
            settled_short: counter_if(limit.settled_later, || units("settled_short")),
            overflow: counter!("throttle_overflow_total", &labels()),
            bans: counter_if(limit.bans, || counter!("throttle_bans_total", &labels())),
            queued,
            queue_time,
            in_flight: Gauge::noop(),
            lookups: looked_up.map(lookup).collect(),
        }
    }

    fn of_permits(layer: &str, limit: &LimitInfo) -> Self {
        let name = limit.name.as_str().to_owned();
        Self {
            decisions: Box::default(),
            binding: Counter::noop(),
            charged: Counter::noop(),
            refunded: Counter::noop(),
            settled_short: Counter::noop(),
            overflow: Counter::noop(),
            bans: Counter::noop(),
            queued: Gauge::noop(),
            queue_time: Histogram::noop(),
            in_flight: gauge!("throttle_in_flight", "layer" => layer.to_owned(), "name" => name),
            lookups: Box::default(),
        }
    }
}

pub(super) fn keys_gauge(layer: &str) -> Gauge {
    gauge!("throttle_keys", "layer" => layer.to_owned())
}

fn describe() {
    let count = |name: &'static str, help: &'static str| describe_counter!(name, Unit::Count, help);
    count(
        "throttle_requests_total",
        "Requests by what became of them.",
    );
    count("throttle_decisions_total", "Decisions of each policy.");
    count(
        "throttle_binding_total",
        "Refusals by the policy that they come from.",
    );
    count(
        "throttle_units_total",
        "Units charged, given back, and used beyond what was charged.",
    );
    count(
        "throttle_overflow_total",
        "Decisions about keys that share an overflow bucket because the store in memory is full.",
    );
    count("throttle_bans_total", "Bans that strikes have begun.");
    count(
        "throttle_degraded_total",
        "Requests that the store did not decide, by what decided them and why.",
    );
    count(
        "throttle_plan_lookups_total",
        "Tiers of plans by how they were found.",
    );
    describe_gauge!(
        "throttle_keys",
        Unit::Count,
        "Keys that the store in memory holds."
    );
    describe_gauge!(
        "throttle_queued_requests",
        Unit::Count,
        "Requests that wait for their turn."
    );
    describe_gauge!(
        "throttle_in_flight",
        Unit::Count,
        "Permits that requests in flight have taken."
    );
    describe_histogram!(
        "throttle_store_seconds",
        Unit::Seconds,
        "How long decisions of a store took."
    );
    describe_histogram!(
        "throttle_queue_seconds",
        Unit::Seconds,
        "How long requests waited for their turn."
    );
}

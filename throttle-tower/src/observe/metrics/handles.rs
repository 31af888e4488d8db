//! The metrics of a throttle: their handles, their labels and their descriptions.

use metrics::{
    Counter, Gauge, Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram,
};
use metrics::{gauge, histogram};
use throttle_core::BackendErrorKind;

use crate::candidate::RESULTS as CANDIDATE_RESULTS;
use crate::event::Outcome;
use crate::limit::LookupResult;
use crate::observe::decider::Decider;

/// The handles of a layer, by the indices of its limits. What can never count has handles that do
/// nothing.
pub(super) struct Handles {
    /// By the index of the outcome. The others are those of the store.
    requests: [Counter; 4],
    pub(super) policies: Box<[PolicyHandles]>,
    pub(super) in_flight: Box<[Gauge]>,
}

/// Registered once a backend of the layer can fail.
pub(super) struct StoreHandles {
    /// The last outcomes.
    requests: [Counter; 2],
    /// By what decided and why.
    degraded: Box<[Counter]>,
    pub(super) decided: Histogram,
    /// By the number of their kind.
    pub(super) failed: Box<[Histogram]>,
}

pub(super) struct PolicyHandles {
    /// Of the highest class, or of all requests.
    pub(super) decisions: [Counter; RESULTS],
    pub(super) lower_classes: Box<[[Counter; RESULTS]]>,
    pub(super) binding: Counter,
    pub(super) charged: Counter,
    pub(super) refunded: Counter,
    pub(super) settled_short: Counter,
    pub(super) overflow: Counter,
    pub(super) bans: Counter,
    pub(super) queued: Gauge,
    pub(super) queue_time: Histogram,
    /// By the number of their result, where tiers are looked up.
    pub(super) lookups: Option<[Counter; LookupResult::LABELS.len()]>,
}

/// What a policy that applies does with a request.
#[derive(Clone, Copy)]
pub(super) enum DecisionResult {
    Admitted,
    Near,
    /// Of an audited policy: that it would have refused.
    Refused,
}

const RESULTS: usize = 3;

/// What is known of a policy before its first decision.
#[derive(Default)]
pub(super) struct Named {
    pub(super) name: String,
    /// Whether it has plans that are looked up.
    pub(super) looks_up: bool,
    pub(super) is_audited: bool,
    /// Whether its limit bans keys.
    pub(super) bans: bool,
    /// Whether requests wait for their turn.
    pub(super) queues: bool,
    /// Whether charges may be given back.
    pub(super) refunds: bool,
    /// Whether a handler may report more than was charged.
    pub(super) is_settled_later: bool,
    /// The highest first.
    pub(super) classes: Vec<String>,
}

/// Registers the counter if it can count.
fn counter_if(can_count: bool, register: impl FnOnce() -> Counter) -> Counter {
    if can_count {
        register()
    } else {
        Counter::noop()
    }
}

fn request(layer: &str, outcome: &'static str) -> Counter {
    counter!("throttle_requests_total", "layer" => layer.to_owned(), "outcome" => outcome)
}

impl StoreHandles {
    pub(super) fn register(layer: &str) -> Self {
        let layer = || layer.to_owned();
        let store = |result: &'static str, why: &'static str| histogram!("throttle_store_seconds", "layer" => layer(), "result" => result, "why" => why);
        let degraded = |decider: &'static str, why: BackendErrorKind| {
            let name = "throttle_degraded_total";
            counter!(name, "layer" => layer(), "decided_by" => decider, "why" => why.label())
        };
        let [.., open, closed] = Outcome::LABELS;
        let [_, fallbacks @ ..] = Decider::ALL;
        let reasons = BackendErrorKind::ALL.iter();
        Self {
            requests: [open, closed].map(|outcome| request(&layer(), outcome)),
            degraded: fallbacks
                .iter()
                .flat_map(|by| reasons.clone().map(|why| degraded(by.label(), *why)))
                .collect(),
            decided: store("decided", "none"),
            failed: reasons.map(|kind| store("failed", kind.label())).collect(),
        }
    }

    pub(super) fn degraded(&self, decider: Decider, why: BackendErrorKind) -> Option<&Counter> {
        // Requests that the store decided are not degraded.
        let row = (decider as usize).checked_sub(1)?;
        self.degraded
            .get(row * BackendErrorKind::ALL.len() + why as usize)
    }
}

impl Handles {
    pub(super) fn register(
        layer: &str,
        policies: &[Named],
        (permits, requires_keys): (&[String], bool),
    ) -> Self {
        describe();
        let in_flight = |name: &String| gauge!("throttle_in_flight", "layer" => layer.to_owned(), "name" => name.clone());
        let [admitted, refused, missing_key, no_permit, ..] = Outcome::LABELS;
        Self {
            requests: [
                request(layer, admitted),
                request(layer, refused),
                counter_if(requires_keys, || request(layer, missing_key)),
                counter_if(!permits.is_empty(), || request(layer, no_permit)),
            ],
            policies: policies
                .iter()
                .map(|policy| PolicyHandles::register(layer, policy))
                .collect(),
            in_flight: permits.iter().map(in_flight).collect(),
        }
    }

    /// `None` if the outcome needs the handles of the store.
    pub(super) fn requests<'a>(
        &'a self,
        store: Option<&'a StoreHandles>,
        outcome: Outcome<'_>,
    ) -> Option<&'a Counter> {
        let index = outcome.place();
        self.requests
            .get(index)
            .or_else(|| store?.requests.get(index - self.requests.len()))
    }
}

/// Of a class, or of all requests.
fn decisions(layer: &str, policy: &Named, class: Option<&String>) -> [Counter; RESULTS] {
    let refused = if policy.is_audited {
        "would_refuse"
    } else {
        "refused"
    };
    ["admitted", "near", refused].map(|result| {
        let mut labels = with(
            [("layer", layer.to_owned()), ("policy", policy.name.clone())],
            "result",
            result,
        );
        labels.extend(class.map(|class| ("class", class.clone())));
        counter!("throttle_decisions_total", &labels)
    })
}

fn with(
    labels: [(&'static str, String); 2],
    label: &'static str,
    value: &str,
) -> Vec<(&'static str, String)> {
    labels
        .into_iter()
        .chain([(label, value.to_owned())])
        .collect()
}

impl PolicyHandles {
    fn register(layer: &str, policy: &Named) -> Self {
        let labels = || [("layer", layer.to_owned()), ("policy", policy.name.clone())];
        let lookup = |result| {
            counter!(
                "throttle_plan_lookups_total",
                &with(labels(), "result", result)
            )
        };
        let units = |kind| counter!("throttle_units_total", &with(labels(), "kind", kind));
        let (queued, queue_time) = match policy.queues {
            true => (
                gauge!("throttle_queued_requests", &labels()),
                histogram!("throttle_queue_seconds", &labels()),
            ),
            false => (Gauge::noop(), Histogram::noop()),
        };
        let lower_classes = policy.classes.iter().skip(1);
        Self {
            decisions: decisions(layer, policy, policy.classes.first()),
            lower_classes: lower_classes
                .map(|class| decisions(layer, policy, Some(class)))
                .collect(),
            binding: counter_if(!policy.is_audited, || {
                counter!("throttle_binding_total", &labels())
            }),
            charged: units("charged"),
            refunded: counter_if(policy.refunds, || units("refunded")),
            settled_short: counter_if(policy.is_settled_later, || units("settled_short")),
            overflow: counter!("throttle_overflow_total", &labels()),
            bans: counter_if(policy.bans, || counter!("throttle_bans_total", &labels())),
            queued,
            queue_time,
            lookups: policy.looks_up.then(|| LookupResult::LABELS.map(lookup)),
        }
    }
}

/// The counters of a candidate, by its results.
pub(super) fn candidate_counters(
    layer: &str,
    candidate: &str,
) -> [Counter; CANDIDATE_RESULTS.len()] {
    describe();
    CANDIDATE_RESULTS.map(|result| counter!("throttle_candidate_total", "layer" => layer.to_owned(), "candidate" => candidate.to_owned(), "result" => result))
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
        "throttle_candidate_total",
        "Requests by what a candidate would have done to them.",
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

//! The metrics of a throttle: their handles, their labels and their descriptions.

use metrics::{
    Counter, Gauge, Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram,
};
use metrics::{gauge, histogram};
use throttle_core::BackendErrorKind;

use crate::candidate::{Candidate, Candidates, RESULTS};
use crate::event::OUTCOMES;
use crate::limit::LookupResult;
use crate::observe::decider::Decider;

/// What can never count is not registered.
pub(super) struct Handles {
    /// Rows, by their [`place`], but for what [`StoreHandles`] has of them.
    pub(super) counters: Vec<Vec<Counter>>,
    pub(super) policies: Box<[PolicyHandles]>,
    /// By the place of the limit.
    pub(super) in_flight: Box<[Gauge]>,
    /// By the place of the candidate, and of the result.
    pub(super) candidates: Box<[[Counter; RESULTS.len()]]>,
}

/// Registered once a backend of the layer can fail.
pub(super) struct StoreHandles {
    /// The last ones of the row of all requests.
    pub(super) requests: [Counter; 2],
    /// The row of requests that the store did not decide.
    pub(super) degraded: Vec<Counter>,
    pub(super) decided: Histogram,
    /// By the number of their kind.
    pub(super) failed: Box<[Histogram]>,
}

pub(super) struct PolicyHandles {
    pub(super) queued: Gauge,
    pub(super) queue_time: Histogram,
    /// By the number of their result, where tiers are looked up.
    pub(super) lookups: Option<[Counter; LookupResult::LABELS.len()]>,
}

/// Where the counters of a layer are: a row for all requests, one for those that the store did not
/// decide, one for each policy, and behind those one for each class of a policy but its highest.
pub(super) mod place {
    use super::{BackendErrorKind, Decider};

    pub(in super::super) const REQUESTS: usize = 0;
    pub(in super::super) const DEGRADED: usize = 1;
    pub(in super::super) const POLICIES: usize = 2;

    pub(in super::super) fn degraded(decider: Decider, why: BackendErrorKind) -> usize {
        // Requests that the store decided are no degraded ones.
        (decider as usize).saturating_sub(1) * BackendErrorKind::ALL.len() + why as usize
    }

    pub(in super::super) const ADMITTED: usize = 0;
    pub(in super::super) const NEAR: usize = 1;
    /// Of an audited policy: that it would have refused.
    pub(in super::super) const REFUSED: usize = 2;
    /// Nothing is counted there: it is what the other results leave of the requests that were
    /// decided. So a limit that does not apply costs a request nothing.
    pub(in super::super) const SKIPPED: usize = 3;
    pub(in super::super) const BINDING: usize = 4;
    pub(in super::super) const CHARGED: usize = 5;
    pub(in super::super) const REFUNDED: usize = 6;
    pub(in super::super) const SHORT: usize = 7;
    pub(in super::super) const OVERFLOW: usize = 8;
    pub(in super::super) const BANS: usize = 9;
}

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
        let [.., open, closed] = OUTCOMES;
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
}

impl Handles {
    pub(super) fn register(
        layer: &str,
        policies: &[Named],
        (permits, requires_keys): (&[String], bool),
        candidates: &Candidates,
    ) -> Self {
        describe();
        let layer = || layer.to_owned();
        let in_flight = |name: &String| gauge!("throttle_in_flight", "layer" => layer(), "name" => name.clone());
        let candidate = |Candidate { name, .. }: &Candidate| {
            RESULTS.map(|result| counter!("throttle_candidate_total", "layer" => layer(), "candidate" => name.to_string(), "result" => result))
        };
        let [admitted, refused, missing_key, no_permit, ..] = OUTCOMES;
        let requests = vec![
            request(&layer(), admitted),
            request(&layer(), refused),
            counter_if(requires_keys, || request(&layer(), missing_key)),
            counter_if(!permits.is_empty(), || request(&layer(), no_permit)),
        ];
        let of_policies = policies.iter().map(|policy| counters_of(&layer(), policy));
        let lower = policies
            .iter()
            .flat_map(|of| of.classes.iter().skip(1).map(move |class| (of, class)));
        let of_lower = lower.map(|(policy, class)| decisions(&layer(), policy, Some(class)).into());
        let named = policies.iter();
        Self {
            counters: [requests, Vec::new()]
                .into_iter()
                .chain(of_policies)
                .chain(of_lower)
                .collect(),
            policies: named
                .map(|policy| PolicyHandles::register(&layer(), policy))
                .collect(),
            in_flight: permits.iter().map(in_flight).collect(),
            candidates: candidates.0.iter().map(candidate).collect(),
        }
    }
}

/// With the decisions about the highest class, where there are classes.
fn counters_of(layer: &str, policy: &Named) -> Vec<Counter> {
    let labels = || [("layer", layer.to_owned()), ("policy", policy.name.clone())];
    let units = |kind| counter!("throttle_units_total", &with(labels(), "kind", kind));
    let [admitted, near, refused] = decisions(layer, policy, policy.classes.first());
    let mut counters = vec![
        admitted,
        near,
        refused,
        counter!(
            "throttle_decisions_total",
            &with(labels(), "result", "skipped")
        ),
        counter_if(!policy.is_audited, || {
            counter!("throttle_binding_total", &labels())
        }),
        units("charged"),
        counter_if(policy.refunds, || units("refunded")),
        counter_if(policy.is_settled_later, || units("settled_short")),
        counter!("throttle_overflow_total", &labels()),
    ];
    counters.extend(
        policy
            .bans
            .then(|| counter!("throttle_bans_total", &labels())),
    );
    counters
}

/// Of a class, or of all requests.
fn decisions(layer: &str, policy: &Named, class: Option<&String>) -> [Counter; 3] {
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
        let (queued, queue_time) = match policy.queues {
            true => (
                gauge!("throttle_queued_requests", &labels()),
                histogram!("throttle_queue_seconds", &labels()),
            ),
            false => (Gauge::noop(), Histogram::noop()),
        };
        Self {
            queued,
            queue_time,
            lookups: policy.looks_up.then(|| LookupResult::LABELS.map(lookup)),
        }
    }
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

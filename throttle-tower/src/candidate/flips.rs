//! How often a candidate and the live layer agree.

#[cfg(feature = "metrics")]
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(feature = "metrics")]
use metrics::{Counter, Unit, counter, describe_counter};
use throttle_core::PolicyName;
#[cfg(feature = "metrics")]
use throttle_core::metrics::Registered;

use crate::event::{Event, Outcome};
use crate::throttle::Ruling;

/// What a candidate would do to the requests of the live layer: see
/// [`Candidate::flips`](crate::Candidate::flips).
///
/// ```
/// use throttle_tower::candidate::Flips;
///
/// fn is_safe(flips: &Flips) -> bool {
///     let decided = flips.both_admit + flips.both_refuse + flips.would_refuse + flips.would_admit;
///     decided > 10_000 && flips.would_refuse * 1_000 < decided
/// }
/// assert!(!is_safe(&Flips::default()));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Flips {
    /// Requests that both admit.
    pub both_admit: u64,
    /// Requests that both refuse.
    pub both_refuse: u64,
    /// Requests that the live layer passes on and the candidate would refuse.
    pub would_refuse: u64,
    /// Requests that the live layer refuses, for whatever reason, and the candidate would admit.
    pub would_admit: u64,
    /// Requests that the candidate did not decide: its store failed, too many of its decisions were
    /// under way, the runtime ended, one of its closures panicked, or a reload brought a limit that
    /// cannot be a candidate.
    pub not_decided: u64,
    /// Where the two differ, the policies that the refusals come from.
    pub by_policy: Vec<PolicyFlips>,
}

/// How often the candidate and the live layer differ because of the policies of one name.
///
/// ```
/// use throttle_tower::candidate::PolicyFlips;
///
/// fn line(flips: &PolicyFlips) -> String {
///     format!(
///         "{}: -{} +{}",
///         flips.policy.as_str(),
///         flips.would_refuse,
///         flips.would_admit
///     )
/// }
/// # let gcra = throttle_tower::Gcra::new(throttle_tower::Rate::per_hour(1));
/// # let limits = throttle_tower::limit("p", gcra).by(throttle_tower::Constant);
/// # let flips = throttle_tower::Candidate::in_memory("v2", limits)?.flips();
/// assert!(
///     flips.by_policy.iter().map(line).next().is_none(),
///     "nothing has happened"
/// );
/// # Ok::<(), throttle_tower::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PolicyFlips {
    /// The name.
    pub policy: PolicyName,
    /// Requests that the candidate would refuse, because of its policy of this name.
    pub would_refuse: u64,
    /// Requests that the candidate would admit, and that the live policy of this name refuses.
    pub would_admit: u64,
}

/// The labels of the results, in the order of the counts.
const RESULTS: [&str; 5] = [
    "both_admit",
    "both_refuse",
    "would_refuse",
    "would_admit",
    "not_decided",
];

/// Counts the results of one candidate. All threads share the counters.
#[derive(Default)]
pub(super) struct Counts {
    results: [AtomicU64; RESULTS.len()],
    by_policy: ByPolicy,
    #[cfg(feature = "metrics")]
    reported: Option<Registered<[Counter; RESULTS.len()]>>,
}

/// What becomes of a request under the live layer.
pub(super) fn live_ruling(event: &Event<'_>) -> Ruling {
    match event.outcome {
        Outcome::NoPermit(limits) => Ruling::Refused(limits.first().cloned()),
        outcome if outcome.is_passed_on() => Ruling::Admitted,
        _ => Ruling::Refused(event.binding().map(|limit| limit.info.name.clone())),
    }
}

impl Counts {
    #[cfg(feature = "metrics")]
    pub(super) fn reporting(layer: String, candidate: Arc<str>) -> Self {
        Self {
            reported: Some(Registered::new(move || counters(&layer, &candidate))),
            ..Self::default()
        }
    }

    /// Counts what the candidate does with a request of the live layer; `None` if it was not
    /// decided.
    pub(super) fn add(&self, live: &Ruling, candidate: Option<&Ruling>) {
        use Ruling::{Admitted, Refused};
        let (result, refusing) = match (live, candidate) {
            (Admitted, Some(Admitted)) => (0, None),
            (Refused(_), Some(Refused(_))) => (1, None),
            (Admitted, Some(Refused(policy))) => (2, policy.as_ref()),
            (Refused(policy), Some(Admitted)) => (3, policy.as_ref()),
            (_, None) => (4, None),
        };
        self.results[result].fetch_add(1, Ordering::Relaxed);
        #[cfg(feature = "metrics")]
        if let Some(reported) = &self.reported {
            reported.with(|counters| counters[result].increment(1));
        }
        if let Some(policy) = refusing {
            self.by_policy.of(policy)[result - 2].fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn read(&self) -> Flips {
        let [
            both_admit,
            both_refuse,
            would_refuse,
            would_admit,
            not_decided,
        ] = self.sums();
        Flips {
            both_admit,
            both_refuse,
            would_refuse,
            would_admit,
            not_decided,
            by_policy: self.by_policy.read(),
        }
    }

    fn sums(&self) -> [u64; RESULTS.len()] {
        self.results
            .each_ref()
            .map(|count| count.load(Ordering::Relaxed))
    }
}

/// By the index of the result.
#[cfg(feature = "metrics")]
fn counters(layer: &str, candidate: &Arc<str>) -> [Counter; RESULTS.len()] {
    let name = "throttle_candidate_total";
    let help = "Requests by what a candidate would have done to them.";
    describe_counter!(name, Unit::Count, help);
    RESULTS.map(|result| {
        let (layer, candidate) = (layer.to_owned(), Arc::clone(candidate));
        counter!(name, "layer" => layer, "candidate" => candidate, "result" => result)
    })
}

/// A list that only grows, so that no request waits for a lock: a reload may bring policies, and
/// names come back.
#[derive(Debug, Default)]
struct ByPolicy(OnceLock<Box<Row>>);

#[derive(Debug)]
struct Row {
    policy: PolicyName,
    /// Would refuse, would admit.
    counts: [AtomicU64; 2],
    next: ByPolicy,
}

impl ByPolicy {
    fn of(&self, policy: &PolicyName) -> &[AtomicU64; 2] {
        let new = || {
            Box::new(Row {
                policy: policy.clone(),
                counts: Default::default(),
                next: Self::default(),
            })
        };
        let mut row = self.0.get_or_init(new);
        while row.policy != *policy {
            row = row.next.0.get_or_init(new);
        }
        &row.counts
    }

    fn read(&self) -> Vec<PolicyFlips> {
        let rows = std::iter::successors(self.0.get(), |row| row.next.0.get());
        let read = |Row { policy, counts, .. }: &Row| {
            let [would_refuse, would_admit] =
                counts.each_ref().map(|count| count.load(Ordering::Relaxed));
            PolicyFlips {
                policy: policy.clone(),
                would_refuse,
                would_admit,
            }
        };
        rows.map(|row| read(row)).collect()
    }
}

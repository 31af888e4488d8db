//! How often a candidate and the live layer agree.

#[cfg(feature = "metrics")]
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(feature = "metrics")]
use metrics::{Counter, Unit, counter, describe_counter};
use throttle_core::PolicyName;
#[cfg(feature = "metrics")]
use throttle_core::metrics::Registered;

use crate::event::{Event, Outcome};
use crate::lock::lock;
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
    /// Where the two differ, the policies that the refusals come from: the latest 1,000 names.
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
pub(super) struct FlipCounts {
    results: [AtomicU64; RESULTS.len()],
    /// A request locks it if the two differ, for an addition alone.
    by_policy: Mutex<Vec<PolicyFlips>>,
    #[cfg(feature = "metrics")]
    reported: Option<Registered<[Counter; RESULTS.len()]>>,
}

/// Most policies that are listed: a program may replace limits under ever new names.
const MOST_POLICIES: usize = 1_000;

/// What becomes of a request under the live layer.
pub(super) fn live_ruling(event: &Event<'_>) -> Ruling {
    match event.outcome {
        Outcome::NoPermit(limits) => Ruling::Refused(limits.first().cloned()),
        outcome if outcome.is_passed_on() => Ruling::Admitted,
        _ => Ruling::Refused(event.binding().map(|limit| limit.info.name.clone())),
    }
}

impl FlipCounts {
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
            self.add_of_policy(policy, matches!(live, Admitted));
        }
    }

    pub(super) fn read(&self) -> Flips {
        let [
            both_admit,
            both_refuse,
            would_refuse,
            would_admit,
            not_decided,
        ] = self
            .results
            .each_ref()
            .map(|count| count.load(Ordering::Relaxed));
        Flips {
            both_admit,
            both_refuse,
            would_refuse,
            would_admit,
            not_decided,
            by_policy: lock(&self.by_policy).clone(),
        }
    }

    fn add_of_policy(&self, policy: &PolicyName, would_refuse: bool) {
        let mut by_policy = lock(&self.by_policy);
        let index = by_policy.iter().position(|own| own.policy == *policy);
        let index = index.unwrap_or_else(|| {
            if by_policy.len() == MOST_POLICIES {
                by_policy.remove(0);
            }
            by_policy.push(PolicyFlips {
                policy: policy.clone(),
                would_refuse: 0,
                would_admit: 0,
            });
            by_policy.len() - 1
        });
        let flips = &mut by_policy[index];
        if would_refuse {
            flips.would_refuse += 1;
        } else {
            flips.would_admit += 1;
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_under_ever_new_names_are_forgotten_the_oldest_first() {
        let counts = FlipCounts::default();
        let name = |version| PolicyName::new(&format!("v{version}")).unwrap();
        for version in 0..3 * MOST_POLICIES {
            counts.add(
                &Ruling::Admitted,
                Some(&Ruling::Refused(Some(name(version)))),
            );
        }
        let flips = counts.read();
        let listed = flips.by_policy.iter().map(|flips| flips.policy.clone());
        let latest = (2 * MOST_POLICIES..3 * MOST_POLICIES).map(name);
        assert!(listed.eq(latest), "{:?}", flips.by_policy);
        assert_eq!(flips.would_refuse, 3_000, "all requests are counted");
    }
}

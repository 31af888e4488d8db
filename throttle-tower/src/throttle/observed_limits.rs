use std::sync::Arc;

use throttle_core::{Backend, Policy, PolicyName};

use super::shared::Shared;
use crate::limit::Applied;
#[cfg(feature = "metrics")]
use crate::limit::Keying;

/// What observers need to know of the limits of a layer. It keeps no backend.
pub(crate) struct Observed {
    pub(crate) policies: Arc<[Policy]>,
    #[cfg_attr(not(feature = "metrics"), expect(dead_code, reason = "what metrics read"))]
    pub(crate) applied: Arc<[Applied]>,
    /// The names of the limits on requests in flight.
    #[cfg_attr(not(any(feature = "metrics", feature = "dashboard")), expect(dead_code, reason = "what they read"))]
    pub(crate) permits: Vec<PolicyName>,
}

impl Observed {
    pub(super) fn of<B: Backend>(shared: &Shared<B>) -> Self {
        Self {
            policies: Arc::clone(&shared.announced.policies),
            applied: Arc::clone(&shared.applied),
            permits: shared.permits.names().cloned().collect(),
        }
    }

    /// Returns whether the policies have the same names in the same order. Limits on requests in flight do not matter:
    /// they have no place among the policies.
    #[cfg(all(feature = "rules", feature = "offenders"))]
    pub(crate) fn has_names_of(&self, other: &Self) -> bool {
        let names = |of: &Self| of.policies.iter().map(|policy| policy.policy_name().clone()).collect::<Vec<_>>();
        names(self) == names(other)
    }
}

#[cfg(feature = "metrics")]
pub(super) fn counted_apart(applied: &[Applied]) -> Arc<[Applied]> {
    let apart = |limit: &Applied| match &limit.keying {
        Keying::Tiered(lookup) => Applied { keying: Keying::Tiered(lookup.counted_apart()), ..limit.clone() },
        Keying::Extracted(_) | Keying::Future(_) => limit.clone(),
    };
    applied.iter().map(apart).collect()
}

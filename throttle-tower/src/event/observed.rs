use std::sync::Arc;

use throttle_core::{Policy, PolicyName};

use crate::limit::Applied;

/// What observers need to know of the limits of a layer. It keeps no backend.
pub(crate) struct Observed {
    pub(crate) policies: Arc<[Policy]>,
    #[cfg_attr(
        not(any(feature = "metrics", feature = "tracing")),
        expect(dead_code, reason = "what they read")
    )]
    pub(crate) applied: Arc<[Applied]>,
    /// The names of the limits on requests in flight.
    #[cfg_attr(
        not(any(feature = "metrics", feature = "dashboard")),
        expect(dead_code, reason = "what they read")
    )]
    pub(crate) permits: Vec<PolicyName>,
}

#[cfg(feature = "offenders")]
impl Observed {
    /// Returns whether the policies have the same names in the same order. Limits on requests in
    /// flight do not matter: they have no place among the policies.
    pub(crate) fn has_names_of(&self, other: &Self) -> bool {
        let names = |of: &Self| {
            of.policies
                .iter()
                .map(|policy| policy.policy_name().clone())
                .collect::<Vec<_>>()
        };
        names(self) == names(other)
    }
}

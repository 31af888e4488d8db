use std::cmp::Reverse;

use super::policy_status::PolicyStatus;
use super::retry_after::RetryAfter;

/// One decision as the headers describe it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeaderContent<'a> {
    /// The policies that apply, in their order. None if the decision is not to be described,
    /// because another layer has refused the request: then only the list of policies is written.
    pub(crate) policies: &'a [PolicyStatus<'a>],
    pub(crate) admitted: bool,
    /// Written on a refusal only. `None` keeps an existing `Retry-After`: this decision has no
    /// better one.
    pub(crate) retry_after: Option<RetryAfter>,
    /// Read only where a header or an existing `Retry-After` states wall-clock time. 0 if no header
    /// does.
    pub(crate) now_unix_us: u64,
}

impl<'a> HeaderContent<'a> {
    /// The wait that a refusal states.
    pub(super) fn wait(&self) -> Option<RetryAfter> {
        self.retry_after.filter(|_| !self.admitted)
    }

    /// The policy that a dialect describes which can describe only one of these: the one with the
    /// least remaining, as the drafts demand. On a refusal it is the violated policy with the
    /// longest wait, because a client that waits for any other is refused again.
    ///
    /// `None` if the request was refused, but by none of the policies: a quota alone would mislead.
    pub(super) fn binding(
        &self,
        is_one: impl Fn(&PolicyStatus<'_>) -> bool,
    ) -> Option<&'a PolicyStatus<'a>> {
        let is_explained = self.admitted || self.policies.iter().any(|policy| policy.violated);
        let policies = self.policies.iter().filter(|policy| is_one(policy));
        policies.filter(|_| is_explained).min_by_key(|policy| {
            let refuses = policy.violated && !self.admitted;
            let wait = refuses.then(|| policy.retry_us.unwrap_or(u64::MAX));
            (Reverse(wait), policy.r(), Reverse(policy.reset_us))
        })
    }
}

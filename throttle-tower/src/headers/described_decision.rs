use super::policy_status::PolicyStatus;
use super::retry_after::RetryAfter;

/// One decision as the headers describe it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DescribedDecision<'a> {
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

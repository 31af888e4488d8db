use super::policy_status::PolicyStatus;
use super::retry_after::RetryAfter;

/// One decision as the headers describe it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DescribedDecision<'a> {
    pub(crate) policies: &'a [PolicyStatus<'a>],
    pub(crate) admitted: bool,
    /// Written on a refusal only. `None` keeps an existing `Retry-After`: this decision has no better one.
    pub(crate) retry_after: Option<RetryAfter>,
    /// Read only where a header or an existing `Retry-After` states wall-clock time.
    pub(crate) now_unix_us: u64,
}

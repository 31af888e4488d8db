use super::retry_after::RetryAfter;

/// One decision as the headers describe it.
///
/// `P` is an iterator of the policies that apply, each a [`PolicyStatus`](super::policy_status::PolicyStatus). A dialect
/// computes of them only what it writes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DescribedDecision<P> {
    pub(crate) policies: P,
    pub(crate) admitted: bool,
    /// Written on a refusal only. `None` keeps an existing `Retry-After`: this decision has no better one.
    pub(crate) retry_after: Option<RetryAfter>,
    /// Read only where a header or an existing `Retry-After` states wall-clock time.
    pub(crate) now_unix_us: u64,
}

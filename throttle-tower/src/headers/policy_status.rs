use super::quota::Quota;
use super::value_text;

/// What a policy announces, the same in every response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PolicyTerms<'a> {
    /// A public alias, [quoted](super::structured::quoted): every client reads it.
    pub(crate) name: &'a [u8],
    pub(crate) quota: &'a Quota,
    /// What is counted; `None` for requests, the default of the drafts.
    pub(crate) unit: Option<&'a str>,
}

/// Where one client stands with one policy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PolicyStatus<'a> {
    pub(crate) terms: PolicyTerms<'a>,
    pub(crate) remaining: u64,
    /// The time within which no more than `remaining` may be used; for a violated policy, the wait.
    pub(crate) effective_us: u64,
    /// The time until the key cannot be told from an unused one.
    pub(crate) reset_us: u64,
    pub(crate) violated: bool,
    /// For a violated policy only: `None` when no wait can help.
    pub(crate) retry_us: Option<u64>,
}

impl PolicyStatus<'_> {
    /// The parameter `r`: at most the quota, or a client would compute a negative number of units used.
    pub(super) fn r(&self) -> u64 {
        self.remaining.min(self.terms.quota.q)
    }

    /// When the key equals an unused one, in µs, and never before the end of the wait.
    pub(super) fn full_after_us(&self) -> u64 {
        self.reset_us.max(self.retry_us.unwrap_or(0))
    }

    /// The parameter `t`.
    pub(super) fn t(&self) -> u64 {
        value_text::seconds(self.effective_us)
    }
}

use throttle_core::Policy;

use super::quota::QuotaWindow;
use super::value_text;
use crate::json::quoted;

/// The announcement of a policy, the same in every response.
#[derive(Clone, Debug)]
pub(crate) struct PolicyTerms {
    /// Its index among all that a layer may announce.
    pub(crate) number: usize,
    /// A public alias, because every client reads it. It is in quotes: names are printable ASCII,
    /// of which a String of RFC 9651 is written as one of JSON.
    pub(crate) name: Box<str>,
    pub(crate) quota: QuotaWindow,
    /// The unit that is counted. `None` for requests, the default of the drafts.
    pub(crate) unit: Option<Box<str>>,
    /// The class of the requests to which this is announced.
    pub(crate) class: Option<Box<str>>,
}

impl PolicyTerms {
    /// The announcement of a policy under its first parameters to requests that leave a reserve
    /// free. Making it takes longer than writing a header.
    pub(crate) fn of(
        policy: &Policy,
        number: usize,
        (class, reserve): (Option<&str>, u64),
    ) -> Self {
        Self {
            number,
            name: quoted(policy.name()).into(),
            quota: QuotaWindow::of(policy.algorithm(), reserve),
            unit: policy.unit().map(Into::into),
            class: class.map(Into::into),
        }
    }
}

/// The status of one client under one policy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PolicyStatus<'a> {
    pub(crate) terms: &'a PolicyTerms,
    pub(crate) remaining: u64,
    /// The time within which no more than `remaining` may be used; for a violated policy, the wait.
    pub(crate) effective_us: u64,
    /// The time until the key equals an unused one.
    pub(crate) reset_us: u64,
    pub(crate) violated: bool,
    /// For a violated policy only: `None` when no wait can help.
    pub(crate) retry_us: Option<u64>,
}

impl PolicyStatus<'_> {
    /// The parameter `r`: at most the quota, or a client would compute a negative number of units
    /// used.
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

use http::{HeaderMap, HeaderName, HeaderValue};

use super::header_content::HeaderContent;
use super::header_schema::HeaderSchema;
use super::policy_status::PolicyStatus;
use super::retry_after;

/// A dialect: its word, its headers, and how they are written. A new dialect is one of these in a
/// file of its own, and a variant of [`Dialect`](super::Dialect).
pub(crate) struct DialectForm {
    /// Its name in text, as in a rule file.
    pub(super) word: &'static str,
    /// The headers that a refusal carries. `Retry-After` is the last.
    pub(super) exposed: &'static [HeaderName],
    /// The headers before `Retry-After`, in the order of `exposed`.
    pub(super) schemas: &'static [HeaderSchema],
    /// The list of policies, if the dialect has one. It is the same in each response to which these
    /// policies apply.
    pub(crate) policies: fn(&[PolicyStatus<'_>]) -> Option<HeaderValue>,
    /// Writes the list of policies and what remains of them. Headers of the response that are
    /// stricter stay.
    pub(super) write: fn(&mut HeaderMap, &HeaderContent<'_>, Option<HeaderValue>),
    /// Set if a header states an instant, for which the wall clock is read.
    pub(crate) states_instants: bool,
}

impl DialectForm {
    /// Writes the headers of a decision, once per response. Writing those of several decisions, as
    /// stacked layers do, only ever tightens what the response says.
    #[inline]
    pub(crate) fn write(
        &self,
        headers: &mut HeaderMap,
        decision: &HeaderContent<'_>,
        policies: Option<HeaderValue>,
    ) {
        (self.write)(headers, decision, policies);
        if let Some(wait) = decision.wait() {
            retry_after::write(headers, wait, decision.now_unix_us);
        }
    }
}

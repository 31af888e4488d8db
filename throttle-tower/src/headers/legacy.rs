//! Writes the dialects that can describe only one policy: drafts -03 to -07 and `X-RateLimit-*`.

use std::cmp::Reverse;

use http::{HeaderMap, HeaderName, HeaderValue};

use super::described_decision::DescribedDecision;
use super::dialect::{Dialect, ResetFormat};
use super::existing::{Existing, existing};
use super::names::{self, Trio};
use super::policy_status::{PolicyStatus, PolicyTerms};
use super::strictness::gives_way;
use super::value_text::{self, Text};

/// `10;w=1, 1000;w=86400`
///
/// The drafts forbid two policies with one quota in this list, because clients distinguish the policies by it. Of such
/// a pair the one with the longer window stays: it is the stricter one.
pub(super) fn quota_list(policies: &[PolicyTerms<'_>]) -> Option<HeaderValue> {
    let mut text = Text::new();
    for (index, terms) in policies.iter().enumerate() {
        if gives_way(policies, index, |a, b| a.quota.q == b.quota.q, |a, b| b.quota.w.cmp(&a.quota.w)) {
            continue;
        }
        text.next_member().integer(terms.quota.q).bytes(b";w=").integer(terms.quota.w);
    }
    text.value()
}

/// Writes where the client stands with the policy that binds it most, unless the existing headers bind it more.
///
/// The headers are only meaningful together, so they are kept or replaced together. The existing ones stay if they are
/// complete, readable and leave less; or, if they leave as much, if they reset later or their reset is not a number.
pub(super) fn write(headers: &mut HeaderMap, dialect: Dialect, policies: Option<HeaderValue>, ours: &Standing) {
    if existing(headers, dialect).is_some_and(|theirs| ours.gives_way_to(&theirs)) {
        return;
    }
    match dialect {
        Dialect::XRateLimit(_) => ours.write_seconds(headers, &names::X, value_text::integer_value(ours.limit)),
        Dialect::Draft03 => ours.write_seconds(headers, &names::IETF, limit_with_quotas(ours.limit, policies.as_ref())),
        Dialect::Draft06 => {
            ours.write_seconds(headers, &names::IETF, value_text::integer_value(ours.limit));
            replace(headers, &names::POLICY, policies);
        }
        Dialect::Draft07 => {
            replace(headers, &names::RATELIMIT, ours.dictionary());
            replace(headers, &names::POLICY, policies);
        }
        Dialect::Draft11 | Dialect::OpenAi | Dialect::None => {}
    }
}

/// Where the client stands with one policy.
#[derive(Debug)]
pub(super) struct Standing {
    pub(super) limit: u64,
    pub(super) remaining: u64,
    /// In the dialect's own measure.
    pub(super) reset: u64,
}

impl Standing {
    /// With the policy that binds the client most; `None` if there is none to describe.
    pub(super) fn of<'a, P>(dialect: Dialect, report: &DescribedDecision<P>) -> Option<Self>
    where
        P: Iterator<Item = PolicyStatus<'a>> + Clone,
    {
        let policy = described(report)?;
        let limit = match dialect {
            // Without a window, a quota that was scaled up to whole seconds would tell nothing.
            Dialect::XRateLimit(_) => policy.terms.quota.most,
            _ => policy.terms.quota.q,
        };
        Some(Self { limit, remaining: policy.r().min(limit), reset: reset(&policy, dialect, report) })
    }

    pub(super) fn gives_way_to(&self, theirs: &Existing) -> bool {
        let later = theirs.reset.is_none_or(|reset| reset >= self.reset);
        theirs.remaining < self.remaining || (theirs.remaining == self.remaining && later)
    }

    fn write_seconds(&self, headers: &mut HeaderMap, trio: &Trio, limit: Option<HeaderValue>) {
        self.write_trio(headers, trio, limit, value_text::integer_value(self.reset));
    }

    pub(super) fn write_trio(
        &self,
        headers: &mut HeaderMap,
        trio: &Trio,
        limit: Option<HeaderValue>,
        reset: Option<HeaderValue>,
    ) {
        replace(headers, &trio.limit, limit);
        replace(headers, &trio.remaining, value_text::integer_value(self.remaining));
        replace(headers, &trio.reset, reset);
    }

    fn dictionary(&self) -> Option<HeaderValue> {
        let mut text = Text::new();
        text.bytes(b"limit=").integer(self.limit);
        text.bytes(b", remaining=").integer(self.remaining);
        text.bytes(b", reset=").integer(self.reset);
        text.value()
    }
}

/// `10, 10;w=1, 1000;w=86400`: draft -03 has no separate header for the policies.
fn limit_with_quotas(limit: u64, policies: Option<&HeaderValue>) -> Option<HeaderValue> {
    let mut text = Text::new();
    text.integer(limit);
    if let Some(policies) = policies {
        text.next_member().bytes(policies.as_bytes());
    }
    text.value()
}

/// The policy to describe. The drafts demand the one with the least remaining. On a refusal it is the violated policy
/// with the longest wait, because a client that waits for any other is refused again.
fn described<'a, P>(report: &DescribedDecision<P>) -> Option<PolicyStatus<'a>>
where
    P: Iterator<Item = PolicyStatus<'a>> + Clone,
{
    let policies = report.policies.clone();
    if report.admitted { least_remaining(policies) } else { longest_wait(policies) }
}

/// The policy that leaves the client least.
#[inline]
pub(super) fn least_remaining<'a>(policies: impl Iterator<Item = PolicyStatus<'a>>) -> Option<PolicyStatus<'a>> {
    policies.min_by_key(|policy| (policy.r(), Reverse(policy.reset_us)))
}

/// The violated policy that demands the longest wait.
#[inline]
pub(super) fn longest_wait<'a>(policies: impl Iterator<Item = PolicyStatus<'a>>) -> Option<PolicyStatus<'a>> {
    let violated = policies.filter(|policy| policy.violated);
    violated.min_by_key(|policy| (Reverse(policy.retry_us.unwrap_or(u64::MAX)), policy.r()))
}

/// When the key equals an unused one.
///
/// A refusal in an IETF dialect is an exception: there Reset should name the same time as `Retry-After`. For
/// `X-RateLimit-Reset` there is no standard, only the custom that it names the end of the window.
fn reset<P>(policy: &PolicyStatus<'_>, dialect: Dialect, report: &DescribedDecision<P>) -> u64 {
    let reset_us = policy.full_after_us();
    match dialect {
        Dialect::XRateLimit(ResetFormat::EpochSeconds) => {
            value_text::seconds(report.now_unix_us.saturating_add(reset_us))
        }
        Dialect::XRateLimit(ResetFormat::DeltaSeconds) => value_text::seconds(reset_us),
        _ if report.admitted => value_text::seconds(reset_us),
        _ => report.retry_after.map_or(value_text::seconds(reset_us), |wait| wait.seconds()),
    }
}

/// An existing header must not stay beside ours, so without a value the header is removed.
fn replace(headers: &mut HeaderMap, name: &HeaderName, value: Option<HeaderValue>) {
    let placed = value.is_some_and(|value| headers.try_insert(name.clone(), value).is_ok());
    if !placed {
        headers.remove(name);
    }
}

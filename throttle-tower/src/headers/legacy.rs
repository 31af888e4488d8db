//! Writes the dialects that can describe only one policy: drafts -03 to -07 and `X-RateLimit-*`.
//!
//! The headers are only meaningful together, so they are kept or replaced together. The existing
//! ones stay if they are complete, readable and leave less; or, if they leave as much, if they
//! reset later or their reset is not a number.

use std::cmp::Reverse;

use http::{HeaderMap, HeaderName, HeaderValue};

use super::described_decision::DescribedDecision;
use super::existing::{self, Existing};
use super::form::Form;
use super::names::{self, POLICY, RATELIMIT, Trio};
use super::policy_status::PolicyStatus;
use super::quota::Quota;
use super::retry_after::RetryAfter;
use super::structured::single_count;
use super::value_text::{Text, integer_value, seconds};

pub(super) static DRAFT07: Form = Form {
    policies: quotas,
    write: |headers, decision, policies| {
        if let Some(ours) = Standing::of_ietf(decision)
            && ours.replaces(existing::dictionary(headers))
        {
            replace(headers, &RATELIMIT, ours.dictionary());
            replace(headers, &POLICY, policies);
        }
    },
    exposed: &names::LISTS,
    states_instants: false,
};

pub(super) static DRAFT06: Form = Form {
    policies: quotas,
    write: |headers, decision, policies| {
        if write_ietf(headers, decision, integer_value) {
            replace(headers, &POLICY, policies);
        }
    },
    exposed: &names::IETF,
    states_instants: false,
};

/// It has no separate header for the policies: `10, 10;w=1, 1000;w=86400`.
pub(super) static DRAFT03: Form = Form {
    policies: quotas,
    write: |headers, decision, policies| {
        write_ietf(headers, decision, |limit| {
            let mut text = Text::new();
            text.integer(limit);
            if let Some(policies) = policies {
                text.next_member().bytes(policies.as_bytes());
            }
            text.value()
        });
    },
    exposed: {
        let [_, exposed @ ..] = &names::IETF;
        exposed
    },
    states_instants: false,
};

pub(super) static X_SECONDS: Form = Form {
    policies: |_| None,
    write: |headers, decision, _| write_x(headers, decision, 0),
    exposed: &names::X,
    states_instants: false,
};

pub(super) static X_EPOCH: Form = Form {
    policies: |_| None,
    write: |headers, decision, _| write_x(headers, decision, decision.now_unix_us),
    exposed: &names::X,
    states_instants: true,
};

/// `10;w=1, 1000;w=86400`
///
/// The drafts forbid two policies with one quota in this list, because clients distinguish the
/// policies by it. Of such a pair the one with the longer window stays: it is the stricter one.
fn quotas(policies: &[PolicyStatus<'_>]) -> Option<HeaderValue> {
    let mut text = Text::new();
    let quotas: Vec<_> = policies.iter().map(|policy| policy.terms.quota).collect();
    for (index, quota) in quotas.iter().enumerate() {
        // Of equal quotas the one with the longest window stays, and of equal ones the first.
        let gives_way =
            |(at, other): (usize, &Quota)| other.q == quota.q && (other.w, index) > (quota.w, at);
        if !quotas.iter().enumerate().any(gives_way) {
            text.next_member()
                .integer(quota.q)
                .bytes(b";w=")
                .integer(quota.w);
        }
    }
    text.value()
}

/// Writes the three headers of drafts -06 and -03, and returns whether they were. `limit` gives the
/// value of the first.
fn write_ietf(
    headers: &mut HeaderMap,
    decision: &DescribedDecision<'_>,
    limit: impl FnOnce(u64) -> Option<HeaderValue>,
) -> bool {
    let [_, trio @ .., _] = &names::IETF;
    let theirs =
        existing::trio(headers, trio, single_count).filter(|theirs| theirs.reset.is_some());
    let ours = Standing::of_ietf(decision).filter(|ours| ours.replaces(theirs));
    if let Some(ours) = &ours {
        ours.write(headers, trio, limit(ours.limit), integer_value(ours.reset));
    }
    ours.is_some()
}

/// Writes `X-RateLimit-*`. The reset counts seconds from an instant in µs: from now, or since 1970
/// if that is now.
fn write_x(headers: &mut HeaderMap, decision: &DescribedDecision<'_>, now_us: u64) {
    let [trio @ .., _] = &names::X;
    if let Some(policy) = described(decision)
        // No standard names the instant, only the custom that it is the end of the window.
        && let ours = Standing::without_window(policy, seconds(now_us.saturating_add(policy.full_after_us())))
        && ours.replaces(existing::trio(headers, trio, single_count))
    {
        ours.write(
            headers,
            trio,
            integer_value(ours.limit),
            integer_value(ours.reset),
        );
    }
}

/// Where the client stands with one policy.
pub(super) struct Standing {
    pub(super) limit: u64,
    remaining: u64,
    /// In the dialect's own measure.
    pub(super) reset: u64,
}

impl Standing {
    /// With the policy that binds the client most; `None` if there is none to describe. The reset
    /// is when the key equals an unused one, or on a refusal the same time as in `Retry-After`, as
    /// the drafts ask for.
    fn of_ietf(decision: &DescribedDecision<'_>) -> Option<Self> {
        let policy = described(decision)?;
        let wait = decision.retry_after.filter(|_| !decision.admitted);
        let reset = wait.map_or_else(|| seconds(policy.full_after_us()), RetryAfter::seconds);
        Some(Self {
            limit: policy.terms.quota.q,
            remaining: policy.r(),
            reset,
        })
    }

    /// In a dialect without windows, in which a quota that was scaled up to whole seconds would say
    /// nothing.
    pub(super) fn without_window(policy: &PolicyStatus<'_>, reset: u64) -> Self {
        let limit = policy.terms.quota.most;
        Self {
            limit,
            remaining: policy.r().min(limit),
            reset,
        }
    }

    /// Whether it is written in place of what the response states already.
    pub(super) fn replaces(&self, theirs: Option<Existing>) -> bool {
        let stays = |theirs: Existing| {
            let later = theirs.reset.is_none_or(|reset| reset >= self.reset);
            theirs.remaining < self.remaining || (theirs.remaining == self.remaining && later)
        };
        !theirs.is_some_and(stays)
    }

    pub(super) fn write(
        &self,
        headers: &mut HeaderMap,
        [limit_name, remaining, reset_name]: &Trio,
        limit: Option<HeaderValue>,
        reset: Option<HeaderValue>,
    ) {
        replace(headers, limit_name, limit);
        replace(headers, remaining, integer_value(self.remaining));
        replace(headers, reset_name, reset);
    }

    fn dictionary(&self) -> Option<HeaderValue> {
        let mut text = Text::new();
        text.bytes(b"limit=").integer(self.limit);
        text.bytes(b", remaining=").integer(self.remaining);
        text.bytes(b", reset=").integer(self.reset);
        text.value()
    }
}

/// The policy to describe. The drafts demand the one with the least remaining. On a refusal it is
/// the violated policy with the longest wait, because a client that waits for any other is refused
/// again.
fn described<'a>(decision: &DescribedDecision<'a>) -> Option<&'a PolicyStatus<'a>> {
    let policies = decision.policies.iter();
    if decision.admitted {
        least_remaining(policies)
    } else {
        longest_wait(policies)
    }
}

/// The policy that leaves the client least.
pub(super) fn least_remaining<'a>(
    policies: impl Iterator<Item = &'a PolicyStatus<'a>>,
) -> Option<&'a PolicyStatus<'a>> {
    policies.min_by_key(|policy| (policy.r(), Reverse(policy.reset_us)))
}

/// The violated policy that demands the longest wait.
pub(super) fn longest_wait<'a>(
    policies: impl Iterator<Item = &'a PolicyStatus<'a>>,
) -> Option<&'a PolicyStatus<'a>> {
    let violated = policies.filter(|policy| policy.violated);
    violated.min_by_key(|policy| (Reverse(policy.retry_us.unwrap_or(u64::MAX)), policy.r()))
}

/// An existing header must not stay beside ours, so without a value the header is removed.
fn replace(headers: &mut HeaderMap, name: &HeaderName, value: Option<HeaderValue>) {
    let placed = value.is_some_and(|value| headers.try_insert(name.clone(), value).is_ok());
    if !placed {
        headers.remove(name);
    }
}

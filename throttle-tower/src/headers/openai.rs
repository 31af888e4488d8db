//! Writes the headers of OpenAI's API: `x-ratelimit-{limit,remaining,reset}-{requests,tokens}`.
//!
//! Source: OpenAI's documentation, "Rate limits in headers".

use http::HeaderMap;

use super::described_decision::DescribedDecision;
use super::existing::existing_trio;
use super::legacy::{Standing, least_remaining, longest_wait};
use super::names::{OPENAI_REQUESTS, OPENAI_TOKENS, Trio};
use super::policy_status::PolicyStatus;
use super::read_upstream::go_duration;
use super::value_text::{self, Text};

/// Where the client stands by requests, and by tokens. A unit without a policy is left out; so is any other unit,
/// because these headers have no name for it.
#[derive(Debug)]
pub(super) struct Standings {
    requests: Option<Standing>,
    tokens: Option<Standing>,
}

impl Standings {
    /// `None` if there is nothing to describe: another layer or a gate refused, and a quota alone would mislead.
    pub(super) fn of<'a, P>(report: &DescribedDecision<P>) -> Option<Self>
    where
        P: Iterator<Item = PolicyStatus<'a>> + Clone,
    {
        if !report.admitted && !report.policies.clone().any(|policy| policy.violated) {
            return None;
        }
        let requests = standing(report, |unit| matches!(unit, None | Some("requests")));
        let tokens = standing(report, |unit| unit == Some("tokens"));
        (requests.is_some() || tokens.is_some()).then_some(Self { requests, tokens })
    }

    /// The headers of a unit are only meaningful together, so they are kept or replaced together. The existing ones stay
    /// if they leave the client less.
    pub(super) fn write(&self, headers: &mut HeaderMap) {
        for (ours, trio) in [(&self.requests, &OPENAI_REQUESTS), (&self.tokens, &OPENAI_TOKENS)] {
            if let Some(ours) = ours {
                write(headers, trio, ours);
            }
        }
    }
}

/// With the policy of a unit that binds the client most. A refusal is described by the policy that demands the longest
/// wait; a unit that did not refuse, by its policy with the least remaining.
fn standing<'a, P>(report: &DescribedDecision<P>, is_of_unit: impl Fn(Option<&str>) -> bool + Clone) -> Option<Standing>
where
    P: Iterator<Item = PolicyStatus<'a>> + Clone,
{
    let policies = report.policies.clone().filter(move |policy| is_of_unit(policy.terms.unit));
    let refusing = if report.admitted { None } else { longest_wait(policies.clone()) };
    let policy = refusing.or_else(|| least_remaining(policies))?;
    let limit = policy.terms.quota.most;
    Some(Standing { limit, remaining: policy.r().min(limit), reset: millis(policy.full_after_us()) })
}

fn write(headers: &mut HeaderMap, trio: &Trio, ours: &Standing) {
    let theirs = existing_trio(headers, trio, |reset| {
        let nanos = go_duration(reset)?.as_nanos();
        Some(u64::try_from(nanos.div_ceil(1_000_000)).unwrap_or(u64::MAX))
    });
    if !theirs.is_some_and(|theirs| ours.gives_way_to(&theirs)) {
        let mut reset = Text::new();
        write_go_duration(&mut reset, ours.reset);
        ours.write_trio(headers, trio, value_text::integer_value(ours.limit), reset.value());
    }
}

/// Whole milliseconds, rounded up, so that no wait ends early.
fn millis(us: u64) -> u64 {
    us.div_ceil(1_000)
}

/// As Go writes a duration: `0s`, `17ms`, `1.5s`, `6m0s`, `24h0m0s`.
fn write_go_duration(text: &mut Text, ms: u64) {
    if (1..1_000).contains(&ms) {
        text.integer(ms).bytes(b"ms");
        return;
    }
    let (seconds, fraction) = (ms / 1_000, ms % 1_000);
    let (minutes, hours) = (seconds / 60, seconds / 3_600);
    if hours > 0 {
        text.integer(hours).byte(b'h');
    }
    if minutes > 0 {
        text.integer(minutes % 60).byte(b'm');
    }
    text.integer(seconds % 60);
    if fraction > 0 {
        let digits = [100, 10, 1].map(|place| b'0' + (fraction / place % 10) as u8);
        let needed = digits.iter().rposition(|digit| *digit != b'0').map_or(0, |last| last + 1);
        text.byte(b'.').bytes(&digits[..needed]);
    }
    text.byte(b's');
}

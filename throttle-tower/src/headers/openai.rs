//! Writes the headers of OpenAI's API: `x-ratelimit-{limit,remaining,reset}-{requests,tokens}`.
//!
//! Source: OpenAI's documentation, "Rate limits in headers".

use http::HeaderMap;

use super::described_decision::DescribedDecision;
use super::existing;
use super::form::Form;
use super::legacy::{Standing, least_remaining, longest_wait};
use super::names::{self, Trio};
use super::read_upstream::go_duration;
use super::value_text::{Text, integer_value};

pub(super) static OPENAI: Form = Form {
    policies: |_| None,
    write: |headers, decision, _| write(headers, decision),
    exposed: &names::OPENAI,
    states_instants: false,
};

/// Writes where the client stands by requests, and by tokens. A unit without a policy is left out;
/// so is any other unit, because these headers have no name for it. If none of the policies
/// refused, but another layer or a gate, nothing is written: a quota alone would mislead.
fn write(headers: &mut HeaderMap, decision: &DescribedDecision<'_>) {
    if decision.admitted || decision.policies.iter().any(|policy| policy.violated) {
        let [requests @ .., _, _, _, _] = &names::OPENAI;
        let [_, _, _, tokens @ .., _] = &names::OPENAI;
        write_unit(headers, requests, decision, |unit| {
            matches!(unit, None | Some("requests"))
        });
        write_unit(headers, tokens, decision, |unit| unit == Some("tokens"));
    }
}

/// Describes the policy of a unit that binds the client most: of those that refuse, the one that
/// demands the longest wait; of a unit that did not refuse, the one with the least remaining. The
/// headers of a unit are only meaningful together, so they are kept or replaced together. The
/// existing ones stay if they leave the client less.
fn write_unit(
    headers: &mut HeaderMap,
    trio: &Trio,
    decision: &DescribedDecision<'_>,
    is_of_unit: impl Fn(Option<&str>) -> bool,
) {
    let policies = || {
        decision
            .policies
            .iter()
            .filter(|policy| is_of_unit(policy.terms.unit.as_deref()))
    };
    let refusing = if decision.admitted {
        None
    } else {
        longest_wait(policies())
    };
    let Some(policy) = refusing.or_else(|| least_remaining(policies())) else {
        return;
    };
    let ours = Standing::without_window(policy, millis(policy.full_after_us()));
    let theirs = existing::trio(headers, trio, |reset| {
        let nanos = go_duration(reset)?.as_nanos();
        Some(u64::try_from(nanos.div_ceil(1_000_000)).unwrap_or(u64::MAX))
    });
    if ours.replaces(theirs) {
        let mut reset = Text::new();
        write_go_duration(&mut reset, ours.reset);
        ours.write(headers, trio, integer_value(ours.limit), reset.value());
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
        let needed = digits
            .iter()
            .rposition(|digit| *digit != b'0')
            .map_or(0, |last| last + 1);
        text.byte(b'.').bytes(&digits[..needed]);
    }
    text.byte(b's');
}

use http::Response;
use http::header::RETRY_AFTER;
use throttle_core::{Decision, Policy, Status};

use crate::headers::decision_headers::DecisionHeaders;
use crate::headers::described_decision::DescribedDecision;
use crate::headers::policy_header::PolicyHeader;
use crate::headers::policy_status::{PolicyStatus, PolicyTerms};
use crate::headers::retry_after::RetryAfter;
use crate::headers::{Dialect, ResetFormat};
use crate::throttle::announced::Announced;
use crate::throttle::limit_report::LimitReport;
use crate::time::{micros, wall_micros};

/// The rate-limit headers for the response to an admitted request.
#[inline]
pub(in crate::throttle) fn of_admitted(announced: &Announced, decision: &Decision) -> DecisionHeaders {
    let dialect = announced.options.dialect;
    if dialect == Dialect::None {
        return DecisionHeaders::default();
    }
    describe(announced, decision, dialect, Waits { extra: 0, now_unix_us: now(dialect) })
}

/// Writes the headers of a refusal. The wait is lengthened by `extra` µs.
pub(in crate::throttle) fn write_refused<B>(report: &LimitReport, response: &mut Response<B>, extra: u64) {
    let options = &report.announced().options;
    let dialect = if options.hides(response) { Dialect::None } else { options.dialect };
    // An existing Retry-After may be a date, to compare the wait with.
    let now_unix_us = if response.headers().contains_key(RETRY_AFTER) { wall_micros() } else { now(dialect) };
    let decision = report.decision();
    describe(report.announced(), decision, dialect, Waits { extra, now_unix_us }).write(response.headers_mut());
    if let Some(hints) = options.sdk_hints {
        let wait_us = decision.retry_after().map(|wait| micros(wait).saturating_add(extra));
        hints.write(response.headers_mut(), wait_us);
    }
}

#[derive(Clone, Copy)]
struct Waits {
    /// µs.
    extra: u64,
    now_unix_us: u64,
}

#[inline]
fn describe(announced: &Announced, decision: &Decision, dialect: Dialect, waits: Waits) -> DecisionHeaders {
    let Waits { extra, now_unix_us } = waits;
    let statuses = decision.statuses();
    let applying = announced.policies.iter().zip(statuses).enumerate().filter(|(_, (_, status))| status.applies());
    let lines = applying.map(|(place, (policy, status))| {
        let paced_by = announced.paced_by(place, policy, status);
        line(announced.terms(place, status.tier()), status, paced_by, extra)
    });
    let other;
    let policies = if dialect == Dialect::None {
        &PolicyHeader::NONE
    } else if let Some(written) = announced.policy_header(decision) {
        written
    } else {
        other = PolicyHeader::new(dialect, lines.clone().map(|line| line.terms));
        &other
    };
    let wait = if decision.is_admitted() { None } else { decision.retry_after() };
    let retry_after = wait.map(|wait| RetryAfter::from_micros(micros(wait).saturating_add(extra)));
    let admitted = decision.is_admitted();
    DecisionHeaders::new(policies, DescribedDecision { policies: lines, admitted, retry_after, now_unix_us })
}

/// One policy's line: what it announces, where the client stands, and at what pace that lasts.
#[inline]
fn line<'a>(terms: PolicyTerms<'a>, status: &Status, paced_by: &Policy, extra: u64) -> PolicyStatus<'a> {
    let violated = status.is_violated();
    let wait = if violated { status.retry_after() } else { None };
    let retry_us = wait.map(|wait| micros(wait).saturating_add(extra));
    PolicyStatus {
        terms,
        remaining: status.remaining(),
        // A violated policy's window ends with the wait, as Retry-After does.
        effective_us: match retry_us {
            Some(wait) => wait,
            None => micros(status.effective_window(paced_by)),
        },
        reset_us: micros(status.reset_after()),
        violated,
        retry_us,
    }
}

/// Wall-clock time, where a header states it: reading it takes longer than writing the header.
fn now(dialect: Dialect) -> u64 {
    if dialect == Dialect::XRateLimit(ResetFormat::EpochSeconds) { wall_micros() } else { 0 }
}

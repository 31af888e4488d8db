use http::header::RETRY_AFTER;
use http::{HeaderMap, Response};
use smallvec::SmallVec;
use throttle_core::{Policy, Status};

use crate::headers::described_decision::DescribedDecision;
use crate::headers::policy_header::PolicyHeader;
use crate::headers::policy_status::{PolicyStatus, PolicyTerms};
use crate::headers::retry_after::RetryAfter;
use crate::headers::{Dialect, ResetFormat};
use crate::throttle::limit_report::LimitReport;
use crate::throttle::refusal::RefusedByThrottle;
use crate::time::{micros, wall_micros};

/// Writes the rate-limit headers of a decision on its response, and leaves the report in the extensions, once.
///
/// Where a throttle inside this one has refused, its refusal stays what it is: `Retry-After` must not be earlier than
/// the window of any policy that `RateLimit` lists, so the policies that have admitted the request are announced only.
///
/// The wait is lengthened by `extra` µs.
pub(super) fn write_headers<Body>(report: LimitReport, response: &mut Response<Body>, extra: u64) {
    let options = &report.announced().options;
    let hidden = options.hide_headers.as_ref().is_some_and(|hide| hide(response.status(), response.headers()));
    let is_refused = response.extensions().get::<RefusedByThrottle>().is_some();
    write(&report, response.headers_mut(), Shown { hidden, is_refused, extra });
    // An inner throttle's report stays: it either refused, or is nearer to the handler.
    if options.report_in_response && response.extensions().get::<LimitReport>().is_none() {
        response.extensions_mut().insert(report);
    }
}

struct Shown {
    hidden: bool,
    /// Whether the response is a refusal, of this or an inner throttle.
    is_refused: bool,
    /// µs.
    extra: u64,
}

fn write(report: &LimitReport, headers: &mut HeaderMap, Shown { hidden, is_refused, extra }: Shown) {
    let (decision, announced) = (report.decision(), report.announced());
    let dialect = announced.options.dialect;
    if decision.is_admitted() && (hidden || dialect == Dialect::None) {
        return;
    }
    let mut lines: SmallVec<[PolicyStatus<'_>; 3]> = SmallVec::new();
    // Not collected: that would move them all once they are complete.
    for (place, (policy, status)) in announced.policies.iter().zip(decision.statuses()).enumerate() {
        if status.applies() {
            let paced_by = announced.paced_by(place, policy, status);
            lines.push(line(announced.terms(place, status.tier()), status, paced_by, extra));
        }
    }
    if lines.is_empty() {
        return;
    }
    let other;
    let policies = if hidden {
        other = PolicyHeader::new(Dialect::None, []);
        &other
    } else if lines.len() == decision.statuses().len()
        && let Some(written) = announced.policy_header(decision)
    {
        written
    } else {
        other = PolicyHeader::new(dialect, lines.iter().map(|line| line.terms));
        &other
    };
    let wait = if decision.is_admitted() { None } else { decision.retry_after() };
    let report = DescribedDecision {
        policies: &lines,
        admitted: !is_refused,
        retry_after: wait.map(|wait| RetryAfter::from_micros(micros(wait).saturating_add(extra))),
        now_unix_us: now(headers, is_refused, dialect),
    };
    crate::headers::write_dialect::write(headers, policies, &report);
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

/// Wall-clock time, where a header needs it: reading it takes longer than writing the header.
fn now(headers: &HeaderMap, is_refused: bool, dialect: Dialect) -> u64 {
    // An existing Retry-After may be a date, to compare the wait with.
    let needed =
        dialect == Dialect::XRateLimit(ResetFormat::EpochSeconds) || (is_refused && headers.contains_key(RETRY_AFTER));
    if needed { wall_micros() } else { 0 }
}

use http::header::RETRY_AFTER;
use http::{HeaderMap, Response};
use smallvec::SmallVec;
use throttle_core::{Policy, Status};

use crate::headers::policy_header::PolicyHeader;
use crate::headers::policy_status::{PolicyStatus, PolicyTerms};
use crate::headers::report::Report;
use crate::headers::retry_after::RetryAfter;
use crate::headers::{Dialect, ResetFormat};
use crate::throttle::LimitReport;
use crate::time::{micros, wall_micros};

/// A decision is pressed on the response once.
impl LimitReport {
    /// Writes the rate-limit fields and leaves the report in the extensions.
    ///
    /// The wait is lengthened by `extra` µs.
    pub(in crate::throttle) fn press<Body>(self, response: &mut Response<Body>, extra: u64) {
        let options = &self.answers().options;
        let hidden = options.hide_fields.as_ref().is_some_and(|hide| hide(response.status(), response.headers()));
        self.write(response, hidden, extra);
        // An inner throttle's report stays: it either refused, or is nearer to the handler.
        if options.report_in_response && response.extensions().get::<Self>().is_none() {
            response.extensions_mut().insert(self);
        }
    }

    fn write<Body>(&self, response: &mut Response<Body>, hidden: bool, extra: u64) {
        let (decision, answers) = (self.decision(), self.answers());
        if decision.is_admitted() && (hidden || answers.options.dialect == Dialect::None) {
            return;
        }
        let mut lines: SmallVec<[PolicyStatus<'_>; 3]> = SmallVec::new();
        // Not collected: that would move them all once they are complete.
        for (place, (policy, status)) in answers.policies.iter().zip(decision.statuses()).enumerate() {
            if status.applies() {
                let paced_by = answers.paced_by(place, policy, status);
                lines.push(line(answers.terms(place, status.tier()), status, paced_by, extra));
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
            && let Some(announced) = answers.announced(decision)
        {
            announced
        } else {
            other = PolicyHeader::new(answers.options.dialect, lines.iter().map(|line| line.terms));
            &other
        };
        let admitted = decision.is_admitted();
        let wait = if admitted { None } else { decision.retry_after() };
        let report = Report {
            policies: &lines,
            admitted,
            retry_after: wait.map(|wait| RetryAfter::from_micros(micros(wait).saturating_add(extra))),
            now_unix_us: now(response.headers(), admitted, answers.options.dialect),
        };
        crate::headers::write::write(response.headers_mut(), policies, &report);
    }
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
        // Whoever goes by the reset must not come back before the wait is over.
        reset_us: micros(status.reset_after()).max(retry_us.unwrap_or(0)),
        violated,
        retry_us,
    }
}

/// Wall-clock time, where a field needs it: reading it takes longer than to write the field.
fn now(headers: &HeaderMap, admitted: bool, dialect: Dialect) -> u64 {
    // An existing Retry-After may be a date, to compare the wait with.
    let needed =
        dialect == Dialect::XRateLimit(ResetFormat::EpochSeconds) || (!admitted && headers.contains_key(RETRY_AFTER));
    if !needed {
        return 0;
    }
    wall_micros()
}

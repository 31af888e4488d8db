use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use http::Response;
use smallvec::SmallVec;
use throttle_core::{Backend, Policy, Status};

use super::LimitReport;
use super::rules::{Rules, policy_field};
use crate::headers::line::{Line, Terms};
use crate::headers::retry_after::RetryAfter;
use crate::headers::{Dialect, Report, ResetFormat};

/// A decision on its way to the response, to be pressed on it once.
pub(crate) struct Stamp<B: Backend> {
    rules: Arc<Rules<B>>,
    report: LimitReport,
    /// µs by which the wait is lengthened.
    extra: u64,
    /// Whether there is something to warn of, should the request succeed.
    suspicious: bool,
}

impl<B: Backend> Stamp<B> {
    pub(crate) fn admitted(rules: Arc<Rules<B>>, report: LimitReport, suspicious: bool) -> Self {
        Self { rules, report, extra: 0, suspicious }
    }

    pub(crate) fn refused(rules: Arc<Rules<B>>, report: LimitReport, extra: u64) -> Self {
        Self { rules, report, extra, suspicious: false }
    }

    /// Writes the rate-limit fields and leaves the report in the extensions.
    pub(crate) fn press<Body>(self, response: &mut Response<Body>) {
        let options = &self.rules.options;
        if let (true, Some(watch)) = (self.suspicious, &options.watch) {
            watch.confirm(response.status());
        }
        let hidden = options.hide_fields.as_ref().is_some_and(|hide| hide(response.status(), response.headers()));
        self.write(response, hidden);
        // An inner throttle's report stays: it either refused, or is nearer to the handler.
        if options.report_in_response && response.extensions().get::<LimitReport>().is_none() {
            response.extensions_mut().insert(self.report);
        }
    }

    fn write<Body>(&self, response: &mut Response<Body>, hidden: bool) {
        let decision = self.report.decision();
        let lines: SmallVec<[Line<'_>; 3]> =
            self.report.statuses().map(|(policy, status)| self.line(policy, status)).collect();
        if lines.is_empty() {
            return;
        }
        let other;
        let policies = if hidden {
            other = policy_field(Dialect::None, std::iter::empty());
            &other
        } else if lines.len() == decision.statuses().len() {
            &self.rules.policy_field
        } else {
            other = policy_field(self.rules.options.dialect, self.report.statuses().map(|(policy, _)| policy));
            &other
        };
        let admitted = decision.is_allowed();
        let wait = if admitted { None } else { decision.retry_after() };
        let report = Report {
            lines: &lines,
            admitted,
            retry_after: wait.map(|wait| RetryAfter::from_micros(micros(wait).saturating_add(self.extra))),
            now_unix_us: self.now(admitted),
        };
        crate::headers::write(response.headers_mut(), policies, &report);
    }

    fn line<'a>(&self, policy: &'a Policy, status: &Status) -> Line<'a> {
        let violated = status.is_violated();
        let retry_us = if violated { status.retry_after().map(micros) } else { None };
        Line {
            terms: terms(policy),
            remaining: status.remaining(),
            // A violated policy's window ends with the wait, as Retry-After does.
            effective_us: match retry_us {
                Some(wait) => wait.saturating_add(self.extra),
                None => micros(status.effective_window(policy)),
            },
            reset_us: micros(status.reset_after()),
            violated,
            retry_us,
        }
    }

    /// Wall-clock time, for the dialect and the refusals that need it.
    fn now(&self, admitted: bool) -> u64 {
        let needed = !admitted || self.rules.options.dialect == Dialect::XRateLimit(ResetFormat::EpochSeconds);
        if !needed {
            return 0;
        }
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, micros)
    }
}

/// What a policy promises.
pub(super) fn terms(policy: &Policy) -> Terms<'_> {
    let rate = policy.algorithm().rate();
    Terms { name: policy.name(), quota: rate.count(), window_us: rate.period_micros(), unit: policy.unit() }
}

fn micros(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

use std::time::Duration;

use http::{HeaderMap, Response};
use smallvec::SmallVec;
use throttle_core::Status;

use crate::headers::Dialect;
use crate::headers::header_content::HeaderContent;
use crate::headers::policy_status::PolicyStatus;
use crate::headers::retry_after::RetryAfter;
use crate::throttle::limit_report::LimitReport;
use crate::time::{micros, wall_micros};
use crate::usage::Standings;

/// Writes the headers of a response to an admitted request. Beside the refusal of another throttle
/// the policies are announced, and nothing is said of where the client stands with them.
#[inline]
pub(in crate::throttle) fn write_admitted(
    report: &LimitReport,
    headers: &mut HeaderMap,
    is_beside_a_refusal: bool,
) {
    if report.announced().options.dialect != Dialect::None {
        let mut statuses = Statuses::new();
        describe(report, 0, |_, decided| (decided, 0), &mut statuses);
        let now = report.now_unix_us();
        write(report, &statuses, headers, now, is_beside_a_refusal);
    }
}

/// Writes them after charges have changed: where the keys stand now.
#[cold]
pub(crate) fn write_settled(
    report: &LimitReport,
    now: &Standings,
    headers: &mut HeaderMap,
    is_beside_a_refusal: bool,
) {
    let dialect = report.announced().options.dialect;
    if dialect != Dialect::None {
        let mut statuses = Statuses::new();
        let standing = |index, decided| now.of(index, decided);
        describe(report, 0, standing, &mut statuses);
        let now = match dialect.form().states_instants {
            true => wall_micros(),
            false => 0,
        };
        write(report, &statuses, headers, now, is_beside_a_refusal);
    }
}

#[inline(always)]
fn write(
    report: &LimitReport,
    statuses: &Statuses<'_>,
    headers: &mut HeaderMap,
    now_unix_us: u64,
    is_beside_a_refusal: bool,
) {
    let announced = report.announced();
    let decision = HeaderContent {
        policies: if is_beside_a_refusal { &[] } else { statuses },
        admitted: true,
        retry_after: None,
        now_unix_us,
    };
    announced
        .form
        .write(headers, &decision, announced.list(statuses));
}

/// Writes the headers of a refusal. The wait is lengthened by `extra` µs.
pub(in crate::throttle) fn write_refused<B>(
    report: &LimitReport,
    response: &mut Response<B>,
    extra: u64,
) {
    let options = &report.announced().options;
    let dialect = if options.hides(response) {
        Dialect::None
    } else {
        options.dialect
    };
    let headers = response.headers_mut();
    let wait_us = wait(report.decision().retry_after(), extra);
    let mut statuses = Statuses::new();
    describe(report, extra, |_, decided| (decided, 0), &mut statuses);
    let retry_after = wait_us.map(RetryAfter::from_micros);
    let now_unix_us = report.now_unix_us();
    let decision = HeaderContent {
        policies: &statuses,
        admitted: false,
        retry_after,
        now_unix_us,
    };
    dialect
        .form()
        .write(headers, &decision, report.announced().list(&statuses));
    if let Some(hints) = options.sdk_hints {
        hints.write(headers, wait_us);
    }
}

type Statuses<'a> = SmallVec<[PolicyStatus<'a>; 3]>;

/// What the policies that apply announce, where the client stands with each, and at what pace that
/// lasts. `standing` returns the status to state in place of the decided one, and the units that
/// are used beyond it. It fills `statuses` in place, because they are large.
#[inline(always)]
fn describe<'a>(
    report: &'a LimitReport,
    extra: u64,
    standing: impl Fn(usize, &'a Status) -> (&'a Status, u64),
    statuses: &mut Statuses<'a>,
) {
    let announced = report.announced();
    for (index, policy, status) in report.asked() {
        if !announced.tells(index, status) {
            continue;
        }
        let (status, used) = standing(index, status);
        let violated = status.is_violated();
        let retry_us = if violated {
            wait(status.retry_after(), extra)
        } else {
            None
        };
        let effective_us = match retry_us {
            // A violated policy's window ends with the wait, as Retry-After does.
            Some(wait) => wait,
            None => {
                let window = status.effective_window(announced.paced_by(index, policy, status));
                // The policy's pace may be faster than that of an exception's limit. When nothing
                // is left, the window ends with the next unit whatever the pace.
                let is_paced = status.is_excepted() && status.remaining() > 0;
                micros(if is_paced {
                    window.max(status.reset_after())
                } else {
                    window
                })
            }
        };
        statuses.push(PolicyStatus {
            terms: announced.terms(index, status.tier()),
            remaining: status.remaining().saturating_sub(used),
            effective_us,
            reset_us: micros(status.reset_after()),
            violated,
            retry_us,
        });
    }
}

/// In µs.
fn wait(wait: Option<Duration>, extra: u64) -> Option<u64> {
    wait.map(|wait| micros(wait).saturating_add(extra))
}

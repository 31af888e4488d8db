//! What a refusal is in gRPC's words.

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode};
use throttle_core::{Policy, PolicyName};

use super::limit_report::LimitReport;
use super::refusal::{Reason, Refusal};
use crate::grpc::{Code, GrpcRefusal, QuotaDetails, Retry, Violation};

/// Most policies that a refusal names. Many clients read no more than 8 KiB of headers.
const MOST_NAMED: usize = 8;

impl Refusal<'_> {
    #[cold]
    pub(super) fn in_grpc_words(&self, content_type: HeaderValue) -> Response<Bytes> {
        const REDUCED: &str = "temporarily reduced capacity: ";
        let (code, message, retry) = match self.reason {
            Reason::Quota(report) => return self.used_up(report, content_type),
            Reason::Store(_, policies) => {
                (Code::Unavailable, listed(REDUCED, policies.iter().map(Policy::name)), Retry::Unknown)
            }
            Reason::NoPermit(names) => {
                (Code::Unavailable, listed(REDUCED, names.iter().map(PolicyName::as_str)), Retry::Unknown)
            }
            Reason::MissingKey(_) => (missing_key(self.status), "the rate limit needs a key".to_owned(), Retry::Never),
        };
        GrpcRefusal { code, message: &message, retry, quota: None }.response(content_type)
    }

    fn used_up(&self, report: &LimitReport, content_type: HeaderValue) -> Response<Bytes> {
        let quota = |place: usize| {
            let tier = report.decision().statuses().get(place)?.tier();
            Some(report.announced().terms(place, tier).quota)
        };
        let violated = report.violated_places().take(MOST_NAMED);
        let violations = violated.filter_map(|(place, policy)| {
            let (quota, unit) = (quota(place)?, policy.unit().unwrap_or("requests"));
            let description = format!("no more than {} {unit} in {} s", quota.q, quota.w);
            Some(Violation { policy: policy.name(), description })
        });
        let violations: Vec<_> = violations.collect();
        let message = listed("quota exceeded: ", report.violated());
        let binding = report.decision().binding().and_then(|place| Some((report.binding()?.name(), quota(place)?.q)));
        let quota = Some(QuotaDetails { violations: &violations, binding });
        let retry = self.retry_after().map_or(Retry::Never, Retry::After);
        GrpcRefusal { code: Code::ResourceExhausted, message: &message, retry, quota }.response(content_type)
    }
}

/// Who has no credentials is not authenticated, and whose credentials may not do something has some.
fn missing_key(status: StatusCode) -> Code {
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::PROXY_AUTHENTICATION_REQUIRED => {
            Code::Unauthenticated
        }
        _ => Code::InvalidArgument,
    }
}

fn listed<'a>(start: &str, names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.take(MOST_NAMED).collect();
    format!("{start}{}", names.join(", "))
}

//! A refusal as gRPC clients read it.

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode};
use throttle_core::{Policy, PolicyName};

use super::limit_report::LimitReport;
use super::refusal::{Reason, Refusal};
use crate::grpc::{Code, GrpcRefusal, QuotaDetails, Retry, Violation};
use crate::headers::Dialect;

/// Most policies that a refusal names. Many clients read no more than 8 KiB of headers.
const MOST_NAMED: usize = 8;

impl Refusal<'_> {
    #[cold]
    pub(super) fn in_grpc_words(&self, content_type: HeaderValue) -> Response<Bytes> {
        const REDUCED: &str = "temporarily reduced capacity: ";
        let later = self.retry_after().map_or(Retry::Unknown, Retry::After);
        let (code, message, retry) = match self.reason {
            Reason::Quota(report) => return self.used_up(report, content_type),
            Reason::Store(_, policies) => {
                (Code::Unavailable, listed(REDUCED, policies.iter().map(Policy::name)), later)
            }
            Reason::NoPermit(names) => {
                (Code::Unavailable, listed(REDUCED, names.iter().map(PolicyName::as_str)), later)
            }
            Reason::MissingKey(_) => {
                let (code, retry) = missing_key(self.status);
                (code, "the rate limit needs a key".to_owned(), retry)
            }
        };
        GrpcRefusal { code, message: &message, retry, quota: None }.response(content_type)
    }

    fn used_up(&self, report: &LimitReport, content_type: HeaderValue) -> Response<Bytes> {
        let options = &report.announced().options;
        let open = self.quota_response(report, content_type.clone(), options.dialect != Dialect::None);
        if options.hides(&open) { self.quota_response(report, content_type, false) } else { open }
    }

    /// With the numbers of the quotas, or with their names alone.
    fn quota_response(&self, report: &LimitReport, content_type: HeaderValue, with_numbers: bool) -> Response<Bytes> {
        let quota = |place: usize| {
            let tier = report.decision().statuses().get(place)?.tier();
            Some(report.announced().terms(place, tier).quota)
        };
        let violated = report.violated_places().take(MOST_NAMED);
        let violations = violated.filter_map(|(place, policy)| {
            let (quota, unit) = (quota(place)?, policy.unit().unwrap_or("requests"));
            let description = format!("no more than {} {unit} in {} s", quota.q, quota.w);
            Some(Violation { policy: policy.name(), description: with_numbers.then_some(description) })
        });
        let violations: Vec<_> = violations.collect();
        let message = listed("quota exceeded: ", report.violated());
        let binding = report.decision().binding().and_then(|place| Some((report.binding()?.name(), quota(place)?.q)));
        let binding = binding.map(|(policy, limit)| (policy, with_numbers.then_some(limit)));
        let quota = Some(QuotaDetails { violations: &violations, binding });
        let retry = self.retry_after().map_or(Retry::Never, Retry::After);
        GrpcRefusal { code: Code::ResourceExhausted, message: &message, retry, quota }.response(content_type)
    }
}

/// As gRPC maps the statuses of HTTP, but for those that it takes for errors of a proxy.
fn missing_key(status: StatusCode) -> (Code, Retry) {
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::PROXY_AUTHENTICATION_REQUIRED => (Code::Unauthenticated, Retry::Never),
        StatusCode::FORBIDDEN => (Code::PermissionDenied, Retry::Never),
        StatusCode::TOO_MANY_REQUESTS => (Code::ResourceExhausted, Retry::Unknown),
        status if status.is_server_error() => (Code::Unavailable, Retry::Unknown),
        _ => (Code::InvalidArgument, Retry::Never),
    }
}

fn listed<'a>(start: &str, names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.take(MOST_NAMED).collect();
    format!("{start}{}", names.join(", "))
}

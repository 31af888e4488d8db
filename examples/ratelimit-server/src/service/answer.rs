use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::HeaderValue;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tonic::Status;

use crate::by_rules;

use super::ask::Inquiry;
use super::hit::{Hit, code, seconds};
use super::{Service, metadata};

impl Service {
    /// Decides all descriptors of a request, and charges all of them or none.
    pub async fn answer(&self, request: &RateLimitRequest) -> Result<RateLimitResponse, Status> {
        if let Some(rules) = self.by_rules.get(&request.domain) {
            return by_rules::answer(rules, request).await;
        }
        let limits = self.in_force();
        let Inquiry {
            mut hits,
            mut statuses,
        } = Inquiry::new(&limits.config, request)?;
        let is_admitted = self.decide(&limits, &mut hits).await?;
        for hit in &hits {
            for descriptor in &hit.descriptors {
                statuses[*descriptor] = hit.status();
            }
        }
        Ok(RateLimitResponse {
            overall_code: code(is_admitted),
            statuses,
            response_headers_to_add: self.headers(&hits, is_admitted),
            dynamic_metadata: self.has_metadata.then(|| metadata::of(request, &hits)),
            ..RateLimitResponse::default()
        })
    }

    /// The headers of the hit that refuses for the longest, or that has the least left.
    fn headers(&self, hits: &[Hit], is_admitted: bool) -> Vec<HeaderValue> {
        let each = hits.iter().filter(|hit| !hit.is_shadow());
        let tightest = if is_admitted {
            each.min_by_key(|hit| hit.standing.remaining)
        } else {
            each.filter(|hit| hit.standing.refuses)
                .max_by_key(|hit| hit.standing.wait.unwrap_or(Duration::MAX))
        };
        let Some(Hit {
            found, standing, ..
        }) = tightest.filter(|_| self.has_headers)
        else {
            return Vec::new();
        };
        let header = |key: &str, value: u64| HeaderValue {
            key: key.to_owned(),
            value: value.to_string(),
            raw_value: Vec::new(),
        };
        let limit = found.shown.requests_per_unit.into();
        let wait = standing.wait.filter(|_| !is_admitted);
        let wait = wait.map(|wait| header("Retry-After", seconds(wait)));
        let headers = [
            header("RateLimit-Limit", limit),
            header("RateLimit-Remaining", standing.remaining),
            header("RateLimit-Reset", seconds(standing.reset)),
        ];
        headers.into_iter().chain(wait).collect()
    }
}

use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::HeaderValue;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tonic::Status;

use crate::by_rules;

use super::ask::Inquiry;
use super::hit::{Hit, seconds};
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
            hit.count();
            for descriptor in &hit.descriptors {
                statuses[*descriptor] = hit.status();
            }
        }
        let code = if is_admitted {
            Code::Ok
        } else {
            Code::OverLimit
        };
        Ok(RateLimitResponse {
            overall_code: code.into(),
            statuses,
            response_headers_to_add: if self.has_headers {
                headers(&hits, is_admitted)
            } else {
                Vec::new()
            },
            dynamic_metadata: self.has_metadata.then(|| metadata::of(request, &hits)),
            ..RateLimitResponse::default()
        })
    }
}

/// The headers of the hit that refuses for the longest, or that has the least left.
fn headers(hits: &[Hit], is_admitted: bool) -> Vec<HeaderValue> {
    let each = hits.iter().filter(|hit| !hit.is_shadow());
    let tightest = if is_admitted {
        each.min_by_key(|hit| hit.standing.remaining)
    } else {
        each.filter(|hit| hit.standing.refuses)
            .max_by_key(|hit| hit.standing.wait.unwrap_or(Duration::MAX))
    };
    let Some(Hit {
        found, standing, ..
    }) = tightest
    else {
        return Vec::new();
    };
    let header = |key: &str, value: u64| HeaderValue {
        key: key.to_owned(),
        value: value.to_string(),
        raw_value: Vec::new(),
    };
    let mut headers = Vec::with_capacity(4);
    headers.push(header(
        "RateLimit-Limit",
        found.shown.requests_per_unit.into(),
    ));
    headers.push(header("RateLimit-Remaining", standing.remaining));
    headers.push(header("RateLimit-Reset", seconds(standing.reset)));
    if let Some(wait) = standing.wait.filter(|_| !is_admitted) {
        headers.push(header("Retry-After", seconds(wait)));
    }
    headers
}

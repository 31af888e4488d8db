use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::HeaderValue;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tonic::Status;

use crate::by_rules;

use super::ask::{Demand, Inquiry};
use super::hit::Hit;
use super::{Service, metadata};

impl Service {
    /// Decides all descriptors of a request, and charges all of them or none.
    pub async fn answer(&self, request: &RateLimitRequest) -> Result<RateLimitResponse, Status> {
        if let Some(rules) = self.by_rules.get(&request.domain) {
            return by_rules::answer(rules, request).await;
        }
        let limits = self.in_force();
        let mut asked = Inquiry::new(&limits, request)?;
        let is_admitted = self.decide(&limits, &mut asked.hits).await?;
        let statuses = asked.descriptors.iter().map(|asks| match asks {
            Demand::Nothing => DescriptorStatus {
                code: Code::Ok.into(),
                ..DescriptorStatus::default()
            },
            Demand::Unlimited => DescriptorStatus {
                code: Code::Ok.into(),
                limit_remaining: u32::MAX,
                ..DescriptorStatus::default()
            },
            Demand::Hit(hit) => status(&asked.hits[*hit]),
        });
        let mut response = RateLimitResponse {
            statuses: statuses.collect(),
            ..RateLimitResponse::default()
        };
        response.set_overall_code(if is_admitted {
            Code::Ok
        } else {
            Code::OverLimit
        });
        if self.has_headers {
            response.response_headers_to_add = headers(&asked.hits, is_admitted);
        }
        if self.has_metadata {
            response.dynamic_metadata = Some(metadata::of(request, &asked, &response.statuses));
        }
        asked.hits.iter().for_each(Hit::count);
        Ok(response)
    }
}

/// What a client may read of a hit: a limit that only watches has not refused it.
fn status(hit: &Hit) -> DescriptorStatus {
    let standing = hit.standing;
    let is_over = standing.refuses && !hit.found.is_shadow();
    let code = if is_over { Code::OverLimit } else { Code::Ok };
    DescriptorStatus {
        code: code.into(),
        current_limit: Some(hit.found.shown.clone()),
        limit_remaining: u32::try_from(standing.remaining).unwrap_or(u32::MAX),
        duration_until_reset: Some(envoy_types::pb::google::protobuf::Duration {
            seconds: i64::try_from(seconds(standing.reset)).unwrap_or(i64::MAX),
            nanos: 0,
        }),
        ..DescriptorStatus::default()
    }
}

/// Whole seconds, after which the wait is over.
fn seconds(wait: Duration) -> u64 {
    wait.as_secs() + u64::from(wait.subsec_nanos() > 0)
}

/// The headers of the hit that refuses for the longest, or that has the least left.
fn headers(hits: &[Hit], is_admitted: bool) -> Vec<HeaderValue> {
    let each = hits.iter().filter(|hit| !hit.found.is_shadow());
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
    let mut headers = vec![
        ("RateLimit-Limit", u64::from(found.shown.requests_per_unit)),
        ("RateLimit-Remaining", standing.remaining),
        ("RateLimit-Reset", seconds(standing.reset)),
    ];
    if let Some(wait) = standing.wait.filter(|_| !is_admitted) {
        headers.push(("Retry-After", seconds(wait)));
    }
    let header = |(key, value): (&str, u64)| HeaderValue {
        key: key.to_owned(),
        value: value.to_string(),
        raw_value: Vec::new(),
    };
    headers.into_iter().map(header).collect()
}

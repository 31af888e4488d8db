//! Domains whose limits are in rule files: the entries of a request's descriptors are the headers of
//! the request that the rules see.

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, Request, StatusCode};
use envoy_types::pb::envoy::config::core::v3::HeaderValue as Added;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tonic::Status;

use crate::check::Check;

/// The hits of a request, which rules name as a cost.
#[derive(Clone, Copy)]
pub struct RequestHits(pub u64);

/// Decides a request by the rules of its domain.
pub async fn answer(
    rules: &Check,
    request: &RateLimitRequest,
) -> Result<RateLimitResponse, Status> {
    let response = rules.decide(described(request)?).await;
    let code = match response.status() {
        StatusCode::OK => Code::Ok,
        StatusCode::SERVICE_UNAVAILABLE => {
            return Err(Status::unavailable("the store did not decide"));
        }
        _ => Code::OverLimit,
    };
    let status = DescriptorStatus {
        code: code.into(),
        ..DescriptorStatus::default()
    };
    let added = |(name, value): (&HeaderName, &HeaderValue)| {
        let is_of_limits = name == "retry-after" || name.as_str().contains("ratelimit");
        is_of_limits.then(|| Added {
            key: name.to_string(),
            value: String::from_utf8_lossy(value.as_bytes()).into_owned(),
            raw_value: Vec::new(),
        })
    };
    Ok(RateLimitResponse {
        overall_code: code.into(),
        statuses: vec![status; request.descriptors.len()],
        response_headers_to_add: response.headers().iter().filter_map(added).collect(),
        ..RateLimitResponse::default()
    })
}

/// The request that rules see. Of two entries of one key, the first counts.
fn described(request: &RateLimitRequest) -> Result<Request<Body>, Status> {
    let mut described = Request::new(Body::empty());
    for entry in request
        .descriptors
        .iter()
        .flat_map(|descriptor| &descriptor.entries)
    {
        let bytes = entry.value.as_bytes();
        let fits = match entry.key.trim_start_matches(':') {
            "method" => {
                let method = bytes.try_into();
                method
                    .map(|method| *described.method_mut() = method)
                    .is_ok()
            }
            "path" => {
                let path = bytes.try_into();
                path.map(|path| *described.uri_mut() = path).is_ok()
            }
            key => {
                let key = if key == "authority" { "host" } else { key };
                let header = key.parse::<HeaderName>().ok();
                let header = header.zip(HeaderValue::from_bytes(bytes).ok());
                header
                    .map(|(name, value)| described.headers_mut().entry(name).or_insert(value))
                    .is_some()
            }
        };
        if !fits {
            let key = &entry.key;
            let message = format!("the key or the value of {key:?} cannot be a header's");
            return Err(Status::invalid_argument(message));
        }
    }
    let hits = u64::from(request.hits_addend.max(1));
    described.extensions_mut().insert(RequestHits(hits));
    Ok(described)
}

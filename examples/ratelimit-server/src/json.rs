//! The request and the answer as JSON, as protobuf maps them.

use axum::Json;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::http::{HeaderName, StatusCode};
use axum::response::{IntoResponse, Response};
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry as EntryMessage, RateLimitOverride,
};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use envoy_types::pb::google::protobuf::UInt64Value;
use serde::de::{Deserialize, Deserializer, Error};
use serde_json::{Value, json};

use crate::limits::Unit;
use crate::service::{Service, without_null};

#[derive(Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Request {
    domain: String,
    descriptors: Vec<Descriptor>,
    #[serde(alias = "hits_addend")]
    hits_addend: u32,
}

#[derive(Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct Descriptor {
    entries: Vec<Entry>,
    limit: Option<Limit>,
    #[serde(alias = "hits_addend", deserialize_with = "number")]
    hits_addend: Option<UInt64Value>,
    #[serde(alias = "is_negative_hits")]
    is_negative_hits: bool,
}

#[derive(Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Entry {
    key: String,
    value: String,
}

#[derive(Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct Limit {
    #[serde(alias = "requests_per_unit")]
    requests_per_unit: u32,
    unit: String,
}

/// Numbers of 64 bits are texts in protobuf's JSON.
fn number<'de, D: Deserializer<'de>>(json: D) -> Result<Option<UInt64Value>, D::Error> {
    let written = match Value::deserialize(json)? {
        Value::Null => return Ok(None),
        Value::String(text) => text,
        other => other.to_string(),
    };
    let number = written.parse().map(|value| Some(UInt64Value { value }));
    number.map_err(|_| Error::custom(format!("hitsAddend is {written:?}: write a number")))
}

/// `POST /json`
pub async fn answer(
    State(service): State<Service>,
    body: Result<Json<Request>, JsonRejection>,
) -> Response {
    let error =
        |status: StatusCode, message: &str| (status, message.to_owned() + "\n").into_response();
    let request = match body {
        Ok(Json(request)) => RateLimitRequest::from(request),
        Err(wrong) => return error(StatusCode::BAD_REQUEST, &wrong.body_text()),
    };
    match service.answer(&request).await {
        Ok(answer) => written(&answer),
        Err(wrong) if wrong.code() == tonic::Code::InvalidArgument => {
            error(StatusCode::BAD_REQUEST, wrong.message())
        }
        Err(failed) => error(StatusCode::INTERNAL_SERVER_ERROR, failed.message()),
    }
}

impl From<Request> for RateLimitRequest {
    fn from(request: Request) -> Self {
        let entry = |Entry { key, value }| EntryMessage { key, value };
        let limit = |limit: Limit| RateLimitOverride {
            requests_per_unit: limit.requests_per_unit,
            unit: Unit::named(&limit.unit).map_or(0, Unit::number),
        };
        let descriptor = |descriptor: Descriptor| RateLimitDescriptor {
            entries: descriptor.entries.into_iter().map(entry).collect(),
            limit: descriptor.limit.map(limit),
            hits_addend: descriptor.hits_addend,
            is_negative_hits: descriptor.is_negative_hits,
        };
        Self {
            domain: request.domain,
            descriptors: request.descriptors.into_iter().map(descriptor).collect(),
            hits_addend: request.hits_addend,
        }
    }
}

fn written(answer: &RateLimitResponse) -> Response {
    let headers = answer.response_headers_to_add.iter();
    let shown = headers.map(|header| json!({ "key": header.key, "value": header.value }));
    let shown: Vec<_> = shown.collect();
    let body = without_null(json!({
        "overallCode": answer.overall_code().as_str_name(),
        "statuses": answer.statuses.iter().map(status).collect::<Vec<_>>(),
        "responseHeadersToAdd": (!shown.is_empty()).then_some(shown),
    }));
    let code = match answer.overall_code() {
        Code::Ok => StatusCode::OK,
        _ => StatusCode::TOO_MANY_REQUESTS,
    };
    let mut response = (code, Json(body)).into_response();
    for header in &answer.response_headers_to_add {
        if let (Ok(name), Ok(value)) = (header.key.parse::<HeaderName>(), header.value.parse()) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

fn status(status: &DescriptorStatus) -> Value {
    let limit = status.current_limit.as_ref().map(|limit| {
        without_null(json!({
            "name": (!limit.name.is_empty()).then_some(&limit.name),
            "requestsPerUnit": limit.requests_per_unit,
            "unit": limit.unit().as_str_name(),
        }))
    });
    let reset = status.duration_until_reset.as_ref();
    without_null(json!({
        "code": status.code().as_str_name(),
        "currentLimit": limit,
        "limitRemaining": (status.limit_remaining > 0).then_some(status.limit_remaining),
        "durationUntilReset": reset.map(|reset| format!("{}s", reset.seconds)),
    }))
}

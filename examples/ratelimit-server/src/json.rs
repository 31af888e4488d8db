//! The request and the answer as JSON, as protobuf maps them.

use axum::Json;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    self, RateLimitOverride,
};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use envoy_types::pb::google::protobuf::UInt64Value;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::limits::Unit;
use crate::service::Service;

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
#[derive(Default)]
pub struct Request {
    domain: String,
    descriptors: Vec<Descriptor>,
    #[serde(alias = "hits_addend")]
    hits_addend: u32,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct Descriptor {
    entries: Vec<Entry>,
    limit: Option<Limit>,
    #[serde(alias = "hits_addend")]
    hits_addend: Option<Hits>,
    #[serde(alias = "is_negative_hits")]
    is_negative_hits: bool,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Entry {
    key: String,
    value: String,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct Limit {
    #[serde(alias = "requests_per_unit")]
    requests_per_unit: u32,
    unit: String,
}

/// Numbers of 64 bits are texts in protobuf's JSON.
#[derive(Deserialize)]
#[serde(untagged)]
enum Hits {
    Number(u64),
    Text(String),
}

/// `POST /json`
pub async fn answer(
    State(service): State<Service>,
    body: Result<Json<Request>, JsonRejection>,
) -> Response {
    let error =
        |status: StatusCode, message: &str| (status, message.to_owned() + "\n").into_response();
    let request = match body
        .map_err(|wrong| wrong.body_text())
        .and_then(|Json(request)| request.read())
    {
        Ok(request) => request,
        Err(wrong) => return error(StatusCode::BAD_REQUEST, &wrong),
    };
    match service.answer(&request).await {
        Ok(answer) => written(&answer),
        Err(wrong) if wrong.code() == tonic::Code::InvalidArgument => {
            error(StatusCode::BAD_REQUEST, wrong.message())
        }
        Err(failed) => error(StatusCode::INTERNAL_SERVER_ERROR, failed.message()),
    }
}

impl Request {
    fn read(self) -> Result<RateLimitRequest, String> {
        let descriptors: Result<_, String> =
            self.descriptors.into_iter().map(Descriptor::read).collect();
        Ok(RateLimitRequest {
            domain: self.domain,
            descriptors: descriptors?,
            hits_addend: self.hits_addend,
        })
    }
}

impl Descriptor {
    fn read(self) -> Result<RateLimitDescriptor, String> {
        let entry = |Entry { key, value }| rate_limit_descriptor::Entry { key, value };
        let hits = self.hits_addend.map(|hits| match hits {
            Hits::Number(hits) => Ok(hits),
            Hits::Text(text) => text
                .parse()
                .map_err(|_| format!("hitsAddend is {text:?}: write a number")),
        });
        let limit = self.limit.map(|limit| RateLimitOverride {
            requests_per_unit: limit.requests_per_unit,
            unit: Unit::named(&limit.unit).map_or(0, Unit::number),
        });
        Ok(RateLimitDescriptor {
            entries: self.entries.into_iter().map(entry).collect(),
            limit,
            hits_addend: hits.transpose()?.map(|value| UInt64Value { value }),
            is_negative_hits: self.is_negative_hits,
        })
    }
}

fn written(answer: &RateLimitResponse) -> Response {
    let mut body = json!({
        "overallCode": answer.overall_code().as_str_name(),
        "statuses": answer.statuses.iter().map(status).collect::<Vec<_>>(),
    });
    let headers = answer.response_headers_to_add.iter();
    let headers: Vec<_> = headers
        .map(|header| json!({ "key": header.key, "value": header.value }))
        .collect();
    if !headers.is_empty() {
        body["responseHeadersToAdd"] = Value::Array(headers);
    }
    let code = if answer.overall_code() == Code::Ok {
        StatusCode::OK
    } else {
        StatusCode::TOO_MANY_REQUESTS
    };
    let mut response = (code, Json(body)).into_response();
    for header in &answer.response_headers_to_add {
        if let (Ok(name), Ok(value)) = (
            header.key.parse::<axum::http::HeaderName>(),
            header.value.parse(),
        ) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

fn status(status: &DescriptorStatus) -> Value {
    let mut shown = json!({ "code": status.code().as_str_name() });
    if let Some(limit) = &status.current_limit {
        shown["currentLimit"] = json!({ "requestsPerUnit": limit.requests_per_unit, "unit": limit.unit().as_str_name() });
        if !limit.name.is_empty() {
            shown["currentLimit"]["name"] = json!(limit.name);
        }
    }
    if status.limit_remaining > 0 {
        shown["limitRemaining"] = json!(status.limit_remaining);
    }
    if let Some(reset) = &status.duration_until_reset {
        shown["durationUntilReset"] = json!(format!("{}s", reset.seconds));
    }
    shown
}

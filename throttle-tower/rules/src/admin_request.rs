//! What a request to the operators' router asks for, and how it is refused.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::IpAddr;

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection, QueryRejection};
use axum::extract::{Path, Query};
use http::request::Parts;
use http::{HeaderName, HeaderValue, Method, Request, StatusCode, Uri};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use throttle_core::BackendError;

use super::handle::Handle;
use throttle_tower::extract::{MatchedRoute, PeerAddr};

pub(super) type Rejection = (StatusCode, Json<Value>);

pub(super) fn refused(status: StatusCode, error: impl Into<Value>) -> Rejection {
    (status, Json(Value::from_iter([("error", error)])))
}

pub(super) fn unknown(name: &str) -> Rejection {
    refused(
        StatusCode::NOT_FOUND,
        format!("there is no limit {name:?}; GET /rules shows which there are"),
    )
}

pub(super) fn failed(error: &BackendError) -> Rejection {
    refused(
        StatusCode::BAD_GATEWAY,
        format!("the store did not answer: {error}"),
    )
}

/// The name of a limit in a path.
pub(super) type Name = Result<Path<String>, PathRejection>;

/// The name, if there is a limit of that name.
pub(super) fn known(handle: &Handle, name: Name) -> Result<String, Rejection> {
    let Path(name) = name.map_err(|error| {
        refused(
            error.status(),
            format!("{}: write a limit's name", error.body_text()),
        )
    })?;
    if handle.rules().limit(&name).is_some() {
        Ok(name)
    } else {
        Err(unknown(&name))
    }
}

pub(super) type Body = Result<Bytes, BytesRejection>;

/// The query of a request about one key.
pub(super) type About = Result<Query<RequestQuery>, QueryRejection>;

#[derive(Deserialize)]
pub(super) struct RequestQuery {
    request: String,
}

const EXAMPLE: &str = "describe the request as in \
    {\"method\": \"POST\", \"uri\": \"/login\", \"peer\": \"203.0.113.9\"}";

pub(super) fn read_body(body: Body) -> Result<Parts, Rejection> {
    head(read_json(body, EXAMPLE)?)
}

pub(super) fn read_json<T: DeserializeOwned>(body: Body, example: &str) -> Result<T, Rejection> {
    let too_long = |error: BytesRejection| {
        refused(
            error.status(),
            format!("{error}: {example}, in at most 64 KiB"),
        )
    };
    parse(&body.map_err(too_long)?, example)
}

/// # Errors
///
/// What cannot be read, and what to write.
fn parse<T: DeserializeOwned>(json: &[u8], example: &str) -> Result<T, Rejection> {
    serde_json::from_slice(json)
        .map_err(|error| refused(StatusCode::BAD_REQUEST, format!("{error}: {example}")))
}

pub(super) fn read_query(about: About) -> Result<Parts, Rejection> {
    let refusal = |error: QueryRejection| {
        refused(
            error.status(),
            format!("{}: write ?request=…, and {EXAMPLE}", error.body_text()),
        )
    };
    head(parse(about.map_err(refusal)?.request.as_bytes(), EXAMPLE)?)
}

/// A request, as far as limits read it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RequestDescription {
    #[serde(default)]
    method: Option<String>,
    uri: String,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    #[serde(default)]
    peer: Option<IpAddr>,
    #[serde(default)]
    route: Option<String>,
}

/// A field that cannot be, and what to write.
pub(super) fn wrong(field: &str, value: impl Display, rule: &str) -> Rejection {
    refused(
        StatusCode::BAD_REQUEST,
        format!("{field} is {value}: {rule}"),
    )
}

pub(super) fn head(described: RequestDescription) -> Result<Parts, Rejection> {
    let RequestDescription {
        method,
        uri,
        headers,
        peer,
        route,
    } = described;
    let wrong =
        |field: &str, value: &str, rule: &str| wrong(field, format_args!("{value:?}"), rule);
    let method = method.unwrap_or_else(|| "GET".to_owned());
    let (mut head, ()) = Request::new(()).into_parts();
    head.method = Method::from_bytes(method.as_bytes()).map_err(|_| {
        wrong(
            "method",
            &method,
            "it must be a method of HTTP, as in \"POST\"",
        )
    })?;
    // A word without a slash would be the name of a host.
    let parsed = uri.parse::<Uri>().ok().filter(|uri| !uri.path().is_empty());
    head.uri = parsed.ok_or_else(|| {
        wrong(
            "uri",
            &uri,
            "it must be a path, as in \"/login?a=1\", or a URI",
        )
    })?;
    for (name, value) in &headers {
        let header = (
            HeaderName::from_bytes(name.as_bytes()),
            HeaderValue::from_str(value),
        );
        let (Ok(name), Ok(value)) = header else {
            return Err(wrong(
                "headers",
                name,
                "it and its value must be possible in a header",
            ));
        };
        head.headers.append(name, value);
    }
    if let Some(peer) = peer {
        head.extensions.insert(PeerAddr(peer));
    }
    if let Some(route) = route {
        head.extensions.insert(MatchedRoute(route.into()));
    }
    Ok(head)
}

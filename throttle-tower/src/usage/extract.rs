use std::convert::Infallible;
use std::fmt;

use axum::extract::{FromRequestParts, OptionalFromRequestParts};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::request::Parts;

use super::{Usage, UsageError};
use crate::log;

/// A handler asked for a [`Usage`], but no throttle with a limit that is [settled later](crate::Limit::settled_later) has
/// let the request through: status 500.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MissingUsage;

impl fmt::Display for MissingUsage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "nothing was charged that could be settled; give a limit of the route's ThrottleLayer .settled_later(), or \
             take an Option<Usage>",
        )
    }
}

impl std::error::Error for MissingUsage {}

impl IntoResponse for MissingUsage {
    /// Status 500 without a body. What is missing goes into the log, for it is none of the client's business.
    fn into_response(self) -> Response {
        log::error(&self);
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    }
}

impl IntoResponse for UsageError {
    /// Status 500 without a body: the handler has made a mistake, not the client. The mistake goes into the log.
    fn into_response(self) -> Response {
        log::error(&self);
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    }
}

impl<S: Sync> FromRequestParts<S> for Usage {
    type Rejection = MissingUsage;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, MissingUsage> {
        parts.extensions.get().cloned().ok_or(MissingUsage)
    }
}

impl<S: Sync> OptionalFromRequestParts<S> for Usage {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, Infallible> {
        Ok(parts.extensions.get().cloned())
    }
}

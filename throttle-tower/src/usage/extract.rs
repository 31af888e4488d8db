use axum::response::{IntoResponse, Response};
use http::StatusCode;

use super::{Usage, UsageError};
use crate::log;

crate::axum_extractor::extractor! {
    Usage,
    "nothing was charged that could be settled; give a limit of the route's ThrottleLayer \
        .settled_later(), or take an \
     Option<Usage>";
    /// The rejection of a handler that takes a [`Usage`] where the request has none: status 500. A
    /// layer inserts one into each request that it admits, if one of its limits is [settled
    /// later](crate::Limit::settled_later).
    ///
    /// ```
    /// use throttle_tower::Usage;
    /// use throttle_tower::usage::MissingUsage;
    ///
    /// async fn taken(usage: Result<Usage, MissingUsage>) -> Result<String, MissingUsage> {
    ///     Ok(format!("{} taken", usage?.taken("tokens")))
    /// }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// # use axum::extract::FromRequestParts;
    /// # let (mut parts, ()) = http::Request::new(()).into_parts();
    /// # let usage = Usage::from_request_parts(&mut parts, &()).await;
    /// assert!(taken(usage).await.is_err(), "there is no layer");
    /// # }
    /// ```
    MissingUsage
}

impl IntoResponse for UsageError {
    /// Status 500 without a body: the handler has made a mistake, not the client. The mistake is
    /// logged.
    fn into_response(self) -> Response {
        log::error(&self);
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    }
}

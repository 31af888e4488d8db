use std::sync::Arc;

use http::{HeaderMap, Response, StatusCode};

use super::warning::Watch;
use crate::headers::{Dialect, SdkHints};

/// What shapes the responses, those of the inner service too.
#[derive(Clone, Default)]
pub(crate) struct ResponseOptions {
    pub(crate) dialect: Dialect,
    pub(super) hide_headers: Option<HideHeaders>,
    pub(crate) sdk_hints: Option<SdkHints>,
    pub(super) report_in: ReportIn,
    pub(super) watch: Watch,
}

pub(super) type HideHeaders = Arc<dyn Fn(StatusCode, &HeaderMap) -> bool + Send + Sync>;

impl ResponseOptions {
    /// Whether a response goes without the rate-limit headers.
    pub(super) fn hides<Body>(&self, response: &Response<Body>) -> bool {
        self.hide_headers
            .as_ref()
            .is_some_and(|hide| hide(response.status(), response.headers()))
    }
}

/// Where the [`LimitReport`](crate::LimitReport) of a request is found: see
/// [`report_in`](crate::ThrottleBuilder::report_in).
///
/// ```
/// use http::{Request, Response};
/// use throttle_tower::{Constant, Gcra, LimitReport, Rate, ReportIn, ThrottleLayer, limit};
/// use tower::{Layer, ServiceExt, service_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// for (report_in, expected) in [
///     (ReportIn::Nowhere, [false, false]),
///     (ReportIn::Request, [true, false]),
///     (ReportIn::Both, [true, true]),
/// ] {
///     let limits = limit("all", Gcra::new(Rate::per_second(5))).by(Constant);
///     let throttle = ThrottleLayer::builder(limits).report_in(report_in).build()?;
///     let service = throttle.layer(service_fn(async |request: Request<()>| {
///         let in_request = request.extensions().get::<LimitReport>().is_some();
///         Ok::<_, std::convert::Infallible>(Response::new(in_request.to_string()))
///     }));
///     let response = service.oneshot(Request::new(())).await?;
///     let in_response = response.extensions().get::<LimitReport>().is_some();
///     # use http_body_util::BodyExt;
///     let in_request = response.into_body().collect().await?.to_bytes() == "true";
///     assert_eq!([in_request, in_response], expected);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReportIn {
    /// Neither in the request nor in the response, which costs the least.
    ///
    /// A handler that takes a `LimitReport` then answers 500. A throttle inside this one does not
    /// know that its refusals pass through another; this one leaves out `RateLimit` from a response
    /// that has a `Retry-After`.
    Nowhere,
    /// In the extensions of each admitted request, for handlers. A refusal has it in the extensions
    /// of its response if it passes through another throttle that reports, which it knows by the
    /// request's extensions. If a layer between the two drops these, choose `Both` for the inner
    /// one.
    #[default]
    Request,
    /// In the extensions of each response, too, for outer layers.
    Both,
}

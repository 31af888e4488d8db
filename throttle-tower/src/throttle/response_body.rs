//! Which bodies a throttle returns as they are, and which it wraps.

use bytes::Bytes;
use http::Response;
use http_body_util::combinators::{BoxBody, UnsyncBoxBody};
use http_body_util::{Empty, Full, StreamBody};

use super::body::ThrottleBody;
use super::request_guard::RequestGuard;

/// The body of a response that a throttle returns.
///
/// A throttle holds the permits and the open charges of a request until the body of its response
/// ends. A boxed body can do that itself, so the response has the type that the inner service gave
/// it: axum's `Body` (with the feature `axum`), tonic's (with `tonic`), and the boxed bodies of
/// `http-body-util`. A layer that may be left out compiles with them:
///
/// ```
/// # #[cfg(feature = "axum")] {
/// use axum::{Router, routing::get};
/// use throttle_tower::{Constant, Gcra, Rate, ThrottleLayer, limit};
/// use tower::ServiceBuilder;
///
/// let limits = limit("all", Gcra::new(Rate::per_second(5))).by(Constant);
/// let throttle = std::env::var_os("UNLIMITED").is_none().then(|| ThrottleLayer::new(limits));
/// let throttle = throttle.transpose()?;
/// assert!(throttle.is_some());
/// let app: Router = Router::new()
///     .route("/", get(async || "hello"))
///     .layer(ServiceBuilder::new().option_layer(throttle));
/// # }
/// # Ok::<(), throttle_tower::ConfigError>(())
/// ```
///
/// Some other bodies become a [`ThrottleBody`]. For all that remain, wrap the responses of the
/// inner service with [`ThrottleBody::wrap`].
#[diagnostic::on_unimplemented(
    message = "a throttle cannot return a response with the body `{Self}` as it is",
    label = "this body cannot hold a permit until it ends",
    note = "wrap it: `ServiceBuilder::new().layer(throttle).map_response(ThrottleBody::wrap)`, or \
        `throttle.layer(inner.map_response(ThrottleBody::wrap))` with tower's `ServiceExt`",
    note = "the bodies of axum and tonic need no call if the feature `axum` or `tonic` of \
        tower-throttle is enabled"
)]
pub trait ResponseBody: Sized {
    /// What a throttle returns: this type, or a [`ThrottleBody`] of it.
    type Throttled: From<ThrottleBody<Self>>;
}

/// The response of the inner service, which holds this until its body ends.
pub(crate) fn passed<B: ResponseBody>(
    response: Response<B>,
    guard: RequestGuard,
) -> Response<B::Throttled> {
    response.map(|body| ThrottleBody::inner(body, guard).into())
}

/// The response of a refusal.
pub(crate) fn refused<B: ResponseBody>(response: Response<Bytes>) -> Response<B::Throttled> {
    response.map(|body| ThrottleBody::refusal(body).into())
}

impl ResponseBody for () {
    type Throttled = ThrottleBody<Self>;
}

impl ResponseBody for Bytes {
    type Throttled = ThrottleBody<Self>;
}

impl ResponseBody for String {
    type Throttled = ThrottleBody<Self>;
}

impl ResponseBody for &'static str {
    type Throttled = ThrottleBody<Self>;
}

impl<D> ResponseBody for Empty<D> {
    type Throttled = ThrottleBody<Self>;
}

impl<D> ResponseBody for Full<D> {
    type Throttled = ThrottleBody<Self>;
}

impl<S> ResponseBody for StreamBody<S> {
    type Throttled = ThrottleBody<Self>;
}

impl<B> ResponseBody for ThrottleBody<B> {
    type Throttled = Self;
}

impl<E: 'static> ResponseBody for BoxBody<Bytes, E> {
    type Throttled = Self;
}

impl<E: 'static> From<ThrottleBody<Self>> for BoxBody<Bytes, E> {
    fn from(body: ThrottleBody<Self>) -> Self {
        match body.into_inner() {
            Ok(body) => body,
            Err(holding) => Self::new(holding),
        }
    }
}

impl<E: 'static> ResponseBody for UnsyncBoxBody<Bytes, E> {
    type Throttled = Self;
}

impl<E: 'static> From<ThrottleBody<Self>> for UnsyncBoxBody<Bytes, E> {
    fn from(body: ThrottleBody<Self>) -> Self {
        match body.into_inner() {
            Ok(body) => body,
            Err(holding) => Self::new(holding),
        }
    }
}

#[cfg(feature = "axum")]
impl ResponseBody for axum::body::Body {
    type Throttled = Self;
}

#[cfg(feature = "axum")]
impl From<ThrottleBody<Self>> for axum::body::Body {
    fn from(body: ThrottleBody<Self>) -> Self {
        match body.into_inner() {
            Ok(body) => body,
            Err(holding) => Self::new(holding),
        }
    }
}

#[cfg(feature = "tonic")]
impl ResponseBody for tonic::body::Body {
    type Throttled = Self;
}

#[cfg(feature = "tonic")]
impl From<ThrottleBody<Self>> for tonic::body::Body {
    fn from(body: ThrottleBody<Self>) -> Self {
        match body.into_inner() {
            Ok(body) => body,
            Err(holding) => Self::new(holding),
        }
    }
}

use std::fmt;

use http::{HeaderMap, Response, StatusCode};

/// Where a shaper looks for what an upstream says about its limits.
///
/// [`IgnoreUpstream`] by default; [`HttpHead`] after [`obey_upstream`](crate::ShapeLayer::obey_upstream), [`HeadOf`] after
/// [`obey_upstream_of`](crate::ShapeLayer::obey_upstream_of).
#[diagnostic::on_unimplemented(
    message = "an upstream's limits cannot be read from `{Res}` this way",
    label = "`.obey_upstream()` reads an `http::Response`",
    note = "for a response of another type say where its head is: \
            `.obey_upstream_of(|response: &reqwest::Response| (response.status(), response.headers()))`"
)]
pub trait UpstreamHead<Res>: Clone {
    /// Whether it looks at all.
    const LOOKS: bool = true;

    /// The response's status and fields.
    fn head<'a>(&self, response: &'a Res) -> Option<(StatusCode, &'a HeaderMap)>;
}

/// Looks nowhere: responses may be of any type.
#[derive(Clone, Copy, Debug, Default)]
pub struct IgnoreUpstream;

impl<Res> UpstreamHead<Res> for IgnoreUpstream {
    const LOOKS: bool = false;

    fn head<'a>(&self, _: &'a Res) -> Option<(StatusCode, &'a HeaderMap)> {
        None
    }
}

/// Looks at the head of an `http::Response`.
#[derive(Clone, Copy, Debug, Default)]
pub struct HttpHead;

impl<Body> UpstreamHead<Response<Body>> for HttpHead {
    fn head<'a>(&self, response: &'a Response<Body>) -> Option<(StatusCode, &'a HeaderMap)> {
        Some((response.status(), response.headers()))
    }
}

/// Looks where a function says.
pub struct HeadOf<Res>(pub(super) fn(&Res) -> (StatusCode, &HeaderMap));

impl<Res> UpstreamHead<Res> for HeadOf<Res> {
    fn head<'a>(&self, response: &'a Res) -> Option<(StatusCode, &'a HeaderMap)> {
        Some((self.0)(response))
    }
}

impl<Res> Clone for HeadOf<Res> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<Res> Copy for HeadOf<Res> {}

impl<Res> fmt::Debug for HeadOf<Res> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HeadOf")
    }
}

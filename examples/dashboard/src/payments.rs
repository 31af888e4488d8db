//! Calls to a payment service, paced so that they stay within its limit.

use std::convert::Infallible;
use std::time::Duration;

use axum::http::{Request, Response, StatusCode};
use throttle_tower::shape::ShapeError;
use throttle_tower::{ConfigError, Pace, Rate, ShapeLayer};
use tower::util::BoxCloneSyncService;
use tower::{Layer, ServiceExt, service_fn};

pub type Call = Request<()>;

/// A client of the service. Clones share the pace.
#[derive(Clone)]
pub struct Payments(BoxCloneSyncService<Call, Response<()>, ShapeError<Infallible>>);

impl Payments {
    pub fn new() -> Result<Self, ConfigError> {
        let pace = Pace::new(Rate::per_second(10)).max_wait(Duration::from_secs(1));
        let layer = ShapeLayer::new(pace)?.metrics("payments");
        Ok(Self(BoxCloneSyncService::new(
            layer.layer(service_fn(pretend)),
        )))
    }

    /// Pays, when it is this call's turn. A call that would have to wait longer than a second fails
    /// at once.
    pub async fn pay(self) -> StatusCode {
        match self.0.oneshot(Call::default()).await {
            Ok(response) => response.status(),
            Err(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

/// Stands in for the service.
async fn pretend(_: Call) -> Result<Response<()>, Infallible> {
    Ok(Response::new(()))
}

//! Whether clients see that a limit is audited.

/// What responses say of a limit that is [audited](crate::Limit::audit).
///
/// ```
/// use http::{Request, Response};
/// use throttle_tower::{Audit, Constant, FixedWindow, Rate, ThrottleLayer, limit};
/// use tower::{Layer, ServiceExt, service_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// for (audit, is_listed) in [(Audit::Silent, false), (Audit::Announced, true)] {
///     let new = limit("new", FixedWindow::new(Rate::per_day(9))).by(Constant).audit(audit);
///     let service = ThrottleLayer::new(new)?.layer(service_fn(async |_: Request<()>| {
///         Ok::<_, std::convert::Infallible>(Response::new(()))
///     }));
///     let response = service.oneshot(Request::new(())).await?;
///     assert_eq!(response.headers().contains_key("ratelimit"), is_listed);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audit {
    /// Nothing.
    Silent,
    /// Their headers list it among the limits that are enforced. A client that obeys the headers
    /// keeps to the limit before it is enforced.
    Announced,
}

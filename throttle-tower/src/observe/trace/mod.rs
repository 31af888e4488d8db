//! Events and span fields of `tracing`.

mod event_budget;
#[cfg(test)]
mod tests;
mod tracer;

use std::sync::Arc;

pub(crate) use self::event_budget::EventBudget;
use crate::event::{LayerInfo, Observer};
use tracer::Tracer;

/// Logs refusals, what audited limits would refuse, and degraded decisions with `tracing`, under
/// the target `throttle`, and adds the decision to the request's span. Hand it over with
/// [`observe`](crate::ThrottleBuilder::observe).
///
/// # Events
///
/// There is one event for each refusal, one for each decision that the store did not make, and
/// one for each audited limit that would have refused a request. An event belongs to the span
/// in which the service was called. None contains a key, a path or a header.
///
/// | level | message | when |
/// |---|---|---|
/// | INFO | `request refused` | a limit refused the request, a required key was missing, or too few permits were free. This is how limits are meant to work, so it is no warning |
/// | INFO | `request would be refused` | an [audited](crate::Limit::audit) limit would have refused the request: the fields are about that limit, and `outcome` says what became of the request |
/// | INFO | `limit nearly used up` | the request's charge has reached the part of a limit that [`warn_at`](crate::Limit::warn_at) says: the fields are about that limit |
/// | WARN | `decided without the store` | the store failed, so this process admitted or refused the request as [`on_error`](crate::OnError) says. A refusal of this kind is logged here only |
///
/// | field | value |
/// |---|---|
/// | `outcome` | the [label](crate::Outcome::label): `refused`, `missing_key`, `no_permit`, `admitted`, `failed_open` or `failed_closed` |
/// | `policy` | the policy that [decided](crate::Event::binding); if too few permits were free, the first limit that lacked them |
/// | `class` | the request's [class](crate::Limit::priority) in that policy, if it has classes |
/// | `limit` | the units that the policy admits at one instant for an unused key |
/// | `remaining` | units that are left of the policy for the request's class |
/// | `retry_after_ms` | of a refusal, also of one by an audited limit, milliseconds until a retry succeeds, rounded up, without jitter; missing if none ever will |
/// | `decided_by` | `store`, `local`, `open` or `closed` |
/// | `why` | if the store failed, the [label](throttle_core::BackendErrorKind::label) of the store's error |
/// | `left_out` | events of this policy and level that were left out since the last one |
///
/// A field that does not apply is missing. In each second, at most ten events of a policy and a
/// message are emitted. The others are left out, and the next event has their number in
/// `left_out`. Decisions without a policy share one such budget.
///
/// # Span fields
///
/// The current span of each request, refused or not, gets the policy that decided as
/// `throttle.policy`, and what is left of it as `throttle.remaining`. The span must declare the
/// fields:
///
/// ```
/// use http::{Request, Response};
/// use throttle_tower::{Constant, Gcra, Rate, ThrottleLayer, Traces, limit};
/// use tower::{Layer, ServiceExt, service_fn};
/// use tracing::{Instrument, field::Empty, info_span};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limits = limit("all", Gcra::new(Rate::per_second(10))).by(Constant);
/// let throttle = ThrottleLayer::builder(limits).observe(Traces::new()).build()?;
/// let service = throttle.layer(service_fn(async |_: Request<()>| {
///     Ok::<_, std::convert::Infallible>(Response::new("hello"))
/// }));
/// let span = info_span!("request", throttle.policy = Empty, throttle.remaining = Empty);
/// // `oneshot` calls the service when it is polled, which is inside of the span.
/// let response = service.oneshot(Request::new(())).instrument(span).await?;
/// assert!(response.status().is_success());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Traces;

impl Traces {
    /// Logs what its layers do.
    #[must_use]
    pub const fn new() -> Self {
        Self
    }
}

impl Observer for Traces {
    fn built(&self, layer: &LayerInfo, _: Option<&LayerInfo>) -> Option<Arc<dyn Observer>> {
        Some(Arc::new(Tracer::new(layer)))
    }
}

use http::{Extensions, Response};

use super::judge::Admitted;
use crate::throttle::in_progress::Held;
use crate::throttle::limit_report::LimitReport;
use crate::throttle::refusal::RefusedByThrottle;

impl Admitted {
    /// Settles what the head of the inner service's response decides, then writes the headers, once. Returns what goes
    /// along with the body.
    ///
    /// Where a throttle inside this one has refused, its refusal stays what it is: `Retry-After` must not be earlier
    /// than the window of any policy that `RateLimit` lists, so the policies that have admitted the request are
    /// announced only.
    pub(in crate::throttle) fn respond<Body>(self, response: &mut Response<Body>) -> Held {
        let Self { headers, late, mut held } = self;
        // Refund rules read the inner service's headers, before the layer adds its own.
        held.answered(response.status(), response.headers());
        let headers = if is_refused(response.extensions()) { headers.beside_a_refusal() } else { headers };
        match late {
            None => headers.write(response.headers_mut()),
            Some(late) => late.respond(headers, response),
        }
        held
    }
}

/// Whether another throttle has refused the request.
#[inline]
fn is_refused(response: &Extensions) -> bool {
    !response.is_empty()
        && (response.get::<LimitReport>().is_some_and(|report| !report.decision().is_admitted())
            || response.get::<RefusedByThrottle>().is_some())
}

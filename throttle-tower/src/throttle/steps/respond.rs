use std::sync::Arc;

use http::Response;
use http::request::Parts;
use throttle_core::backend::Call;
use throttle_core::{Backend, Decision};

use super::judge::Admitted;
use crate::headers::decision_headers::DecisionHeaders;
use crate::throttle::announced::Announced;
use crate::throttle::in_progress::Held;
use crate::throttle::limit_report::LimitReport;
use crate::throttle::refusal::RefusedByThrottle;
use crate::throttle::shared::Shared;

/// Kept until the response, if the layer's options need the decision there.
pub(super) struct Late {
    pub(super) report: LimitReport,
    /// Whether the layer warns if the request succeeds: a key depends on the route, and there is none.
    pub(super) route_is_missing: bool,
}

impl Late {
    /// `None` for most requests: everything that their response needs is in its headers.
    #[inline]
    pub(super) fn of<B: Backend>(
        shared: &Shared<B>,
        announced: &Arc<Announced>,
        decision: &Decision,
        calls: &[Call],
        parts: &Parts,
    ) -> Option<Box<Self>> {
        let options = &announced.options;
        let route_is_missing = shared.uses.routes && options.watch.suspects(&shared.applied, calls, parts);
        let is_needed = route_is_missing || options.hide_headers.is_some() || options.report_in_response;
        is_needed.then(|| {
            let report = LimitReport::new(decision.clone(), Arc::clone(announced));
            Box::new(Self { report, route_is_missing })
        })
    }
}

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
        let is_refused = response.extensions().get::<RefusedByThrottle>().is_some();
        let headers = if is_refused { headers.beside_a_refusal() } else { headers };
        match late {
            None => headers.write(response.headers_mut()),
            Some(late) => late.respond(headers, response),
        }
        held
    }
}

impl Late {
    #[inline(never)]
    fn respond<Body>(self, headers: DecisionHeaders, response: &mut Response<Body>) {
        let options = &self.report.announced().options;
        if self.route_is_missing {
            options.watch.confirm(response.status());
        }
        if !options.hides(response) {
            headers.write(response.headers_mut());
        }
        // An inner throttle's report stays: it either refused, or is nearer to the handler.
        if options.report_in_response && response.extensions().get::<LimitReport>().is_none() {
            response.extensions_mut().insert(self.report);
        }
    }
}

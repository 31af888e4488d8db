use std::sync::Arc;

use http::Response;
use http::request::Parts;
use throttle_core::backend::Call;
use throttle_core::{Backend, Decision};

use crate::headers::decision_headers::DecisionHeaders;
use crate::throttle::announced::Announced;
use crate::throttle::limit_report::LimitReport;
use crate::throttle::shared::Shared;

/// Kept until the response, if the layer's options need the decision there.
pub(super) struct Late {
    report: LimitReport,
    /// Whether the layer warns if the request succeeds: a limit depends on the route, and there is none.
    route_is_missing: bool,
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
        let route_is_missing = shared.uses.routes && options.watch.suspects(shared.uses, &shared.applied, calls, parts);
        let is_needed = route_is_missing || options.hide_headers.is_some() || options.report_in_response;
        is_needed.then(|| {
            let report = LimitReport::new(decision.clone(), Arc::clone(announced));
            Box::new(Self { report, route_is_missing })
        })
    }

    #[inline(never)]
    pub(super) fn respond<Body>(self, headers: DecisionHeaders, response: &mut Response<Body>) {
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

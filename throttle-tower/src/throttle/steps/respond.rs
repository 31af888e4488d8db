use http::Response;

use super::judge::Admitted;
use super::write_headers::write_headers;
use crate::throttle::in_progress::Held;

impl Admitted {
    /// Settles what the head of the inner service's response decides, then writes the headers. Returns what goes along
    /// with the body.
    pub(in crate::throttle) fn respond<Body>(mut self, response: &mut Response<Body>) -> Held {
        // Refund rules read the inner service's headers, before the layer adds its own.
        self.held.answered(response.status(), response.headers());
        if self.route_is_missing {
            self.report.announced().options.watch.confirm(response.status());
        }
        write_headers(self.report, response, 0);
        self.held
    }
}

use http::{Extensions, Response};

use super::judge::AdmittedRequest;
use super::write_headers::{write_admitted, write_settled};
use crate::throttle::limit_report::LimitReport;
use crate::throttle::refusal::RefusedByThrottle;
use crate::throttle::request_guard::RequestGuard;

impl AdmittedRequest {
    /// Settles what the head of the inner service's response decides, then writes the headers,
    /// once. Returns what goes along with the body.
    ///
    /// Where a throttle inside this one has refused, its refusal stays what it is: `Retry-After`
    /// must not be earlier than the window of any policy that `RateLimit` lists, so the policies
    /// that have admitted the request are announced only.
    #[inline]
    pub(in crate::throttle) fn respond<Body>(self, response: &mut Response<Body>) -> RequestGuard {
        let Self {
            report,
            route_is_missing,
            mut guard,
        } = self;
        // Refund rules read the inner service's headers, before the layer adds its own.
        let standings = guard.answered(response.status(), response.headers());
        let Some(report) = report else { return guard };
        let options = &report.announced().options;
        if route_is_missing {
            options.watch.confirm(response.status());
        }
        if !options.hides(response) {
            let is_refused = is_refused(response.extensions());
            match standings {
                None => write_admitted(&report, response.headers_mut(), is_refused),
                Some(now) => write_settled(&report, &now, response.headers_mut(), is_refused),
            }
        }
        // An inner throttle's report stays: it either refused, or is nearer to the handler.
        if options.report_in_response && response.extensions().get::<LimitReport>().is_none() {
            response.extensions_mut().insert(report);
        }
        guard
    }
}

/// Whether another throttle has refused the request.
#[inline]
fn is_refused(response: &Extensions) -> bool {
    !response.is_empty()
        && (response
            .get::<LimitReport>()
            .is_some_and(|report| !report.decided().is_admitted())
            || response.get::<RefusedByThrottle>().is_some())
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::Request;
    use throttle_core::{Gcra, Rate};
    use tower::{Layer, ServiceExt, service_fn};

    use super::*;
    use crate::{Constant, ThrottleLayer, limit};

    fn layer(name: &str, count: u64) -> ThrottleLayer {
        let per_hour = limit(name, Gcra::new(Rate::per_hour(count)).burst(count)).by(Constant);
        ThrottleLayer::builder(per_hour)
            .report_in_response(true)
            .build()
            .unwrap()
    }

    /// Of a response that the inner service marks.
    async fn has_ratelimit_header(mark: impl FnOnce(&mut Extensions) + Clone) -> bool {
        let inner = service_fn(move |_: Request<()>| {
            let mut response = Response::new(());
            mark.clone()(response.extensions_mut());
            async { Ok::<_, Infallible>(response) }
        });
        let response = layer("outer", 9)
            .layer(inner)
            .oneshot(Request::new(()))
            .await
            .unwrap();
        assert!(response.headers().contains_key("ratelimit-policy"));
        response.headers().contains_key("ratelimit")
    }

    /// Services mark their responses for middleware of their own, too.
    #[tokio::test]
    async fn ratelimit_header_is_left_out_only_if_another_throttle_refused() {
        assert!(has_ratelimit_header(|_| ()).await);
        assert!(
            has_ratelimit_header(|extensions| assert!(
                extensions.insert("of the service").is_none()
            ))
            .await
        );
        assert!(
            !has_ratelimit_header(|extensions| assert!(
                extensions.insert(RefusedByThrottle).is_none()
            ))
            .await
        );
        let inner = layer("inner", 1);
        for is_admitted in [true, false] {
            let answer = service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(())));
            let response = inner.layer(answer).oneshot(Request::new(())).await.unwrap();
            let report = response.extensions().get::<LimitReport>().unwrap().clone();
            assert_eq!(report.decision().is_admitted(), is_admitted);
            let has_header =
                has_ratelimit_header(|extensions| assert!(extensions.insert(report).is_none()))
                    .await;
            assert_eq!(has_header, is_admitted);
        }
    }
}

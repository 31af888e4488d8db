use std::mem;

use http::header::RETRY_AFTER;
use http::{Extensions, Response};

use super::judge::AdmittedRequest;
use super::write_headers::write_admitted;
use crate::throttle::limit_report::LimitReport;
use crate::throttle::refusal::RefusedByThrottle;
use crate::throttle::request_guard::RequestGuard;
use crate::throttle::response_options::ReportIn;

impl AdmittedRequest {
    /// Settles what the head of the inner service's response decides, then writes the headers,
    /// once. Returns what goes along with the body.
    ///
    /// Where a throttle inside this one has refused, its refusal stays what it is: `Retry-After`
    /// must not be earlier than the window of any policy that `RateLimit` lists, so the policies
    /// that have admitted the request are announced only.
    #[inline]
    pub(in crate::throttle) fn respond<Body>(
        &mut self,
        response: &mut Response<Body>,
    ) -> RequestGuard {
        let mut guard = mem::take(&mut self.guard);
        // Refund rules read the inner service's headers, before the layer adds its own.
        let standings = guard.answered(response.status(), response.headers());
        let Some(report) = &self.report else {
            return guard;
        };
        let options = &report.announced().options;
        if self.route_is_missing {
            options.watch.confirm(response.status());
        }
        if !options.hides(response) {
            let is_refused = is_refused(response.extensions())
                || options.report_in == ReportIn::Nowhere
                    && response.headers().contains_key(RETRY_AFTER);
            match standings {
                None => write_admitted(report, response.headers_mut(), is_refused),
                Some(now) => (now.write)(report, &now, response.headers_mut(), is_refused),
            }
        }
        // An inner throttle's report stays: it either refused, or is nearer to the handler.
        if options.report_in == ReportIn::Both
            && response.extensions().get::<LimitReport>().is_none()
        {
            response.extensions_mut().insert(report.clone());
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
            .is_some_and(|report| !report.decision().is_admitted())
            || response.get::<RefusedByThrottle>().is_some())
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::Request;
    use throttle_core::{Gcra, Rate};
    use tower::{Layer, ServiceExt, service_fn};

    use super::*;
    use crate::{Constant, Limit, ThrottleBody, ThrottleLayer, limit};

    fn limits(name: &str, count: u64) -> Limit {
        limit(name, Gcra::new(Rate::per_hour(count)).burst(count)).by(Constant)
    }

    fn layer(name: &str, count: u64) -> ThrottleLayer {
        ThrottleLayer::builder(limits(name, count))
            .report_in(ReportIn::Both)
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

    /// A throttle that admits nine requests, around one that admits one.
    async fn stacked(outer: ReportIn, inner: ReportIn) -> [Response<ThrottleBody<()>>; 2] {
        let answer = service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(())));
        let builder = |name, count| ThrottleLayer::builder(limits(name, count));
        let inner = builder("inner", 1).report_in(inner).build().unwrap();
        let outer = builder("outer", 9).report_in(outer).build().unwrap();
        let service = outer.layer(inner.layer(answer));
        let admitted = service.clone().oneshot(Request::new(())).await.unwrap();
        let refused = service.oneshot(Request::new(())).await.unwrap();
        assert_eq!(
            [admitted.status(), refused.status()].map(|it| it.as_u16()),
            [200, 429]
        );
        [admitted, refused]
    }

    /// A client that waits for `Retry-After` would find a longer window in `RateLimit`.
    #[tokio::test]
    async fn refusal_inside_another_throttle_stays_what_it_is_wherever_reports_are() {
        let all = [ReportIn::Nowhere, ReportIn::Request, ReportIn::Both];
        for (outer, inner) in all
            .into_iter()
            .flat_map(|one| all.map(|other| (one, other)))
        {
            let [admitted, refused] = stacked(outer, inner).await;
            let listed = |response: &Response<_>| {
                let lines = response.headers().get_all("ratelimit").iter();
                let lines: Vec<_> = lines.map(|line| line.to_str().unwrap()).collect();
                ["inner", "outer"].map(|name| lines.join(", ").contains(name))
            };
            assert_eq!(listed(&admitted), [true, true], "{outer:?} {inner:?}");
            assert_eq!(listed(&refused), [true, false], "{outer:?} {inner:?}");
            assert!(refused.headers().contains_key(RETRY_AFTER));
        }
    }

    #[tokio::test]
    async fn refusal_carries_its_report_only_if_that_is_set_or_another_throttle_reports() {
        let alone = |report_in| {
            let one = ThrottleLayer::builder(limits("p", 1)).report_in(report_in);
            let answer = service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(())));
            one.build().unwrap().layer(answer)
        };
        for (report_in, is_carried) in [
            (ReportIn::Nowhere, false),
            (ReportIn::Request, false),
            (ReportIn::Both, true),
        ] {
            let service = alone(report_in);
            for is_refused in [false, true] {
                let response = service.clone().oneshot(Request::new(())).await.unwrap();
                assert_eq!(response.status() == 429, is_refused);
                let report = response.extensions().get::<LimitReport>();
                assert_eq!(report.is_some(), is_carried, "{report_in:?} {is_refused}");
            }
            let [_, refused] = stacked(ReportIn::Request, report_in).await;
            let report = refused.extensions().get::<LimitReport>().unwrap();
            assert!(report.violated().eq(["inner"]), "{report_in:?}");
        }
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

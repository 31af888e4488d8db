//! Which requests a limit or a layer applies to.

use std::sync::Arc;

use http::request::Parts;

pub(crate) type Condition = Arc<dyn Fn(&Parts) -> bool + Send + Sync>;

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http::{Request, Response, StatusCode};
    use throttle_core::{Gcra, Key, Rate};
    use tower::{Layer, ServiceExt, service_fn};

    use super::*;
    use crate::extract::from_fn;
    use crate::plans::plans;
    use crate::{
        Constant, InFlight, LimitReport, OnMissing, Permit, ThrottleBuilder, ThrottleLayer, Usage,
        Warning, all, limit,
    };

    /// What was called.
    #[derive(Clone, Default)]
    struct Calls(Arc<AtomicUsize>);

    impl Calls {
        fn count(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A layer of all kinds of limits, and what they, its hooks and its handler call.
    fn everything(calls: &Calls) -> ThrottleBuilder {
        let [key, own, cost, lookup, decided, warned] = [(); 6].map(|()| calls.clone());
        let one = || Gcra::new(Rate::per_hour(1)).burst(1);
        let limits = all((
            limit("keyed", one())
                .by(from_fn(move |_: &Parts| {
                    key.count();
                    None::<Key>
                }))
                .when(move |_: &Parts| {
                    own.count();
                    true
                })
                .cost(move |_: &Parts| {
                    cost.count();
                    1
                })
                .on_missing(OnMissing::Reject(StatusCode::UNAUTHORIZED)),
            limit("later", one())
                .by_async(|_: &Parts| std::future::pending::<Option<Key>>())
                .settled_later(),
            plans("plan", [("free", one())])
                .by(from_fn(|parts: &Parts| Some(parts.uri.path().to_owned())))
                .lookup(move |_| {
                    lookup.count();
                    std::future::ready(Some("free"))
                })
                .unknown("free"),
            limit("in-flight", InFlight::new(1)).by(Constant),
        ));
        ThrottleLayer::builder(limits)
            .report_in(crate::ReportIn::Both)
            .on_decision(move |_| decided.count())
            .on_warning(move |_: &Warning| warned.count())
    }

    /// The handler answers 500 if it finds something of the layer.
    async fn send(layer: &ThrottleLayer, path: &str) -> Response<()> {
        let inner = service_fn(async |request: Request<()>| {
            let found = request.extensions();
            let is_untouched = found.get::<LimitReport>().is_none()
                && found.get::<Usage>().is_none()
                && found.get::<Permit>().is_none();
            let mut response = Response::new(());
            if !is_untouched {
                *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
            }
            Ok::<_, Infallible>(response)
        });
        let request = Request::get(path).body(()).unwrap();
        layer.layer(inner).oneshot(request).await.unwrap().map(drop)
    }

    #[tokio::test]
    async fn requests_for_which_the_condition_is_false_pass_untouched() {
        let (calls, asked) = (Calls::default(), Calls::default());
        let condition = asked.clone();
        let layer = everything(&calls).when(move |parts: &Parts| {
            condition.count();
            parts.uri.path() != "/health"
        });
        let layer = layer.build().unwrap();
        for sent in 1..=3 {
            let response = send(&layer, "/health").await;
            assert_eq!(
                (response.status(), response.headers().len()),
                (StatusCode::OK, 0)
            );
            assert!(response.extensions().get::<LimitReport>().is_none());
            assert_eq!(
                (
                    calls.0.load(Ordering::Relaxed),
                    layer.in_flight("in-flight")
                ),
                (0, Some(0))
            );
            assert_eq!(
                asked.0.load(Ordering::Relaxed),
                sent,
                "once for each request"
            );
        }
        assert_eq!(send(&layer, "/").await.status(), StatusCode::UNAUTHORIZED);
        assert!(calls.0.load(Ordering::Relaxed) > 0);
    }

    #[tokio::test]
    async fn last_condition_that_is_set_counts_also_where_it_is_replaced() {
        let one = limit("one", Gcra::new(Rate::per_hour(1)).burst(1)).by(crate::Constant);
        let builder = ThrottleLayer::builder(one).when(|_: &Parts| true);
        let layer = builder.clone().when(|_: &Parts| false).build().unwrap();
        for _ in 0..4 {
            assert_eq!(send(&layer, "/").await.status(), StatusCode::OK);
        }
        layer.replace_with(builder).unwrap();
        let found = StatusCode::INTERNAL_SERVER_ERROR;
        assert_eq!(
            send(&layer, "/").await.status(),
            found,
            "nothing was charged before, and now the layer applies"
        );
        assert_eq!(
            send(&layer, "/").await.status(),
            StatusCode::TOO_MANY_REQUESTS
        );
    }
}

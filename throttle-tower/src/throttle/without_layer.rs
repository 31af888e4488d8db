//! Responses to decisions that no layer has made: those of a `Limiter` in a handler.

use std::sync::Arc;

use bytes::Bytes;
use http::header::CACHE_CONTROL;
use http::{Response, StatusCode};
use throttle_core::{Decision, PolicySet};

use super::announcement::Announcement;
use super::limit_report::LimitReport;
use super::response_options::ResponseOptions;
use super::steps::write_headers::{write_admitted, write_refused};
use crate::event::LayerInfo;
use crate::headers::{Dialect, Problem};
use crate::uncached::{NO_STORE, uncached};

impl LimitReport {
    /// The report of a decision that the program has made itself, such as that of a
    /// [`Limiter`](throttle_core::Limiter) in a handler, where the key is known only there. `set`
    /// is the set that was decided.
    ///
    /// ```
    /// use throttle_tower::LimitReport;
    /// use throttle_tower::throttle_core::{Gcra, Limiter, Policy, Rate};
    ///
    /// let logins = Limiter::in_memory(Policy::new(
    ///     "per-user",
    ///     Gcra::new(Rate::per_hour(6)).burst(1),
    /// )?)?;
    /// let mut report = LimitReport::of(logins.set(), logins.check("ada", 1));
    /// assert!(
    ///     report.refusal_response::<bytes::Bytes>().is_none(),
    ///     "it is admitted"
    /// );
    ///
    /// report = LimitReport::of(logins.set(), logins.check("ada", 1));
    /// let refused: http::Response<bytes::Bytes> =
    ///     report.refusal_response().expect("there was one unit");
    /// assert_eq!(refused.status(), http::StatusCode::TOO_MANY_REQUESTS);
    /// assert_eq!(refused.headers()["retry-after"], "600");
    /// assert_eq!(refused.headers()["ratelimit"], r#""per-user";r=0;t=600"#);
    /// # Ok::<(), throttle_tower::ConfigError>(())
    /// ```
    ///
    /// It writes down what the set announces, which takes a few microseconds, some more for each
    /// tier.
    #[must_use]
    pub fn of(set: &PolicySet, decision: Decision) -> Self {
        let mut announced =
            Announcement::new(set.policies(), Arc::default(), ResponseOptions::default());
        announced.info = LayerInfo::of_policies(set.policies());
        Self::new(decision, Arc::new(announced))
    }

    /// Sets which headers the responses carry. Defaults to those of the layer that has made the
    /// report; of a report that was made [by hand](Self::of), to [`Dialect::Draft11`].
    ///
    /// ```
    /// # use throttle_tower::throttle_core::{Gcra, Limiter, Policy, Rate};
    /// # use throttle_tower::{Dialect, LimitReport};
    /// # let logins = Limiter::in_memory(Policy::new("per-user", Gcra::new(Rate::per_hour(6)).burst(1))?)?;
    /// let report =
    ///     LimitReport::of(logins.set(), logins.check("ada", 1)).in_dialect(Dialect::Draft07);
    /// let mut response = http::Response::new(());
    /// report.write_headers(&mut response);
    /// assert_eq!(
    ///     response.headers()["ratelimit"],
    ///     "limit=6, remaining=0, reset=600"
    /// );
    /// # Ok::<(), throttle_tower::ConfigError>(())
    /// ```
    #[must_use]
    pub fn in_dialect(self, dialect: Dialect) -> Self {
        let mut announced = self.announced().clone();
        announced.set_dialect(dialect);
        Self::new(self.decision().clone(), Arc::new(announced))
    }

    /// The response of a layer that refuses the request for this decision: status 429, a problem
    /// document (RFC 9457), and the [headers](Self::write_headers). `None` if the decision admits
    /// the request.
    ///
    /// For another body, build the response and let [`write_headers`](Self::write_headers) add the
    /// rest.
    #[must_use]
    pub fn refusal_response<B: From<Bytes>>(&self) -> Option<Response<B>> {
        if self.decision().is_admitted() {
            return None;
        }
        let body = self.announced().problem(self.decision());
        let mut response = uncached(StatusCode::TOO_MANY_REQUESTS, Problem::CONTENT_TYPE, body);
        self.write_headers(&mut response);
        Some(response.map(B::from))
    }

    /// Writes the headers of a layer into a response: what is left, and of a refusal how long to
    /// wait. The response of a refusal gets `Cache-Control: no-store`, too, if it has no other, and
    /// the report in its extensions, by which the layers around the handler know that it is one.
    ///
    /// Headers that the response already has are
    /// [joined](crate::headers#headers-that-the-response-already-has).
    ///
    /// ```
    /// # use throttle_tower::throttle_core::{Gcra, Limiter, Policy, Rate};
    /// # use throttle_tower::LimitReport;
    /// # let logins = Limiter::in_memory(Policy::new("per-user", Gcra::new(Rate::per_hour(6)).burst(1))?)?;
    /// let report = LimitReport::of(logins.set(), logins.check("ada", 2));
    /// let mut response = http::Response::new("two at once are never allowed");
    /// *response.status_mut() = http::StatusCode::TOO_MANY_REQUESTS;
    /// report.write_headers(&mut response);
    /// assert_eq!(
    ///     response.headers()["ratelimit-policy"],
    ///     r#""per-user";q=6;w=3600"#
    /// );
    /// assert!(
    ///     !response.headers().contains_key("retry-after"),
    ///     "no wait helps"
    /// );
    /// # Ok::<(), throttle_tower::ConfigError>(())
    /// ```
    pub fn write_headers<B>(&self, response: &mut Response<B>) {
        if self.decision().is_admitted() {
            write_admitted(self, response.headers_mut(), false);
        } else {
            write_refused(self, response, 0);
            response
                .headers_mut()
                .entry(CACHE_CONTROL)
                .or_insert(NO_STORE);
            response.extensions_mut().insert(self.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, Request};
    use throttle_core::backend::Call;
    use throttle_core::{
        Backend, Gcra, Key, ManualClock, MemoryBackend, Policy, PolicyTree, Rate, SlidingLog,
        Timestamp,
    };
    use tower::{Layer, ServiceExt, service_fn};

    use super::*;
    use crate::{Constant, ThrottleLayer, all, limit};

    fn store() -> MemoryBackend<ManualClock> {
        MemoryBackend::builder()
            .clock(ManualClock::default())
            .build()
    }

    /// What a layer on a clock that stands still responds to three requests, of which it refuses
    /// the last.
    async fn of_a_layer(dialect: Dialect) -> Vec<(StatusCode, HeaderMap)> {
        let limits = all((
            limit("wide", Gcra::new(Rate::per_minute(9))).by(Constant),
            limit("log", SlidingLog::new(Rate::per_hour(2))).by(Constant),
        ));
        let layer = ThrottleLayer::builder(limits)
            .backend(store())
            .headers(dialect)
            .build()
            .unwrap();
        let service = layer.layer(service_fn(async |_: Request<()>| {
            Ok::<_, std::convert::Infallible>(Response::new(()))
        }));
        let mut responses = Vec::new();
        for _ in 0..3 {
            let response = service.clone().oneshot(Request::new(())).await.unwrap();
            responses.push((response.status(), response.headers().clone()));
        }
        responses
    }

    /// The same by hand.
    fn by_hand(dialect: Dialect) -> Vec<(StatusCode, HeaderMap)> {
        let policy = |name, algorithm: throttle_core::Algorithm| {
            Policy::new(name, algorithm).unwrap().into()
        };
        let policies = vec![
            policy("wide", Gcra::new(Rate::per_minute(9)).build().unwrap()),
            policy("log", SlidingLog::new(Rate::per_hour(2)).build().unwrap()),
        ];
        let (store, set) = (store(), PolicySet::new(PolicyTree::All(policies)).unwrap());
        let prepared = store.prepare(set.clone()).unwrap();
        let respond = |_| {
            let decision =
                store.decide_now(&prepared, &[(); 2].map(|()| Call::from(Key::CONSTANT)));
            let report = LimitReport::of(&set, decision).in_dialect(dialect);
            let response = report.refusal_response::<Bytes>().unwrap_or_else(|| {
                let mut response = Response::default();
                report.write_headers(&mut response);
                response
            });
            assert_eq!(
                response.extensions().get::<LimitReport>().is_some(),
                response.status() != 200
            );
            (response.status(), response.headers().clone())
        };
        (0..3).map(respond).collect()
    }

    #[tokio::test]
    async fn decision_without_a_layer_has_the_response_of_a_layer() {
        // The wall clock goes on between two responses, so their instants may differ.
        let is_alike = |dialect: &&Dialect| !dialect.form().states_instants;
        for &dialect in Dialect::ALL.iter().filter(is_alike) {
            let (layer, by_hand) = (of_a_layer(dialect).await, by_hand(dialect));
            assert_eq!(by_hand, layer, "{dialect:?}");
            assert_eq!(
                (by_hand[1].0, by_hand[2].0),
                (StatusCode::OK, StatusCode::TOO_MANY_REQUESTS)
            );
        }
    }

    #[tokio::test]
    async fn layer_around_a_handler_announces_its_policies_beside_a_refusal_by_hand() {
        let outer =
            ThrottleLayer::new(limit("outer", Gcra::new(Rate::per_hour(9))).by(Constant)).unwrap();
        let service = outer.layer(service_fn(async |_: Request<()>| {
            let set = PolicySet::new(Policy::new("inner", Gcra::new(Rate::per_hour(1))).unwrap())
                .unwrap();
            let mut states = [set.policies()[0].algorithm().fresh()];
            let mut decide =
                || set.decide(&mut states, Timestamp::EPOCH, &[Call::from(Key::CONSTANT)]);
            assert!(
                LimitReport::of(&set, decide())
                    .refusal_response::<Bytes>()
                    .is_none()
            );
            Ok::<_, std::convert::Infallible>(
                LimitReport::of(&set, decide())
                    .refusal_response::<Bytes>()
                    .unwrap(),
            )
        }));
        let refused = service.oneshot(Request::new(())).await.unwrap();
        let header = |name: &str| refused.headers()[name].to_str().unwrap();
        assert_eq!(
            header("ratelimit-policy"),
            r#""inner";q=1;w=3600, "outer";q=9;w=3600"#
        );
        assert!(
            header("ratelimit").starts_with(r#""inner";r=0"#)
                && !header("ratelimit").contains("outer")
        );
    }
}

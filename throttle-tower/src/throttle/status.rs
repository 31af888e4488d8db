//! What is left of a layer's limits for a client that asks, without charging it.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::routing::{MethodRouter, get};
use http::request::Parts;
use http::{HeaderValue, Response, StatusCode};
use throttle_core::Backend;

use super::layer::ThrottleLayer;
use super::limit_report::LimitReport;
use super::peek::{Scope, look};
use super::refusal::Reason;
use super::response_builder::RefusalResponse;
use super::shared_layer::SharedLayer;
use super::steps::refuse::unavailable;
use super::steps::write_headers::write_admitted;
use crate::event::LimitState;
use crate::json::{object, quoted};
use crate::time::micros;
use crate::uncached::uncached;

impl<B: Backend> ThrottleLayer<B> {
    /// Returns a route that answers "how much have I left?", as GitHub's `/rate_limit` does, and
    /// charges nothing.
    ///
    /// ```
    /// use axum::Router;
    /// use axum::routing::get;
    /// use http::Request;
    /// use http_body_util::BodyExt;
    /// use throttle_tower::{Gcra, Header, Rate, ThrottleLayer, limit};
    /// use tower::ServiceExt;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # fn is_issued(key: &[u8]) -> bool { key == b"ada" }
    /// let per_key = limit("per-key", Gcra::new(Rate::per_hour(60)).burst(60))
    ///     .by(Header::new("x-api-key").accept(is_issued));
    /// let throttle = ThrottleLayer::new(per_key)?;
    /// let app: Router = Router::new()
    ///     .route("/", get(async || "hello"))
    ///     .layer(throttle.clone())
    ///     // After the layer, so that the layer does not charge it.
    ///     .route("/rate_limit", throttle.status());
    /// let request = Request::get("/rate_limit")
    ///     .header("x-api-key", "ada")
    ///     .body(String::new())?;
    /// let response = app.oneshot(request).await?;
    /// assert_eq!(response.headers()["ratelimit"], r#""per-key";r=60;t=3600"#);
    /// let body: serde_json::Value =
    ///     serde_json::from_slice(&response.into_body().collect().await?.to_bytes())?;
    /// assert_eq!(body["limits"][0]["remaining"], 60);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The response has the headers of the layer's [dialect](crate::ThrottleBuilder::headers), and
    /// a JSON object whose `limits` has one object for each limit:
    ///
    /// | field | value |
    /// |---|---|
    /// | `policy` | the name |
    /// | `limit`, `window` | units in so many seconds, as in `RateLimit-Policy`; of [requests in flight](crate::InFlight) the permits, and null |
    /// | `remaining` | units left now |
    /// | `reset` | seconds until all are left, if no request comes |
    /// | `unit` | what is counted: `requests`, `concurrent-requests`, or the limit's [own](crate::Limit::unit) |
    /// | `tier` | the caller's [tier](LimitReport::tier); null for a limit without tiers |
    /// | `class` | the [class](LimitReport::class) of this request; null for a limit on a rate without classes, and of requests in flight |
    /// | `admitted` | whether the limit admits one unit now |
    /// | `retry_after` | seconds until it does; null where other requests have to end first |
    ///
    /// Of a limit with [classes](crate::Limit::priority), `remaining` and what goes by it are what
    /// the class of this request has. Seconds are whole, rounded up. Fields may be added in later
    /// versions.
    ///
    /// The keys are those of the request for the status, so it must come through the layers that
    /// the keys need, such as authentication. A caller sees its own budgets, and those that all
    /// share, as by [`Constant`](crate::Constant). All limits for which the request has a key are
    /// listed, because a client asks here about other routes, too: the layer's
    /// [`when`](crate::ThrottleBuilder::when), a limit's own [`when`](crate::Limit::when) and the
    /// `match` of a rule file are not read. A limit without a key is left out. So is an
    /// [audited](crate::Limit::audit) limit that is not announced, a limit by
    /// [`Route`](crate::Route), whose key would be this route, and a limit that is
    /// [open](crate::OnError::Open) because the store has failed.
    ///
    /// # What it costs
    ///
    /// One call to the backend, which counts as a decision for the backend's deadline, breaker and
    /// queues, and a lookup if a tier is not cached. Observers and hooks do not see it. The route
    /// admits every caller: to bound how often a caller asks, give it a limit of its own, with
    /// [`with_limits`](Self::with_limits).
    ///
    /// ```
    /// # use throttle_tower::{ClientIp, Gcra, Rate, ThrottleLayer, limit};
    /// # let per_ip = limit("per-ip", Gcra::new(Rate::per_second(1))).by(ClientIp::peer());
    /// # let throttle = ThrottleLayer::new(per_ip)?;
    /// let status = limit("status", Gcra::new(Rate::per_second(1)).burst(10)).by(ClientIp::peer());
    /// let status = throttle.with_limits(status)?;
    /// # let app: axum::Router =
    /// axum::Router::new().route("/rate_limit", throttle.status().layer(status));
    /// # Ok::<(), throttle_tower::ConfigError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the store fails, each limit goes by its [`OnError`](crate::OnError): one that is closed
    /// makes the answer the layer's 503, and one that is local shows this process's share.
    pub fn status<S: Clone + Send + Sync + 'static>(&self) -> MethodRouter<S> {
        let current = self.current.clone();
        get(async move |parts: Parts| {
            let shared = current.with(Arc::clone);
            respond(&shared, &parts).await
        })
    }
}

async fn respond<B: Backend>(shared: &SharedLayer<B>, parts: &Parts) -> Response<Body> {
    let report = match look(shared, Scope::Client, parts).await {
        Ok(report) => report,
        Err(failed) => {
            let reason = Reason::Store(failed.error.kind(), &failed.policies);
            return match unavailable(shared, reason, parts) {
                RefusalResponse::Now(response) => response.map(Body::from),
                RefusalResponse::Later(building) => building.await.map(Body::from),
            };
        }
    };
    let json = HeaderValue::from_static("application/json");
    let mut response = uncached(StatusCode::OK, json, Body::from(body(&report)));
    if !report.announced().options.hides(&response) {
        write_admitted(&report, response.headers_mut(), false);
    }
    response
}

fn body(report: &LimitReport) -> String {
    let (announced, null) = (report.announced(), || "null".to_owned());
    let mut limits = Vec::new();
    for (index, policy, status) in report.asked() {
        if !announced.tells(index, status) {
            continue;
        }
        let quota = announced.terms(index, status.tier()).quota;
        // Under an exception more may be left than the policy announces.
        let remaining = status.remaining().min(quota.q);
        limits.push(object(&[
            ("policy", quoted(policy.name())),
            ("limit", quota.q.to_string()),
            ("window", quota.w.to_string()),
            ("remaining", remaining.to_string()),
            ("reset", seconds(status.reset_after()).to_string()),
            ("unit", quoted(policy.unit().unwrap_or("requests"))),
            ("tier", report.tier(policy.name()).map_or_else(null, quoted)),
            (
                "class",
                report.class(policy.name()).map_or_else(null, quoted),
            ),
            ("admitted", (!status.refuses()).to_string()),
            (
                "retry_after",
                status
                    .retry_after()
                    .map_or_else(null, |wait| seconds(wait).to_string()),
            ),
        ]));
    }
    for limit in report.limits() {
        let LimitState::Permits { free, most, .. } = limit.state else {
            continue;
        };
        limits.push(object(&[
            ("policy", quoted(limit.info.name.as_str())),
            ("limit", most.to_string()),
            ("window", null()),
            ("remaining", free.to_string()),
            ("reset", 0.to_string()),
            ("unit", quoted("concurrent-requests")),
            ("tier", null()),
            ("class", null()),
            ("admitted", (free > 0).to_string()),
            ("retry_after", if free > 0 { 0.to_string() } else { null() }),
        ]));
    }
    format!(r#"{{"limits":[{}]}}"#, limits.join(","))
}

/// Whole seconds, rounded up.
fn seconds(wait: Duration) -> u64 {
    micros(wait).div_ceil(1_000_000)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use axum::Router;
    use http::{HeaderMap, Request, StatusCode};
    use http_body_util::BodyExt;
    use throttle_core::backend::{Exception, KeyStep, Treatment};
    use throttle_core::{Gcra, IntoAlgorithm, Key, ManualClock, MemoryBackend, Rate, Timestamp};
    use tower::{Layer, ServiceExt, service_fn};

    use super::*;
    use crate::failing_backend::FailingBackend;
    use crate::{Audit, Constant, OnError, all, limit};

    /// What a layer of one limit by each rule answers when its store is down.
    async fn answer(rules: &[(&str, OnError)]) -> (StatusCode, HeaderMap, serde_json::Value) {
        let of = |(name, rule): &(&str, OnError)| {
            limit(*name, Gcra::new(Rate::per_hour(6)).burst(6))
                .by(Constant)
                .on_error(*rule)
        };
        let throttle = ThrottleLayer::builder(all(rules.iter().map(of).collect::<Vec<_>>()))
            .backend(FailingBackend)
            .build()
            .unwrap();
        let app: Router = Router::new().route("/", throttle.status());
        let (head, body) = app
            .oneshot(Request::get("/").body(Body::empty()).unwrap())
            .await
            .unwrap()
            .into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        (
            head.status,
            head.headers,
            serde_json::from_slice(&body).unwrap(),
        )
    }

    /// Its headers and what its first limit has.
    async fn shown<B: Backend>(throttle: &ThrottleLayer<B>) -> (HeaderMap, serde_json::Value) {
        let app: Router = Router::new().route("/", throttle.status());
        let (head, body) = app
            .oneshot(Request::get("/").body(Body::empty()).unwrap())
            .await
            .unwrap()
            .into_parts();
        let body: serde_json::Value =
            serde_json::from_slice(&body.collect().await.unwrap().to_bytes()).unwrap();
        (head.headers, body["limits"][0].clone())
    }

    /// How many units there are under it, and how fast they come back, is not announced.
    #[tokio::test]
    async fn status_under_an_exceptions_limit_promises_no_more_than_both() {
        let store = MemoryBackend::builder()
            .clock(ManualClock::new(Timestamp::from_micros(1_000_000)))
            .build();
        let of = |rate: Rate, burst| Gcra::new(rate).burst(burst);
        let own = limit("p", of(Rate::per_minute(5), 5)).by(Constant);
        let throttle = ThrottleLayer::builder(own).backend(store).build().unwrap();
        let shared = throttle.current.with(Arc::clone);
        let requests = throttle.layer(service_fn(async |_: Request<()>| {
            Ok::<_, Infallible>(Response::new(()))
        }));
        for (exceptions, used, left, expected) in [
            (of(Rate::per_minute(50), 50), 0, 5, r#""p";r=5;t=600"#),
            (of(Rate::per_hour(5), 5), 0, 5, r#""p";r=5;t=300"#),
            (of(Rate::per_minute(50), 50), 50, 0, r#""p";r=0;t=2"#),
        ] {
            let treatment = Treatment::Limit(Arc::new(exceptions.into_algorithm().unwrap()));
            let exception = Exception {
                treatment,
                until: Timestamp::from_micros(301_000_000),
            };
            shared
                .backend
                .run(
                    &shared.prepared,
                    0,
                    KeyStep::Except(Key::CONSTANT, Some(exception)),
                )
                .await
                .unwrap();
            for _ in 0..used {
                assert_eq!(
                    requests
                        .clone()
                        .oneshot(Request::new(()))
                        .await
                        .unwrap()
                        .status(),
                    StatusCode::OK
                );
            }
            let (headers, limit) = shown(&throttle).await;
            assert_eq!(
                (&limit["limit"], &limit["remaining"]),
                (&5.into(), &left.into())
            );
            assert_eq!(headers["ratelimit"], expected);
        }
    }

    #[tokio::test]
    async fn status_shows_an_audited_limit_only_if_it_is_announced() {
        let gcra = || Gcra::new(Rate::per_hour(6)).burst(6);
        let new = || limit("new", gcra()).by(Constant);
        for (new, first) in [
            (new().audit(Audit::Silent), "old"),
            (new().audit(Audit::Announced), "new"),
        ] {
            let limits = all([new, limit("old", gcra()).by(Constant)]);
            let (headers, limit) = shown(&ThrottleLayer::new(limits).unwrap()).await;
            assert_eq!(limit["policy"], first);
            assert_eq!(
                headers["ratelimit"].to_str().unwrap().contains("new"),
                first == "new"
            );
        }
    }

    #[tokio::test]
    async fn status_has_the_class_of_its_request_and_what_that_class_has() {
        let gcra = || Gcra::new(Rate::per_hour(6)).burst(6);
        let classes = limit("p", gcra())
            .by(Constant)
            .priority([("high", 0), ("low", 4)], |_: &Parts| "low");
        let (_, low) = shown(&ThrottleLayer::new(classes).unwrap()).await;
        assert_eq!(
            (&low["class"], &low["remaining"]),
            (&"low".into(), &2.into())
        );
        let (_, plain) = shown(&ThrottleLayer::new(limit("p", gcra()).by(Constant)).unwrap()).await;
        assert_eq!(plain.get("class"), Some(&serde_json::Value::Null));
    }

    #[tokio::test(start_paused = true)]
    async fn lookups_of_a_status_run_at_the_same_time() {
        let slow = |name: &str| {
            limit(name, Gcra::new(Rate::per_hour(6))).by_async(|_: &Parts| async {
                tokio::time::sleep(Duration::from_millis(600)).await;
                Some(Key::CONSTANT)
            })
        };
        let began = tokio::time::Instant::now();
        shown(&ThrottleLayer::new(all([slow("a"), slow("b"), slow("c")])).unwrap()).await;
        assert_eq!(began.elapsed(), Duration::from_millis(600));
    }

    #[tokio::test]
    async fn status_of_a_dead_store_is_what_on_error_says() {
        let (closed, open, local) = (
            ("a", OnError::Closed),
            ("b", OnError::Open),
            ("c", OnError::local(3)),
        );
        let (status, headers, body) = answer(&[closed, open, local]).await;
        assert_eq!(
            (status, &body["violated-policies"]),
            (StatusCode::SERVICE_UNAVAILABLE, &["a"][..].into())
        );
        assert_eq!(headers["cache-control"], "no-store");
        for _ in 0..3 {
            let (status, headers, body) = answer(&[open, local]).await;
            let shown = (
                &body["limits"][0]["policy"],
                &body["limits"][0]["limit"],
                &body["limits"][0]["remaining"],
            );
            assert_eq!(
                (status, shown),
                (StatusCode::OK, (&"c".into(), &6.into(), &2.into())),
                "its share"
            );
            assert_eq!(
                body["limits"].as_array().unwrap().len(),
                1,
                "an open limit limits nothing now"
            );
            assert_eq!(headers["ratelimit"], r#""c";r=2;t=3600"#);
        }
        assert_eq!(answer(&[open]).await.2, serde_json::json!({ "limits": [] }));
    }
}

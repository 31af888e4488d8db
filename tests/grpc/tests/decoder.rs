//! Refusals, as tonic's own decoder reads them.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use proptest::prelude::*;
use throttle_core::{Gcra, ManualClock, MemoryBackend, Rate};
use throttle_tower::{
    Constant, Dialect, InFlight, Limit, OnMissing, Refusal, ThrottleBody, ThrottleBuilder,
    ThrottleLayer, all, limit,
};
use tonic::{Code, Status};
use tonic_types::StatusExt;
use tower::{Layer, Service, ServiceExt, service_fn};

type Memory = MemoryBackend<ManualClock>;
type Answer = Response<ThrottleBody<Full<Bytes>>>;

fn layer(limits: impl Into<throttle_tower::LimitTree>) -> ThrottleLayer<Memory> {
    builder(limits).build().unwrap()
}

fn builder(limits: impl Into<throttle_tower::LimitTree>) -> ThrottleBuilder<Memory> {
    let store = MemoryBackend::builder()
        .clock(ManualClock::default())
        .build();
    ThrottleLayer::builder(limits.into()).backend(store)
}

fn request(content_type: &str) -> Request<()> {
    Request::post("/shop.Orders/Place")
        .header("content-type", content_type)
        .body(())
        .unwrap()
}

fn service(
    layer: &ThrottleLayer<Memory>,
) -> impl Service<Request<()>, Response = Answer, Error = Infallible, Future: Send> + Clone {
    layer.layer(service_fn(async |_| Ok(Response::new(Full::default()))))
}

async fn ask(layer: &ThrottleLayer<Memory>, content_type: &str) -> Answer {
    service(layer).oneshot(request(content_type)).await.unwrap()
}

/// The first answer that is a refusal.
async fn refused(layer: &ThrottleLayer<Memory>, content_type: &str) -> Answer {
    loop {
        let answer = ask(layer, content_type).await;
        if answer.headers().contains_key("grpc-status") || answer.status() != StatusCode::OK {
            return answer;
        }
    }
}

fn header<'a>(answer: &'a Answer, name: &str) -> Option<&'a str> {
    answer
        .headers()
        .get(name)
        .map(|value| value.to_str().unwrap())
}

fn read(answer: &Answer) -> Status {
    Status::from_header_map(answer.headers()).expect("it has a grpc-status")
}

/// Refuses the second request for an hour.
fn one(name: &str) -> Limit {
    limit(name, Gcra::new(Rate::per_hour(1)).burst(1)).by(Constant)
}

#[tokio::test]
async fn used_up_quota_is_read_back() {
    let layer = layer(all([one("per \"key\" 100%"), one("other").unit("tokens")]));
    let answer = refused(&layer, "application/grpc+proto").await;
    assert_eq!(answer.status(), StatusCode::OK);
    assert_eq!(
        header(&answer, "content-type"),
        Some("application/grpc+proto")
    );
    assert_eq!(header(&answer, "grpc-retry-pushback-ms"), Some("3600000"));
    assert_eq!(header(&answer, "retry-after"), Some("3600"));
    assert!(
        header(&answer, "ratelimit").is_some_and(|fields| fields.contains("\"other\";r=0;t=3600"))
    );

    let status = read(&answer);
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(status.message(), "quota exceeded: per \"key\" 100%, other");
    let details = status.check_error_details().unwrap();
    let hour = Some(Duration::from_secs(3_600));
    assert_eq!(details.retry_info().unwrap().retry_delay, hour);
    let violations = &details.quota_failure().unwrap().violations;
    let violations: Vec<_> = violations
        .iter()
        .map(|violation| (violation.subject.as_str(), violation.description.as_str()))
        .collect();
    let expected = [
        ("per \"key\" 100%", "no more than 1 requests in 3600 s"),
        ("other", "no more than 1 tokens in 3600 s"),
    ];
    assert_eq!(violations, expected);
    let info = details.error_info().unwrap();
    assert_eq!(
        (info.reason.as_str(), info.domain.as_str()),
        ("QUOTA_EXCEEDED", "throttle")
    );
    assert_eq!(info.metadata.len(), 2);
    assert_eq!(info.metadata["limit"], "1");
    assert!(["per \"key\" 100%", "other"].contains(&info.metadata["policy"].as_str()));
    let body = answer.into_body();
    assert!(
        http_body::Body::is_end_stream(&body),
        "the head is the end of the stream"
    );
    assert!(body.collect().await.unwrap().to_bytes().is_empty());
}

#[tokio::test]
async fn where_no_wait_helps_a_client_learns_it() {
    let two = |parts: &http::request::Parts| {
        if parts.uri.path() == "/shop.Orders/Place" {
            2
        } else {
            1
        }
    };
    let layer = layer(one("p").cost(two));
    let answer = refused(&layer, "application/grpc").await;
    assert_eq!(header(&answer, "grpc-retry-pushback-ms"), Some("-1"));
    assert_eq!(header(&answer, "retry-after"), None);
    let details = read(&answer).check_error_details().unwrap();
    assert!(details.retry_info().is_none());
    assert_eq!(details.quota_failure().unwrap().violations.len(), 1);
}

#[tokio::test]
async fn other_refusals_have_their_own_codes() {
    let permits = layer(limit("in-flight", InFlight::new(1)).by(Constant));
    let held = service(&permits).call(request("application/grpc"));
    let full = refused(&permits, "application/grpc").await;
    drop(held);
    let status = read(&full);
    assert_eq!(
        (status.code(), status.message()),
        (Code::Unavailable, "temporarily reduced capacity: in-flight")
    );
    assert_eq!(
        header(&full, "grpc-retry-pushback-ms"),
        None,
        "it is not known how long"
    );

    for (rejected, code, pushback) in [
        (StatusCode::UNAUTHORIZED, Code::Unauthenticated, Some("-1")),
        (
            StatusCode::PROXY_AUTHENTICATION_REQUIRED,
            Code::Unauthenticated,
            Some("-1"),
        ),
        (StatusCode::FORBIDDEN, Code::PermissionDenied, Some("-1")),
        (StatusCode::BAD_REQUEST, Code::InvalidArgument, Some("-1")),
        (StatusCode::TOO_MANY_REQUESTS, Code::ResourceExhausted, None),
        (StatusCode::INTERNAL_SERVER_ERROR, Code::Unavailable, None),
    ] {
        let keyed =
            limit("p", Gcra::new(Rate::per_hour(1))).by(throttle_tower::Header::new("x-api-key"));
        let answer = refused(
            &layer(keyed.on_missing(OnMissing::Reject(rejected))),
            "application/grpc",
        )
        .await;
        assert_eq!(
            (read(&answer).code(), answer.status()),
            (code, StatusCode::OK),
            "{rejected}"
        );
        assert_eq!(
            header(&answer, "grpc-retry-pushback-ms"),
            pushback,
            "{rejected}: a client's retry has no key either"
        );
    }
}

/// What a layer does not say in its headers, its details do not say either.
#[tokio::test]
async fn hidden_quota_is_not_in_the_details() {
    let shown = builder(one("p"));
    for (builder, is_hidden) in [
        (shown.clone().headers(Dialect::None), true),
        (shown.clone().hide_headers_if(|_, _| true), true),
        (
            shown.hide_headers_if(|_, headers| !headers.contains_key("grpc-status")),
            false,
        ),
    ] {
        let layer = builder.build().unwrap();
        let answer = refused(&layer, "application/grpc").await;
        assert_eq!(header(&answer, "cache-control"), Some("no-store"));
        let details = read(&answer).check_error_details().unwrap();
        let violation = &details.quota_failure().unwrap().violations[0];
        let metadata = &details.error_info().unwrap().metadata;
        assert_eq!(
            (violation.subject.as_str(), metadata["policy"].as_str()),
            ("p", "p")
        );
        assert_eq!(violation.description.is_empty(), is_hidden);
        assert_eq!(metadata.contains_key("limit"), !is_hidden);
        assert!(details.retry_info().is_some());
    }
}

#[tokio::test]
async fn users_builder_wins_and_may_ask_for_the_words_of_grpc() {
    let own = |refusal: &Refusal<'_>| {
        let asked = refusal.parts.uri.query();
        match asked {
            Some("default") => refusal.default_response(),
            Some("grpc") => refusal
                .grpc_response()
                .unwrap_or_else(|| refusal.default_response()),
            _ => Response::builder().status(418).body(Bytes::new()).unwrap(),
        }
    };
    for (on, default) in [
        (true, StatusCode::OK),
        (false, StatusCode::TOO_MANY_REQUESTS),
    ] {
        let plain = builder(one("p")).grpc_refusals(on);
        let built = plain.clone().response(own).build().unwrap();
        let plain = plain.build().unwrap();
        assert_eq!(
            ask(&plain, "application/grpc").await.status(),
            StatusCode::OK
        );
        assert_eq!(refused(&plain, "application/grpc").await.status(), default);
        for (query, status) in [
            ("own", StatusCode::IM_A_TEAPOT),
            ("default", default),
            ("grpc", StatusCode::OK),
        ] {
            let mut request = request("application/grpc");
            *request.uri_mut() = format!("/shop.Orders/Place?{query}").parse().unwrap();
            let answer = service(&built).oneshot(request).await.unwrap();
            assert_eq!(answer.status(), status, "{query}, {on}");
        }
    }
}

proptest! {
    /// Whatever a policy is called, and however long the wait.
    #[test]
    fn tonic_reads_back_what_was_written(
        names in prop::collection::btree_set("[ -~]{1,64}", 1..12),
        (count, period_us) in (1_u64..1_000, 1_000_000_u64..4_000_000_000_000_000),
        jitter in 0_u8..=100,
    ) {
        let rate = Rate::new(count, Duration::from_micros(period_us));
        let limits: Vec<_> = names.iter().map(|name| limit(name, Gcra::new(rate).burst(1)).by(Constant)).collect();
        let store = MemoryBackend::builder().clock(ManualClock::default()).build();
        let builder = ThrottleLayer::builder(all(limits)).backend(store);
        let builder = builder.headers(Dialect::None).retry_jitter(jitter);
        let waits = std::sync::Arc::new(std::sync::Mutex::new(None));
        let seen = std::sync::Arc::clone(&waits);
        let layer = builder.response(move |refusal| {
            *seen.lock().unwrap() = refusal.retry_after();
            refusal.default_response()
        });
        let layer = layer.build();
        prop_assume!(layer.is_ok(), "the numbers of such a rate are too large");
        let layer = layer.unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let answer = runtime.block_on(refused(&layer, "application/grpc"));
        let status = read(&answer);
        let named: Vec<&str> = names.iter().map(String::as_str).take(8).collect();
        prop_assert_eq!(status.message(), format!("quota exceeded: {}", named.join(", ")));
        let details = status.check_error_details().unwrap();
        let wait = waits.lock().unwrap().unwrap();
        prop_assert_eq!(details.retry_info().unwrap().retry_delay, Some(wait));
        let subjects = details.quota_failure().unwrap().violations.iter().map(|violation| violation.subject.as_str());
        prop_assert_eq!(subjects.collect::<Vec<_>>(), named);
        let info = details.error_info().unwrap();
        prop_assert!(names.contains(&info.metadata["policy"]));
        let pushback: i64 = header(&answer, "grpc-retry-pushback-ms").unwrap().parse().unwrap();
        let millis = wait.as_micros().div_ceil(1_000);
        prop_assert_eq!(i128::from(pushback), if millis > 2_147_483_647 { -1 } else { millis as i128 });
        let bytes: usize = answer.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + 32).sum();
        prop_assert!(bytes < 8_192, "many clients read no more: {bytes}");
    }
}

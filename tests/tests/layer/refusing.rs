//! What a refusal that a user builds says about the wait.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use http::{Request, Response, StatusCode};
use throttle_tower::headers::ResetFormat;
use throttle_tower::{
    Constant, Dialect, Gcra, Header, InFlight, OnError, OnMissing, Permit, Rate, ThrottleLayer,
    all, limit,
};
use tokio::sync::Semaphore;
use tower::{Layer, ServiceExt};

use crate::common::{Remote, Strict, Text, get, memory, poll, shared, text};

/// With jitter, the body, `Retry-After` and the rate-limit headers must not state different waits.
/// The jitter depends on a secret, so several layers are tested: without jitter all would state 60.
#[tokio::test]
async fn a_refusals_wait_is_the_one_that_is_sent() {
    let mut waits = Vec::new();
    let shown = [
        Dialect::Draft11,
        Dialect::XRateLimit(ResetFormat::DeltaSeconds),
    ]
    .map(|dialect| (dialect, false));
    for (dialect, is_hidden) in [shown[0], shown[1], (Dialect::Draft11, true)].repeat(10) {
        let limits = limit("p", Gcra::new(Rate::per_minute(1)).burst(1)).by(Constant);
        let layer = ThrottleLayer::builder(limits)
            .headers(dialect)
            .retry_jitter(100)
            .response(|refusal| {
                let wait = refusal
                    .retry_after()
                    .unwrap()
                    .as_micros()
                    .div_ceil(1_000_000);
                Response::builder()
                    .status(refusal.status)
                    .body(wait.to_string().into())
                    .unwrap()
            })
            .hide_headers_if(move |_, _| is_hidden)
            .backend(memory())
            .build()
            .unwrap();
        let service = layer.layer(Strict::default());
        service.clone().oneshot(get()).await.unwrap();
        let refused = service.oneshot(get()).await.unwrap();
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
        let header = refused.headers()["retry-after"]
            .to_str()
            .unwrap()
            .to_owned();
        let (name, stated) = match dialect {
            Dialect::Draft11 => ("ratelimit", format!(r#""p";r=0;t={header}"#)),
            _ => ("x-ratelimit-reset", header.clone()),
        };
        assert_eq!(
            refused
                .headers()
                .get(name)
                .map(|value| value.to_str().unwrap()),
            (!is_hidden).then_some(&*stated)
        );
        assert_eq!(text(refused).await, header);
        waits.push(header.parse::<u64>().unwrap());
    }
    assert!(
        waits.iter().all(|wait| (60..=120).contains(wait)),
        "{waits:?}"
    );
    assert!(waits.iter().any(|wait| *wait != 60), "{waits:?}");
}

/// The time for the units that are left is shorter: they are too few.
#[tokio::test]
async fn time_of_a_limit_that_refuses_is_its_wait() {
    let cost = |parts: &http::request::Parts| if parts.uri.path() == "/large" { 3 } else { 2 };
    let service = ThrottleLayer::builder(shared("p", 3).cost(cost))
        .backend(memory())
        .build()
        .unwrap();
    let service = service.layer(Strict::default());
    assert_eq!(
        service.clone().oneshot(get()).await.unwrap().headers()["ratelimit"],
        r#""p";r=1;t=60"#
    );
    let refused = service
        .oneshot(Request::get("/large").body(Text::default()).unwrap())
        .await
        .unwrap();
    assert_eq!(refused.headers()["ratelimit"], r#""p";r=1;t=120"#);
    assert_eq!(refused.headers()["retry-after"], "120");
}

/// The part that is added depends on the key of the limit that refuses.
#[tokio::test]
async fn jitter_goes_by_the_key_that_is_refused() {
    let per_user = limit("user", Gcra::new(Rate::per_hour(1)).burst(1)).by(Header::new("x-user"));
    let layer = ThrottleLayer::builder(all([shared("all", 1_000), per_user]))
        .retry_jitter(100)
        .backend(memory())
        .build()
        .unwrap();
    let service = layer.layer(Strict::default());
    let mut waits = std::collections::HashSet::new();
    for user in 0..10 {
        let ask = || {
            Request::get("/")
                .header("x-user", user)
                .body(Text::default())
                .unwrap()
        };
        service.clone().oneshot(ask()).await.unwrap();
        let refused = service.clone().oneshot(ask()).await.unwrap();
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
        waits.insert(refused.headers()["retry-after"].clone());
    }
    assert!(waits.len() > 1, "{waits:?}");
}

#[tokio::test]
async fn problem_names_the_policies_that_refuse() {
    let limits = all([
        shared("wide", 9),
        shared("tight", 1),
        shared("tighter", 1),
        shared("free", 9),
    ]);
    for (limits, violated) in [
        (limits, vec!["tight", "tighter"]),
        (all([shared("wide", 9), shared("tight", 1)]), vec!["tight"]),
        (
            all([shared("tight", 1), shared("tighter", 1)]),
            vec!["tight", "tighter"],
        ),
    ] {
        let service = ThrottleLayer::new(limits).unwrap().layer(Strict::default());
        service.clone().oneshot(get()).await.unwrap();
        let refused = service.oneshot(get()).await.unwrap();
        let problem: serde_json::Value = serde_json::from_str(&text(refused).await).unwrap();
        assert_eq!(problem["violated-policies"], serde_json::json!(violated));
    }
}

#[tokio::test]
async fn refusal_for_a_missing_key_is_titled_by_its_status() {
    for (status, title) in [(401, "Unauthorized"), (499, "Refused")] {
        let reject = OnMissing::Reject(StatusCode::from_u16(status).unwrap());
        let limit = limit("p", Gcra::new(Rate::per_minute(1)))
            .by(Header::new("x-api-key"))
            .on_missing(reject);
        let service = ThrottleLayer::new(limit).unwrap().layer(Strict::default());
        let refused = service.oneshot(get()).await.unwrap();
        assert_eq!(refused.status(), status);
        let problem: serde_json::Value = serde_json::from_str(&text(refused).await).unwrap();
        assert_eq!(
            problem,
            serde_json::json!({"type": "about:blank", "title": title, "status": status})
        );
    }
}

/// The store is asked about rates, and only while there is a permit.
#[tokio::test]
async fn store_is_not_asked_about_a_request_that_it_need_not_decide() {
    for at_once in [false, true] {
        let remote = Remote::faltering(at_once);
        let limits = all((
            shared("p", 9).when(|parts| parts.uri.path() != "/free"),
            limit("in-flight", InFlight::new(1)).by(Constant),
        ));
        let layer = ThrottleLayer::builder(limits)
            .on_error(OnError::Closed)
            .backend(remote.clone())
            .build()
            .unwrap();
        let service = layer.layer(Strict::default());
        let free = Request::get("/free").body(Text::default()).unwrap();
        let held = service.clone().oneshot(free).await.unwrap();
        assert_eq!(
            (held.status(), remote.decisions.load(Ordering::SeqCst)),
            (StatusCode::OK, 0),
            "{at_once}"
        );
        let saturated = service.oneshot(get()).await.unwrap();
        assert_eq!(saturated.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(remote.decisions.load(Ordering::SeqCst), 0, "{at_once}");
    }
}

/// Its permit or its key turned out to be missing while the key was looked up.
#[tokio::test]
async fn store_is_not_asked_after_a_lookup_that_leaves_no_key_or_permit() {
    let (remote, found) = (Remote::faltering(false), Arc::new(Semaphore::new(0)));
    let key = {
        let found = Arc::clone(&found);
        move |parts: &http::request::Parts| {
            let (found, is_known) = (Arc::clone(&found), parts.uri.path() != "/unknown");
            async move {
                found.acquire().await.unwrap().forget();
                is_known.then_some(7_u64)
            }
        }
    };
    let keyed = limit("p", Gcra::new(Rate::per_minute(1)))
        .by_async(key)
        .on_missing(OnMissing::Skip);
    let limits = all((
        keyed.when(|parts| parts.uri.path() != "/free"),
        limit("in-flight", InFlight::new(1)).by(Constant),
    ));
    let layer = ThrottleLayer::builder(limits)
        .on_error(OnError::Closed)
        .backend(remote.clone())
        .build()
        .unwrap();
    let service = layer.layer(Strict::default());
    let send = |path| {
        Box::pin(
            service
                .clone()
                .oneshot(Request::get(path).body(Text::default()).unwrap()),
        )
    };

    found.add_permits(1);
    assert_eq!(send("/unknown").await.unwrap().status(), StatusCode::OK);
    let mut known = send("/");
    assert!(poll(&mut known).is_pending());
    let held = send("/free").await.unwrap();
    found.add_permits(1);
    assert_eq!(
        (held.status(), known.await.unwrap().status()),
        (StatusCode::OK, StatusCode::SERVICE_UNAVAILABLE)
    );
    assert_eq!(remote.decisions.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn request_that_needs_no_permit_gets_none() {
    let permits = limit("in-flight", InFlight::new(1))
        .by(Constant)
        .cost(|parts: &http::request::Parts| u64::from(parts.uri.path() != "/free"));
    let layer = ThrottleLayer::new(permits).unwrap();
    let service = layer.layer(tower::service_fn(async |request: Request<Text>| {
        let permit = request.extensions().get::<Permit>().is_some();
        Ok::<_, std::convert::Infallible>(Response::new(Text::from(permit.to_string())))
    }));
    for (path, permit) in [("/free", "false"), ("/", "true")] {
        let request = Request::get(path).body(Text::default()).unwrap();
        assert_eq!(
            text(service.clone().oneshot(request).await.unwrap()).await,
            permit
        );
    }
}

/// Whatever the inner layer refuses for, the outer one has admitted the request, and only announces
/// its policy.
#[tokio::test]
async fn refusal_of_an_inner_layer_states_nothing_of_the_outer_one() {
    let closed = ThrottleLayer::builder(shared("inner", 1).on_error(OnError::Closed))
        .backend(Remote::failing(
            throttle_core::BackendErrorKind::Unavailable,
        ))
        .build()
        .unwrap();
    let outer = ThrottleLayer::new(shared("outer", 9)).unwrap();
    let refused = outer
        .layer(closed.layer(Strict::default()))
        .oneshot(get())
        .await
        .unwrap();
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(
        refused.headers().contains_key("ratelimit-policy"),
        "{:?}",
        refused.headers()
    );
    assert!(
        !refused.headers().contains_key("ratelimit"),
        "{:?}",
        refused.headers()
    );
}

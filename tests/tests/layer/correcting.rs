//! Single keys that a program corrects by the name of their limit.

use http::request::Parts;
use http::{Request, StatusCode};
use throttle_core::backend::{Call, Exception, Treatment};
use throttle_core::{Backend, BackendErrorKind, BoxBackend, Key, Timestamp};
use throttle_redis::{RedisBackend, Single};
use throttle_test_servers::Shared;
use throttle_tower::{
    Constant, FixedWindow, Gcra, Header, InFlight, OnError, OnMissing, Rate, ThrottleLayer, all,
    limit, plans,
};
use tower::{Layer, ServiceExt};

use crate::common::{Remote, Strict, keyed, memory};

fn per_day(count: u64) -> FixedWindow {
    FixedWindow::new(Rate::per_day(count))
}

fn by_key() -> Header {
    Header::new("x-api-key")
}

fn head(key: &str) -> Parts {
    keyed(key).into_parts().0
}

async fn admitted<B: Backend>(layer: &ThrottleLayer<B>, key: &str) -> usize {
    let service = layer.layer(Strict::default());
    let mut admitted = 0;
    for _ in 0..20 {
        let response = service.clone().oneshot(keyed(key)).await.unwrap();
        admitted += usize::from(response.status() == StatusCode::OK);
    }
    admitted
}

async fn key_of<B: Backend>(layer: &ThrottleLayer<B>, limit: &str, key: &str) -> Option<Key> {
    let call = layer.call_of(limit, &head(key)).await?;
    Some(call.key()?.clone())
}

async fn key_is_corrected<B: Backend>(backend: B) {
    let limits = all((
        limit("daily", per_day(2)).by(by_key()),
        limit("wide", per_day(99)).by(by_key()),
        limit("jobs", InFlight::new(9)).by(Constant),
    ));
    let layer = ThrottleLayer::builder(limits)
        .on_error(OnError::Closed)
        .backend(backend)
        .build()
        .unwrap();
    let ada = key_of(&layer, "daily", "ada").await.unwrap();
    assert_eq!(
        (admitted(&layer, "ada").await, admitted(&layer, "bob").await),
        (2, 2)
    );
    assert!(layer.reset("daily", &ada).await.unwrap());
    assert_eq!(admitted(&layer, "ada").await, 2);
    let blocked = Exception {
        treatment: Treatment::Blocked,
        until: Timestamp::MAX,
    };
    assert!(layer.except("wide", &ada, Some(blocked)).await.unwrap());
    layer.reset("daily", &ada).await.unwrap();
    assert_eq!(admitted(&layer, "ada").await, 0);
    assert_eq!(layer.exceptions("wide", 9).await.unwrap().len(), 1);
    assert!(layer.except("wide", &ada, None).await.unwrap());
    assert!(layer.exceptions("wide", 9).await.unwrap().is_empty());
    assert!(layer.drain("daily", &Call::from(ada)).await.unwrap());
    assert_eq!(admitted(&layer, "ada").await, 0);
}

#[tokio::test]
async fn key_is_reset_excepted_and_drained_by_the_name_of_its_limit() {
    key_is_corrected(memory()).await;
    let shared = Shared::new();
    let redis = RedisBackend::builder(Single::new(&shared.url()).unwrap())
        .prefix(shared.prefix())
        .deadline(std::time::Duration::from_secs(10));
    key_is_corrected(BoxBackend::new(redis.build().unwrap())).await;
}

#[tokio::test]
async fn limit_that_is_not_there_or_has_permits_has_no_key_to_correct() {
    let limits = all((
        limit("daily", per_day(2)).by(by_key()),
        limit("jobs", InFlight::new(9)).by(by_key()),
    ));
    let layer = ThrottleLayer::new(limits).unwrap();
    let key = Key::from("ada");
    for name in ["jobs", "other"] {
        assert!(layer.call_of(name, &head("ada")).await.is_none());
        assert!(!layer.reset(name, &key).await.unwrap());
        assert!(!layer.except(name, &key, None).await.unwrap());
        assert!(!layer.drain(name, &Call::from(key.clone())).await.unwrap());
        assert!(layer.exceptions(name, 9).await.unwrap().is_empty());
    }
}

#[tokio::test]
async fn call_is_of_the_requests_to_which_the_limit_and_the_layer_apply() {
    let limits = all([
        limit("shared", per_day(2)).by(by_key()),
        limit("skipped", per_day(2))
            .by(by_key())
            .on_missing(OnMissing::Skip),
        limit("required", per_day(2))
            .by(by_key())
            .on_missing(OnMissing::Reject(StatusCode::UNAUTHORIZED)),
        limit("posts", per_day(2))
            .by(by_key())
            .when(|parts| parts.method == http::Method::POST),
    ]);
    let layer = ThrottleLayer::builder(limits)
        .when(|parts| parts.uri.path() != "/health")
        .build()
        .unwrap();
    let without = Request::new(()).into_parts().0;
    let shared = layer.call_of("shared", &without).await.unwrap();
    assert_eq!(shared.key(), Some(&Key::missing()));
    for name in ["skipped", "required"] {
        assert!(layer.call_of(name, &without).await.is_none(), "{name}");
        assert!(key_of(&layer, name, "ada").await.is_some(), "{name}");
    }
    assert_eq!(key_of(&layer, "posts", "ada").await, None);
    let mut health = head("ada");
    health.uri = "/health".parse().unwrap();
    assert!(layer.call_of("shared", &health).await.is_none());
}

#[tokio::test]
async fn drained_key_of_a_plan_recovers_by_its_tier() {
    let tiers = [("free", 1), ("pro", 10)];
    let tiers = tiers.map(|(name, count)| (name, Gcra::new(Rate::per_hour(count)).burst(count)));
    let plan = plans("plan", tiers)
        .by(throttle_tower::extract::from_fn(|parts: &Parts| {
            Some(parts.headers["x-api-key"].to_str().unwrap().to_owned())
        }))
        .lookup(|key: String| std::future::ready(Some(if key == "ada" { "pro" } else { "free" })))
        .unknown("free");
    let clock = throttle_core::ManualClock::default();
    let store = throttle_tower::MemoryBackend::builder()
        .clock(clock.clone())
        .build();
    let layer = ThrottleLayer::builder(plan).backend(store).build().unwrap();
    let call = layer.call_of("plan", &head("ada")).await.unwrap();
    assert!(layer.drain("plan", &call).await.unwrap());
    assert_eq!(admitted(&layer, "ada").await, 0);
    clock.advance(std::time::Duration::from_secs(360));
    assert_eq!(admitted(&layer, "ada").await, 1, "ten an hour");
}

#[tokio::test]
async fn correction_of_a_store_that_fails_is_an_error() {
    let layer = ThrottleLayer::builder(limit("daily", per_day(2)).by(by_key()))
        .on_error(OnError::Open)
        .backend(Remote::failing(BackendErrorKind::Unavailable))
        .build()
        .unwrap();
    let ada = key_of(&layer, "daily", "ada").await.unwrap();
    assert!(layer.drain("daily", &Call::from(ada)).await.is_err());
}

//! Limits of one name on one store: an error unless one replaces the other, and what both layers then respond.

mod common;

use std::num::NonZeroU32;
use std::time::Duration;

use http::{Response, StatusCode};
use throttle_core::{Backend, BackendErrorKind, LocalShare};
use throttle_redis::{RedisBackend, Single};
use throttle_test_servers::Shared;
use throttle_tower::headers::Dialect;
use throttle_tower::shape::{Shaper, TokioClock};
use throttle_tower::{
    Carry, ConfigError, Constant, Gcra, LeakyBucket, Limit, LimitReport, MemoryBackend, OnError, Rate, ThrottleBody,
    ThrottleLayer, all, limit, plans,
};
use tower::{Layer, ServiceExt};

use common::{Remote, Strict, Text, get, memory};

fn per_minute(count: u64) -> Limit {
    limit("per-ip", Gcra::new(Rate::per_minute(count))).by(Constant).on_error(OnError::Closed)
}

async fn answer<B: Backend>(layer: &ThrottleLayer<B>) -> Response<ThrottleBody<Text>> {
    layer.layer(Strict::default()).oneshot(get()).await.unwrap()
}

/// The quota and the remaining units in the response.
fn announced(response: &Response<ThrottleBody<Text>>) -> (u64, u64) {
    let number = |name: &str, parameter: &str| {
        let field = response.headers()[name].to_str().unwrap();
        let number = field.split(';').find_map(|part| part.strip_prefix(parameter)).expect("the parameter is there");
        number.parse().unwrap()
    };
    (number("ratelimit-policy", "q="), number("ratelimit", "r="))
}

async fn two_limits_of_one_name<B: Backend>(backend: B) {
    let login = ThrottleLayer::new(per_minute(5)).unwrap().backend(backend.clone()).unwrap();
    let api = || ThrottleLayer::new(per_minute(100)).unwrap();
    let error = api().backend(backend.clone()).unwrap_err();
    assert_eq!((error.policy(), error.field()), (Some("per-ip"), "parameters of the limit"));
    assert!(error.to_string().contains("5/minute") && error.to_string().contains("100/minute"), "{error}");
    assert_eq!(announced(&answer(&login).await), (5, 4), "what was refused is in force");

    // After it is dropped, the name may stand for another limit.
    drop(login);
    assert!(api().backend(backend).is_ok());
}

async fn a_limit_is_replaced_while_it_serves<B: Backend>(backend: B) {
    let former = ThrottleLayer::new(per_minute(5)).unwrap().report_in_response(true);
    let former = former.backend(backend.clone()).unwrap();
    assert_eq!(announced(&answer(&former).await), (5, 4));
    let changed = ThrottleLayer::new(per_minute(100).replace_existing()).unwrap().backend(backend.clone()).unwrap();
    let admitted = answer(&changed).await;
    assert_eq!(admitted.status(), StatusCode::OK);
    assert_eq!(announced(&admitted).0, 100);
    let (quota, left) = announced(&answer(&former).await);
    assert_eq!(quota, 100, "the former layer announces the limit in force");
    assert!((97..100).contains(&left), "{left}: what was used stays used");
    let report = answer(&former).await.extensions().get::<LimitReport>().cloned().expect("there is a report");
    assert_eq!(report.binding().expect("one policy").algorithm().capacity(), 100);

    let back = ThrottleLayer::new(per_minute(3).replace_existing()).unwrap().backend(backend).unwrap();
    for layer in [&former, &changed, &back] {
        let (quota, left) = announced(&answer(layer).await);
        assert_eq!(quota, 3);
        assert!(left <= 3, "{left} of 3");
    }
}

fn redis(shared: &Shared) -> RedisBackend {
    let builder = RedisBackend::builder(Single::new(&shared.url()).unwrap()).prefix(shared.prefix());
    builder.deadline(Duration::from_secs(10)).build().unwrap()
}

#[tokio::test]
async fn two_limits_of_one_name_on_one_memory_store_are_an_error() {
    two_limits_of_one_name(memory()).await;
}

#[tokio::test]
async fn two_limits_of_one_name_on_one_redis_are_an_error() {
    let shared = Shared::new();
    two_limits_of_one_name(redis(&shared)).await;
}

#[tokio::test]
async fn a_limit_that_replaces_another_is_in_force_for_both_layers_in_memory() {
    a_limit_is_replaced_while_it_serves(memory()).await;
}

#[tokio::test]
async fn a_limit_that_replaces_another_is_in_force_for_both_layers_on_redis() {
    let shared = Shared::new();
    a_limit_is_replaced_while_it_serves(redis(&shared)).await;
}

/// What was written for the limit in force, with the options of before, is not sent any more.
#[tokio::test]
async fn options_set_after_a_limit_was_replaced_hold() {
    let backend = memory();
    let mut former = ThrottleLayer::new(per_minute(5)).unwrap().backend(backend.clone()).unwrap();
    let changed = per_minute(100).replace_existing();
    let _changed = ThrottleLayer::new(changed).unwrap().backend(backend).unwrap();
    assert_eq!(announced(&answer(&former).await).0, 100);
    for is_cloned in [false, true] {
        let kept = is_cloned.then(|| former.clone());
        former = former.headers(if is_cloned { Dialect::Draft06 } else { Dialect::Draft03 });
        let response = answer(&former).await;
        assert!(!response.headers().contains_key("ratelimit-policy") || is_cloned, "{:?}", response.headers());
        assert!(response.headers()["ratelimit-limit"].to_str().unwrap().starts_with("100"), "{:?}", response.headers());
        if let Some(kept) = kept {
            assert!(answer(&kept).await.headers().contains_key("ratelimit-limit"));
        }
    }
}

/// A layer whose limit another layer has replaced states the pace of its own share, also of one that is made later.
#[tokio::test]
async fn share_of_a_replaced_limit_paces_the_headers() {
    let remote = Remote::faltering(false);
    let layer = |count| {
        let limit = limit("p", Gcra::new(Rate::per_minute(count))).by(Constant).replace_existing();
        ThrottleLayer::new(limit).unwrap().on_error(OnError::local(2)).backend(remote.clone()).unwrap()
    };
    let (former, _changed) = (layer(10), layer(60));
    assert_eq!(announced(&answer(&former).await).0, 60);
    remote.trouble(Some(BackendErrorKind::Unavailable));
    assert_eq!(answer(&former).await.headers()["ratelimit"], r#""p";r=3;t=36"#, "three units at five a minute");
    let alone = former.on_error(OnError::local(1));
    assert_eq!(answer(&alone).await.headers()["ratelimit"], r#""p";r=9;t=54"#, "nine units at ten a minute");
}

#[tokio::test]
async fn limit_that_counts_in_a_unit_of_its_own_replaces_another_too() {
    let backend = memory();
    let layer = |limit: Limit| ThrottleLayer::new(limit.unit("tokens")).unwrap().backend(backend.clone());
    let former = layer(per_minute(5)).unwrap();
    let changed = layer(per_minute(100).replace_existing()).unwrap();
    for layer in [former, changed] {
        let response = answer(&layer).await;
        assert_eq!(response.headers()["ratelimit-policy"], r#""per-ip";q=100;qu="tokens";w=60"#);
    }
}

/// The store learns of the limits only after all of them have been checked.
#[tokio::test]
async fn limit_that_is_refused_replaces_nothing() {
    let remote = Remote::faltering(false);
    let former = ThrottleLayer::new(per_minute(5)).unwrap().backend(remote.clone()).unwrap();
    let per_minute = |count| limit("per-ip", Gcra::new(Rate::per_minute(count))).by(Constant).replace_existing();
    let error = ThrottleLayer::new(per_minute(100)).unwrap().backend(remote).unwrap_err();
    assert_eq!((error.policy(), error.field()), (Some("per-ip"), "on_error"));
    assert_eq!(announced(&answer(&former).await), (5, 4));
}

/// The `t` of each limit is the time that its own share takes for the units that remain.
#[tokio::test]
async fn each_limit_is_paced_by_its_own_share() {
    let per_minute = |name, count| limit(name, Gcra::new(Rate::per_minute(count)).burst(9)).by(Constant);
    let layer = ThrottleLayer::new(all([per_minute("slow", 6), per_minute("quick", 60)])).unwrap();
    let remote = Remote::failing(BackendErrorKind::Unavailable);
    let layer = layer.on_error(OnError::local(3)).backend(remote).unwrap();
    assert_eq!(answer(&layer).await.headers()["ratelimit"], r#""slow";r=2;t=60, "quick";r=2;t=6"#);
}

#[tokio::test]
async fn plans_are_replaced_by_name_too() {
    let tiers = |free| {
        plans("plans", [("free", Gcra::new(Rate::per_minute(free))), ("pro", Gcra::new(Rate::per_minute(600)))])
            .by(Constant)
            .lookup(|_| async { Some("free") })
            .unknown("free")
            .on_change(Carry::Keep)
    };
    let backend = memory();
    let former = ThrottleLayer::new(tiers(5)).unwrap().backend(backend.clone()).unwrap();
    assert!(ThrottleLayer::new(tiers(50)).unwrap().backend(backend.clone()).is_err());
    let _changed = ThrottleLayer::new(tiers(50).replace_existing()).unwrap().backend(backend).unwrap();
    assert_eq!(announced(&answer(&former).await), (50, 49));
}

/// Rebuilding a layer, cloning it and changing its options cause no conflict with its own name.
#[tokio::test]
async fn a_layer_is_no_other_limit_of_its_own_name() -> Result<(), ConfigError> {
    let (backend, store) = (Remote::faltering(false), memory());
    let local = limit("p", Gcra::new(Rate::per_minute(60))).by(Constant);
    let layer = ThrottleLayer::new(local)?.report_in_response(true).local_store(&store);
    let layer = layer.on_error(OnError::local(2)).backend(backend.clone())?;
    let again = layer.clone().backend(backend.clone())?;
    let of_three = again.clone().on_error(OnError::local(3));
    let moved = of_three.clone().local_store(&memory()).backend(backend.clone())?;
    backend.trouble(Some(BackendErrorKind::Unavailable));
    for layer in [&of_three, &moved] {
        let response = answer(layer).await;
        assert_eq!(response.status(), StatusCode::OK, "decided by a share of a third");
        let report = response.extensions().get::<LimitReport>().expect("there is a report");
        assert_eq!(report.decision().remaining(), 19);
    }
    // The layer uses the store for shares; a share with other parameters in that store must replace it explicitly.
    let set = throttle_core::PolicySet::new(throttle_core::Policy::new("p", Gcra::new(Rate::per_minute(60)))?)?;
    assert!(LocalShare::new(&store, &set, NonZeroU32::MIN).is_err());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn two_paces_of_one_name_on_one_store_are_an_error() {
    let backend = MemoryBackend::builder().clock(TokioClock::new()).build();
    let pace = |count| Shaper::builder(LeakyBucket::new(Rate::per_second(count))).backend(backend.clone()).name("api");
    let former = pace(5).build().unwrap();
    assert!(pace(5).build().is_ok(), "the same pace");
    assert_eq!(pace(50).build().unwrap_err().policy(), Some("api"));
    assert!(pace(50).replace_existing().build().is_ok());
    let bucket = LeakyBucket::new(Rate::per_second(500));
    let replacing = Shaper::builder(bucket).name("api").replace_existing().backend(backend.clone());
    assert!(replacing.build().is_ok(), "whatever the order of the options");
    drop(former);
}

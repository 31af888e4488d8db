//! Limits of one name on one store: they share its budgets, and each layer decides by its own
//! parameters.

use std::time::Duration;

use http::{Response, StatusCode};
use throttle_core::{Backend, BackendErrorKind};
use throttle_redis::{RedisBackend, Single};
use throttle_test_servers::Shared;
use throttle_tower::{
    Constant, Gcra, Limit, LimitReport, OnError, Rate, ThrottleBody, ThrottleLayer, all, limit,
};
use tower::{Layer, ServiceExt};

use crate::common::{Remote, Strict, Text, get, memory};

fn per_minute(count: u64) -> Limit {
    limit("per-ip", Gcra::new(Rate::per_minute(count)))
        .by(Constant)
        .on_error(OnError::Closed)
}

async fn answer<B: Backend>(layer: &ThrottleLayer<B>) -> Response<ThrottleBody<Text>> {
    layer.layer(Strict::default()).oneshot(get()).await.unwrap()
}

/// The quota and the remaining units in the response.
fn announced(response: &Response<ThrottleBody<Text>>) -> (u64, u64) {
    let number = |name: &str, parameter: &str| {
        let field = response.headers()[name].to_str().unwrap();
        let number = field
            .split(';')
            .find_map(|part| part.strip_prefix(parameter))
            .expect("the parameter is there");
        number.parse().unwrap()
    };
    (number("ratelimit-policy", "q="), number("ratelimit", "r="))
}

/// Other parameters count what was used under the others, at most their own capacity, and a refusal
/// changes nothing.
async fn layers_of_one_name<B: Backend>(backend: B) {
    let layer = |count| {
        ThrottleLayer::builder(per_minute(count))
            .backend(backend.clone())
            .report_in(throttle_tower::ReportIn::Both)
            .build()
            .unwrap()
    };
    let (five, hundred) = (layer(5), layer(100));
    assert_eq!(announced(&answer(&five).await), (5, 4));
    let (quota, left) = announced(&answer(&hundred).await);
    assert!(
        quota == 100 && (98..100).contains(&left),
        "{left} of {quota}: what was used stays used"
    );
    for _ in 0..10 {
        assert_eq!(answer(&hundred).await.status(), StatusCode::OK);
    }
    let refused = answer(&five).await;
    assert_eq!(
        (refused.status(), announced(&refused)),
        (StatusCode::TOO_MANY_REQUESTS, (5, 0))
    );
    let report = refused
        .extensions()
        .get::<LimitReport>()
        .expect("there is a report");
    assert_eq!(
        report.binding().expect("one policy").algorithm().capacity(),
        5
    );
    assert_eq!(announced(&answer(&hundred).await).0, 100);
}

fn redis(shared: &Shared) -> RedisBackend {
    let builder =
        RedisBackend::builder(Single::new(&shared.url()).unwrap()).prefix(shared.prefix());
    builder.deadline(Duration::from_secs(10)).build().unwrap()
}

#[tokio::test]
async fn layers_of_one_name_decide_each_by_its_own_parameters() {
    layers_of_one_name(memory()).await;
    layers_of_one_name(redis(&Shared::new())).await;
}

/// The pace of each layer's own share, also of one that is made later.
#[tokio::test]
async fn shares_of_layers_of_one_name_pace_their_own_headers() {
    let remote = Remote::failing(BackendErrorKind::Unavailable);
    let stores = [memory(), memory(), memory()];
    let layer = |count, processes, store| {
        let limit = limit("p", Gcra::new(Rate::per_minute(count))).by(Constant);
        ThrottleLayer::builder(limit)
            .on_error(OnError::local(processes))
            .local_store(store)
            .backend(remote.clone())
            .build()
            .unwrap()
    };
    let (ten, sixty) = (layer(10, 2, &stores[0]), layer(60, 2, &stores[1]));
    assert_eq!(
        answer(&ten).await.headers()["ratelimit"],
        r#""p";r=4;t=48"#,
        "four units at five a minute"
    );
    assert_eq!(
        answer(&sixty).await.headers()["ratelimit"],
        r#""p";r=29;t=58"#,
        "29 units at thirty a minute"
    );
    let alone = layer(10, 1, &stores[2]);
    assert_eq!(
        answer(&alone).await.headers()["ratelimit"],
        r#""p";r=9;t=54"#,
        "nine units at ten a minute"
    );
}

/// The `t` of each limit is the time that its own share takes for the units that remain.
#[tokio::test]
async fn each_limit_is_paced_by_its_own_share() {
    let per_minute =
        |name, count| limit(name, Gcra::new(Rate::per_minute(count)).burst(9)).by(Constant);
    let layer = ThrottleLayer::builder(all([per_minute("slow", 6), per_minute("quick", 60)]))
        .on_error(OnError::local(3))
        .backend(Remote::failing(BackendErrorKind::Unavailable))
        .build()
        .unwrap();
    assert_eq!(
        answer(&layer).await.headers()["ratelimit"],
        r#""slow";r=2;t=60, "quick";r=2;t=6"#
    );
}

//! Limits with conditions, most of which do not apply to a request.

use std::cell::Cell;
use std::time::Duration;

use http::request::Parts;
use http::{HeaderMap, Request, StatusCode};
use proptest::prelude::*;
use throttle_core::{Backend, Key, ManualClock, MemoryBackend, Timestamp};
use throttle_redis::{RedisBackend, Single};
use throttle_test_servers::Shared;
use throttle_tower::{
    FixedWindow, Gcra, LimitTree, OnError, OnMissing, Rate, SlidingLog, ThrottleLayer, all, any,
    limit,
};
use tower::{Layer, ServiceExt};

use crate::common::{Strict, Text};

/// Whether a limit applies is said by its condition, or by its key, which the layer looks for in
/// every request.
#[derive(Clone, Copy)]
enum Said {
    ByCondition,
    ByKey,
}

/// More limits than a store is asked about whether or not they apply: some for each path, some in
/// an `any`, and one for all requests.
fn limits(said: Said) -> LimitTree {
    let one = |n: u64| -> LimitTree {
        let (name, units) = (format!("p{n}"), n % 4 + 1);
        let limit = match n % 3 {
            0 => limit(name, Gcra::new(Rate::per_minute(units)).burst(units)),
            1 => limit(name, FixedWindow::new(Rate::per_minute(units))),
            _ => limit(name, SlidingLog::new(Rate::per_minute(units))),
        };
        let path = format!("/{}", n % 7);
        let applies = move |parts: &Parts| n == 0 || parts.uri.path() == path;
        match said {
            Said::ByCondition => limit.by(throttle_tower::Constant).when(applies).into(),
            Said::ByKey => {
                let key = move |parts: &Parts| applies(parts).then_some(Key::CONSTANT);
                limit
                    .by(throttle_tower::extract::from_fn(key))
                    .on_missing(OnMissing::Skip)
                    .into()
            }
        }
    };
    let choices = (40..46).map(|n| any([one(n), one(n + 7)]));
    all((0..40).map(one).chain(choices).collect::<Vec<_>>())
}

async fn answer<B: Backend>(layer: &ThrottleLayer<B>, path: u64) -> (StatusCode, HeaderMap) {
    let request = Request::get(format!("/{path}"))
        .body(Text::default())
        .unwrap();
    let response = layer
        .layer(Strict::default())
        .oneshot(request)
        .await
        .unwrap();
    (response.status(), response.headers().clone())
}

fn on<B: Backend>(backend: B, said: Said) -> ThrottleLayer<B> {
    ThrottleLayer::builder(limits(said))
        .on_error(OnError::Closed)
        .backend(backend)
        .build()
        .unwrap()
}

#[test]
fn law_08_limits_that_do_not_apply_are_left_out_on_redis_as_in_memory() {
    let (runtime, shared) = (tokio::runtime::Runtime::new().unwrap(), Shared::new());
    let _guard = runtime.enter();
    let start = Timestamp::from_micros(1_790_000_000_000_000);
    let clock = ManualClock::new(start);
    let redis = |prefix: &str| {
        let builder = RedisBackend::builder(Single::new(&shared.url()).unwrap());
        let builder = builder
            .prefix(format!("{}{prefix}", shared.prefix()))
            .clock(clock.clone());
        builder.deadline(Duration::from_secs(10)).build().unwrap()
    };
    let case = Cell::new(0);
    proptest!(ProptestConfig::with_cases(10), |(steps in prop::collection::vec((0..8_u64, 0..30_u64), 1..60))| {
        case.set(case.get() + 1);
        clock.set(start);
        let memory = || MemoryBackend::builder().clock(clock.clone()).build();
        let in_memory = [Said::ByCondition, Said::ByKey].map(|said| on(memory(), said));
        let on_redis = [Said::ByCondition, Said::ByKey]
            .map(|said| on(redis(&format!("{}-{}", case.get(), said as u8)), said));
        for (path, ahead) in steps {
            clock.advance(Duration::from_secs(ahead));
            let [first, other] = in_memory.each_ref().map(|layer| runtime.block_on(answer(layer, path)));
            let [redis, other_redis] = on_redis.each_ref().map(|layer| runtime.block_on(answer(layer, path)));
            prop_assert_eq!(&first, &other);
            prop_assert_eq!(&first, &redis);
            prop_assert_eq!(&first, &other_redis);
        }
    });
}

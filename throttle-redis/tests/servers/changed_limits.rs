//! Two versions of a limit on one server, as in a rolling deployment: each has a backend of its
//! own.

use std::time::Duration;

use crate::common::{LimitTree, builder, policy};
use throttle_core::backend::KeyStep;
use throttle_core::{Algorithm, Backend, Gcra, IntoAlgorithm, Key, Rate};
use throttle_test_servers::Shared;

fn built(algorithm: impl IntoAlgorithm) -> Algorithm {
    algorithm.into_algorithm().unwrap()
}

/// The limit of one process.
fn process(shared: &Shared, algorithm: Algorithm) -> LimitTree {
    LimitTree::new(
        &builder(shared).build().unwrap(),
        policy("limit", algorithm),
    )
}

/// Another version that looks or refuses changes nothing.
#[tokio::test]
async fn law_09_key_lives_for_as_long_as_its_writer_counts() {
    let shared = Shared::new();
    let limit = |rate| built(Gcra::new(rate));
    let (daily, quick) = (
        process(&shared, limit(Rate::per_day(2))),
        process(&shared, limit(Rate::per_second(50))),
    );
    let expires_in = async || {
        let of_quick = policy("limit", limit(Rate::per_second(50)));
        let held = quick
            .backend
            .inspect(&of_quick, &Key::from("ada"))
            .await
            .unwrap();
        assert_eq!(held.fields.len(), 2, "{held}");
        held.expires_in.unwrap()
    };
    assert!(daily.take("ada", 1).await.is_admitted());
    assert_eq!(quick.left("ada").await, 49);
    assert!(!quick.take("ada", 50).await.is_admitted());
    assert!(expires_in().await > Duration::from_secs(40_000));
    assert!(quick.take("ada", 1).await.is_admitted());
    assert!(expires_in().await < Duration::from_secs(60));
}

/// A charge by another version can make a refusal untrue that was worked out from its state.
#[tokio::test]
async fn refusals_by_states_of_other_writers_are_not_cached() {
    let shared = Shared::new();
    let limit = |count| built(Gcra::new(Rate::per_day(count)));
    let large = process(&shared, limit(100));
    let backend = builder(&shared).deny_cache(100).build().unwrap();
    let small = LimitTree::new(&backend, policy("limit", limit(10)));
    assert!(large.take("ada", 20).await.is_admitted());
    for _ in 0..3 {
        assert!(!small.take("ada", 1).await.is_admitted());
    }
    assert_eq!(backend.stats().cached_refusals, 0);
    drop(
        backend
            .run(&small.prepared, 0, KeyStep::Reset(Key::from("ada")))
            .await,
    );
    assert!(small.take("ada", 1).await.is_admitted());
}

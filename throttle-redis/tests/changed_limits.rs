//! Two versions of a limit on one server, as in a rolling deployment: each has a backend of its own.

mod common;

use std::time::Duration;

use common::{LimitTree, builder, policy};
use throttle_core::{Algorithm, Backend, CalendarQuota, Gcra, IntoAlgorithm, Key, Rate, SlidingLog};
use throttle_test_servers::Shared;

fn built(algorithm: impl IntoAlgorithm) -> Algorithm {
    algorithm.into_algorithm().unwrap()
}

/// The limit of one process.
fn process(shared: &Shared, algorithm: Algorithm) -> LimitTree {
    LimitTree::new(&builder(shared).build().unwrap(), policy("limit", algorithm))
}

#[tokio::test]
async fn law_07_mistaken_limit_costs_a_client_nothing() {
    let shared = Shared::new();
    let [right, mistaken] = [10_000, 10].map(|count| process(&shared, built(CalendarQuota::monthly(count))));
    assert_eq!(right.take("ada", 51).await.remaining(), 9_949);
    assert!(!mistaken.take("ada", 1).await.is_admitted());
    assert_eq!((mistaken.left("ada").await, right.left("ada").await), (0, 9_949));
    assert_eq!(right.take("ada", 1).await.remaining(), 9_948);
}

#[tokio::test]
async fn law_07_both_versions_of_a_rolling_deployment_count_all_charges() {
    for version in [|n| built(Gcra::new(Rate::per_hour(n)).burst(n)), |n| built(SlidingLog::new(Rate::per_hour(n)))] {
        let shared = Shared::new();
        let [old, new] = [5, 100].map(|count| process(&shared, version(count)));
        for used in [0, 2, 4] {
            assert_eq!(new.take("ada", 1).await.remaining(), 99 - used);
            // Six are more than the old version holds.
            assert_eq!(old.take("ada", 1).await.is_admitted(), used < 4);
        }
        assert_eq!(new.take("ada", 1).await.remaining(), 94);
    }
}

/// The writer of the state gives it back, whichever version was charged.
#[tokio::test]
async fn law_10_refund_is_given_back_whichever_version_wrote_the_state() {
    let shared = Shared::new();
    let [small, large] = [5, 100].map(|count| process(&shared, built(Gcra::new(Rate::per_day(count)))));
    let first = small.charge("ada", 2).await.expect("admitted");
    assert_eq!(large.take("ada", 1).await.remaining(), 97);
    small.refund(first).await;
    assert_eq!((small.left("ada").await, large.left("ada").await), (4, 99));
    let second = large.charge("ada", 50).await.expect("admitted");
    assert_eq!((small.left("ada").await, large.left("ada").await), (0, 49));
    large.refund(second).await;
    assert_eq!((small.left("ada").await, large.left("ada").await), (4, 99));
}

/// Another version that looks or refuses changes nothing.
#[tokio::test]
async fn law_09_key_lives_for_as_long_as_its_writer_counts() {
    let shared = Shared::new();
    let limit = |rate| built(Gcra::new(rate));
    let (daily, quick) = (process(&shared, limit(Rate::per_day(2))), process(&shared, limit(Rate::per_second(50))));
    let expires_in = async || {
        let of_quick = policy("limit", limit(Rate::per_second(50)));
        let held = quick.backend.inspect(&of_quick, &Key::from("ada")).await.unwrap();
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
    drop(backend.reset(&small.prepared, 0, &Key::from("ada")).await);
    assert!(small.take("ada", 1).await.is_admitted());
}

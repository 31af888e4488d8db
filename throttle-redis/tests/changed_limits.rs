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
async fn law_07_a_mistaken_limit_costs_a_client_nothing() {
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

/// What is given back under one version is given back under the other, as far as that is known to hold it.
#[tokio::test]
async fn law_10_a_refund_is_given_back_in_every_version_that_holds_the_charge() {
    let shared = Shared::new();
    let [small, large] = [5, 100].map(|count| process(&shared, built(Gcra::new(Rate::per_day(count)))));
    let first = small.charge("ada", 2).await.expect("admitted");
    assert_eq!(large.take("ada", 1).await.remaining(), 97);
    small.refund(first).await;
    assert_eq!((small.left("ada").await, large.left("ada").await), (4, 99));
    let second = large.charge("ada", 50).await.expect("admitted");
    large.refund(second).await;
    assert_eq!((small.left("ada").await, large.left("ada").await), (0, 99), "the small one could not hold it");
}

/// A key is kept for as long as any of its states counts something.
#[tokio::test]
async fn law_09_a_key_lives_for_as_long_as_the_longest_of_its_states() {
    let shared = Shared::new();
    let limit = |rate| built(Gcra::new(rate));
    let (daily, quick) = (process(&shared, limit(Rate::per_day(2))), process(&shared, limit(Rate::per_second(50))));
    assert!(daily.take("ada", 1).await.is_admitted());
    assert!(quick.take("ada", 1).await.is_admitted());
    let held = quick.backend.inspect(&policy("limit", limit(Rate::per_second(50))), &Key::from("ada")).await.unwrap();
    assert!(held.expires_in.unwrap() > Duration::from_secs(80_000), "{held}");
    assert_eq!(held.fields.len(), 2, "those of the state that was charged last");
}

/// A refusal that the store worked out from another version's state is not kept: a charge under that version can make it
/// untrue.
#[tokio::test]
async fn refusals_by_other_versions_states_are_not_cached() {
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

//! Policies with tiers, where a backend might answer without asking the store, or asks several
//! servers.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{LimitTree, builder, policy};
use throttle_core::backend::{Call, Receipt};
use throttle_core::{
    Algorithm, Backend, Cost, Decision, FixedWindow, Gcra, Key, Policy, PolicyTree, Rate,
};
use throttle_redis::{Cluster, RedisBackend};
use throttle_test_servers::{Cluster as Servers, Shared};

fn daily(counts: [u64; 2]) -> Policy {
    let tier = |count: u64| FixedWindow::new(Rate::per_day(count));
    Policy::tiered(
        "tiered",
        [("low", tier(counts[0])), ("high", tier(counts[1]))],
    )
    .unwrap()
}

fn call(key: &str, cost: u64) -> Call {
    Call::new(Key::from(key), Cost::at_least_one(cost))
}

async fn ask(limits: &LimitTree, calls: &[Call]) -> Decision {
    limits
        .backend
        .decide(&limits.prepared, calls)
        .await
        .unwrap()
}

/// A refusal under the policy's parameters answers no call under a key's own, and the reverse.
#[tokio::test]
async fn refusals_and_own_parameters_are_not_mixed_up() {
    let shared = Shared::new();
    let backend = builder(&shared).deny_cache(100).build().unwrap();
    let window = |count| FixedWindow::new(Rate::per_day(count));
    let plain = policy("plain", window(5));
    let [less, more] = [1, 50].map(|count| plain.own(window(count)).unwrap());
    let limits = LimitTree::new(&backend, plain);
    let under = |own: &Arc<Algorithm>| [call("ada", 1).under(Arc::clone(own))];
    assert!(ask(&limits, &[call("ada", 5)]).await.is_admitted());
    for _ in 0..2 {
        assert!(!ask(&limits, &[call("ada", 1)]).await.is_admitted());
    }
    assert_eq!(backend.stats().cached_refusals, 1);
    assert!(!ask(&limits, &under(&less)).await.is_admitted());
    assert!(ask(&limits, &under(&more)).await.is_admitted());
    for _ in 0..2 {
        assert!(!ask(&limits, &under(&less)).await.is_admitted());
        assert!(!ask(&limits, &[call("ada", 1)]).await.is_admitted());
    }
    assert_eq!(
        backend.stats().cached_refusals,
        1,
        "other parameters have written the value"
    );
    assert_eq!(ask(&limits, &under(&more)).await.remaining(), 43);
}

#[tokio::test]
async fn inspection_reads_a_value_by_the_tier_that_wrote_it() {
    let shared = Shared::new();
    let backend = builder(&shared).build().unwrap();
    let (low, high) = (
        Gcra::new(Rate::per_day(5)).build().unwrap(),
        FixedWindow::new(Rate::per_day(50)).build().unwrap(),
    );
    let mixed = Policy::tiered("tiered", [("low", low), ("high", high)]).unwrap();
    let limits = LimitTree::new(&backend, mixed.clone());
    assert!(
        ask(&limits, &[call("ada", 3).in_tier(1)])
            .await
            .is_admitted()
    );
    let held = backend.inspect(&mixed, &Key::from("ada")).await.unwrap();
    assert_eq!(
        held.fields
            .iter()
            .map(|(name, _)| *name)
            .collect::<Vec<_>>(),
        ["window_start", "used"]
    );
    assert_eq!(
        (held.fields[1].1, held.decision.remaining()),
        (3, 2),
        "three of the five that the first tier holds"
    );
}

/// Keys in different slots are asked about one by one, each in its tier, and a charge of a refused
/// request is given back in that tier.
#[tokio::test]
async fn tiers_of_keys_on_several_servers() {
    let servers = Servers::shared();
    let urls = servers.urls();
    let cluster = Cluster::new(urls.iter().map(String::as_str)).unwrap();
    let spread = RedisBackend::builder(cluster)
        .prefix("tiers")
        .per_key_slot()
        .readable_keys();
    let backend = spread.deadline(Duration::from_secs(10)).build().unwrap();
    let slot = |key: &str| throttle_test_servers::slot_of(format!("tiers{{t{key}}}:"));
    assert_ne!(
        slot("ada"),
        slot("pool"),
        "keys in one slot would be decided in one call"
    );
    let pool = policy("pool", Gcra::new(Rate::per_day(3)));
    let limits = LimitTree::new(
        &backend,
        PolicyTree::All(vec![daily([5, 50]).into(), pool.into()]),
    );
    let ada = |cost: u64, tier: u8| [call("ada", cost).in_tier(tier), call("pool", 1)];
    let first = ask(&limits, &ada(20, 1)).await;
    assert!(first.is_admitted());
    assert_eq!(
        (first.statuses()[0].tier(), first.statuses()[0].remaining()),
        (1, 30)
    );
    let refused = ask(&limits, &ada(1, 0)).await;
    assert!(
        !refused.is_admitted(),
        "twenty are more than the low tier holds"
    );
    assert_eq!(
        (refused.binding(), refused.statuses()[0].tier()),
        (Some(0), 0)
    );
    assert_eq!(
        refused.statuses()[1].remaining(),
        2,
        "the charge to the shared key was given back"
    );
    for left in [29, 28] {
        assert_eq!(
            ask(&limits, &ada(1, 1)).await.statuses()[0].remaining(),
            left
        );
    }
    let exhausted = ask(&limits, &ada(3, 1)).await;
    assert_eq!(
        (exhausted.is_admitted(), exhausted.binding()),
        (false, Some(1))
    );
    let look = [Call::peek(Key::from("ada")).in_tier(1), Call::SKIP];
    assert_eq!(
        ask(&limits, &look).await.remaining(),
        28,
        "and so did what was charged to her"
    );
    let receipt = Receipt::of(&first, &ada(20, 1)).unwrap();
    backend
        .settle(&limits.prepared, receipt.actual(0))
        .await
        .unwrap();
    assert_eq!(ask(&limits, &look).await.remaining(), 48);
    backend.reset_all("").await.unwrap();
}

//! Settlements of charges on several servers.

use std::time::Duration;

use crate::common::{LimitTree, policy};
use throttle_core::backend::Receipt;
use throttle_core::{Backend, FixedWindow, PolicyTree, Rate};
use throttle_redis::{Cluster, RedisBackend};
use throttle_test_servers::Cluster as Servers;

/// The server of the first slot hangs; the charge at the other server is still settled.
#[tokio::test]
async fn a_settlement_tries_every_slot_and_returns_the_first_error() {
    let servers = Servers::start();
    let urls = servers.urls();
    let cluster = Cluster::new(urls.iter().map(String::as_str)).unwrap();
    let spread = RedisBackend::builder(cluster)
        .prefix("settling")
        .per_key_slot()
        .readable_keys();
    let backend = spread.deadline(Duration::from_secs(1)).build().unwrap();
    let master = |key: &str| servers.master_of_key(format!("settling{{t{key}}}:"));
    let hung = master("ada");
    let other = (0..100)
        .map(|key| key.to_string())
        .find(|key| master(key) != hung)
        .unwrap();
    let members = ["a", "b"].map(|name| policy(name, FixedWindow::new(Rate::per_day(10))));
    let both = LimitTree::new(
        &backend,
        PolicyTree::All(members.clone().map(Into::into).to_vec()),
    );
    let [a, b] = members.map(|member| LimitTree::new(&backend, member));
    let calls = [
        both.calls("ada", 4)[0].clone(),
        both.calls(&other, 4)[0].clone(),
    ];
    let decision = backend.decide(&both.prepared, &calls).await.unwrap();
    let receipt = Receipt::of(&decision, &calls).unwrap().actual(1);
    servers.node(hung).stop();
    let error = backend.settle(&both.prepared, receipt).await.unwrap_err();
    servers.node(hung).cont();
    assert!(!error.is_uncharged(), "sent, and not answered: {error}");
    assert_eq!(
        b.left(&other).await,
        9,
        "settled at the server that answers"
    );
    let left = loop {
        // The backend's breaker or connection may not have noticed yet that the server is back.
        if let Ok(decision) = backend.decide(&a.prepared, &a.calls("ada", 0)).await {
            break decision.remaining();
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert!([6, 9].contains(&left), "settled or not, but once: {left}");
    assert_eq!(backend.stats().failed_settlements, 1);
}

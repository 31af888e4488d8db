//! An answer that means "not now" proves that the script did not run: the decision is repeated
//! until its deadline.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use throttle_core::{Backend, PolicyTree};
use throttle_redis::{Cluster, RedisBackend, RedisBuilder, Single};
use throttle_test_servers::redis::{RedisResult, Value};
use throttle_test_servers::{Cluster as Servers, Server, slot_of};

use super::{LIMIT, window};
use crate::common::{LONGEST_DEADLINE, LimitTree, until};

const TAG: &str = "now";

fn together(servers: &Servers) -> RedisBuilder {
    let urls = servers.urls();
    let cluster = Cluster::new(urls.iter().map(String::as_str)).expect("URLs");
    RedisBackend::builder(cluster)
        .single_slot(TAG)
        .deadline(LONGEST_DEADLINE)
}

/// A set with one used unit of "ada", on a connection that is open.
async fn used(backend: RedisBuilder, rule: impl Into<PolicyTree>) -> Arc<LimitTree> {
    let limits = LimitTree::new(&backend.build().expect("valid options"), rule);
    assert_eq!(limits.take("ada", 1).await.remaining(), LIMIT - 1);
    Arc::new(limits)
}

/// Starts a decision while the server cannot answer, and repairs the server once the decision was
/// repeated. The decision is then made and charged once.
async fn is_decided_once_mended(limits: &Arc<LimitTree>, mend: impl FnOnce()) {
    let (asking, before) = (Arc::clone(limits), limits.backend.stats().repeated);
    let deciding = tokio::spawn(async move {
        asking
            .backend
            .decide(&asking.prepared, &asking.calls("ada", 1))
            .await
    });
    let repeated = || limits.backend.stats().repeated >= before + 2;
    until("a decision that is sent again", || async {
        repeated() || deciding.is_finished()
    })
    .await;
    mend();
    let decision = deciding
        .await
        .expect("no panic")
        .expect("a decision, once the server can make it");
    let left: Vec<u64> = decision
        .statuses()
        .iter()
        .map(|status| status.remaining())
        .collect();
    assert_eq!(left, vec![LIMIT - 2; left.len()], "charged once");
    assert_eq!(limits.left("ada").await, LIMIT - 2);
    let stats = limits.backend.stats();
    assert_eq!(
        (stats.failures, stats.breaker_openings),
        (0, 0),
        "{stats:?}"
    );
}

/// `TRYAGAIN`: the keys of a set are on both sides of a slot that is moving.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tryagain_is_asked_again_until_the_slot_has_moved() {
    let servers = Servers::start();
    let limits = used(
        together(&servers),
        PolicyTree::All(vec![window("left").into(), window("right").into()]),
    )
    .await;
    let (slot, from) = (slot_of(TAG), servers.master_of(slot_of(TAG)));
    let to = (from + 1) % 3;
    servers.open_slot(from, to, slot);
    assert_eq!(servers.move_keys(from, to, slot, 1), 1);
    is_decided_once_mended(&limits, || {
        servers.move_keys(from, to, slot, 10);
        servers.close_slot(from, to, slot);
    })
    .await;
}

/// `CLUSTERDOWN`: the slot has no primary.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clusterdown_is_asked_again_until_the_slot_is_served() {
    let servers = Servers::start();
    let limits = used(together(&servers), window("one")).await;
    let slot = slot_of(TAG);
    let (owner, slot) = (servers.node(servers.master_of(slot)), slot.to_string());
    owner.command(&["CLUSTER", "DELSLOTS", &slot]);
    is_decided_once_mended(&limits, || {
        drop(owner.command(&["CLUSTER", "ADDSLOTS", &slot]));
    })
    .await;
}

/// `LOADING`: the server is loading its data.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loading_is_asked_again_until_the_data_is_there() {
    let server = Server::start();
    let single = Single::new(&server.url()).expect("a URL");
    let limits = used(
        RedisBackend::builder(single).deadline(LONGEST_DEADLINE),
        window("one"),
    )
    .await;
    // Loading 100 keys takes about 2 s, and the server serves its clients after each 2 MB.
    server.config_set("key-load-delay", "20000");
    let mut connection = server.connection();
    for key in 0..100 {
        let value = "x".repeat(200_000);
        throttle_test_servers::redis::cmd("SETEX")
            .arg(key)
            .arg(600)
            .arg(value)
            .exec(&mut connection)
            .expect("a key");
    }
    server.config_set("rdbcompression", "no");
    thread::scope(|scope| {
        let reading = scope.spawn(|| server.command(&["DEBUG", "RELOAD"]));
        let is_loading = || {
            let answer: RedisResult<Value> = server.try_query(&["GET", "0"]);
            answer.is_err_and(|error| error.code() == Some("LOADING"))
        };
        while !is_loading() {
            assert!(
                !reading.is_finished(),
                "the data was read before anyone could ask"
            );
            thread::sleep(Duration::from_millis(1));
        }
        tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(is_decided_once_mended(&limits, || ()));
        });
    });
}

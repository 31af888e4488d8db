//! Connections that break under a decision.

use std::time::Duration;

use throttle_core::{Backend, BackendErrorKind, PolicyTree};
use throttle_redis::{Cluster, RedisBackend};
use throttle_test_servers::{Cluster as Servers, slot_of};

use super::{LIMIT, window};
use crate::common::{LimitTree, until};

/// A cluster connection contains connections to each of its servers. When one of them breaks, only
/// that one is reopened, and the others carry on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_of_one_server_costs_the_others_of_a_cluster_nothing() {
    let servers = Servers::builder().proxied().start();
    let urls = servers.urls();
    let cluster = Cluster::new(urls.iter().map(String::as_str)).expect("URLs");
    let backend = RedisBackend::builder(cluster)
        .per_key_slot()
        .readable_keys()
        .deadline(Duration::from_secs(1));
    let limits = LimitTree::new(&backend.build().expect("valid options"), window("one"));
    let key = |master| {
        let keys = (0..).map(|number| format!("key-{number}"));
        keys.into_iter()
            .find(|key| servers.master_of(slot_of(format!("throttle{{b{key}}}one:"))) == master)
    };
    let keys: Vec<String> = (0..3)
        .map(|master| key(master).expect("a key of each master"))
        .collect();
    for key in &keys {
        assert_eq!(
            limits.take(key, 1).await.remaining(),
            LIMIT - 1,
            "each key is known to be where it is"
        );
    }
    let made = || [1, 2].map(|master| servers.proxy(master).connections());
    let (before, mut decided) = (made(), 1);
    for lost in 1..=3 {
        // The replica replicates through the same proxy, so the answer that is cut off may be one
        // to the replica.
        until("a lost answer", || async {
            servers.proxy(0).cut_replies(1);
            let answer = limits
                .backend
                .decide(&limits.prepared, &limits.calls(&keys[0], 1))
                .await;
            answer.is_err_and(|error| !error.is_uncharged())
        })
        .await;
        servers.proxy(0).cut_replies(0);
        for key in &keys[1..] {
            assert_eq!(limits.take(key, 1).await.remaining(), LIMIT - decided - 1);
        }
        decided += 1;
        until("the server that lost its connection", || async {
            limits
                .backend
                .decide(&limits.prepared, &limits.calls(&keys[0], 0))
                .await
                .is_ok()
        })
        .await;
        assert_eq!(
            limits.backend.stats().connections,
            1,
            "after {lost} lost answers"
        );
    }
    assert_eq!(
        made(),
        before,
        "the connections to the other servers are those of before"
    );
}

/// One server answers at once that it did not run the script; the other one hangs, and may have
/// charged.
#[tokio::test]
async fn decision_on_two_servers_may_be_charged_if_one_does_not_answer() {
    let servers = Servers::start();
    let urls = servers.urls();
    let cluster = Cluster::new(urls.iter().map(String::as_str)).expect("URLs");
    let backend = RedisBackend::builder(cluster)
        .per_key_slot()
        .readable_keys()
        .deadline(Duration::from_secs(1));
    let both = PolicyTree::All(["one", "two"].map(|name| window(name).into()).to_vec());
    let limits = LimitTree::new(&backend.build().expect("valid options"), both);
    let master =
        |key: &str, policy: &str| servers.master_of_key(format!("throttle{{t{key}}}{policy}:"));
    let hung = master("ada", "one");
    let key = (0..)
        .map(|number| format!("key-{number}"))
        .find(|key| master(key, "two") != hung)
        .expect("a key");
    let calls = [
        limits.calls("ada", 1)[0].clone(),
        limits.calls(&key, 1)[0].clone(),
    ];
    until("both servers", || async {
        limits
            .backend
            .decide(&limits.prepared, &calls)
            .await
            .is_ok()
    })
    .await;
    servers
        .node(master(&key, "two"))
        .command(&["CONFIG", "SET", "maxmemory", "1"]);
    servers.node(hung).stop();
    let error = limits
        .backend
        .decide(&limits.prepared, &calls)
        .await
        .expect_err("neither server decides");
    servers.node(hung).cont();
    assert!(!error.is_uncharged(), "{error}");
}

/// Keys of two servers that are decided together: their servers, and the calls.
async fn on_two_servers(servers: &Servers) -> (LimitTree, [usize; 2], [String; 2]) {
    let urls = servers.urls();
    let cluster = Cluster::new(urls.iter().map(String::as_str)).expect("URLs");
    let backend = RedisBackend::builder(cluster)
        .per_key_slot()
        .readable_keys()
        .deadline(Duration::from_secs(5));
    let both = PolicyTree::All(["one", "two"].map(|name| window(name).into()).to_vec());
    let limits = LimitTree::new(&backend.build().expect("valid options"), both);
    let master =
        |key: &str, policy: &str| servers.master_of_key(format!("throttle{{t{key}}}{policy}:"));
    let first = master("ada", "one");
    let key = (0..)
        .map(|number| format!("key-{number}"))
        .find(|key| master(key, "two") != first)
        .expect("a key");
    let second = master(&key, "two");
    let calls = [
        limits.calls("ada", 1)[0].clone(),
        limits.calls(&key, 1)[0].clone(),
    ];
    until("both servers", || async {
        limits
            .backend
            .decide(&limits.prepared, &calls)
            .await
            .is_ok()
    })
    .await;
    (
        limits,
        [first, second],
        [
            "throttle{tada}one:".to_owned(),
            format!("throttle{{t{key}}}two:"),
        ],
    )
}

/// The calls of the keys with these names.
fn calls_of(limits: &LimitTree, names: &[String; 2]) -> [throttle_core::backend::Call; 2] {
    let key = |name: &str| {
        name.split(['{', '}'])
            .nth(1)
            .and_then(|key| key.strip_prefix('t'))
            .expect("a key")
            .to_owned()
    };
    names
        .each_ref()
        .map(|name| limits.calls(&key(name), 1)[0].clone())
}

/// One server's answer does not tell whether it charged; the other one, later, says that it did
/// not.
#[tokio::test]
async fn of_two_errors_the_one_after_which_a_key_may_be_charged_is_returned() {
    let servers = Servers::builder().proxied().start();
    let (limits, [first, second], names) = on_two_servers(&servers).await;
    servers
        .node(first)
        .command(&["SET", &names[0], "no state of a limit"]);
    servers
        .node(second)
        .command(&["CONFIG", "SET", "maxmemory", "1"]);
    servers
        .proxy(second)
        .delay_replies(Duration::from_millis(200));
    let decided = limits
        .backend
        .decide(&limits.prepared, &calls_of(&limits, &names))
        .await;
    servers.proxy(second).delay_replies(Duration::ZERO);
    let error = decided.expect_err("neither server decides");
    assert_eq!(
        (error.kind(), error.is_uncharged()),
        (BackendErrorKind::Protocol, false),
        "{error:?}"
    );
}

/// What was reserved at one server cannot be given back when the other one has failed.
#[tokio::test]
async fn a_unit_that_cannot_be_given_back_is_reported_as_charged() {
    let servers = Servers::builder().proxied().start();
    let (limits, [first, second], names) = on_two_servers(&servers).await;
    let full = |node: usize| {
        servers
            .node(node)
            .command(&["CONFIG", "SET", "maxmemory", "1"])
    };
    full(second);
    servers.node(first).command(&["DEL", &names[0]]);
    servers
        .proxy(second)
        .delay_replies(Duration::from_millis(500));
    let calls = calls_of(&limits, &names);
    let fill = async {
        until("the reserved unit", || async {
            servers.node(first).dbsize() > 0
        })
        .await;
        full(first);
    };
    let (decided, ()) = tokio::join!(limits.backend.decide(&limits.prepared, &calls), fill);
    servers.proxy(second).delay_replies(Duration::ZERO);
    let error = decided.expect_err("one server is full");
    assert!(!error.is_uncharged(), "{error:?}");
    assert_eq!(limits.backend.stats().failed_settlements, 1);
}

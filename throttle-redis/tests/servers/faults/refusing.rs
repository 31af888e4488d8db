//! A server that answers, and refuses each decision: it is not healthy, however few requests come.

use std::time::{Duration, Instant};

use throttle_core::Backend;
use throttle_redis::{RedisBackend, Single};
use throttle_test_servers::{Cluster as Servers, Server, slot_of};
use tokio::task::JoinSet;

use super::window;
use crate::common::{LimitTree, until};

/// What makes a server refuse, and what ends that.
const REFUSALS: [(&str, &[&str], &[&str]); 8] = [
    (
        "READONLY",
        &["REPLICAOF", "127.0.0.1", "1"],
        &["REPLICAOF", "NO", "ONE"],
    ),
    (
        "OOM",
        &["CONFIG", "SET", "maxmemory", "1"],
        &["CONFIG", "SET", "maxmemory", "0"],
    ),
    (
        "NOREPLICAS",
        &["CONFIG", "SET", "min-replicas-to-write", "1"],
        &["CONFIG", "SET", "min-replicas-to-write", "0"],
    ),
    ("NOPERM evalsha", &["-evalsha"], &["+evalsha"]),
    ("NOPERM time", &["-time"], &["+time"]),
    ("NOPERM get", &["-get"], &["+get"]),
    ("NOPERM set", &["-set"], &["+set"]),
    ("NOPERM keys", &["resetkeys", "~other*"], &["~throttle{*"]),
];

/// Longer than a decision, and than the longest pause between two signs of life.
const LOOKS: Duration = Duration::from_millis(900);

fn command(server: &Server, words: &[&str]) {
    if words[0].starts_with(['-', '+', '~']) || words[0] == "resetkeys" {
        server.command(&[&["ACL", "SETUSER", "limiter"], words].concat());
    } else {
        server.command(words);
    }
}

/// Two requests, then one in `LOOKS`: nothing but signs of life happens in between, so requests
/// that are rarer see the same.
async fn is_unhealthy_while_it_refuses(
    what: &'static str,
    server: Server,
    refuse: &'static [&'static str],
    mend: &'static [&'static str],
) {
    let rights = "on >secret ~throttle{* +@all";
    server.command(
        &["ACL", "SETUSER", "limiter"]
            .into_iter()
            .chain(rights.split(' '))
            .collect::<Vec<_>>(),
    );
    let single = Single::new(&server.url_of("limiter", "secret")).expect("a URL");
    let backend = RedisBackend::builder(single)
        .deadline(Duration::from_millis(500))
        .build()
        .expect("valid options");
    let limits = LimitTree::new(&backend, window("one"));
    let decide = || backend.decide(&limits.prepared, &limits.calls("ada", 1));
    until("a decision", || async { decide().await.is_ok() }).await;
    let used = limits.left("ada").await;
    command(&server, refuse);
    for _ in 0..2 {
        let error = decide().await.expect_err(what);
        assert!(error.is_uncharged(), "{what}: {error:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for _ in 0..3 {
        let began = Instant::now();
        while began.elapsed() < LOOKS {
            assert!(!backend.is_healthy(), "{what}");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        assert!(decide().await.is_err(), "{what}");
    }
    assert_eq!(backend.stats().unknown, 0, "{what}: nothing was charged");
    command(&server, mend);
    until(what, || async { backend.is_healthy() }).await;
    assert!(decide().await.is_ok(), "{what}");
    assert_eq!(limits.left("ada").await, used - 1, "{what}");
    assert!(backend.is_healthy(), "{what}");
    let stats = backend.stats();
    assert!(stats.breaker_openings <= 2, "{what}: {stats:?}");
    let is_other_server = what == "READONLY";
    assert!(
        is_other_server || stats.connections == 1,
        "{what}: {stats:?}"
    );
    assert_eq!(server.keys("* ").len(), 0, "a sign of life leaves no key");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn law_13_a_server_that_refuses_decisions_is_unhealthy_until_it_decides() {
    let mut cases = JoinSet::new();
    for (what, refuse, mend) in REFUSALS {
        cases.spawn(is_unhealthy_while_it_refuses(
            what,
            Server::start(),
            refuse,
            mend,
        ));
    }
    cases.join_all().await;
}

/// Each server of a cluster decides for its own slots.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn law_13_a_server_of_a_cluster_that_refuses_decisions_is_unhealthy() {
    const TAG: &str = "refuses";
    let servers = Servers::start();
    let urls = servers.urls();
    let cluster = throttle_redis::Cluster::new(urls.iter().map(String::as_str)).expect("URLs");
    let backend = RedisBackend::builder(cluster)
        .single_slot(TAG)
        .deadline(Duration::from_secs(1))
        .build()
        .expect("valid options");
    let limits = LimitTree::new(&backend, window("one"));
    let decide = || backend.decide(&limits.prepared, &limits.calls("ada", 1));
    until("a decision", || async { decide().await.is_ok() }).await;
    let server = servers.node(servers.master_of(slot_of(TAG)));
    server.config_set("min-replicas-to-write", "9");
    for _ in 0..2 {
        let error = decide().await.expect_err("too few replicas");
        assert!(error.is_uncharged(), "{error:?}");
    }
    let began = Instant::now();
    while began.elapsed() < 2 * LOOKS {
        assert!(!backend.is_healthy());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    server.config_set("min-replicas-to-write", "0");
    until("a sign of life", || async { backend.is_healthy() }).await;
    assert!(decide().await.is_ok());
}

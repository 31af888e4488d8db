//! Servers that are far away, and what an attempt to connect may take.

use std::time::{Duration, Instant};

use throttle_core::Backend;
use throttle_redis::{Cluster, Connector, Pool, RedisBackend, Sentinel, Single, Tls};
use throttle_test_servers::{Cluster as Servers, Proxy, Sentinel as Sentinels, Server};

use super::{PATIENT, day, whole_message};
use crate::common::LimitTree;

/// A decision with all the time in the world, on an attempt to connect with the default time.
async fn connects(connector: impl Connector) {
    let backend = RedisBackend::builder(connector);
    let backend = backend
        .deadline(PATIENT)
        .connect_timeout(Duration::from_secs(1));
    let backend = backend.single_slot("one").build().unwrap();
    assert_eq!(
        LimitTree::new(&backend, day(3))
            .take("ada", 1)
            .await
            .remaining(),
        2
    );
    assert_eq!(backend.stats().failed_connections, 0);
}

#[tokio::test]
async fn a_server_over_tls_whose_replies_take_210_ms_is_reached() {
    let server = Server::builder().tls().start();
    let url = server.tls_url();
    let (_, port) = url.rsplit_once(':').unwrap();
    let proxy = Proxy::start(port.parse().unwrap());
    proxy.delay_replies(Duration::from_millis(210));
    let (url, tls) = (
        format!("rediss://127.0.0.1:{}", proxy.port()),
        Tls::new().authority(server.tls().authority.as_str()),
    );
    connects(Single::with_tls(&url, &tls).unwrap()).await;
    server.command(&["FLUSHALL"]);
    connects(Pool::with_tls(&url, 2, &tls).unwrap()).await;
}

#[tokio::test]
async fn a_master_is_reached_if_each_reply_takes_80_ms() {
    let group = Sentinels::start(1);
    let master = Proxy::start(group.master().port());
    let sentinel = Proxy::start(group.sentinels()[0].port());
    for proxy in [&master, &sentinel] {
        proxy.delay_replies(Duration::from_millis(80));
    }
    let port = master.port().to_string();
    let monitor = ["SENTINEL", "MONITOR", "far", "127.0.0.1", &port, "1"];
    group.sentinels()[0].command(&monitor);
    let url = sentinel.url();
    connects(Sentinel::new([url.as_str()], "far", None).unwrap()).await;
}

#[tokio::test]
async fn a_cluster_is_reached_if_each_reply_takes_150_ms_and_one_server_hangs() {
    let servers = Servers::builder().proxied().start();
    let slot = throttle_test_servers::slot_of("one");
    let nodes = servers.nodes().count();
    for node in 0..nodes {
        servers
            .proxy(node)
            .delay_replies(Duration::from_millis(150));
    }
    let hangs = (0..nodes)
        .find(|node| *node != servers.master_of(slot))
        .unwrap();
    servers.proxy(hangs).blackhole(true);
    let urls = servers.urls();
    connects(Cluster::new(urls.iter().map(String::as_str)).unwrap()).await;
}

/// The error of a decision names the setting.
#[tokio::test]
async fn an_attempt_to_connect_ends_after_the_connect_timeout() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    proxy.blackhole(true);
    let backend = RedisBackend::builder(Single::new(&proxy.url()).unwrap());
    let backend = backend
        .deadline(PATIENT)
        .connect_timeout(Duration::from_millis(100));
    let (backend, began) = (backend.build().unwrap(), Instant::now());
    let limits = LimitTree::new(&backend, day(3));
    let error = backend
        .decide(&limits.prepared, &limits.calls("ada", 1))
        .await
        .unwrap_err();
    assert!(began.elapsed() < PATIENT / 2, "{:?}", began.elapsed());
    assert!(
        whole_message(&error).contains("connect_timeout, 100ms"),
        "{}",
        whole_message(&error)
    );
}

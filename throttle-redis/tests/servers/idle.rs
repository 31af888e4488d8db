//! The end of an idle connection costs no request its decision, on real servers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::{LimitTree, policy};
use bb8_redis::{RedisConnectionManager, bb8};
use throttle_core::{Backend, FixedWindow, Rate};
use throttle_redis::{Cluster, Connector, Pool, RedisBackend, RedisBuilder, Sentinel, Single};
use throttle_test_servers::{Cluster as Servers, Proxy, Sentinel as Sentinels, Server};
use tokio::task::JoinSet;

/// These tests do not measure how fast answers are.
const PATIENT: Duration = Duration::from_secs(5);
/// A silent end costs the requests of one deadline.
const SHORT: Duration = Duration::from_millis(600);

fn builder(connector: impl Connector, deadline: Duration) -> RedisBuilder {
    RedisBackend::builder(connector).deadline(deadline)
}

fn built(connector: impl Connector, deadline: Duration) -> RedisBackend {
    builder(connector, deadline).build().unwrap()
}

/// Five units for each key.
fn limits(backend: &RedisBackend, name: &str) -> Arc<LimitTree> {
    Arc::new(LimitTree::new(
        backend,
        policy(name, FixedWindow::new(Rate::per_day(5))),
    ))
}

/// A hundred requests at once, of ten keys. Returns how many were admitted, and how many failed.
async fn hundred(limits: &Arc<LimitTree>) -> (usize, usize) {
    let mut asking = JoinSet::new();
    for number in 0..100 {
        let limits = Arc::clone(limits);
        asking.spawn(async move {
            let calls = limits.calls(&format!("key{}", number % 10), 1);
            limits.backend.decide(&limits.prepared, &calls).await
        });
    }
    let answers = asking.join_all().await;
    let failed = answers.iter().filter(|answer| answer.is_err()).count();
    (
        answers
            .iter()
            .flatten()
            .filter(|decision| decision.is_admitted())
            .count(),
        failed,
    )
}

fn kill_clients(server: &Server) {
    server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
}

/// Ends all connections, and decides at once or later: many requests, or one.
async fn costs_nothing(backend: &RedisBackend, what: &str, end: impl Fn()) {
    // The process is busy with something else meanwhile, so that its runtime does not read the end
    // before it decides.
    let ended = || {
        end();
        std::thread::sleep(Duration::from_millis(60));
    };
    for (round, later) in [false, true, false].into_iter().enumerate() {
        let many = limits(backend, &format!("{what}-many-{round}"));
        ended();
        if later {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(
            hundred(&many).await,
            (50, 0),
            "{what}, later: {later}: {:?}",
            backend.stats()
        );
        let one = limits(backend, &format!("{what}-one-{round}"));
        for key in ["ada", "bob"] {
            ended();
            let decided = backend.decide(&one.prepared, &one.calls(key, 1)).await;
            assert_eq!(
                decided.map(|decision| decision.remaining()).ok(),
                Some(4),
                "{what}: {:?}",
                backend.stats()
            );
        }
    }
    let stats = backend.stats();
    assert_eq!(
        (stats.failures, stats.unknown, stats.breaker_openings),
        (0, 0, 0),
        "{what}: {stats:?}"
    );
}

/// The server closes connections that were idle for a second.
async fn outlives_its_timeout(backend: &RedisBackend, servers: &[&Server]) {
    let limits = limits(backend, "timeout");
    hundred(&limits).await;
    let before: Vec<u64> = servers.iter().map(|server| connections(server)).collect();
    servers
        .iter()
        .for_each(|server| server.config_set("timeout", "1"));
    let closed = || {
        servers
            .iter()
            .zip(&before)
            .any(|(server, before)| connections(server) > *before + 2)
    };
    let began = Instant::now();
    while !closed() && began.elapsed() < Duration::from_secs(4) {
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert_eq!(hundred(&limits).await, (0, 0), "{:?}", backend.stats());
    servers
        .iter()
        .for_each(|server| server.config_set("timeout", "0"));
}

fn connections(server: &Server) -> u64 {
    server.info("total_connections_received").parse().unwrap()
}

#[tokio::test]
async fn law_13_ends_of_the_one_connection_cost_no_decision() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let backend = built(Single::new(&proxy.url()).unwrap(), PATIENT);
    costs_nothing(&backend, "kill", || kill_clients(&server)).await;
    costs_nothing(&backend, "reset", || proxy.reset_all()).await;
    costs_nothing(&backend, "restart", || server.restart()).await;
    outlives_its_timeout(&backend, &[&server]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn law_13_ends_of_connections_of_a_pool_cost_no_decision() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let backend = built(Pool::new(&proxy.url(), 4).unwrap(), PATIENT);
    costs_nothing(&backend, "kill", || kill_clients(&server)).await;
    costs_nothing(&backend, "reset", || proxy.reset_all()).await;
    costs_nothing(&backend, "restart", || server.restart()).await;
    outlives_its_timeout(&backend, &[&server]).await;
}

/// Also if the pool does not check its connections itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn law_13_ends_of_connections_of_the_applications_pool_cost_no_decision() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    for (size, tests) in [(4, true), (4, false), (1, true)] {
        let manager = RedisConnectionManager::new(proxy.url()).unwrap();
        let pool = bb8::Pool::builder().max_size(size).test_on_check_out(tests);
        let pool = pool.build(manager).await.unwrap();
        let backend = built(Pool::existing(pool), PATIENT);
        let what = |end| format!("{end}-{size}-{tests}");
        costs_nothing(&backend, &what("kill"), || kill_clients(&server)).await;
        costs_nothing(&backend, &what("reset"), || proxy.reset_all()).await;
        costs_nothing(&backend, &what("restart"), || server.restart()).await;
        outlives_its_timeout(&backend, &[&server]).await;
        backend.reset_all("").await.unwrap();
    }
}

#[tokio::test]
async fn law_13_ends_of_the_connection_to_a_master_cost_no_decision() {
    let sentinels = Sentinels::start(1);
    let urls = sentinels.urls();
    let connector = Sentinel::new(urls.iter().map(String::as_str), Sentinels::NAME, None).unwrap();
    let backend = built(connector, PATIENT);
    let master = sentinels.master();
    costs_nothing(&backend, "kill", || kill_clients(master)).await;
    costs_nothing(&backend, "restart", || master.restart()).await;
    outlives_its_timeout(&backend, &[master]).await;
}

#[tokio::test]
async fn law_13_ends_of_connections_to_a_cluster_cost_no_decision() {
    let servers = Servers::builder().proxied().start();
    let urls = servers.urls();
    let cluster = Cluster::new(urls.iter().map(String::as_str)).unwrap();
    let backend = builder(cluster, PATIENT).per_key_slot().build().unwrap();
    let nodes: Vec<&Server> = servers.nodes().collect();
    costs_nothing(&backend, "kill", || {
        nodes.iter().for_each(|node| kill_clients(node));
    })
    .await;
    costs_nothing(&backend, "reset", || {
        (0..nodes.len()).for_each(|node| servers.proxy(node).reset_all());
    })
    .await;
    outlives_its_timeout(&backend, &nodes).await;
    silence_costs_few_deadlines(
        builder(
            Cluster::new(urls.iter().map(String::as_str)).unwrap(),
            SHORT,
        )
        .per_key_slot()
        .build()
        .unwrap(),
        || (0..nodes.len()).for_each(|node| servers.proxy(node).silence_open()),
    )
    .await;
}

/// Nothing arrives on the connection any more, and nothing says so. Requests that come before it
/// can be known fail: those of one deadline, or of four if this process is late itself.
async fn silence_costs_few_deadlines(backend: RedisBackend, silence: impl Fn()) {
    let most = 5 * SHORT;
    backend.reset_all("silence").await.unwrap();
    let many = limits(&backend, "silence-many");
    assert_eq!(hundred(&many).await, (50, 0));
    tokio::time::sleep(2 * SHORT).await;
    silence();
    let began = Instant::now();
    let mut failures = 100;
    assert_eq!(hundred(&many).await, (0, 100));
    loop {
        let (_, failed) = hundred(&many).await;
        if failed == 0 {
            break;
        }
        failures += failed;
        assert!(began.elapsed() < most, "{:?}", backend.stats());
    }
    assert!(backend.is_healthy());
    tokio::time::sleep(2 * SHORT).await;
    silence();
    let one = limits(&backend, "silence-one");
    let decide = || backend.decide(&one.prepared, &one.calls("ada", 1));
    let began = Instant::now();
    failures += 1;
    assert!(decide().await.is_err());
    let decided = loop {
        match decide().await {
            Ok(decided) => break decided,
            Err(error) => assert!(began.elapsed() < most, "{error}"),
        }
        failures += 1;
    };
    assert_eq!(decided.remaining(), 4);
    let stats = backend.stats();
    assert_eq!(stats.failures, failures as u64, "{stats:?}");
}

#[tokio::test]
async fn law_13_a_silent_end_costs_the_requests_of_few_deadlines() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let silence = || proxy.silence_open();
    silence_costs_few_deadlines(built(Single::new(&proxy.url()).unwrap(), SHORT), silence).await;
    silence_costs_few_deadlines(built(Pool::new(&proxy.url(), 4).unwrap(), SHORT), silence).await;
}

/// No new connection works either.
#[tokio::test]
async fn law_12_law_13_silent_store_opens_the_breaker_and_counts_as_busy() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let backend = built(Single::new(&proxy.url()).unwrap(), SHORT);
    let many = limits(&backend, "p");
    hundred(&many).await;
    proxy.blackhole(true);
    for _ in 0..4 {
        let began = Instant::now();
        assert_eq!(hundred(&many).await, (0, 100));
        assert!(began.elapsed() < 4 * SHORT, "{:?}", began.elapsed());
        let error = backend
            .decide(&many.prepared, &many.calls("ada", 1))
            .await
            .unwrap_err();
        assert!(error.kind().is_busy(), "{error}");
        assert!(!backend.is_healthy());
    }
    assert!(backend.stats().breaker_openings > 0);
    assert!(
        backend.stats().unknown < backend.stats().failures,
        "what was not sent was not charged"
    );
    proxy.heal();
    let began = Instant::now();
    while hundred(&many).await.1 > 0 {
        assert!(began.elapsed() < PATIENT, "{:?}", backend.stats());
    }
}

/// The health of an idle backend is known without a request.
#[tokio::test]
async fn law_13_a_backend_whose_idle_connection_ended_for_good_is_not_healthy() {
    let server = Server::start();
    let backend = built(Single::new(&server.url()).unwrap(), PATIENT);
    hundred(&limits(&backend, "p")).await;
    assert!(backend.is_healthy());
    server.kill();
    let until = async |healthy| {
        let began = Instant::now();
        while backend.is_healthy() != healthy {
            assert!(began.elapsed() < PATIENT, "{healthy}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    until(false).await;
    server.restart();
    until(true).await;
    assert_eq!(backend.stats().failures, 0);
}

/// A static layer in tests, for example, of which each has a runtime of its own.
#[test]
fn law_13_runtimes_that_use_a_backend_one_after_another_all_get_decisions() {
    let (server, sentinels) = (Server::start(), Sentinels::start(1));
    let cluster = Servers::start();
    let [nodes, urls] = [cluster.urls(), sentinels.urls()];
    let sentinel = Sentinel::new(urls.iter().map(String::as_str), Sentinels::NAME, None).unwrap();
    let cluster = Cluster::new(nodes.iter().map(String::as_str)).unwrap();
    for (name, backend) in [
        (
            "single",
            built(Single::new(&server.url()).unwrap(), PATIENT),
        ),
        ("pool", built(Pool::new(&server.url(), 4).unwrap(), PATIENT)),
        ("sentinel", built(sentinel, PATIENT)),
        (
            "cluster",
            builder(cluster, PATIENT).per_key_slot().build().unwrap(),
        ),
    ] {
        let limits = limits(&backend, name);
        for round in 0..6 {
            let mut runtime = match round % 2 {
                0 => tokio::runtime::Builder::new_current_thread(),
                _ => tokio::runtime::Builder::new_multi_thread(),
            };
            let runtime = runtime.enable_all().build().unwrap();
            let (admitted, failed) = runtime.block_on(hundred(&limits));
            assert_eq!(
                (admitted, failed),
                (if round == 0 { 50 } else { 0 }, 0),
                "{name} {round}"
            );
        }
        assert_eq!(backend.stats().failures, 0);
        // The connection to a cluster opens those to its servers again by itself.
        let least = if name == "cluster" { 1 } else { 6 };
        assert!(
            backend.stats().connections >= least,
            "{:?}",
            backend.stats()
        );
    }
}

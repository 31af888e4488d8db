//! A master that dies, and sentinels that promote its replica.

use std::time::{Duration, Instant};

use throttle_redis::RedisBackend;
use throttle_test_servers::Sentinel;

use crate::course::Course;
use crate::place;
use crate::report::Report;

/// Waits until the replica has its master's data. The replica may report its link as up before it
/// has any, and a failover cannot restore what it lacks: that would be a different fault.
fn in_step(group: &Sentinel) {
    let start = Instant::now();
    let master = group.master();
    let replica = group
        .servers()
        .iter()
        .find(|server| server.port() != master.port())
        .expect("a replica");
    while replica.dbsize() == 0 || replica.dbsize() != master.dbsize() {
        let (has, of) = (replica.dbsize(), master.dbsize());
        assert!(
            start.elapsed() < Duration::from_secs(30),
            "the replica has {has} of {of} keys"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A load on the master, whose replica has all of its data when the fault begins.
async fn through(group: &Sentinel, fault: impl Fn()) -> Report {
    let urls = group.urls();
    let backend = || {
        let urls = urls.iter().map(String::as_str);
        RedisBackend::builder(
            throttle_redis::Sentinel::new(urls, Sentinel::NAME, None).expect("URLs"),
        )
    };
    let course = Course::start(backend).await;
    in_step(group);
    course
        .with(async |_: &Course| fault(), Duration::from_millis(1500))
        .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn master_killed_and_replaced() {
    let _place = place().await;
    let group = Sentinel::start(1);
    let fault = || {
        let master = group.master();
        master.kill();
        group.wait_for_failover_from(master);
    };
    let report = through(&group, fault).await;
    report.check("a master killed, its replica promoted by sentinels");
    report.check_breaker("sentinel failover");
    report.check_return("sentinel failover");
    report.check_charges(&[group.master()], 5);
}

/// An operator swaps the roles of the replica and the master, and reconfigures the sentinels. No
/// connection to the old master is closed: only its answers show that it is a replica.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn master_demoted_with_its_connections_open() {
    let _place = place().await;
    let group = Sentinel::start(1);
    let [old, new] = group.servers();
    let fault = || {
        let (sentinel, port) = (&group.sentinels()[0], new.port().to_string());
        sentinel.command(&["SENTINEL", "REMOVE", Sentinel::NAME]);
        new.command(&["REPLICAOF", "NO", "ONE"]);
        sentinel.command(&[
            "SENTINEL",
            "MONITOR",
            Sentinel::NAME,
            "127.0.0.1",
            &port,
            "1",
        ]);
        old.command(&["REPLICAOF", "127.0.0.1", &port]);
    };
    let report = through(&group, fault).await;
    report.check("a master demoted, its connections open");
    report.check_return("a master demoted, its connections open");
    for run in &report.runs {
        let stats = run.app.backend.stats();
        assert_eq!(
            run.unknown_though_answered(),
            0,
            "the old master said that nothing was charged"
        );
        assert!(
            (2..=10).contains(&stats.connections),
            "{} connections",
            stats.connections
        );
    }
    let commands: String = old.query(&["INFO", "commandstats"]);
    assert!(
        !commands.contains("cmdstat_client|kill"),
        "connections to the old master were ended: {commands}"
    );
    assert_eq!(
        (old.info("role").as_str(), new.info("role").as_str()),
        ("slave", "master")
    );
}

/// The replica takes over while the old master runs on as a replica, and refuses writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn master_demoted() {
    let _place = place().await;
    let group = Sentinel::start(1);
    let fault = || {
        let master = group.master();
        group.sentinels()[0].command(&["SENTINEL", "FAILOVER", Sentinel::NAME]);
        group.wait_for_failover_from(master);
        // Until it learns of the change, the old master still acts as master.
        let role = || master.try_query::<String>(&["INFO", "replication"]);
        // When it learns of the change, it closes all connections, including this one.
        while !role().is_ok_and(|info| info.contains("role:slave")) {
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    let report = through(&group, fault).await;
    report.check("a master demoted by sentinels");
    report.check_return("a master demoted");
    for run in &report.runs {
        let connections = run.app.backend.stats().connections;
        assert!(connections <= 25, "{connections} connections");
    }
}

//! Decisions and limits that share calls on a cluster: those of one hash slot.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{LimitTree, policy};
use throttle_core::backend::{Call, KeyStep, Receipt};
use throttle_core::{Backend, FixedWindow, Key, Policy, PolicyTree, Rate};
use throttle_redis::{Cluster, RedisBackend, RedisBuilder};
use throttle_test_servers::Cluster as Servers;
use tokio::task::JoinSet;

const TASKS: u64 = 64;
/// Much longer than any of these tests takes.
const PATIENCE: Duration = Duration::from_secs(10);

fn clustered(servers: &Servers) -> RedisBuilder {
    let urls = servers.urls();
    let cluster = Cluster::new(urls.iter().map(String::as_str)).expect("URLs");
    RedisBackend::builder(cluster).deadline(PATIENCE)
}

/// A window that does not end during a test.
fn window(name: &str, units: u64) -> Policy {
    policy(
        name,
        FixedWindow::new(Rate::new(units, Duration::from_secs(3650 * 86_400))),
    )
}

fn limited(builder: RedisBuilder, units: u64) -> Arc<LimitTree> {
    Arc::new(LimitTree::new(
        &builder.build().expect("valid options"),
        window("p", units),
    ))
}

/// Each of 64 tasks takes `each` units of a key, one after the other. Returns how many were
/// admitted.
async fn race(limits: &Arc<LimitTree>, each: u64, key_of: fn(u64) -> String) -> u64 {
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let (limits, key) = (Arc::clone(limits), key_of(task));
        tasks.spawn(async move {
            let mut admitted = 0;
            for _ in 0..each {
                admitted += u64::from(limits.take(&key, 1).await.is_admitted());
            }
            admitted
        });
    }
    tasks.join_all().await.into_iter().sum()
}

/// The sum of a counter over all servers.
fn counted(servers: &Servers, section: &str, counter: &str) -> u64 {
    let of_one = |info: String| {
        let line = info
            .lines()
            .find_map(|line| line.strip_prefix(counter).map(str::to_owned))?;
        line.split([',', '=']).nth(1)?.parse::<u64>().ok()
    };
    servers
        .nodes()
        .filter_map(|node| of_one(node.query(&["INFO", section])))
        .sum()
}

fn script_calls(servers: &Servers) -> u64 {
    counted(servers, "commandstats", "cmdstat_evalsha:calls")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn law_06_decisions_of_one_slot_share_calls_and_admit_exactly_the_limit() {
    let servers = &Servers::start();
    for (prefix, max_batch) in [("batched", 64), ("unbatched", 1)] {
        let limits = limited(
            clustered(servers)
                .per_key_slot()
                .prefix(prefix)
                .max_batch(max_batch),
            1_000,
        );
        limits.take("warm", 1).await;
        let (before, sent) = (limits.backend.stats(), script_calls(servers));
        assert_eq!(race(&limits, 50, |_| "hot".to_owned()).await, 1_000);
        let (after, sent) = (limits.backend.stats(), script_calls(servers) - sent);
        let (decisions, calls) = (
            after.decisions - before.decisions,
            after.calls - before.calls,
        );
        assert_eq!((decisions, after.failures), (50 * TASKS, 0), "{prefix}");
        // A server that has not seen the script yet answers the first call without running it.
        assert!(
            calls.abs_diff(sent) <= after.repeated,
            "{prefix}: {calls} calls, of which {sent} arrived"
        );
        let as_due = if max_batch > 1 {
            2 * calls < decisions
        } else {
            calls >= decisions
        };
        assert!(as_due, "{prefix}: {decisions} decisions in {calls} calls");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decisions_of_several_slots_share_no_call() {
    let servers = Servers::shared();
    let limits = limited(clustered(servers).per_key_slot().prefix("several"), 100);
    // Eight tasks for each of eight keys, on all servers.
    let key_of = |task: u64| format!("key-{}", task % 8);
    assert_eq!(race(&limits, 50, key_of).await, 8 * 100);
    let stats = limits.backend.stats();
    assert_eq!(
        (stats.decisions, stats.failures),
        (50 * TASKS, 0),
        "a call that reaches two slots fails"
    );
    assert!(
        stats.calls < stats.decisions,
        "keys of one slot share calls: {stats:?}"
    );
    assert_eq!(
        counted(servers, "errorstats", "errorstat_CROSSSLOT:count"),
        0
    );
}

/// The calls of one request: the customer, and one of the customer's users and routes.
fn calls_of(customer: &str, user: u64) -> [Call; 3] {
    let customer = || Key::builder().text(customer);
    let user = customer().number(user);
    let route = customer().text("/orders").text("GET");
    [customer(), user, route].map(|key| Call::from(key.finish()))
}

/// A limit of 100 for a customer, of 30 for each user, and of 60 for each route.
fn three_limits(servers: &Servers, prefix: &str) -> Arc<LimitTree> {
    let builder = clustered(servers).slot_by_first_part().prefix(prefix);
    let policies = [("per-customer", 100), ("per-user", 30), ("per-route", 60)];
    let policies = policies.map(|(name, units)| window(name, units).into());
    let backend = builder.build().expect("valid options");
    Arc::new(LimitTree::new(&backend, PolicyTree::All(policies.to_vec())))
}

async fn left(limits: &LimitTree, calls: &[Call; 3]) -> [u64; 3] {
    let peeks = calls
        .each_ref()
        .map(|call| Call::peek(call.key().expect("a key").clone()));
    let decision = limits.backend.decide(&limits.prepared, &peeks).await;
    let decision = decision.expect("a decision");
    std::array::from_fn(|policy| decision.statuses()[policy].remaining())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_limits_of_one_customer_are_one_call() {
    let servers = &Servers::start();
    let limits = three_limits(servers, "customers");
    for customer in ["acme", "umbra", "initech"] {
        let calls = calls_of(customer, 7);
        // A server that has not seen the scripts yet answers each first call without running it.
        let decide = || limits.backend.decide(&limits.prepared, &calls);
        let settle = |receipt: Receipt| limits.backend.settle(&limits.prepared, receipt.actual(0));
        let charged = decide().await.expect("a decision");
        let receipt = |decision| Receipt::of(decision, &calls).expect("a charge");
        settle(receipt(&charged)).await.expect("settled");
        let sent = script_calls(servers);
        let decision = decide().await.expect("a decision");
        assert!(decision.is_admitted());
        assert_eq!(
            script_calls(servers) - sent,
            1,
            "a decision about {customer}"
        );
        assert_eq!(left(&limits, &calls).await, [99, 29, 59]);
        let sent = script_calls(servers);
        settle(receipt(&decision)).await.expect("settled");
        assert_eq!(
            script_calls(servers) - sent,
            1,
            "a settlement for {customer}"
        );
        assert_eq!(left(&limits, &calls).await, [100, 30, 60]);
    }
}

/// The set is decided in one step, so no request holds units that another one lacks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn law_05_limits_of_one_customer_are_all_charged_or_none() {
    let servers = Servers::shared();
    let limits = three_limits(servers, "atomic");
    let customers = ["acme", "umbra", "initech"];
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let limits = Arc::clone(&limits);
        tasks.spawn(async move {
            let mut admitted = [0; 3];
            for turn in 0..9 {
                let customer = turn % 3;
                let calls = calls_of(customers[customer], task % 4);
                let decision = limits.backend.decide(&limits.prepared, &calls).await;
                admitted[customer] += u64::from(decision.expect("a decision").is_admitted());
            }
            admitted
        });
    }
    let admitted = tasks.join_all().await;
    for (index, customer) in customers.into_iter().enumerate() {
        let sum: u64 = admitted.iter().map(|of| of[index]).sum();
        assert_eq!(sum, 60, "the limit of the route, and not one less");
        let mut of_users = 0;
        for user in 0..4 {
            let [of_customer, of_user, of_route] = left(&limits, &calls_of(customer, user)).await;
            assert_eq!((of_customer, of_route), (40, 0), "{customer}");
            of_users += 30 - of_user;
        }
        assert_eq!(of_users, 60, "{customer}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_in_the_slot_of_their_first_part_are_forgotten_one_by_one_or_all() {
    let servers = Servers::shared();
    let limits = three_limits(servers, "forgotten");
    let [acme, umbra] = ["acme", "umbra"].map(|customer| calls_of(customer, 7));
    for calls in [&acme, &umbra] {
        let decision = limits.backend.decide(&limits.prepared, calls).await;
        assert!(decision.expect("a decision").is_admitted());
    }
    let user = acme[1].key().expect("a key").clone();
    let reset = limits
        .backend
        .run(&limits.prepared, 1, KeyStep::Reset(user));
    reset.await.expect("a reset");
    assert_eq!(left(&limits, &acme).await, [99, 30, 59]);
    assert_eq!(left(&limits, &umbra).await, [99, 29, 59]);
    for (prefix, expected) in [("per-route", [99, 29, 60]), ("per-", [100, 30, 60])] {
        limits.backend.reset_all(prefix).await.expect("a reset");
        assert_eq!(left(&limits, &umbra).await, expected, "{prefix}");
    }
    assert_eq!(left(&limits, &acme).await, [100, 30, 60]);
}

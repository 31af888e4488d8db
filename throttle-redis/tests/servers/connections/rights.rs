//! The rights that the crate's documentation lists are enough, and each of them is needed.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use throttle_core::backend::{Ban, Exception, KeyStep, Receipt, Treatment, drain};
use throttle_core::{Backend, Key, Timestamp};
use throttle_redis::{Cluster, Connector, Pool, RedisBackend, Sentinel, Single};
use throttle_test_servers::{Cluster as Servers, Sentinel as Sentinels, Server, slot_of};

use super::app_pool::pool_of;
use super::{PATIENT, day, whole_message};
use crate::common::LimitTree;

/// The words after the user's name in the documented line below a comment.
fn documented(comment: &str) -> Vec<&'static str> {
    let (_, after) = include_str!("../../../src/lib.rs")
        .split_once(&format!("# {comment}"))
        .expect("a documented line");
    let line = after
        .lines()
        .skip(1)
        .map(|line| line.trim_start_matches("//!").trim());
    let line = line.take_while(|line| !line.starts_with(['#', '`']));
    line.flat_map(str::split_whitespace).skip(3).collect()
}

/// Gives exactly these rights to the user.
fn grant<'a>(servers: impl IntoIterator<Item = &'a Server>, rights: &[&str]) {
    for server in servers {
        let user = ["ACL", "SETUSER", "limiter", "reset"];
        server.command(&[&user, rights].concat());
    }
}

/// Calls every method once. Returns the errors of those that fail.
async fn failures(backend: &RedisBackend) -> Vec<(&'static str, String)> {
    let limits = LimitTree::new(backend, day(9));
    let set = &limits.prepared;
    let [ada, bob, eve] = ["ada", "bob", "eve"].map(Key::from);
    let now = Timestamp::EPOCH + SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let (treatment, until) = (Treatment::Blocked, now + Duration::from_secs(3_600));
    let blocked = Some(Exception { treatment, until });
    let charge = limits.calls("ada", 2);
    let decided = backend.decide(set, &charge).await;
    let receipt = decided
        .as_ref()
        .ok()
        .and_then(|one| Receipt::of(one, &charge));
    let mut outcomes = vec![("decide", decided.err())];
    if let Some(receipt) = receipt {
        outcomes.push(("settle", backend.settle(set, receipt.actual(1)).await.err()));
    }
    let peek = limits.calls("ada", 0);
    outcomes.push(("peek", backend.decide(set, &peek).await.err()));
    let as_of = backend.decide_as_of(set, &charge, now).await;
    outcomes.push(("decide_as_of", as_of.err()));
    let strike = backend
        .run(set, 0, KeyStep::Strike(eve.clone(), Ban::after(3)))
        .await;
    outcomes.push(("strike", strike.err()));
    let excepted = backend
        .run(set, 0, KeyStep::Except(bob.clone(), blocked))
        .await;
    let listed = backend.run(set, 0, KeyStep::Exceptions { most: 10 }).await;
    if let (Ok(_), Ok(listed)) = (&excepted, &listed) {
        assert!(
            !listed.is_empty(),
            "an exception is listed, or that is an error"
        );
    }
    let lifted = backend
        .run(set, 0, KeyStep::Except(bob.clone(), None))
        .await;
    outcomes.extend([
        ("except", excepted.err()),
        ("exceptions", listed.err()),
        ("except, lifted", lifted.err()),
        ("drain", drain(backend, set, 0, &bob.into()).await.err()),
        ("inspect", backend.inspect(&day(9), &ada).await.err()),
        (
            "reset",
            backend.run(set, 0, KeyStep::Reset(ada.clone())).await.err(),
        ),
        ("reset_all", backend.reset_all("").await.err()),
    ]);
    let failed = outcomes
        .into_iter()
        .filter_map(|(method, error)| Some((method, error?)));
    failed
        .map(|(method, error)| (method, whole_message(&error).to_lowercase()))
        .collect()
}

/// The method that fails without a right.
fn method_without(right: &str) -> &'static str {
    match right {
        "+del" => "reset",
        "+scan" => "reset_all",
        "+getrange" => "exceptions",
        "+pttl" => "inspect",
        _ => "decide",
    }
}

/// A backend with all of the rights can do everything. Without any one of them, a method fails with
/// an error that names the command.
async fn each_is_needed<'a>(
    servers: impl IntoIterator<Item = &'a Server> + Clone,
    all: &[&str],
    backend: impl AsyncFn() -> RedisBackend,
) {
    grant(servers.clone(), all);
    assert_eq!(failures(&backend().await).await, []);
    for right in all.iter().filter(|word| word.starts_with('+')) {
        let others: Vec<&str> = all.iter().copied().filter(|one| one != right).collect();
        grant(servers.clone(), &others);
        for server in servers.clone() {
            let _ = server.try_query::<()>(&["SCRIPT", "FLUSH"]);
        }
        let failed = failures(&backend().await).await;
        let (expected, command) = (method_without(right), right[1..].split('|').next().unwrap());
        assert!(
            failed
                .iter()
                .any(|(method, text)| *method == expected && text.contains(command)),
            "without {right}: {failed:?}"
        );
        grant(servers.clone(), all);
    }
}

fn built(connector: impl Connector) -> RedisBackend {
    let builder = RedisBackend::builder(connector).deadline(PATIENT);
    builder.single_slot("one").build().unwrap()
}

#[tokio::test]
async fn each_documented_right_is_needed_on_one_server() {
    let server = Server::start();
    let rights = documented("on each server with keys");
    let url = format!("{}/3", server.url_of("limiter", "secret"));
    let single = async || built(Single::new(&url).unwrap());
    each_is_needed([&server], &rights, single).await;
    // The user has no rights outside of the prefix; the error says that nothing was charged.
    let elsewhere = RedisBackend::builder(Single::new(&url).unwrap()).deadline(PATIENT);
    let limits = LimitTree::new(&elsewhere.prefix("other").build().unwrap(), day(3));
    let decided = limits
        .backend
        .decide(&limits.prepared, &limits.calls("ada", 1));
    let error = decided.await.unwrap_err();
    assert!(
        error.is_uncharged() && whole_message(&error).contains("NOPERM"),
        "{error}"
    );
}

#[tokio::test]
async fn each_documented_right_is_needed_over_the_pool_of_the_application() {
    let server = Server::start();
    let more = documented("with Pool::existing, also");
    let all = [documented("on each server with keys"), more].concat();
    let url = format!("{}/3", server.url_of("limiter", "secret"));
    let pool = async || built(Pool::existing(pool_of(&url, 2).await));
    each_is_needed([&server], &all, pool).await;
}

#[tokio::test]
async fn each_documented_right_is_needed_on_a_master_and_on_its_sentinels() {
    let group = Sentinels::start(1);
    let more = documented("with Sentinel, also, on the master and on its replicas");
    let all = [documented("on each server with keys"), more].concat();
    let asking = documented("on each Sentinel, if its default user is disabled");
    grant(group.sentinels(), &asking);
    let urls = group.urls().into_iter();
    let urls: Vec<String> = urls
        .map(|url| url.replace("//", "//limiter:secret@"))
        .collect();
    let sentinel = async || {
        let (urls, master) = (
            urls.iter().map(String::as_str),
            "redis://limiter:secret@x/3",
        );
        built(Sentinel::new(urls, Sentinels::NAME, Some(master)).unwrap())
    };
    each_is_needed(group.servers(), &all, &sentinel).await;
    each_is_needed(group.sentinels(), &asking, &sentinel).await;
}

/// Also while a slot moves.
#[tokio::test]
async fn each_documented_right_is_needed_on_a_cluster() {
    let servers = Servers::start();
    let more = documented("with Cluster, also, on each server");
    let mut all = [documented("on each server with keys"), more].concat();
    // A cluster has one database.
    all.retain(|right| *right != "+select");
    let urls = servers.urls().into_iter();
    let urls: Vec<String> = urls
        .map(|url| url.replace("//", "//limiter:secret@"))
        .collect();
    let cluster = async || built(Cluster::new(urls.iter().map(String::as_str)).unwrap());
    let nodes: Vec<&Server> = servers.nodes().collect();
    grant(nodes.iter().copied(), &all);
    assert_eq!(failures(&cluster().await).await, []);
    let slot = slot_of("one");
    let from = servers.master_of(slot);
    let mut masters = servers.masters().into_iter();
    let to = masters.find(|node| *node != from).unwrap();
    servers.open_slot(from, to, slot);
    each_is_needed(nodes.iter().copied(), &all, &cluster).await;
    servers.close_slot(from, to, slot);
    let spread = Cluster::new(urls.iter().map(String::as_str)).unwrap();
    let spread = RedisBackend::builder(spread).deadline(PATIENT);
    assert_eq!(failures(&spread.per_key_slot().build().unwrap()).await, []);
}

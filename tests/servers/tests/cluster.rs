//! Clusters are complete at the start, and fail and move slots as requested.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use throttle_test_servers::redis::{ErrorKind, RedisResult, ServerErrorKind};
use throttle_test_servers::{Cluster, Server, slot_of};

fn set(server: &Server, key: &str) -> RedisResult<()> {
    server.try_query(&["SET", key, "1"])
}

#[test]
fn all_slots_have_a_master_and_each_master_a_replica() {
    let cluster = Cluster::shared();
    assert_eq!((cluster.masters(), cluster.urls().len()), (vec![0, 1, 2], 6));
    for master in 0..3 {
        assert_eq!(cluster.replica_of(master), Some(master + 3));
    }
    for key in ["a", "b", "user:{7}:x", "{}", "x{", "\u{e9}{\u{e9}}"] {
        let slot: u16 = cluster.node(5).query(&["CLUSTER", "KEYSLOT", key]);
        assert_eq!(slot_of(key), slot, "{key}");
        let master = cluster.master_of_key(key);
        set(cluster.node(master), key).unwrap();
        let elsewhere = set(cluster.node((master + 1) % 3), key).unwrap_err();
        assert_eq!(elsewhere.kind(), ErrorKind::Server(ServerErrorKind::Moved), "{elsewhere}");
    }
    assert_eq!((cluster.dbsize(), cluster.keys("*").len(), cluster.keys_without_ttl().len()), (6, 6, 6));
}

#[test]
fn a_killed_master_is_followed_by_its_replica_and_comes_back_as_one() {
    let cluster = Cluster::builder().arg("--cluster-require-full-coverage", "yes").start();
    let key = "key";
    let (slot, master) = (slot_of(key), cluster.master_of_key(key));
    cluster.node(master).kill();
    let successor = cluster.wait_for_failover_of(slot, master);
    assert_eq!(successor, master + 3);
    set(cluster.node(successor), key).unwrap();
    cluster.node(master).restart();
    cluster.wait_until_well();
    assert_eq!(cluster.replica_of(successor), Some(master));
    assert_eq!(cluster.node(master).dbsize(), 1, "it has what its successor has");
}

#[test]
fn a_replica_can_be_asked_to_take_over() {
    let cluster = Cluster::start();
    cluster.fail_over(4);
    assert_eq!((cluster.master_of(6000), cluster.replica_of(4), cluster.masters()), (4, Some(1), vec![0, 2, 4]));
}

#[test]
fn a_stopped_master_loses_its_slots_and_its_place_when_it_goes_on() {
    let cluster = Cluster::start();
    cluster.node(1).stop();
    assert_eq!(cluster.master_of(6000), 1, "no other node is, yet");
    assert_eq!(cluster.wait_for_failover_of(6000, 1), 4);
    cluster.node(1).cont();
    assert_eq!(cluster.master_of(6000), 4, "whatever the old one may still think");
    cluster.wait_until_well();
    assert_eq!((cluster.master_of(6000), cluster.replica_of(4)), (4, Some(1)));
}

#[test]
fn slots_move_with_their_keys_while_clients_write() {
    let cluster = Cluster::start();
    let (from, to) = (0, 1);
    let keys: Vec<String> = (0..).map(|n| format!("key{n}")).filter(|key| slot_of(key) < 100).take(500).collect();
    for key in &keys {
        set(cluster.node(from), key).unwrap();
    }
    let (moving, redirected) = (AtomicBool::new(true), AtomicBool::new(false));
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut source = cluster.node(from).connection();
            for key in keys.iter().cycle().take_while(|_| moving.load(Ordering::SeqCst)) {
                let written = throttle_test_servers::redis::cmd("INCR").arg(key).query::<u64>(&mut source);
                if let Err(error) = written {
                    let kind = error.kind();
                    let expected = [ServerErrorKind::Moved, ServerErrorKind::Ask].map(ErrorKind::Server);
                    assert!(expected.contains(&kind), "{error}");
                    redirected.store(true, Ordering::SeqCst);
                }
            }
        });
        cluster.migrate_slots(from, to, 0..=99);
        moving.store(false, Ordering::SeqCst);
        writer.join().unwrap();
    });
    assert!(redirected.load(Ordering::SeqCst));
    assert_eq!((cluster.master_of(0), cluster.master_of(99), cluster.master_of(100)), (to, to, from));
    assert_eq!((cluster.node(to).dbsize(), cluster.node(from).dbsize()), (500, 0));
    assert_eq!(cluster.slots_of(from), [100..=5460]);
}

#[test]
fn a_slot_can_be_held_half_way() {
    let cluster = Cluster::start();
    let (first, second) = ("{tag}1", "{tag}2");
    let (slot, from) = (slot_of(first), cluster.master_of_key(first));
    let to = (from + 1) % 3;
    for key in [first, second] {
        set(cluster.node(from), key).unwrap();
    }
    cluster.open_slot(from, to, slot);
    assert_eq!(cluster.move_keys(from, to, slot, 1), 1);
    let both = cluster.node(from).try_query::<u64>(&["EXISTS", first, second]).unwrap_err();
    assert_eq!(both.kind(), ErrorKind::Server(ServerErrorKind::TryAgain), "{both}");
    let new = set(cluster.node(from), "{tag}3").unwrap_err();
    assert_eq!(new.kind(), ErrorKind::Server(ServerErrorKind::Ask), "{new}");
    assert_eq!((cluster.move_keys(from, to, slot, 10), cluster.move_keys(from, to, slot, 10)), (1, 0));
    cluster.close_slot(from, to, slot);
    assert_eq!(cluster.node(to).query::<u64>(&["EXISTS", first, second]), 2);
}

#[test]
fn a_proxied_cluster_names_its_proxies() {
    let cluster = Cluster::builder().proxied().start();
    let ports: Vec<u16> = (0..6).map(|node| cluster.proxy(node).port()).collect();
    let shown: String = cluster.node(0).query(&["CLUSTER", "NODES"]);
    assert!(ports.iter().all(|port| shown.contains(&format!("127.0.0.1:{port}@"))), "{shown}");
    let key = "key";
    let moved = set(cluster.node((cluster.master_of_key(key) + 1) % 3), key).unwrap_err();
    let port = cluster.proxy(cluster.master_of_key(key)).port();
    assert!(moved.to_string().contains(&port.to_string()), "{moved}");
}

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

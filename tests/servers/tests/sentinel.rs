//! Sentinels name the master, and another one when it fails.

use throttle_test_servers::Sentinel;

#[test]
fn the_replica_becomes_the_master_that_sentinels_name() {
    let group = Sentinel::start(3);
    assert_eq!((group.urls().len(), group.sentinels().len()), (3, 3));
    let [first, second] = group.servers();
    assert_eq!(group.master().port(), first.port());
    first.kill();
    let master = group.wait_for_failover_from(first);
    assert_eq!(master.port(), second.port());
    master.command(&["SET", "key", "1"]);
}

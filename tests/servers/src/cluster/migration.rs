//! Slots that move from one master to another, in the steps that an operator's tools take.

use std::ops::RangeInclusive;

use redis::{Connection, FromRedisValue};

use crate::cluster::Cluster;
use crate::control;

/// Keys moved by one command. The source answers no other client meanwhile.
const KEYS: &str = "100";

impl Cluster {
    /// Moves slots with all their keys, one slot after the other, while clients continue. In the
    /// end all nodes know the new master.
    ///
    /// # Panics
    ///
    /// If `from` is not the master of a slot, `to` is not a master, or a node refuses.
    pub fn migrate_slots(&self, from: usize, to: usize, slots: RangeInclusive<u16>) {
        let mut migration = Migration::new(self, from, to);
        for slot in slots {
            migration.open(slot);
            while migration.move_some(slot, KEYS) > 0 {}
            migration.close(slot);
        }
        self.wait_until_well();
    }

    /// The first step of moving a slot: from now on the source redirects by `ASK` for keys that it
    /// does not have, and answers `TRYAGAIN` to a command with keys on both sides.
    ///
    /// # Panics
    ///
    /// As [`migrate_slots`](Self::migrate_slots).
    pub fn open_slot(&self, from: usize, to: usize, slot: u16) {
        Migration::new(self, from, to).open(slot);
    }

    /// The second step, to be repeated: moves up to `count` keys, and returns how many there were.
    ///
    /// # Panics
    ///
    /// As [`migrate_slots`](Self::migrate_slots).
    #[expect(
        clippy::must_use_candidate,
        reason = "the move matters, the number need not"
    )]
    pub fn move_keys(&self, from: usize, to: usize, slot: u16, count: usize) -> usize {
        Migration::new(self, from, to).move_some(slot, &count.to_string())
    }

    /// The last step, when no key is left: from now on all nodes answer `MOVED` to the new master.
    ///
    /// # Panics
    ///
    /// As [`migrate_slots`](Self::migrate_slots).
    pub fn close_slot(&self, from: usize, to: usize, slot: u16) {
        Migration::new(self, from, to).close(slot);
        self.wait_until_well();
    }
}

struct Migration {
    source: Connection,
    target: Connection,
    others: Vec<Connection>,
    source_id: String,
    target_id: String,
    target_port: String,
}

impl Migration {
    fn new(cluster: &Cluster, from: usize, to: usize) -> Self {
        let masters = cluster.masters();
        assert!(
            from != to && masters.contains(&from) && masters.contains(&to),
            "two of the masters {masters:?}"
        );
        let others = masters
            .into_iter()
            .filter(|&node| node != from && node != to);
        Self {
            source: cluster.node(from).connection(),
            target: cluster.node(to).connection(),
            others: others.map(|node| cluster.node(node).connection()).collect(),
            source_id: cluster.nodes[from].id.clone(),
            target_id: cluster.nodes[to].id.clone(),
            target_port: cluster.node(to).port().to_string(),
        }
    }

    /// The target first: it must not send back a client that is redirected to it.
    fn open(&mut self, slot: u16) {
        let slot = slot.to_string();
        say::<()>(
            &mut self.target,
            &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &self.source_id],
        );
        say::<()>(
            &mut self.source,
            &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &self.target_id],
        );
    }

    fn move_some(&mut self, slot: u16, count: &str) -> usize {
        let keys: Vec<Vec<u8>> = say(
            &mut self.source,
            &["CLUSTER", "GETKEYSINSLOT", &slot.to_string(), count],
        );
        if !keys.is_empty() {
            let mut migrate = control::command(&[
                "MIGRATE",
                "127.0.0.1",
                &self.target_port,
                "",
                "0",
                "5000",
                "KEYS",
            ]);
            // A key may expire meanwhile; the answer is then NOKEY, which is fine.
            migrate
                .arg(&keys)
                .query::<String>(&mut self.source)
                .expect("keys that move");
        }
        keys.len()
    }

    /// The target first: if the source gave the slot away earlier, the slot would have no master in
    /// between.
    fn close(&mut self, slot: u16) {
        let slot = slot.to_string();
        for connection in [&mut self.target, &mut self.source]
            .into_iter()
            .chain(&mut self.others)
        {
            say::<()>(
                connection,
                &["CLUSTER", "SETSLOT", &slot, "NODE", &self.target_id],
            );
        }
    }
}

fn say<T: FromRedisValue>(connection: &mut Connection, words: &[&str]) -> T {
    control::command(words)
        .query(connection)
        .unwrap_or_else(|error| panic!("{words:?}: {error}"))
}

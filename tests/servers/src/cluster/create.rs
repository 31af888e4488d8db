//! Makes a cluster of six servers.

use std::ops::RangeInclusive;
use std::thread;

use crate::builder::Role;
use crate::cluster::{Cluster, ClusterBuilder, MASTERS, NODES, Node, slots};
use crate::port::Port;
use crate::proxy::Proxy;
use crate::server::Server;

const NODE_TIMEOUT_MS: &str = "2000";

impl Cluster {
    pub(super) fn create(builder: &ClusterBuilder) -> Self {
        let nodes = thread::scope(|scope| {
            let starts: Vec<_> = (0..NODES)
                .map(|_| scope.spawn(|| Node::start(builder)))
                .collect();
            starts
                .into_iter()
                .map(|start| start.join().expect("a node that starts"))
                .collect()
        });
        let cluster = Self { nodes };
        cluster.give_slots(if builder.interleaved {
            slots::in_turn()
        } else {
            slots::shares(MASTERS)
        });
        cluster.introduce();
        cluster.attach_replicas();
        cluster.wait_for("all nodes to know their roles", || {
            (cluster.is_well() && cluster.replicas_are_attached()).then_some(())
        });
        cluster
    }

    fn give_slots(&self, shares: Vec<RangeInclusive<u16>>) {
        for (number, range) in shares.into_iter().enumerate() {
            let master = number % MASTERS;
            // ADDSLOTSRANGE would be shorter, and is unknown to Redis 6.2.
            let slots: Vec<_> = range.map(|slot| slot.to_string()).collect();
            let command = ["CLUSTER", "ADDSLOTS"]
                .into_iter()
                .chain(slots.iter().map(String::as_str));
            self.node(master).command(&command.collect::<Vec<_>>());
        }
        // Different epochs from the start: nodes with the same epoch would first have to settle
        // which of them keeps it.
        for (epoch, node) in (1_usize..).zip(&self.nodes) {
            node.server
                .command(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch.to_string()]);
        }
    }

    /// Every node meets every other: left to gossip, this would take another second.
    fn introduce(&self) {
        for (number, node) in self.nodes.iter().enumerate() {
            for other in &self.nodes[number + 1..] {
                let (port, bus) = (
                    other.server.port().to_string(),
                    other.server.bus_port().to_string(),
                );
                node.server
                    .command(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]);
            }
        }
    }

    fn attach_replicas(&self) {
        for replica in MASTERS..NODES {
            let master = &self.nodes[replica - MASTERS].id;
            self.wait_for("a replica to know its master", || {
                self.node(replica)
                    .try_query::<String>(&["CLUSTER", "REPLICATE", master])
                    .ok()
            });
        }
    }

    /// Whether every node knows three replicas, so that any master may fail now.
    fn replicas_are_attached(&self) -> bool {
        self.nodes().all(|node| {
            node.query::<String>(&["CLUSTER", "NODES"])
                .matches("slave ")
                .count()
                == NODES - MASTERS
        })
    }
}

impl Node {
    fn start(builder: &ClusterBuilder) -> Self {
        let port = Port::claim_with_bus();
        let proxy = builder.proxied.then(|| Proxy::start(port.number()));
        let mut options = Server::builder()
            .role(Role::Node)
            .arg("--cluster-enabled", "yes")
            .arg("--cluster-config-file", "nodes.conf")
            .arg("--cluster-node-timeout", NODE_TIMEOUT_MS)
            .arg("--cluster-require-full-coverage", "no");
        if let Some(proxy) = &proxy {
            options = options.arg("--cluster-announce-port", &proxy.port().to_string());
        }
        for (name, value) in &builder.options {
            options = options.arg(name, value);
        }
        let server = Server::launch_at(options, port);
        if let Some(proxy) = &proxy {
            proxy.retarget(server.port());
        }
        let id = server.query(&["CLUSTER", "MYID"]);
        Self { proxy, server, id }
    }
}

//! A Redis Cluster of six nodes.

mod builder;
mod create;
mod migration;
mod slots;
mod view;

use std::sync::OnceLock;
use std::time::Duration;

pub use builder::ClusterBuilder;
pub use slots::slot_of;

use crate::proxy::Proxy;
use crate::server::Server;
use crate::wait::within;

/// How many nodes there are; the first three start as masters, node `n + 3` as the replica of node `n`.
const NODES: usize = 6;
const MASTERS: usize = 3;

/// Longer than any change of roles takes: the node timeout, an election, and the news of it.
const PATIENCE: Duration = Duration::from_secs(30);

/// A cluster of three masters and three replicas on 127.0.0.1.
///
/// Its nodes are numbered 0 to 5 and keep their numbers whatever their roles. They are [`Server`]s: killed, stopped and
/// asked as such. A node that is restarted still knows the cluster, and none of its keys until its master sends them.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Node>,
}

#[derive(Debug)]
struct Node {
    // Dropped before the server, so that no pump reports an end that nobody asked for.
    proxy: Option<Proxy>,
    server: Server,
    id: String,
}

impl Cluster {
    /// A cluster with default options: a node timeout of 2 seconds, and full coverage not required, so that shards fail
    /// alone.
    ///
    /// # Panics
    ///
    /// As [`ClusterBuilder::start`].
    #[must_use]
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// A cluster with options.
    pub fn builder() -> ClusterBuilder {
        ClusterBuilder::default()
    }

    /// One cluster for all tests of a binary that do no harm to it. The first call starts it.
    ///
    /// # Panics
    ///
    /// As [`ClusterBuilder::start`].
    pub fn shared() -> &'static Self {
        static CLUSTER: OnceLock<Cluster> = OnceLock::new();
        CLUSTER.get_or_init(Self::start)
    }

    /// The server that is this node.
    ///
    /// # Panics
    ///
    /// From 6 on.
    #[must_use]
    pub fn node(&self, node: usize) -> &Server {
        &self.nodes[node].server
    }

    /// All servers, by number.
    pub fn nodes(&self) -> impl Iterator<Item = &Server> {
        self.nodes.iter().map(|node| &node.server)
    }

    /// The wire in front of a node.
    ///
    /// # Panics
    ///
    /// If the cluster was not started with [`ClusterBuilder::proxied`].
    #[must_use]
    pub fn proxy(&self, node: usize) -> &Proxy {
        self.nodes[node].proxy.as_ref().expect("a cluster started with proxied()")
    }

    /// Where clients connect to, of all nodes by number; the addresses that the cluster itself hands out.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(|node| node.proxy.as_ref().map_or_else(|| node.server.url(), Proxy::url)).collect()
    }

    /// Waits until all nodes that run agree on who has which slot, call the cluster well, and replicas are in step.
    ///
    /// # Panics
    ///
    /// If that takes more than 30 seconds, with what each node says.
    pub fn wait_until_well(&self) {
        self.wait_for("the cluster to be well", || self.is_well().then_some(()));
    }

    /// Waits until another running node than this one is the master of a slot, and names it.
    ///
    /// # Panics
    ///
    /// If that takes more than 30 seconds, with what each node says.
    #[expect(clippy::must_use_candidate, reason = "the wait matters, the name need not")]
    pub fn wait_for_failover_of(&self, slot: u16, from: usize) -> usize {
        self.wait_for("another master", || {
            let master = self.find_master_of(slot)?;
            let well = || self.node(master).query::<String>(&["CLUSTER", "INFO"]).contains("cluster_state:ok");
            (master != from && well()).then_some(master)
        })
    }

    /// Makes a replica the master by a handover without loss (`CLUSTER FAILOVER`), and waits until all running nodes
    /// know it.
    ///
    /// # Panics
    ///
    /// If the node is not a replica, or that takes more than 30 seconds.
    pub fn fail_over(&self, replica: usize) {
        assert_eq!(self.node(replica).info("role"), "slave", "node {replica} is to be a replica");
        let took_over = || (self.node(replica).info("role") == "master" && self.is_well()).then_some(());
        // Masters do not vote twice for a shard within two node timeouts, and the replica gives up after 5 seconds.
        self.wait_for("the replica to take over", || {
            if self.node(replica).info("role") == "slave" {
                self.node(replica).command(&["CLUSTER", "FAILOVER"]);
            }
            within(Duration::from_secs(6), took_over)
        });
    }

    /// How many keys all running masters hold together.
    #[must_use]
    pub fn dbsize(&self) -> u64 {
        self.masters().into_iter().map(|node| self.node(node).dbsize()).sum()
    }

    /// The keys on all running masters that match a pattern as in `KEYS`.
    #[must_use]
    pub fn keys(&self, pattern: &str) -> Vec<Vec<u8>> {
        self.masters().into_iter().flat_map(|node| self.node(node).keys(pattern)).collect()
    }

    /// The keys on all running masters that would stay for ever.
    #[must_use]
    pub fn keys_without_ttl(&self) -> Vec<String> {
        self.masters().into_iter().flat_map(|node| self.node(node).keys_without_ttl()).collect()
    }

    fn wait_for<T>(&self, what: &str, ask: impl FnMut() -> Option<T>) -> T {
        within(PATIENCE, ask).unwrap_or_else(|| panic!("waited in vain for {what}\n{}", view::Report(self)))
    }
}

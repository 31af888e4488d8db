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

/// The number of nodes. The first three start as masters, node `n + 3` as the replica of node `n`.
const NODES: usize = 6;
const MASTERS: usize = 3;

/// Longer than any change of roles takes: the node timeout, an election, and the spread of its
/// result.
const PATIENCE: Duration = Duration::from_secs(30);

/// A cluster of three masters and three replicas on 127.0.0.1.
///
/// Its nodes are numbered 0 to 5 and keep their numbers when they change roles. Each is a
/// [`Server`], and can be killed, stopped and queried as one. A node that is restarted still knows
/// the cluster, but has no keys until its master sends them.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Node>,
}

#[derive(Debug)]
struct Node {
    // Dropped before the server, so that no pump reports an end that the test did not cause.
    proxy: Option<Proxy>,
    server: Server,
    id: String,
}

impl Cluster {
    /// A cluster with default options: a node timeout of 2 seconds, and full coverage not required,
    /// so that shards fail alone.
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

    /// One cluster for all tests of a binary that do not disturb it. The first call starts it.
    ///
    /// # Panics
    ///
    /// As [`ClusterBuilder::start`].
    pub fn shared() -> &'static Self {
        static CLUSTER: OnceLock<Cluster> = OnceLock::new();
        CLUSTER.get_or_init(Self::start)
    }

    /// The server of this node.
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

    /// The proxy in front of a node.
    ///
    /// # Panics
    ///
    /// If the cluster was not started with [`ClusterBuilder::proxied`].
    #[must_use]
    pub fn proxy(&self, node: usize) -> &Proxy {
        self.nodes[node]
            .proxy
            .as_ref()
            .expect("a cluster started with proxied()")
    }

    /// The addresses for clients of all nodes, by number, as the cluster itself announces them.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        self.nodes
            .iter()
            .map(|node| {
                node.proxy
                    .as_ref()
                    .map_or_else(|| node.server.url(), Proxy::url)
            })
            .collect()
    }

    /// Waits until all running nodes agree on the slots of each master and report a healthy
    /// cluster, and replicas are in step.
    ///
    /// # Panics
    ///
    /// If that takes more than 30 seconds, with the report of each node.
    pub fn wait_until_well(&self) {
        self.wait_for("the cluster to be well", || self.is_well().then_some(()));
    }

    /// Waits until another running node than this one is the master of a slot, and returns its
    /// number.
    ///
    /// # Panics
    ///
    /// If that takes more than 30 seconds, with the report of each node.
    #[expect(
        clippy::must_use_candidate,
        reason = "the wait matters, the name need not"
    )]
    pub fn wait_for_failover_of(&self, slot: u16, from: usize) -> usize {
        self.wait_for("another master", || {
            let master = self.find_master_of(slot)?;
            let well = || {
                self.node(master)
                    .query::<String>(&["CLUSTER", "INFO"])
                    .contains("cluster_state:ok")
            };
            (master != from && well()).then_some(master)
        })
    }

    /// The number of keys that all running masters hold together.
    #[must_use]
    pub fn dbsize(&self) -> u64 {
        self.masters()
            .into_iter()
            .map(|node| self.node(node).dbsize())
            .sum()
    }

    /// The keys on all running masters that match a pattern as in `KEYS`.
    #[must_use]
    pub fn keys(&self, pattern: &str) -> Vec<Vec<u8>> {
        self.masters()
            .into_iter()
            .flat_map(|node| self.node(node).keys(pattern))
            .collect()
    }

    /// The keys on all running masters that never expire.
    #[must_use]
    pub fn keys_without_ttl(&self) -> Vec<String> {
        self.masters()
            .into_iter()
            .flat_map(|node| self.node(node).keys_without_ttl())
            .collect()
    }

    fn wait_for<T>(&self, what: &str, ask: impl FnMut() -> Option<T>) -> T {
        within(PATIENCE, ask)
            .unwrap_or_else(|| panic!("waited in vain for {what}\n{}", view::Report(self)))
    }
}

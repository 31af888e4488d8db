//! Options that a cluster starts with.

use crate::cluster::Cluster;

/// Options of a [`Cluster`]; made by [`Cluster::builder`].
#[derive(Clone, Debug, Default)]
#[must_use = "nothing runs before start()"]
pub struct ClusterBuilder {
    pub(super) options: Vec<(String, String)>,
    pub(super) proxied: bool,
    pub(super) interleaved: bool,
}

impl ClusterBuilder {
    /// Any option of `redis-server`, for all nodes, such as
    /// `arg("--cluster-require-full-coverage", "yes")`.
    pub fn arg(mut self, name: &str, value: &str) -> Self {
        self.options.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Puts a [`Proxy`](crate::Proxy) in front of each node; the cluster announces the proxies'
    /// addresses to clients.
    ///
    /// Replicas follow their master through its proxy too, and are cut off with the clients. The
    /// bus on which nodes watch each other does not go through it.
    pub fn proxied(mut self) -> Self {
        self.proxied = true;
        self
    }

    /// Gives the slots to the masters in turn, 256 at a time, as after many moves of slots.
    pub fn interleaved(mut self) -> Self {
        self.interleaved = true;
        self
    }

    /// Starts all nodes and returns when the cluster is healthy and replicas are in step, about 2
    /// seconds later: a master refuses all keys for that long after its start, in any case.
    ///
    /// # Panics
    ///
    /// If there is no `redis-server`, it does not start, or the cluster is not healthy within 30
    /// seconds.
    #[must_use]
    pub fn start(self) -> Cluster {
        Cluster::create(&self)
    }
}

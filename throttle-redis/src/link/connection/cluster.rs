mod node;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use node::Node;
use parking_lot::Mutex;
use redis::{ConnectionAddr, ConnectionInfo};
use throttle_core::ConfigError;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::single::install_crypto_provider;
use super::slot_map::{Address, SlotMap};
#[cfg(feature = "tls")]
use super::tls::Tls;
use super::translate::tcp_settings;
use super::{Command, Connection, Connector, Fault, FaultKind, Pending, Reply, Route, url};

/// The servers are asked no more often than this which of them has which slots.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// A Redis Cluster: one connection to each server.
///
/// A connection that has ended, or on which nothing arrives, is opened again. When a server
/// redirects a command or cannot be reached, the others are asked which of them has its slots.
///
/// ```
/// use throttle_redis::{Cluster, RedisBackend};
///
/// let cluster = Cluster::new(["redis://one:6379", "redis://two:6379"])?;
/// let undecided = RedisBackend::builder(cluster.clone()).build();
/// assert_eq!(undecided.unwrap_err().field(), "placement of keys");
/// RedisBackend::builder(cluster).per_key_slot().build()?;
/// # Ok::<_, throttle_core::ConfigError>(())
/// ```
#[derive(Clone)]
pub struct Cluster {
    /// At least one.
    servers: Vec<ConnectionInfo>,
}

impl Cluster {
    /// Sets the cluster by the URLs of some of its servers. Nothing connects yet.
    ///
    /// # Errors
    ///
    /// If a URL cannot be read (as in [`Single::new`](super::Single::new)), there is none, or they
    /// differ in user, password or TLS.
    pub fn new<'a>(urls: impl IntoIterator<Item = &'a str>) -> Result<Self, ConfigError> {
        Self::build(urls, Ok)
    }

    /// Like [`new`](Self::new), over TLS with your own certificates; the URLs begin with
    /// `rediss://`.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new), and if the certificates cannot be read.
    #[cfg(feature = "tls")]
    pub fn with_tls<'a>(
        urls: impl IntoIterator<Item = &'a str>,
        tls: &Tls,
    ) -> Result<Self, ConfigError> {
        Self::build(urls, |server| {
            Ok(tls.client(server)?.get_connection_info().clone())
        })
    }

    fn build<'a>(
        urls: impl IntoIterator<Item = &'a str>,
        with: impl Fn(ConnectionInfo) -> Result<ConnectionInfo, ConfigError>,
    ) -> Result<Self, ConfigError> {
        install_crypto_provider();
        let read = |url| with(url::read("cluster URLs", url)?.set_tcp_settings(tcp_settings()));
        let servers = urls.into_iter().map(read).collect::<Result<Vec<_>, _>>()?;
        let user = |server: &ConnectionInfo| {
            let settings = server.redis_settings();
            let is_over_tls = matches!(server.addr(), ConnectionAddr::TcpTls { .. });
            (
                settings.username().map(str::to_owned),
                settings.password().map(str::to_owned),
                is_over_tls,
            )
        };
        let is_of_tcp = |server: &ConnectionInfo| !matches!(server.addr(), ConnectionAddr::Unix(_));
        match servers.split_first() {
            Some((first, others))
                if others.iter().all(|other| user(other) == user(first))
                    && servers.iter().all(is_of_tcp) =>
            {
                Ok(Self { servers })
            }
            _ => {
                let rule =
                    "it must be a list of redis://host:port, at least one, alike in user and TLS";
                Err(ConfigError::new("cluster URLs", "unreadable", rule))
            }
        }
    }
}

impl Connector for Cluster {
    fn connect(&self, timeout: Duration) -> Pending<Box<dyn Connection>> {
        let servers = self.servers.clone();
        Box::pin(async move {
            let cluster = Servers::reach(servers, timeout).await?;
            Ok(Box::new(Clustered(Arc::new(cluster))) as Box<dyn Connection>)
        })
    }

    fn address(&self) -> Option<String> {
        Some(url::addresses(&self.servers))
    }

    fn is_cluster(&self) -> bool {
        true
    }
}

struct Clustered(Arc<Servers>);

/// The servers of a cluster.
struct Servers {
    /// Those that the URLs name.
    named: Vec<ConnectionInfo>,
    nodes: Mutex<HashMap<Address, Node>>,
    slots: ArcSwap<SlotMap>,
    /// When the servers were last asked which of them has which slots.
    asked: Mutex<Instant>,
    /// How many commands were for any server.
    in_turn: AtomicUsize,
    /// How long the connection to a server may take to open.
    timeout: Duration,
}

impl Servers {
    /// Asks for the slots, and opens a connection to each server that has some.
    async fn reach(named: Vec<ConnectionInfo>, timeout: Duration) -> Result<Self, Fault> {
        let named_nodes = named.iter().cloned().map(|one| Node::new(one, timeout));
        let slots = first_answer(named_nodes).await?;
        let servers = Self {
            named,
            nodes: Mutex::default(),
            slots: ArcSwap::from_pointee(slots),
            asked: Mutex::new(Instant::now()),
            in_turn: AtomicUsize::new(0),
            timeout,
        };
        let mut opening = JoinSet::new();
        for address in servers.slots.load().servers() {
            let node = servers.node(address);
            opening.spawn(async move { drop(node.opened().await) });
        }
        // A server that cannot be reached is tried again with the first command for it, and one
        // that hangs does not keep the others waiting.
        let _ = tokio::time::timeout(timeout / 4, opening.join_all()).await;
        Ok(servers)
    }

    fn of(&self, route: &Route) -> Option<Node> {
        let slots = self.slots.load();
        match route {
            Route::Slot(slot) => slots.server_of(*slot).map(|address| self.node(address)),
            Route::Address { host, port, .. } => Some(self.node(&(host.clone(), *port))),
            Route::Any => {
                let servers = slots.servers();
                let turn = self.in_turn.fetch_add(1, Ordering::Relaxed);
                servers
                    .get(turn % servers.len().max(1))
                    .map(|address| self.node(address))
            }
        }
    }

    fn node(&self, address: &Address) -> Node {
        let mut nodes = self.nodes.lock();
        if let Some(node) = nodes.get(address) {
            return node.clone();
        }
        let node = Node::new(url::at(&self.named[0], address.clone()), self.timeout);
        nodes.insert(address.clone(), node.clone());
        node
    }

    /// Asks all servers which of them has which slots, in a task of its own, unless they were asked
    /// just now.
    fn look_for_slots(self: &Arc<Self>) {
        let (now, mut asked) = (Instant::now(), self.asked.lock());
        if now < *asked + ASK_AGAIN {
            return;
        }
        *asked = now;
        let servers = Arc::clone(self);
        tokio::spawn(async move {
            let known: Vec<Node> = servers
                .slots
                .load()
                .servers()
                .into_iter()
                .map(|one| servers.node(one))
                .collect();
            let told = match first_answer(known.into_iter()).await {
                Err(_) => {
                    let named = servers.named.iter().cloned();
                    first_answer(named.map(|one| Node::new(one, servers.timeout))).await
                }
                told => told,
            };
            let Ok(slots) = told else { return };
            servers
                .nodes
                .lock()
                .retain(|address, _| slots.servers().contains(&address));
            servers.slots.store(Arc::new(slots));
        });
    }
}

/// The first server that answers says which server has which slots.
async fn first_answer(nodes: impl Iterator<Item = Node>) -> Result<SlotMap, Fault> {
    let mut asking: JoinSet<Result<SlotMap, Fault>> = JoinSet::new();
    for node in nodes {
        asking.spawn(async move { node.slots().await });
    }
    let mut why = Fault::new(FaultKind::NotSent, "no server of the cluster answers");
    while let Some(told) = asking.join_next().await {
        match told {
            Ok(Ok(slots)) => {
                // The other servers' answers are still read: a server with an unread answer counts
                // as silent.
                asking.detach_all();
                return Ok(slots);
            }
            Ok(Err(fault)) => why = fault,
            Err(_) => {}
        }
    }
    Err(why)
}

impl Connection for Clustered {
    fn call(&self, command: Command) -> Pending<Reply> {
        let servers = Arc::clone(&self.0);
        Box::pin(async move {
            let Some(node) = servers.of(command.route()) else {
                servers.look_for_slots();
                return Err(Fault::new(
                    FaultKind::NotSent,
                    "no server of the cluster has the slot",
                ));
            };
            // What waits for the answer of a server that hangs may be given up before there is a
            // fault.
            if !node.is_open() {
                servers.look_for_slots();
            }
            let answer = node.call(command).await;
            if let Err(fault) = &answer
                && matches!(
                    fault.kind(),
                    FaultKind::NotSent
                        | FaultKind::Lost
                        | FaultKind::ReadOnly
                        | FaultKind::Moved(_)
                        // It may have come back after another server has taken its slots over.
                        | FaultKind::NotNow
                )
            {
                servers.look_for_slots();
            }
            answer
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_clusters_name_what_is_wrong() {
        let error = |urls: &[&str]| {
            Cluster::new(urls.iter().copied())
                .err()
                .expect("no cluster")
        };
        let none = error(&[]);
        assert_eq!((none.field(), none.value()), ("cluster URLs", "unreadable"));
        let rule = "it must be a list of redis://host:port, at least one, alike in user and TLS";
        assert!(none.to_string().contains(rule), "{none}");
        for alike in [
            ["redis://a:x@one", "redis://b:x@two"],
            ["redis://one", "unix:///two"],
        ] {
            assert_eq!(error(&alike).value(), "unreadable", "{alike:?}");
        }
        for urls in [["redis://one", "http://two"], ["http://one", "redis://two"]] {
            assert_eq!(
                (error(&urls).field(), error(&urls).value()),
                ("cluster URLs", "http://…")
            );
        }
    }

    #[test]
    fn every_server_of_a_cluster_is_named_and_no_password() {
        let cluster = Cluster::new(["redis://:secret@one", "redis://:secret@two:7"]).expect("URLs");
        assert_eq!(cluster.address().as_deref(), Some("one:6379, two:7"));
        assert!(cluster.is_cluster());
    }

    /// Certificates that nobody can read show that they are used.
    #[cfg(feature = "tls")]
    #[test]
    fn a_cluster_over_tls_uses_the_certificates_that_it_is_given() {
        let authority = "-----BEGIN CERTIFICATE-----\nnot base64!\n-----END CERTIFICATE-----\n";
        let cluster = |tls: &Tls| Cluster::with_tls(["rediss://one", "rediss://two:7"], tls);
        let error = cluster(&Tls::new().authority(authority))
            .err()
            .expect("no certificate");
        assert_eq!(
            (error.field(), error.value()),
            ("TLS certificates", "unreadable")
        );
        let cluster = cluster(&Tls::new()).expect("URLs of TLS");
        assert_eq!(cluster.address().as_deref(), Some("one:6379, two:7"));
    }
}

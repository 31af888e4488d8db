mod node;
mod places;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use node::Node;
use places::{Places, TakenPlace};
use redis::cluster::{ClusterClient, ClusterClientBuilder};
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{Route as SlotRoute, RoutingInfo, SingleNodeRoutingInfo, SlotAddr};
use throttle_core::ConfigError;
use tokio::task::{AbortHandle, JoinSet};

use super::super::hash_slot::SLOTS;
use super::end::End;
use super::single::install_crypto_provider;
#[cfg(feature = "tls")]
use super::tls::Tls;
use super::translate::{CONNECT_TIMEOUT, connect_fault, fault, reply, tcp_settings};
use super::{Command, Connection, Connector, Fault, FaultKind, Pending, Place, Reply, Route, url};

/// How long one server of several may take to accept a connection and to introduce itself.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_millis(300);

/// Clients of the whole cluster, each for the calls about a part of the slots: calls that wait for a server that hangs
/// are in the way of few others. Each client costs every server a connection.
const CLIENTS: usize = 4;

/// A Redis Cluster: four connections to each server.
///
/// At most 64 calls are under way at once, 16 about each quarter of the slots. Further calls wait for an answer to one
/// of them. A decision whose call waits until the deadline fails as saturated: it was not charged, and the breaker does
/// not count it.
///
/// Retries of the `redis` client are off, because it would resend a command whose answer was lost. The backend follows
/// redirections.
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
    client: ClusterClient,
    addresses: String,
}

impl Cluster {
    /// Sets the cluster by the URLs of some of its servers. Nothing connects yet.
    ///
    /// # Errors
    ///
    /// If a URL cannot be read (as in [`Single::new`](super::Single::new)), there is none, or they differ in user,
    /// password or TLS.
    pub fn new<'a>(urls: impl IntoIterator<Item = &'a str>) -> Result<Self, ConfigError> {
        Self::build(urls, |cluster| cluster)
    }

    /// Like [`new`](Self::new), over TLS with your own certificates; the URLs begin with `rediss://`.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new), and if the certificates cannot be read.
    #[cfg(feature = "tls")]
    pub fn with_tls<'a>(urls: impl IntoIterator<Item = &'a str>, tls: &Tls) -> Result<Self, ConfigError> {
        let certificates = tls.certificates()?;
        Self::build(urls, |cluster| cluster.certs(certificates))
    }

    fn build<'a>(
        urls: impl IntoIterator<Item = &'a str>,
        with: impl FnOnce(ClusterClientBuilder) -> ClusterClientBuilder,
    ) -> Result<Self, ConfigError> {
        install_crypto_provider();
        let servers: Vec<_> = urls.into_iter().map(|url| url::read("cluster URLs", url)).collect::<Result<_, _>>()?;
        let addresses = url::addresses(&servers);
        let cluster = ClusterClient::builder(servers)
            .retries(0)
            // A server that hangs takes this time at most twice in a row, and nothing else moves meanwhile.
            .connection_timeout(HANDSHAKE_TIMEOUT)
            // Ends calls that the backend gave up long ago. Without this timeout a silent server holds its place for
            // ever.
            .response_timeout(CONNECT_TIMEOUT)
            .tcp_settings(tcp_settings());
        let client = with(cluster).build().map_err(|error| {
            let rule = format!("it must be a list of redis://host:port, at least one, alike in user and TLS: {error}");
            ConfigError::new("cluster URLs", "unreadable", rule)
        })?;
        Ok(Self { client, addresses })
    }
}

impl Connector for Cluster {
    fn connect(&self) -> Pending<Box<dyn Connection>> {
        let client = self.client.clone();
        Box::pin(async move {
            let mut opening = JoinSet::new();
            for _ in 0..CLIENTS {
                let client = client.clone();
                opening.spawn(async move { client.get_async_generic_connection::<Node>().await });
            }
            let mut clients = Vec::with_capacity(CLIENTS);
            while let Some(opened) = opening.join_next().await {
                let opened = opened.map_err(|error| Fault::new(FaultKind::NotSent, error.to_string()))?;
                let connection = opened.map_err(|error| connect_fault(&error))?;
                clients.push(Client { connection, places: Places::new() });
            }
            let runtime = Runtime::current();
            Ok(Box::new(Clustered { clients, in_turn: AtomicUsize::new(0), runtime }) as Box<dyn Connection>)
        })
    }

    fn address(&self) -> Option<String> {
        Some(self.addresses.clone())
    }

    fn is_cluster(&self) -> bool {
        true
    }
}

struct Clustered {
    clients: Vec<Client>,
    /// How many calls were about no slot.
    in_turn: AtomicUsize,
    runtime: Runtime,
}

/// The runtime that drives the clients. When it shuts down, they have ended.
struct Runtime {
    end: Arc<End>,
    watching: AbortHandle,
}

impl Runtime {
    fn current() -> Self {
        let (end, driven) = End::of_driven();
        let watching = tokio::spawn(async move {
            let _driven = driven;
            std::future::pending::<()>().await;
        });
        Self { end, watching: watching.abort_handle() }
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

impl Clustered {
    /// The client for a command. All commands about a slot have the same one.
    fn client(&self, command: &Command) -> &Client {
        let index = match command.slot() {
            Some(slot) => client_of(slot),
            None => self.in_turn.fetch_add(1, Ordering::Relaxed) % CLIENTS,
        };
        &self.clients[index]
    }
}

fn client_of(slot: u16) -> usize {
    usize::from(slot) % SLOTS * CLIENTS / SLOTS
}

impl Connection for Clustered {
    /// The backend sends few commands without a place, to find out whether a server is alive: they must not wait for
    /// calls to one that hangs.
    fn call(&self, command: Command) -> Pending<Reply> {
        Box::pin(send(self.client(&command).connection.clone(), command))
    }

    fn place(&self, command: &Command) -> Option<Pending<Place>> {
        let client = self.client(command).clone();
        Some(Box::pin(async move {
            let place = client.places.take().await;
            Ok(Box::new(|command| Box::pin(client.call(place, command)) as Pending<Reply>) as Place)
        }))
    }

    fn on_end(&self, notify: Box<dyn FnOnce() + Send>) {
        self.runtime.end.then(notify);
    }
}

/// A client of the `redis` crate, with places for its calls.
#[derive(Clone)]
struct Client {
    connection: ClusterConnection<Node>,
    places: Arc<Places>,
}

impl Client {
    async fn call(self, place: TakenPlace, command: Command) -> Result<Reply, Fault> {
        place.during(send(self.connection, command)).await
    }
}

async fn send(mut connection: ClusterConnection<Node>, command: Command) -> Result<Reply, Fault> {
    let node = match command.route().clone() {
        Route::Any => SingleNodeRoutingInfo::RandomPrimary,
        Route::Slot(slot) => SingleNodeRoutingInfo::SpecificNode(SlotRoute::new(slot, SlotAddr::Master)),
        Route::Address { host, port, asking: false } => SingleNodeRoutingInfo::ByAddress { host, port },
        Route::Address { host, port, asking: true } => return ask(connection, command, host, port).await,
    };
    let sent = connection.route_command(command.into_words(), RoutingInfo::SingleNode(node)).await;
    sent.map_err(|error| fault(&error)).and_then(reply)
}

/// `ASKING` applies only to the next command of a connection that many calls share, so the two must be sent together.
async fn ask(
    mut connection: ClusterConnection<Node>,
    command: Command,
    host: String,
    port: u16,
) -> Result<Reply, Fault> {
    let mut pipeline = redis::Pipeline::with_capacity(2);
    pipeline.cmd("ASKING").ignore();
    pipeline.add_command(command.into_words());
    let node = SingleNodeRoutingInfo::ByAddress { host, port };
    let replies = connection.route_pipeline(pipeline, 0, 2, node).await.map_err(|error| fault(&error))?;
    match replies.into_iter().nth(1) {
        Some(value) => reply(value),
        None => Err(Fault::new(FaultKind::Other, "the server answered only one of two commands")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_clusters_name_what_is_wrong() {
        let error = |urls: &[&str]| Cluster::new(urls.iter().copied()).err().expect("no cluster");
        let none = error(&[]);
        assert_eq!((none.field(), none.value()), ("cluster URLs", "unreadable"));
        let rule = "it must be a list of redis://host:port, at least one, alike in user and TLS: ";
        assert!(none.to_string().contains(rule), "{none}");
        assert_eq!(error(&["redis://a:x@one", "redis://b:x@two"]).value(), "unreadable", "two users");
        for urls in [["redis://one", "http://two"], ["http://one", "redis://two"]] {
            assert_eq!((error(&urls).field(), error(&urls).value()), ("cluster URLs", "http://…"));
        }
    }

    #[test]
    fn each_client_has_a_quarter_of_the_slots() {
        for (slot, client) in [(0, 0), (4_095, 0), (4_096, 1), (8_192, 2), (12_287, 2), (12_288, 3), (16_383, 3)] {
            assert_eq!(client_of(slot), client, "{slot}");
        }
        assert!(client_of(u16::MAX) < CLIENTS, "no slot, but a number that a command may have");
    }

    #[test]
    fn every_server_of_a_cluster_is_named_and_no_password() {
        let cluster = Cluster::new(["redis://:secret@one", "redis://:secret@two:7"]).expect("URLs");
        assert_eq!(cluster.address().as_deref(), Some("one:6379, two:7"));
        assert!(cluster.is_cluster());
    }

    /// The client would send a command again whose answer was lost, and would wait for a server that hangs.
    #[test]
    fn a_cluster_client_sends_once_and_has_short_timeouts() {
        let shown = format!("{:?}", Cluster::new(["redis://:secret@one"]).expect("a URL").client);
        for setting in
            ["number_of_retries: 0,", "connection_timeout: 300ms,", "response_timeout: Some(1s),", "nodelay: true,"]
        {
            assert!(shown.contains(setting), "{setting} {shown}");
        }
        assert!(!shown.contains("secret"), "{shown}");
    }

    /// Certificates that nobody can read show that they are used.
    #[cfg(feature = "tls")]
    #[test]
    fn a_cluster_over_tls_uses_the_certificates_that_it_is_given() {
        let authority = "-----BEGIN CERTIFICATE-----\nnot base64!\n-----END CERTIFICATE-----\n";
        let cluster = |tls: &Tls| Cluster::with_tls(["rediss://one", "rediss://two:7"], tls);
        let error = cluster(&Tls::new().authority(authority)).err().expect("no certificate");
        assert_eq!((error.field(), error.value()), ("cluster URLs", "unreadable"));
        let cluster = cluster(&Tls::new()).expect("URLs of TLS");
        assert_eq!(cluster.address().as_deref(), Some("one:6379, two:7"));
    }
}

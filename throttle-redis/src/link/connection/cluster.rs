use std::time::Duration;

use redis::{ConnectionAddr, ConnectionInfo};
use throttle_core::ConfigError;

use super::shared_connection::SharedConnection;
#[cfg(feature = "tls")]
use super::tls::Tls;
use super::{Address, Connection, ConnectionFuture, Connector, url};

/// A Redis Cluster: one connection to each server.
///
/// Each server has a health of its own: while one is down, decisions about the keys of the others
/// go on. Another server is then asked which of them has which slots, and again after pauses that
/// grow to a second. A redirection moves its slot alone.
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
        Self::build(urls, |server| tls.on(server))
    }

    fn build<'a>(
        urls: impl IntoIterator<Item = &'a str>,
        with: impl Fn(ConnectionInfo) -> Result<ConnectionInfo, ConfigError>,
    ) -> Result<Self, ConfigError> {
        let field = "cluster URLs";
        let servers = url::read_all(field, urls, with)?;
        let is_alike = |server: &ConnectionInfo| {
            let settings = server.redis_settings();
            let first = servers[0].redis_settings();
            settings.username() == first.username()
                && settings.password() == first.password()
                && url::is_over_tls(server) == url::is_over_tls(&servers[0])
                && !matches!(server.addr(), ConnectionAddr::Unix(_))
        };
        if !servers.is_empty() && servers.iter().all(is_alike) {
            return Ok(Self { servers });
        }
        let rule = "it must be a list of redis://host:port, at least one, alike in user and TLS";
        Err(ConfigError::new(field, "unreadable", rule))
    }
}

impl Connector for Cluster {
    /// Opens a connection to the first of the servers.
    fn connect(&self, _timeout: Duration) -> ConnectionFuture<Box<dyn Connection>> {
        Box::pin(SharedConnection::connect(self.servers[0].clone()))
    }

    fn address(&self) -> Option<String> {
        Some(url::addresses(&self.servers))
    }

    fn cluster(&self) -> Vec<Address> {
        let address = |server: &ConnectionInfo| match server.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                Some((host.clone(), *port))
            }
            _ => None,
        };
        self.servers.iter().filter_map(address).collect()
    }

    fn connect_to(
        &self,
        server: &Address,
        _timeout: Duration,
    ) -> ConnectionFuture<Box<dyn Connection>> {
        let server = url::at(&self.servers[0], server.clone());
        Box::pin(SharedConnection::connect(server))
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
        let two = [("one".to_owned(), 6379), ("two".to_owned(), 7)];
        assert_eq!(cluster.cluster(), two);
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

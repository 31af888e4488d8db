#[cfg(feature = "tls")]
use redis::TlsCertificates;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client};
use throttle_core::ConfigError;

use super::translate::{CONNECT_TIMEOUT, connect_fault, fault, reply, tcp_settings};
use super::{Command, Connection, Connector, Pending, Reply, url};

/// One server, by one connection that all decisions share and that is kept open.
#[derive(Clone, Debug)]
pub struct Single {
    client: Client,
}

impl Single {
    /// The server at `url`: `redis://[user[:password]@]host[:port][/database]`, or `rediss://` for TLS (feature `tls`), or
    /// `unix:///path`. The port defaults to 6379, the database to 0. Nothing is connected yet.
    ///
    /// # Errors
    ///
    /// If the URL cannot be read, has a fragment (`#insecure` would switch off the verification of certificates), or needs
    /// the feature `tls` without it.
    pub fn new(url: &str) -> Result<Self, ConfigError> {
        Ok(Self { client: client(url)? })
    }

    /// The same by TLS, trusting the certificates that `authority` (PEM) has signed instead of those that everybody trusts.
    ///
    /// # Errors
    ///
    /// If the URL or the certificates cannot be read.
    #[cfg(feature = "tls")]
    pub fn with_authority(url: &str, authority: &[u8]) -> Result<Self, ConfigError> {
        let info = client(url)?.get_connection_info().clone();
        let trusted = TlsCertificates { client_tls: None, root_cert: Some(authority.to_vec()) };
        let client = Client::build_with_tls(info, trusted).map_err(|error| {
            ConfigError::new("certificate authority", "unreadable", format!("it must be PEM: {error}"))
        })?;
        Ok(Self { client })
    }
}

/// A client of the server at a URL, with the settings of every connection here.
pub(super) fn client(url: &str) -> Result<Client, ConfigError> {
    install_crypto_provider();
    let info = url::read("Redis URL", url)?.set_tcp_settings(tcp_settings());
    Client::open(info).map_err(|error| url::unreadable("Redis URL", url, error))
}

/// The TLS library panics at the first connection when no provider was chosen. One that the application has installed
/// stays.
pub(super) fn install_crypto_provider() {
    #[cfg(feature = "tls")]
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// The deadline of a decision is the backend's business; what is here only ends calls that nobody waits for any more.
pub(super) fn connection_config() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new().set_connection_timeout(Some(CONNECT_TIMEOUT)).set_response_timeout(None)
}

impl Connector for Single {
    fn connect(&self) -> Pending<Box<dyn Connection>> {
        let client = self.client.clone();
        Box::pin(async move {
            let opened = client.get_multiplexed_async_connection_with_config(&connection_config()).await;
            let connection = opened.map_err(|error| connect_fault(&error))?;
            Ok(Box::new(Multiplexed(connection)) as Box<dyn Connection>)
        })
    }

    fn address(&self) -> Option<String> {
        Some(self.client.get_connection_info().addr().to_string())
    }
}

/// A connection that many calls share.
pub(super) struct Multiplexed(pub(super) MultiplexedConnection);

impl Connection for Multiplexed {
    fn call(&self, command: Command) -> Pending<Reply> {
        let mut connection = self.0.clone();
        Box::pin(async move {
            match connection.send_packed_command(command.words()).await {
                Ok(value) => reply(value),
                Err(error) => Err(fault(&error)),
            }
        })
    }
}

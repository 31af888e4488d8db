use std::time::Duration;

use redis::Client;
use throttle_core::ConfigError;

use super::multiplexed::Multiplexed;
#[cfg(feature = "tls")]
use super::tls::Tls;
use super::translate::tcp_settings;
use super::{Connection, Connector, Pending, url};

/// One server, over one connection that stays open and that all decisions share.
///
/// ```
/// use throttle_redis::{Connector, Single};
///
/// assert_eq!(
///     Single::new("redis://redis.internal")?.address().as_deref(),
///     Some("redis.internal:6379")
/// );
/// assert!(Single::new("redis.internal").is_err());
/// # Ok::<_, throttle_core::ConfigError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Single {
    client: Client,
}

impl Single {
    /// Sets the server's URL: `redis://[user[:password]@]host[:port][/database]`, or `rediss://`
    /// for TLS (feature `tls`), or `unix:///path`. The port defaults to 6379, the database to 0.
    /// Nothing connects yet.
    ///
    /// # Errors
    ///
    /// If the URL cannot be read, has a fragment (`#insecure` would switch off the verification of
    /// certificates), or begins with `rediss://` without the feature `tls`.
    pub fn new(url: &str) -> Result<Self, ConfigError> {
        Ok(Self {
            client: client(url)?,
        })
    }

    /// Like [`new`](Self::new), over TLS with your own certificates; the URL begins with
    /// `rediss://`.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new), and if the certificates cannot be read.
    #[cfg(feature = "tls")]
    pub fn with_tls(url: &str, tls: &Tls) -> Result<Self, ConfigError> {
        Ok(Self {
            client: tls.client(client(url)?.get_connection_info().clone())?,
        })
    }
}

/// A client of the server at a URL, with the settings of every connection here.
pub(super) fn client(url: &str) -> Result<Client, ConfigError> {
    install_crypto_provider();
    let info = url::read("Redis URL", url)?.set_tcp_settings(tcp_settings());
    Client::open(info).map_err(|error| url::unreadable("Redis URL", url, error))
}

/// The TLS library panics at the first connection if no provider was chosen. A provider that the
/// application has installed is kept.
pub(super) fn install_crypto_provider() {
    #[cfg(feature = "tls")]
    let _ = rustls::crypto::ring::default_provider().install_default();
}

impl Connector for Single {
    fn connect(&self, _timeout: Duration) -> Pending<Box<dyn Connection>> {
        Box::pin(Multiplexed::connect(
            self.client.get_connection_info().clone(),
        ))
    }

    fn address(&self) -> Option<String> {
        Some(self.client.get_connection_info().addr().to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Small commands leave at once, and a connection whose other end is gone is noticed.
    fn is_prompt(single: &Single) -> bool {
        let settings = single.client.get_connection_info().tcp_settings();
        #[cfg(target_os = "linux")]
        assert_eq!(settings.user_timeout(), Some(Duration::from_secs(5)));
        settings.nodelay()
    }

    #[test]
    fn a_server_is_reached_by_prompt_connections_at_the_address_of_its_url() {
        let single = Single::new("redis://user:secret@host:7/3").expect("a URL");
        assert!(is_prompt(&single));
        assert_eq!(single.address().as_deref(), Some("host:7"));
        assert!(single.cluster().is_empty());
    }

    #[cfg(feature = "tls")]
    #[test]
    fn a_server_over_tls_is_reached_as_any_other() {
        let single =
            Single::with_tls("rediss://user:secret@host:7/3", &Tls::new()).expect("a URL of TLS");
        assert!(is_prompt(&single));
        assert_eq!(single.address().as_deref(), Some("host:7"));
        let settings = single.client.get_connection_info().redis_settings().clone();
        assert_eq!(
            (settings.username(), settings.password(), settings.db()),
            (Some("user"), Some("secret"), 3)
        );
    }
}

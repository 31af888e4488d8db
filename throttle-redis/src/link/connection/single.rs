use std::time::Duration;

use redis::ConnectionInfo;
use throttle_core::ConfigError;

use super::shared_connection::SharedConnection;
#[cfg(feature = "tls")]
use super::tls::Tls;
use super::{Connection, ConnectionFuture, Connector, url};

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
    server: ConnectionInfo,
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
            server: url::read(URL, url)?,
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
            server: tls.on(url::read(URL, url)?)?,
        })
    }
}

/// The field that errors name.
pub(super) const URL: &str = "Redis URL";

impl Connector for Single {
    fn connect(&self, _timeout: Duration) -> ConnectionFuture<Box<dyn Connection>> {
        Box::pin(SharedConnection::connect(self.server.clone()))
    }

    fn address(&self) -> Option<String> {
        Some(self.server.addr().to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Small commands leave at once, and a connection whose other end is gone is noticed.
    fn is_prompt(single: &Single) -> bool {
        let settings = single.server.tcp_settings();
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
        let settings = single.server.redis_settings().clone();
        assert_eq!(
            (settings.username(), settings.password(), settings.db()),
            (Some("user"), Some("secret"), 3)
        );
    }
}

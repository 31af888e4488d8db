use redis::sentinel::{SentinelClient, SentinelNodeConnectionInfo, SentinelServerType};
use redis::{ConnectionAddr, ConnectionInfo, RedisConnectionInfo, RedisError, TlsMode};
use throttle_core::ConfigError;

use super::multiplexed::Multiplexed;
use super::single::install_crypto_provider;
use super::translate::{connect_fault, tcp_settings};
use super::{Connection, Connector, Pending, url};

/// The master of a given name, at the address that the Sentinels report. Each new connection asks
/// them again. If the server turns out to be a replica, the connection is replaced.
///
/// ```
/// use throttle_redis::{Connector, Sentinel};
///
/// let sentinel = Sentinel::new(["redis://one:26379"], "main", None)?;
/// assert_eq!(
///     sentinel.address().as_deref(),
///     Some("the master \"main\" of the Sentinels at one:26379")
/// );
/// # Ok::<_, throttle_core::ConfigError>(())
/// ```
#[derive(Clone)]
pub struct Sentinel {
    sentinels: Vec<ConnectionInfo>,
    master: String,
    settings: RedisConnectionInfo,
    /// Of the master.
    is_over_tls: bool,
}

impl Sentinel {
    /// Sets the master's name and the Sentinels' URLs, such as `redis://host:26379`. User, password
    /// and database in `server` (`redis://user:password@ignored/database`), if given, are those of
    /// the master. If `server` begins with `rediss://`, the master is reached over TLS. Nothing
    /// connects yet.
    ///
    /// # Errors
    ///
    /// If a URL cannot be read (as in [`Single::new`](super::Single::new)) or there is none.
    pub fn new<'a>(
        sentinels: impl IntoIterator<Item = &'a str>,
        master: impl Into<String>,
        server: Option<&str>,
    ) -> Result<Self, ConfigError> {
        install_crypto_provider();
        let field = "Sentinel URLs";
        let sentinels = sentinels
            .into_iter()
            .map(|url| url::read(field, url))
            .collect::<Result<_, _>>()?;
        let server = server.map(|url| url::read(field, url)).transpose()?;
        let is_over_tls = server
            .as_ref()
            .is_some_and(|info| matches!(info.addr(), ConnectionAddr::TcpTls { .. }));
        let settings = server.map_or_else(RedisConnectionInfo::default, |info| {
            info.redis_settings().clone()
        });
        let this = Self {
            sentinels,
            master: master.into(),
            settings,
            is_over_tls,
        };
        this.client().map_err(|error| {
            let rule = format!("it must be a list of redis://host:port, at least one: {error}");
            ConfigError::new(field, "unreadable", rule)
        })?;
        Ok(this)
    }

    /// Each attempt has a client of its own: an attempt may be cancelled at any point, and must not
    /// block the next one.
    fn client(&self) -> Result<SentinelClient, RedisError> {
        let (sentinels, master) = (self.sentinels.clone(), self.master.clone());
        SentinelClient::build(
            sentinels,
            master,
            Some(self.server()),
            SentinelServerType::Master,
        )
    }

    /// How the master is reached. The Sentinels tell an address and nothing else.
    fn server(&self) -> SentinelNodeConnectionInfo {
        let server = SentinelNodeConnectionInfo::default()
            .set_redis_connection_info(self.settings.clone())
            .set_tcp_settings(tcp_settings());
        if self.is_over_tls {
            server.set_tls_mode(TlsMode::Secure)
        } else {
            server
        }
    }
}

impl Connector for Sentinel {
    fn connect(&self) -> Pending<Box<dyn Connection>> {
        let client = self.client();
        Box::pin(async move {
            let mut client = client.map_err(|error| connect_fault(&error))?;
            let master = client
                .async_get_client()
                .await
                .map_err(|error| connect_fault(&error))?;
            Multiplexed::connect(master.get_connection_info().clone()).await
        })
    }

    fn address(&self) -> Option<String> {
        Some(format!(
            "the master {:?} of the Sentinels at {}",
            self.master,
            url::addresses(&self.sentinels)
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sentinel_is_named_and_no_password() {
        let urls = ["redis://:secret@one", "redis://two:26379"];
        let sentinel = Sentinel::new(urls, "main", Some("redis://:secret@ignored")).expect("URLs");
        let address = "the master \"main\" of the Sentinels at one:6379, two:26379";
        assert_eq!(sentinel.address().as_deref(), Some(address));
    }

    #[test]
    fn errors_of_sentinels_name_what_is_wrong() {
        let error = Sentinel::new([], "main", None).err().expect("no Sentinel");
        assert_eq!(
            (error.field(), error.value()),
            ("Sentinel URLs", "unreadable")
        );
        assert!(
            error
                .to_string()
                .contains("it must be a list of redis://host:port, at least one: "),
            "{error}"
        );
        for (sentinels, server) in [
            (["redis://one", "http://two"], None),
            (["http://one", "redis://two"], None),
            (["redis://one", "redis://two"], Some("http://server")),
        ] {
            let error = Sentinel::new(sentinels, "main", server)
                .err()
                .expect("one is no Redis URL");
            assert_eq!(
                (error.field(), error.value()),
                ("Sentinel URLs", "http://…")
            );
        }
    }

    #[test]
    fn user_password_and_database_are_those_of_the_server() {
        let settings = |server| {
            Sentinel::new(["redis://a:b@one/7"], "main", server)
                .expect("URLs")
                .settings
        };
        let given = settings(Some("redis://user:secret@ignored/3"));
        assert_eq!(
            (given.username(), given.password(), given.db()),
            (Some("user"), Some("secret"), 3)
        );
        let none = settings(None);
        assert_eq!(
            (none.username(), none.password(), none.db()),
            (None, None, 0)
        );
    }

    #[test]
    fn the_connection_to_the_master_is_as_prompt_as_one_to_a_single_server() {
        let sentinel = Sentinel::new(["redis://one"], "main", None).expect("a URL");
        let shown = format!("{:?}", sentinel.server());
        assert!(shown.contains("nodelay: true"), "{shown}");
    }

    /// Otherwise its password would be sent in the clear.
    #[cfg(feature = "tls")]
    #[test]
    fn the_master_is_reached_over_tls_if_its_url_says_so() {
        let over_tls = |sentinel, server| {
            let server = Sentinel::new([sentinel], "main", server)
                .expect("URLs")
                .server();
            format!("{server:?}").contains("tls_mode: Some(Secure)")
        };
        for sentinel in ["redis://one", "rediss://one"] {
            assert!(over_tls(sentinel, Some("rediss://user:secret@ignored/3")));
            assert!(!over_tls(sentinel, Some("redis://user:secret@ignored/3")));
            assert!(!over_tls(sentinel, None));
        }
    }
}

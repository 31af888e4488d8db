use std::sync::Arc;

use redis::sentinel::{SentinelClient, SentinelNodeConnectionInfo, SentinelServerType};
use redis::{IntoConnectionInfo, RedisConnectionInfo};
use throttle_core::ConfigError;
use tokio::sync::Mutex;

use super::single::{Multiplexed, connection_config, install_crypto_provider};
use super::translate::{fault, tcp_settings};
use super::{Connection, Connector, Pending};

/// The master of a name, wherever the Sentinels say it is. They are asked again for every new connection, and a connection is
/// made anew when its server turns out to be a replica.
#[derive(Clone)]
pub struct Sentinel {
    client: Arc<Mutex<SentinelClient>>,
}

impl Sentinel {
    /// The master called `master`, asked of the Sentinels at `sentinels`: URLs such as `redis://host:26379`. User,
    /// password and database in `server` (`redis://user:password@ignored/database`), if given, are those of the master.
    /// Nothing is connected yet.
    ///
    /// # Errors
    ///
    /// If a URL cannot be read or there is none.
    pub fn new<'a>(
        sentinels: impl IntoIterator<Item = &'a str>,
        master: impl Into<String>,
        server: Option<&str>,
    ) -> Result<Self, ConfigError> {
        install_crypto_provider();
        let wrong = |error: redis::RedisError| {
            let rule = format!("it must be a list of redis://host:port, at least one: {error}");
            ConfigError::new("Sentinel URLs", "unreadable", rule)
        };
        let sentinels = sentinels.into_iter().map(IntoConnectionInfo::into_connection_info);
        let sentinels = sentinels.collect::<Result<Vec<_>, _>>().map_err(wrong)?;
        let settings = match server.map(IntoConnectionInfo::into_connection_info).transpose().map_err(wrong)? {
            Some(info) => info.redis_settings().clone(),
            None => RedisConnectionInfo::default(),
        };
        let node =
            SentinelNodeConnectionInfo::default().set_redis_connection_info(settings).set_tcp_settings(tcp_settings());
        let built = SentinelClient::build(sentinels, master.into(), Some(node), SentinelServerType::Master);
        Ok(Self { client: Arc::new(Mutex::new(built.map_err(wrong)?)) })
    }
}

impl Connector for Sentinel {
    fn connect(&self) -> Pending<Box<dyn Connection>> {
        let client = Arc::clone(&self.client);
        Box::pin(async move {
            let opened = client.lock().await.get_async_connection_with_config(&connection_config()).await;
            let connection = opened.map_err(|error| fault(&error))?;
            Ok(Box::new(Multiplexed(connection)) as Box<dyn Connection>)
        })
    }
}

mod app_pool;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bb8_redis::{RedisConnectionManager, bb8};
use redis::ConnectionInfo;
use throttle_core::ConfigError;
use tokio::task::JoinSet;

use super::end::End;
use super::shared_connection::SharedConnection;
use super::single::URL;
#[cfg(feature = "tls")]
use super::tls::Tls;
use super::translate::connect_fault;
use super::{Command, Connection, ConnectionFuture, Connector, Fault, FaultKind, Reply, url};
use app_pool::AppPool;

/// One server, over a few connections: [some of its own](Self::new), or those of
/// [the application's pool](Self::existing).
///
/// Calls use connections of their own in turn, and share them, so no decision waits for the answer
/// of another. If one of the connections ends, or a call on it fails, all of them are replaced.
///
/// ```
/// use throttle_redis::{Connector, Pool};
///
/// let pool = Pool::new("redis://:password@redis.internal:6380", 4)?;
/// assert_eq!(pool.address().as_deref(), Some("redis.internal:6380"));
/// # Ok::<_, throttle_core::ConfigError>(())
/// ```
///
/// One connection ([`Single`](super::Single)) is enough for all that one server can process. Use a
/// pool if you need several for another reason, such as a proxy that balances connections, or if
/// the application has one already.
#[derive(Clone, Debug)]
pub struct Pool(Source);

/// Where the connections come from.
#[derive(Clone, Debug)]
enum Source {
    Own {
        server: Box<ConnectionInfo>,
        size: u32,
    },
    App(bb8::Pool<RedisConnectionManager>),
}

impl Pool {
    /// Sets the server's URL and the number of connections (at least 1), which are opened together;
    /// see [`Single::new`](super::Single::new) for the URL. Nothing connects yet.
    ///
    /// # Errors
    ///
    /// As [`Single::new`](super::Single::new).
    pub fn new(url: &str, size: u32) -> Result<Self, ConfigError> {
        Ok(Self::of(url::read(URL, url)?, size))
    }

    /// Like [`new`](Self::new), over TLS with your own certificates; the URL begins with
    /// `rediss://`.
    ///
    /// # Errors
    ///
    /// As [`Single::with_tls`](super::Single::with_tls).
    #[cfg(feature = "tls")]
    pub fn with_tls(url: &str, size: u32, tls: &Tls) -> Result<Self, ConfigError> {
        Ok(Self::of(tls.on(url::read(URL, url)?)?, size))
    }

    /// Decides over the `bb8_redis` pool that the application has. Server, credentials, TLS and the
    /// number of connections are those of the pool.
    ///
    /// ```no_run
    /// use bb8_redis::{RedisConnectionManager, bb8};
    /// use throttle_redis::{Pool, RedisBackend};
    ///
    /// # async fn demo() -> Result<(), Box<dyn std::error::Error>> {
    /// let manager = RedisConnectionManager::new("redis://redis.internal")?;
    /// let pool = bb8::Pool::builder().max_size(8).build(manager).await?;
    /// let backend = RedisBackend::builder(Pool::existing(pool.clone())).build()?;
    /// // `pool` goes into the state of the application, `backend` into the layer.
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # What it costs
    ///
    /// * Two round trips for each call, where [`new`](Self::new) needs one. `bb8_redis` does not
    ///   notice the end of a connection, so a connection is checked by `PING` before each call: by
    ///   the pool (`test_on_check_out`, the default), or by the backend if the pool does not.
    /// * A call has a connection for itself until the answer, as the application's commands have.
    ///   Decisions wait while all connections are in use, and those that wait travel together in
    ///   one call. A decision that waits beyond its deadline fails like one whose answer is late.
    ///   If the application holds connections for long, give the pool more of them.
    /// * If a connection ends without a word, the check fails only after 500 ms, the response
    ///   timeout of the `redis` crate. Decisions that need that connection fail until then.
    /// * While the pool has no connection at all, a call opens one outside of the pool, because
    ///   `bb8` pauses for seconds after failures.
    #[must_use]
    pub fn existing(pool: bb8::Pool<RedisConnectionManager>) -> Self {
        Self(Source::App(pool))
    }

    fn of(server: ConnectionInfo, size: u32) -> Self {
        Self(Source::Own {
            server: Box::new(server),
            size: size.max(1),
        })
    }
}

impl Connector for Pool {
    fn connect(&self, _timeout: Duration) -> ConnectionFuture<Box<dyn Connection>> {
        match &self.0 {
            Source::Own { server, size } => {
                Box::pin(Connections::open(ConnectionInfo::clone(server), *size))
            }
            Source::App(pool) => Box::pin(AppPool::connect(pool.clone())),
        }
    }

    fn address(&self) -> Option<String> {
        match &self.0 {
            Source::Own { server, .. } => Some(server.addr().to_string()),
            Source::App(_) => None,
        }
    }
}

/// Connections to one server, which are used in turn. When the first of them ends, all count as
/// ended, and are replaced.
struct Connections {
    open: Vec<SharedConnection>,
    used: AtomicUsize,
    end: Arc<End>,
}

impl Connections {
    async fn open(server: ConnectionInfo, size: u32) -> Result<Box<dyn Connection>, Fault> {
        let opening = (0..size).map(|_| SharedConnection::open(server.clone()));
        let mut connecting: JoinSet<_> = opening.collect();
        let mut open = Vec::new();
        let end = Arc::<End>::default();
        while let Some(opened) = connecting.join_next().await {
            let stopped = |_| Fault::new(FaultKind::NotSent, "the runtime has ended");
            let opened = opened.map_err(stopped)?;
            let opened = opened.map_err(|error| connect_fault(&error))?;
            let all = Arc::clone(&end);
            opened.end.then(Box::new(move || all.come()));
            open.push(opened);
        }
        let used = AtomicUsize::new(0);
        Ok(Box::new(Self { open, used, end }))
    }
}

impl Connection for Connections {
    fn call(&self, command: Command) -> ConnectionFuture<Reply> {
        let next = self.used.fetch_add(1, Ordering::Relaxed) % self.open.len();
        self.open[next].call(command)
    }

    fn on_end(&self, notify: Box<dyn FnOnce() + Send>) {
        self.end.then(notify);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size(pool: &Pool) -> u32 {
        match pool.0 {
            Source::Own { size, .. } => size,
            Source::App(_) => panic!("the application's pool"),
        }
    }

    #[test]
    fn a_pool_has_at_least_one_connection() {
        for (asked, most) in [(0, 1), (1, 1), (7, 7)] {
            let pool = Pool::new("redis://host", asked).expect("a URL");
            assert_eq!(size(&pool), most);
        }
    }

    #[test]
    fn connections_of_a_pool_are_as_prompt_as_a_single_one() {
        let pool = Pool::new("redis://user:secret@host:7/3", 4).expect("a URL");
        let shown = format!("{pool:?}");
        assert!(
            shown.contains("nodelay: true") && !shown.contains("secret"),
            "{shown}"
        );
    }

    #[cfg(feature = "tls")]
    #[test]
    fn a_pool_over_tls_is_as_large_and_at_the_same_address() {
        let pool =
            Pool::with_tls("rediss://user:secret@host:7", 5, &Tls::new()).expect("a URL of TLS");
        assert_eq!(
            (size(&pool), pool.address().as_deref()),
            (5, Some("host:7"))
        );
        assert!(pool.cluster().is_empty());
        let error = Pool::with_tls("redis://host", 5, &Tls::new()).expect_err("not of TLS");
        assert_eq!(error.field(), "TLS certificates");
    }
}

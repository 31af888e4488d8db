//! Connections to servers, by the `redis` crate or a client of your own.
//!
//! No other module uses types of the client crate, so another client, or a new major version,
//! changes only this module.

#[cfg(feature = "cluster")]
mod cluster;
mod command;
mod end;
mod fault;
#[cfg(feature = "pool")]
mod pool;
mod reply;
#[cfg(feature = "sentinel")]
mod sentinel;
mod shared_connection;
mod single;
#[cfg(feature = "tls")]
mod tls;
mod translate;
mod url;

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use tokio::task::JoinSet;

#[cfg(feature = "cluster")]
pub use cluster::Cluster;
pub use command::Command;
pub use fault::{Fault, FaultKind};
#[cfg(feature = "pool")]
pub use pool::Pool;
pub use reply::Reply;
#[cfg(feature = "sentinel")]
pub use sentinel::Sentinel;
pub use single::Single;
#[cfg(feature = "tls")]
pub use tls::Tls;

/// Name or IP address, and TCP port, of a server.
pub type Address = (String, u16);

/// A boxed future, as connectors and connections return it.
pub type ConnectionFuture<T> = Pin<Box<dyn Future<Output = Result<T, Fault>> + Send>>;

/// An open connection that sends commands.
///
/// Many calls run concurrently on one connection, so it multiplexes them, or is a handle to several
/// connections to the same server.
///
/// # Contract
///
/// * A command is sent at most once. An answer that is lost is a [fault](FaultKind::Lost), never a
///   reason to send again.
/// * A call's future may be dropped at any point. The command may or may not have been sent; no
///   other call receives its answer.
/// * The connection has no timeout below one second, because the backend has its own deadline.
/// * On a connection to a server of a cluster, some commands are sent [after
///   `ASKING`](Command::is_after_asking).
pub trait Connection: Send + Sync + 'static {
    /// Sends one command.
    fn call(&self, command: Command) -> ConnectionFuture<Reply>;

    /// Calls `notify` when the connection ends, or at once if it has ended. Defaults to never.
    ///
    /// A connection ends when the server or a proxy closes it, and when the runtime that drives it
    /// shuts down. The backend then opens another connection, and decisions wait for that one.
    /// Without the call, the first decision after the end fails. `notify` neither blocks nor
    /// panics. A connection that wraps another one must pass this on.
    fn on_end(&self, _notify: Box<dyn FnOnce() + Send>) {}
}

/// Opens connections. After a failure the backend drops the connection and calls the connector
/// again.
///
/// [`Single`], [`Pool`](crate::Pool), [`Cluster`](crate::Cluster) and [`Sentinel`](crate::Sentinel)
/// use the `redis` crate. Implement it for a client of your own:
///
/// ```
/// use std::time::Duration;
/// use throttle_redis::{Command, Connection, Connector, Fault, FaultKind, ConnectionFuture, Reply};
///
/// struct Mine;
///
/// impl Connector for Mine {
///     fn connect(&self, _timeout: Duration) -> ConnectionFuture<Box<dyn Connection>> {
///         Box::pin(async { Ok(Box::new(Mine) as Box<dyn Connection>) })
///     }
/// }
///
/// impl Connection for Mine {
///     fn call(&self, command: Command) -> ConnectionFuture<Reply> {
///         let words: Vec<Vec<u8>> = command.args().map(<[u8]>::to_vec).collect();
///         // Send `words` as a RESP array, and turn what comes back into a `Reply`.
///         Box::pin(async move {
///             Err(Fault::new(
///                 FaultKind::NotSent,
///                 format!("{} words unsent", words.len()),
///             ))
///         })
///     }
/// }
///
/// assert!(
///     Mine.cluster().is_empty() && Mine.address().is_none(),
///     "the defaults"
/// );
/// ```
///
/// # Contract
///
/// * A connection that is returned can take commands: the server was reached, and it has accepted
///   the credentials.
/// * The future may be dropped at any point; a half-open connection is closed then.
/// * [`cluster`](Self::cluster) and [`address`](Self::address) always return the same.
/// * A connector that wraps another one passes every method on.
pub trait Connector: Send + Sync + 'static {
    /// Opens a connection within `timeout`, the backend's
    /// [`connect_timeout`](crate::RedisBuilder::connect_timeout). After it the backend drops the
    /// future. A connector that wraps another one passes `timeout` on.
    fn connect(&self, timeout: Duration) -> ConnectionFuture<Box<dyn Connection>>;

    /// The address that it connects to, for errors and events. It must not contain credentials.
    /// Defaults to `None`.
    fn address(&self) -> Option<String> {
        None
    }

    /// The addresses of some servers of a cluster, which are asked for the others. Defaults to
    /// none: all keys are at one server.
    fn cluster(&self) -> Vec<Address> {
        Vec::new()
    }

    /// Opens a connection to one server of a [cluster](Self::cluster), as
    /// [`connect`](Self::connect) does; the backend calls no other method to connect to a cluster.
    /// Defaults to `connect`.
    fn connect_to(
        &self,
        _server: &Address,
        timeout: Duration,
    ) -> ConnectionFuture<Box<dyn Connection>> {
        self.connect(timeout)
    }
}

/// Makes several attempts at the same time, so that one that hangs does not keep the others waiting.
/// Returns the first success, or why each of them failed.
pub(crate) async fn first_success<T: Send + 'static, E: Send + 'static>(
    attempts: impl Iterator<Item = impl Future<Output = Result<T, E>> + Send + 'static>,
) -> Result<T, Vec<E>> {
    let mut running: JoinSet<_> = attempts.collect();
    let mut errors = Vec::new();
    while let Some(ended) = running.join_next().await {
        match ended {
            Ok(Ok(success)) => return Ok(success),
            Ok(Err(error)) => errors.push(error),
            Err(_) => {}
        }
    }
    Err(errors)
}

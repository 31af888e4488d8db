//! Connections to servers, by the `redis` crate or a client of your own.
//!
//! No other module uses types of the client crate, so another client, or a new major version,
//! changes only this module.

#[cfg(feature = "cluster")]
mod cluster;
mod command;
mod end;
mod fault;
mod multiplexed;
#[cfg(feature = "pool")]
mod pool;
mod reply;
#[cfg(feature = "sentinel")]
mod sentinel;
mod single;
pub(crate) mod slot_map;
#[cfg(feature = "tls")]
mod tls;
mod translate;
mod url;

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

#[cfg(feature = "cluster")]
pub use cluster::Cluster;
pub use command::{Command, Route};
pub use fault::{Fault, FaultKind};
#[cfg(feature = "pool")]
pub use pool::Pool;
pub use reply::Reply;
#[cfg(feature = "sentinel")]
pub use sentinel::Sentinel;
pub use single::Single;
#[cfg(feature = "tls")]
pub use tls::Tls;

/// A boxed future, as connectors and connections return it.
pub type Pending<T> = Pin<Box<dyn Future<Output = Result<T, Fault>> + Send>>;

/// An open connection that sends commands.
///
/// Many calls run concurrently on one connection, so it multiplexes them, or is a handle to several
/// connections.
///
/// # Contract
///
/// * A command is sent at most once. An answer that is lost is a [fault](FaultKind::Lost), never a
///   reason to send again.
/// * A call's future may be dropped at any point. The command may or may not have been sent; no
///   other call receives its answer.
/// * The connection has no timeout below one second, because the backend has its own deadline.
/// * A connection to a cluster stays in use when one of its servers fails: it finds out by itself
///   which server has the slots, and opens connections again.
pub trait Connection: Send + Sync + 'static {
    /// Sends one command to where its [route](Command::route) says; a connection to a single server
    /// may ignore the route.
    fn call(&self, command: Command) -> Pending<Reply>;

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
/// use throttle_redis::{Command, Connection, Connector, Fault, FaultKind, Pending, Reply};
///
/// struct Mine;
///
/// impl Connector for Mine {
///     fn connect(&self, _timeout: Duration) -> Pending<Box<dyn Connection>> {
///         Box::pin(async { Ok(Box::new(Mine) as Box<dyn Connection>) })
///     }
/// }
///
/// impl Connection for Mine {
///     fn call(&self, command: Command) -> Pending<Reply> {
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
///     !Mine.is_cluster() && Mine.address().is_none(),
///     "the defaults"
/// );
/// ```
///
/// # Contract
///
/// * A connection that is returned can take commands: the server was reached, and it has accepted
///   the credentials.
/// * The future may be dropped at any point; a half-open connection is closed then.
/// * [`is_cluster`](Self::is_cluster) and [`address`](Self::address) always return the same.
pub trait Connector: Send + Sync + 'static {
    /// Opens a connection within `timeout`, the backend's
    /// [`connect_timeout`](crate::RedisBuilder::connect_timeout). After it the backend drops the
    /// future. A connection that opens others later, as one to a cluster does, gives each of them
    /// the same time. A connector that wraps another one passes `timeout` on.
    fn connect(&self, timeout: Duration) -> Pending<Box<dyn Connection>>;

    /// The address that it connects to, for errors and events. It must not contain credentials.
    /// Defaults to `None`.
    fn address(&self) -> Option<String> {
        None
    }

    /// Whether keys are spread over several servers by their slot. Defaults to false.
    fn is_cluster(&self) -> bool {
        false
    }
}

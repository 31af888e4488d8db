//! Connections to servers, by the `redis` crate or a client of your own.
//!
//! The client's own types stay inside this room, so a new major version of it, or another client, changes
//! only what is in here.

#[cfg(feature = "cluster")]
mod cluster;
mod command;
mod fault;
#[cfg(feature = "pool")]
mod pool;
mod reply;
#[cfg(feature = "sentinel")]
mod sentinel;
mod single;
#[cfg(feature = "tls")]
mod tls;
mod translate;
mod url;

use std::future::Future;
use std::pin::Pin;

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

/// A future of this room, its type erased.
pub type Pending<T> = Pin<Box<dyn Future<Output = Result<T, Fault>> + Send>>;

/// An open connection: sends commands, each answered by itself.
///
/// Many calls are under way at once on one connection; it is a multiplexed one, or a handle on several.
///
/// # Contract
///
/// * A command is sent at most once. An answer that is lost is a [fault](FaultKind::Lost), never a reason to send
///   again.
/// * A call's future may be dropped at any point. The command was sent or not; no other call gets its answer.
/// * It has no deadline of its own that is shorter than a second: the backend has one.
pub trait Connection: Send + Sync + 'static {
    /// Sends one command to where its [route](Command::route) says; a connection to a single server need not look.
    fn call(&self, command: Command) -> Pending<Reply>;
}

/// Opens connections, again and again: after a failure the backend asks for a new one and drops the old.
///
/// [`Single`], [`Pool`](crate::Pool), [`Cluster`](crate::Cluster) and [`Sentinel`](crate::Sentinel) are made of the
/// `redis` crate. Implement it for a client of your own:
///
/// ```
/// use throttle_redis::{Command, Connection, Connector, Fault, FaultKind, Pending, Reply};
///
/// struct Mine;
///
/// impl Connector for Mine {
///     fn connect(&self) -> Pending<Box<dyn Connection>> {
///         Box::pin(async { Ok(Box::new(Mine) as Box<dyn Connection>) })
///     }
/// }
///
/// impl Connection for Mine {
///     fn call(&self, command: Command) -> Pending<Reply> {
///         let words: Vec<Vec<u8>> = command.args().map(<[u8]>::to_vec).collect();
///         // Send `words` as a RESP array, and turn what comes back into a `Reply`.
///         Box::pin(async move { Err(Fault::new(FaultKind::NotSent, format!("{} words unsent", words.len()))) })
///     }
/// }
///
/// assert!(!Mine.is_cluster() && Mine.address().is_none(), "the defaults");
/// ```
pub trait Connector: Send + Sync + 'static {
    /// Opens a connection. The backend drops the future when it takes too long.
    fn connect(&self) -> Pending<Box<dyn Connection>>;

    /// Where it connects to, for errors and events. It must not hold credentials. Defaults to `None`.
    fn address(&self) -> Option<String> {
        None
    }

    /// Whether keys are spread over several servers by their slot. Defaults to false.
    fn is_cluster(&self) -> bool {
        false
    }
}

//! Rate limits that many processes share: the Redis backend of throttle.

mod connection;
mod keyspace;

#[cfg(feature = "cluster")]
pub use connection::Cluster;
#[cfg(feature = "pool")]
pub use connection::Pool;
#[cfg(feature = "sentinel")]
pub use connection::Sentinel;
pub use connection::{Command, Connection, Connector, Fault, FaultKind, Pending, Reply, Route, Single};

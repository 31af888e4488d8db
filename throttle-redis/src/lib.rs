//! Rate limits that many processes share: the Redis backend of throttle.

mod ask;
mod backend;
mod breaker;
mod builder;
mod connection;
mod decide;
mod deny_cache;
mod exchange;
mod inspect;
mod keyspace;
mod lane;
mod lease;
mod line;
mod linked;
mod owners;
mod reset;
mod script;
mod set;
mod settle;
mod shared;
mod slot;
mod spread;
mod stats;

pub use backend::{RedisBackend, RedisFuture};
pub use builder::RedisBuilder;
#[cfg(feature = "cluster")]
pub use connection::Cluster;
#[cfg(feature = "pool")]
pub use connection::Pool;
#[cfg(feature = "sentinel")]
pub use connection::Sentinel;
pub use connection::{Command, Connection, Connector, Fault, FaultKind, Pending, Reply, Route, Single};
pub use inspect::Inspection;
pub use lease::Terms;
pub use set::RedisSet;
pub use stats::Stats;

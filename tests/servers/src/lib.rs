//! Real Redis for tests and benchmarks: servers, clusters and sentinels for one test, and a proxy
//! that causes faults.
//!
//! Everything listens on 127.0.0.1 only, and nothing outlives the process that started it, however
//! that process ends: see [`Server`]. A fault that cannot be caused as requested panics, because a
//! test must not continue without it.
//!
//! ```
//! use throttle_test_servers::Server;
//!
//! let server = Server::start();
//! server.command(&["SET", "key", "1"]);
//! assert_eq!(server.dbsize(), 1);
//! ```

mod binary;
mod builder;
mod cluster;
mod control;
mod keeper;
mod port;
mod process;
mod proxy;
mod sentinel;
mod server;
mod shared;
mod signal;
mod tls;
mod wait;

pub use builder::Builder;
pub use cluster::{Cluster, ClusterBuilder, slot_of};
pub use proxy::Proxy;
/// The client of these methods, for its types of values.
pub use redis;
pub use sentinel::Sentinel;
pub use server::Server;
pub use shared::Shared;
pub use tls::Tls;

//! Real Redis for tests and benchmarks: servers, clusters and sentinels of one's own, and a wire that can be cut.
//!
//! Everything listens on 127.0.0.1 only, and nothing outlives the process that started it, however that one ends: see
//! [`Server`]. A fault that does not come about as asked is a panic, for a test must not go on without it.
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
/// The client that the methods here speak with, for its types of values.
pub use redis;
pub use sentinel::Sentinel;
pub use server::Server;
pub use shared::Shared;
pub use tls::Tls;

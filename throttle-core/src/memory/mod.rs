//! The in-process backend: sharded, bounded, swept as it goes.
//!
//! `backend` is the public face and `store` holds the shards. A request enters in `decide`; nearly every request is
//! then decided in `fast_path`, and any other on the `entry` of each of its keys. `sweep` forgets keys, `policies`
//! numbers the parameters that slots refer to, `key_hash` hides the keys, and `shard` and `table` hold them.

mod backend;
mod decide;
mod entry;
mod fast_path;
mod key_hash;
mod policies;
mod shard;
mod store;
mod sweep;
mod table;
#[cfg(test)]
mod tests;

pub use backend::{MemoryBackend, MemoryBuilder};
pub use store::MemorySet;

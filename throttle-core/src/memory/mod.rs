//! The in-process backend: sharded, bounded, swept as it goes.
//!
//! `backend` is the public face and `store` holds the shards. A request enters in `decide`. Nearly
//! every request is then decided in `fast_path` (one policy; `new_key` if it is the key's first) or
//! `fast_set` (several; `request` finds their keys; `beside` decides keys with exceptions or
//! parameters of their own), and any other on the `entry` of each of its keys. A key that finds no
//! room shares an overflow bucket, in `entry`. `sweep` forgets keys and makes room, `policies`
//! numbers the parameters that slots refer to, `key_hash` hides the keys, and a `snapshot` outlives
//! the process.
//!
//! A `shard` is a `table` of `slot`s and what only its lock opens. The table may be read at any
//! time: its slots lie in `segments` that never move, and its `version` tells a reader whether what
//! it has read was changed meanwhile. `models` checks this in every order of steps with at most one
//! preemption.

mod backend;
mod beside;
mod decide;
mod entry;
mod except;
mod fast_path;
mod fast_set;
mod key_hash;
#[cfg(all(test, throttle_models))]
mod models;
mod new_key;
mod policies;
mod request;
mod segments;
mod shard;
mod slot;
pub mod snapshot;
mod store;
mod sweep;
mod sync;
mod table;
#[cfg(test)]
mod tests;
mod version;

pub use backend::{MemoryBackend, MemoryBuilder};
pub use store::MemorySet;

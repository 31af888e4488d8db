//! The in-process backend: sharded, bounded, swept as it goes.
//!
//! `backend` is the public face and `store` holds the shards. A request enters in `decide`. One
//! policy on a known key is decided in `fast_path`, without a lock. Several are decided in
//! `decide_set`, in the held tables of their keys (`request` finds them). Any other state is decided
//! on the `entry` of its key, in a locked shard. A key that finds no room shares an overflow bucket,
//! in `entry`. `sweep` forgets keys and makes room, `policies` numbers the parameters that slots
//! refer to, `key_hash` hides the keys, and a `snapshot` outlives the process.
//!
//! A `shard` is a `table` of `slot`s and what only its lock opens. The table may be read at any
//! time: its slots lie in `segments` that never move, and its `version` tells a reader whether what
//! it has read was changed meanwhile. `models` checks this in every order of steps with at most one
//! preemption.

mod backend;
mod decide;
mod decide_set;
mod entry;
mod except;
mod fast_path;
mod key_hash;
#[cfg(all(test, throttle_models))]
mod models;
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

//! The store as bytes, and back: what outlives a process.
//!
//! A snapshot is a header, then records, and a digest of all of it. Numbers are little endian.
//!
//! | record | bytes | contents |
//! |---|---|---|
//! | header | 92 | `throttle memory 1\n\0\0`, instant in µs (8), secret of the hashed keys (56), number of shards (8) |
//! | `p`, `q` | 4 + n | parameters of a policy, or of a key's own: length (1) and name of the policy, length (2) and tag of the algorithm; numbered from 0 |
//! | `k`, `d` | 25 + n | a short or a long key: number of its parameters (4), hashed key (16), length (4) and numbers of its state |
//! | `o` | 25 + n | an overflow bucket: the same, with the number of its shard for a key |
//! | `x` | 3 + n | an exception of the key in the next record: length (2) and [bytes](crate::backend::Exception::to_wire) |
//! | `e` | 33 | latest instant of a forgotten state (8), number of records of keys (8), digest (16) |

mod error;
mod file;
mod read;
mod write;

pub use error::RestoreError;
pub use file::Saver;

/// Begins a snapshot, with the version of the format.
const MAGIC: &[u8; 20] = b"throttle memory 1\n\0\0";

//! The contract of a backend, and what passes between a backend and the library.
//!
//! Open this module to write a backend, or to call one without a layer.
//!
//! # Write a backend
//!
//! 1. Implement the six required methods of [`Backend`]. Its example is a whole backend over a map;
//!    a store in a database differs in three things.
//! 2. A database holds bytes. [`State::to_wire`](crate::algorithm::State::to_wire) and
//!    [`from_wire`](crate::algorithm::State::from_wire) write and read a state, and [`KeyDigest`]
//!    names its key without holding what the client sent.
//! 3. A decision is one transaction, which takes its locks in one order: by policy and digest where
//!    rows are locked. It reads the clock when it holds them.
//! 4. A row has a column for [`State::kept_until`](crate::algorithm::State::kept_until), and a job
//!    deletes the rows whose instant has passed.
//! 5. Run the conformance kit, in `throttle_core::conformance` with the feature of that name: it
//!    compares the backend with the reference, step by step.
//!
//! `examples/sqlite` is such a backend: copy it.
//!
//! The provided methods of [`Backend`] add what a layer or a queue can use. Without
//!
//! * `decide_at_once`, each request polls a future;
//! * `now` and `decide_as_of`, a request that waited for its turn is decided when its timer wakes,
//!   so a queue is somewhat slower than its rate;
//! * `has_exceptions`, which says that every [`KeyStep`] runs, a layer refuses limits with a ban;
//! * `keys_held`, the number of keys is not shown;
//! * `can_fail`, which is `false` for a store in memory, each limit needs a rule for failures.

mod boxed;
mod contract;
mod correction;
mod drain;
mod key_digest;
mod key_step;
mod receipt;

pub use crate::algorithm::{Ban, Exception, StrikeOutcome, Strikes, Treatment};
pub use crate::backend_error::{BackendError, BackendErrorKind};
pub use crate::call::Call;
pub use boxed::{BoxBackend, BoxPrepared};
pub use contract::{Answer, Backend};
pub use correction::{correction, is_correction};
pub use drain::drain;
pub use key_digest::KeyDigest;
pub use key_step::{ExceptedKey, KeyStep};
pub use receipt::{Receipt, ReceiptItem};

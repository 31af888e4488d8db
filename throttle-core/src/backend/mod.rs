//! What a store is to the library: the contract of a backend, and what passes between the two.
//!
//! Open this module to write a backend, or to call one without a layer.

mod boxed;
mod call;
mod contract;
mod error;
mod policy_registry;
mod receipt;

pub use boxed::{BoxBackend, BoxPrepared};
pub use call::Call;
pub use contract::Backend;
pub use error::{BackendError, BackendErrorKind};
pub use policy_registry::{PolicyRegistry, RegisteredSet};
pub use receipt::{Receipt, ReceiptItem};

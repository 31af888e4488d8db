//! The contract of a backend, and what passes between a backend and the library.
//!
//! Open this module to write a backend, or to call one without a layer.

mod boxed;
mod contract;
mod correction;
mod drain;
mod key_step;
mod receipt;

pub use crate::algorithm::{Ban, Exception, Strikes, Struck, Treatment};
pub use crate::backend_error::{BackendError, BackendErrorKind};
pub use crate::call::Call;
pub use boxed::{BoxBackend, BoxPrepared};
pub use contract::{Answer, Backend};
pub use correction::{correction, is_correction};
pub use drain::drain;
pub use key_step::{ExceptedKey, KeyStep};
pub use receipt::{Receipt, ReceiptItem};

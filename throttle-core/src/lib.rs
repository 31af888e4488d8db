//! Exact rate-limiting algorithms, their composition, and a bounded in-memory backend. No async
//! runtime, no HTTP.
//!
//! ```
//! use throttle_core::{Gcra, Limiter, Policy, Rate};
//!
//! let limiter = Limiter::in_memory(Policy::new(
//!     "per-user",
//!     Gcra::new(Rate::per_minute(100)).burst(2),
//! )?)?;
//! assert!(limiter.check("ada", 1).is_admitted());
//! assert!(limiter.check("ada", 1).is_admitted());
//!
//! let refused = limiter.check("ada", 1);
//! assert!(!refused.is_admitted());
//! assert!(
//!     refused
//!         .retry_after()
//!         .is_some_and(|wait| wait.as_millis() <= 600)
//! );
//! # Ok::<(), throttle_core::ConfigError>(())
//! ```
//!
//! # Words
//!
//! | word | meaning |
//! |---|---|
//! | [`Rate`] | a count per period |
//! | burst, capacity | most units admitted at one instant from an unused key |
//! | [`Algorithm`] | a pure transition: (state, now, cost) to (state, verdict) |
//! | [`Policy`] | a public name and an algorithm, or one algorithm for each tier |
//! | [`Key`] | whose budget a request uses |
//! | [`Cost`] | units that a request uses, at least 1 |
//! | [`PolicySet`], [`PolicyTree`] | policies composed with `all` and `any` |
//! | [`Limiter`] | a set of policies on a backend: what most programs use |
//! | [`Decision`], [`Status`] | the outcome of a request, and the status of each policy |
//! | [`Charge`] | what an admitted request took, to be settled once |
//! | [`Backend`] | stores state, reads the time and decides |
//! | [`LocalShare`], [`DecidedBy`] | what a process may admit while its store fails, and what decided |
//! | [`LocalShareBackend`] | a fleet without a store: each process admits its share of every limit |
//!
//! # Guarantees
//!
//! Decisions are computed in integers and exact to the microsecond. A refused request changes
//! nothing, `retry_after` is the time to the first instant at which the request is admitted, and
//! `remaining` is the largest cost that is admitted now. A clock that steps back admits no extra
//! units, and one that steps forward at most one more burst. For HTTP, use `tower-throttle`.
//!
//! # Features
//!
//! | feature | default | gives |
//! |---|---|---|
//! | `conformance` | no | a test kit that checks whether a backend keeps its contract |
//! | `metrics` | no | [`metrics`], for backends that report metrics |

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod algorithm;
pub mod backend;
mod backend_error;
mod call;
mod canonical_ip;
mod charge;
#[cfg(feature = "conformance")]
pub mod conformance;
mod cost;
mod decided_by;
mod decision;
mod error;
mod key;
mod limiter;
mod local_share;
mod local_share_backend;
mod memory;
#[cfg(feature = "metrics")]
pub mod metrics;
mod policy;
mod rate;
mod set;
mod tier;
mod time;

#[doc(inline)]
pub use algorithm::builders::*;
pub use algorithm::{Algorithm, IntoAlgorithm};
pub use backend::{Backend, BoxBackend};
pub use backend_error::{BackendError, BackendErrorKind};
pub use canonical_ip::canonical_ip;
pub use charge::Charge;
pub use cost::Cost;
pub use decided_by::DecidedBy;
pub use decision::{Decision, Status};
pub use error::ConfigError;
pub use key::{Key, KeyBuilder, KeyPart};
pub use limiter::Limiter;
pub use local_share::LocalShare;
pub use local_share_backend::{LocalShareBackend, LocalShareSet};
pub use memory::{MemoryBackend, MemoryBuilder, MemorySet, snapshot};
pub use policy::{Policy, PolicyName};
pub use rate::Rate;
pub use set::{AnyCharge, PolicyNode, PolicySet, PolicyTree};
pub use time::{Clock, ManualClock, SystemClock, Timestamp};

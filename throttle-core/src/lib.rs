//! Exact rate-limiting algorithms, their composition, and a bounded in-memory backend. No async runtime, no HTTP.
//!
//! ```
//! use throttle_core::{Gcra, Limiter, Policy, Rate};
//!
//! let limiter = Limiter::in_memory(Policy::new("per-user", Gcra::new(Rate::per_minute(100)).burst(2))?)?;
//! assert!(limiter.check("ada", 1).is_admitted());
//! assert!(limiter.check("ada", 1).is_admitted());
//! let denied = limiter.check("ada", 1);
//! assert!(!denied.is_admitted());
//! println!("again in {:?}", denied.retry_after());
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
//! | [`Policy`], [`Carry`] | a public name and an algorithm, or several: one for each tier |
//! | [`Key`] | whose budget |
//! | [`Cost`] | units a request uses, at least 1 |
//! | [`PolicySet`], [`PolicyTree`] | policies composed with `all` and `any` |
//! | [`Decision`], [`Status`] | what a set says, and where each of its policies stands |
//! | [`Receipt`] | what an admitted request took, to be settled once |
//! | [`Backend`] | where state lives and time is read |
//! | [`LocalShare`], [`DecidedBy`] | what a process may admit while its store fails, and who decided |
//!
//! # What it promises
//!
//! Decisions are exact to the microsecond, in integers: a denied request changes nothing, `retry_after` is the first
//! instant at which the request is admitted, `remaining` is what would be admitted now. They hold on a clock that steps
//! in either direction. HTTP is the business of `throttle-tower`.
//!
//! # Features
//!
//! | feature | default | gives |
//! |---|---|---|
//! | `conformance` | no | the kit that shows whether a backend keeps the contract |

pub mod algorithm;
pub mod backend;
mod charge;
#[cfg(feature = "conformance")]
pub mod conformance;
mod cost;
mod decided_by;
mod decision;
mod error;
mod key;
mod limiter;
mod memory;
mod policy;
mod rate;
mod set;
mod share;
mod tier;
mod time;

pub use algorithm::{
    Algorithm, CalendarQuota, Carry, FixedWindow, Gcra, IntervalBucket, IntoAlgorithm, LeakyBucket, LeakyMeter,
    SlidingLog, SlidingWindow, TokenBucket,
};
pub use backend::{Backend, BackendError, BackendErrorKind, BoxBackend};
pub use charge::Charge;
pub use cost::Cost;
pub use decided_by::DecidedBy;
pub use decision::{Decision, Status};
pub use error::ConfigError;
pub use key::{Key, KeyBuilder, KeyPart};
pub use limiter::Limiter;
pub use memory::{MemoryBackend, MemoryBuilder, MemorySet};
pub use policy::{Policy, PolicyName};
pub use rate::Rate;
pub use set::{AnyCharge, PolicyNode, PolicySet, PolicyTree};
pub use share::LocalShare;
pub use time::{Clock, ManualClock, SystemClock, Timestamp};

//! Exact rate limiting.

pub mod algorithm;
mod backend;
mod charge;
#[cfg(feature = "conformance")]
pub mod conformance;
mod cost;
mod decision;
mod error;
mod key;
mod limiter;
mod memory;
mod policy;
mod rate;
mod set;
mod time;

pub use algorithm::{
    Algorithm, CalendarQuota, FixedWindow, Gcra, IntervalBucket, IntoAlgorithm, LeakyBucket, LeakyMeter, SlidingLog,
    SlidingWindow, State, TokenBucket,
};
pub use backend::{Backend, BackendError, BackendErrorKind, BoxBackend, BoxPrepared, Call};
pub use charge::{Charge, ChargeItem};
pub use cost::Cost;
pub use decision::{Decision, Status, Verdict};
pub use error::ConfigError;
pub use key::{Key, KeyBuilder};
pub use limiter::Limiter;
pub use memory::{MemoryBackend, MemoryBuilder, MemorySet};
pub use policy::{Policy, PolicyName};
pub use rate::Rate;
pub use set::{AnyCharge, LimitSet, Rule};
pub use time::{Clock, ManualClock, SystemClock, Timestamp};

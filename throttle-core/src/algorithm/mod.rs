//! The algorithms, each a pure function of (state, now, cost).
//!
//! | algorithm | admits | state | choose it when |
//! |---|---|---|---|
//! | [`Gcra`] | a burst, then one every T | 16 bytes | you have no reason to choose another: smooth, exact, smallest |
//! | [`TokenBucket`] | the same | 16 bytes | you think in tokens |
//! | [`LeakyMeter`] | the same | 16 bytes | you think in a level that drains |
//! | [`IntervalBucket`] | a burst, then a whole portion each interval | 16 bytes | "100 more each hour, on the hour" |
//! | [`FixedWindow`] | a count per aligned window | 16 bytes | a provider counts so; a boundary admits 2× the limit |
//! | [`SlidingWindow`] | a count per trailing window, estimated | 8·(S + 2) bytes | "at most n in any minute", large n |
//! | [`SlidingLog`] | a count per trailing window, exact | 16 bytes per instant | the same, small n |
//! | [`CalendarQuota`] | a count per civil day, week or month | 16 bytes | quotas that are billed |
//! | [`LeakyBucket`] | units that can leave within the longest wait | 24 bytes | calls should be delayed, not refused |
//!
//! T is the emission interval, the period of the rate divided by its count. S is the number of
//! sub-windows.
//!
//! The same 43 requests, and how many of them each algorithm admits:
//!
#![doc = concat!(
    "<p><img alt=\"A burst, a stream and a burst of requests, and which of them each algorithm \
        admits\" \
     src='data:image/svg+xml,",
    include_str!("algorithms.svg"),
    "'></p>"
)]
//!
//! What a client can have within a minute, if its requests begin shortly before the boundary of a
//! fixed window:
//!
#![doc = concat!(
    "<p><img alt=\"Most that is admitted in 60 seconds by a limit of 10: FixedWindow 20, \
        SlidingWindow 10, \
     Gcra with a burst of 3: 12\" src='data:image/svg+xml,",
    include_str!("boundary.svg"),
    "'></p>"
)]
//!
//! All of them compute in integers, admit on equality, and change nothing on refusal;
//! [`SlidingWindow`] is exact about its own estimate. A clock that steps back admits no extra
//! units, one that steps forward at most one more burst, and two clocks that disagree do not admit
//! the same units twice.

// `cell` is where requests meet states. Each algorithm has a file with its builder and its
// `Transition`; GCRA, token bucket and leaky meter are one `drain` in three vocabularies.

mod ban;
mod calendar_quota;
mod cell;
mod civil;
mod dispatch;
mod drain;
mod encode;
mod excepted;
mod exception;
mod fixed_window;
mod gcra;
mod interval_bucket;
mod kind;
mod leaky_bucket;
mod leaky_meter;
mod level;
mod reciprocal;
mod share;
mod sliding_log;
mod sliding_window;
mod state;
mod stored;
#[cfg(test)]
mod tests;
mod token_bucket;
mod transition;
mod verdict;
mod wire;

/// The builders, which the roots of this crate and of `throttle-tower` have, too.
#[doc(hidden)]
pub mod builders {
    pub use super::calendar_quota::CalendarQuota;
    pub use super::fixed_window::FixedWindow;
    pub use super::gcra::Gcra;
    pub use super::interval_bucket::IntervalBucket;
    pub use super::leaky_bucket::LeakyBucket;
    pub use super::leaky_meter::LeakyMeter;
    pub use super::sliding_log::SlidingLog;
    pub use super::sliding_window::SlidingWindow;
    pub use super::token_bucket::TokenBucket;
}

pub use ban::{Ban, StrikeOutcome};
#[doc(inline)]
pub use builders::*;
pub(crate) use cell::Cell;
pub(crate) use dispatch::Visitor;
pub(crate) use excepted::ExceptionEffect;
pub use exception::{Exception, Strikes, Treatment};
pub use kind::{Algorithm, IntoAlgorithm, RefusingAlgorithm};
pub use state::State;
pub(crate) use stored::{Repr, StateFormat, Words};
pub(crate) use transition::{Transition, ask};
pub use verdict::Verdict;
pub(crate) use verdict::{Mark, NEVER, Outcome, Standing, StateCharge};

use calendar_quota::Civil;
use fixed_window::{Counter, FixedWindows};
use gcra::Arrival;
use interval_bucket::Portions;
use leaky_bucket::Queue;
use level::{LevelBucket, Tokens, Water};
use sliding_log::TrailingLog;
use sliding_window::Estimate;
use wire::{Wire, read};

use crate::error::ConfigError;

// The macro writes another one, and is given the dollar sign for it.
kind::algorithms! { $
    /// If the count, period or burst is 0 or cannot be counted exactly below 2^53; the message
    /// states the bound.
    Gcra(Arrival) "gcra"

    /// If the count, period or burst is 0 or cannot be counted exactly below 2^53; the message
    /// states the bound.
    TokenBucket(LevelBucket<Tokens>) "token_bucket"

    /// If the count, period or capacity is 0 or cannot be counted exactly below 2^53; the message
    /// states the bound.
    LeakyMeter(LevelBucket<Water>) "leaky_meter"

    /// If capacity, refill or interval is 0 or above 2^53 − 1, or if an empty bucket takes 2^53 µs
    /// or more to fill.
    IntervalBucket(Portions) "interval_bucket"

    /// If the count or the period in microseconds is 0 or above 2^53 − 1.
    FixedWindow(Counter<FixedWindows>) "fixed_window"

    /// If the count or period is 0 or too large, the number of buckets is not 1 to 1024 or does not
    /// divide the period, or count × sub-window in µs reaches 2^53.
    SlidingWindow(Estimate) "sliding_window"

    /// If the count or the period in microseconds is 0 or above 2^53 − 1.
    SlidingLog(TrailingLog) "sliding_log"

    /// If the limit or a period in microseconds is 0 or above 2^53 − 1, the offset exceeds 14
    /// hours, or not every period has the anchor.
    CalendarQuota(Counter<Civil>) "calendar_quota"

    /// If the rate's count or period is 0, or the longest wait cannot be counted exactly below
    /// 2^53; the message states the bound.
    LeakyBucket(Queue) "leaky_bucket"
}

macro_rules! refusing {
    ($($builder:ident)*) => { $(impl RefusingAlgorithm for $builder {})* };
}

refusing! {
    CalendarQuota FixedWindow Gcra IntervalBucket LeakyMeter SlidingLog SlidingWindow TokenBucket
}

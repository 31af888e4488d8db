//! The key `algorithm`, which envoyproxy/ratelimit does not have.

use serde::Deserialize;
use throttle_core::{self as core, Algorithm, Rate};

use super::unit::Unit;

/// The default counts as envoyproxy/ratelimit does.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum AlgorithmName {
    #[default]
    FixedWindow,
    Gcra,
    TokenBucket,
    LeakyMeter,
    IntervalBucket,
    SlidingWindow,
    SlidingLog,
    CalendarQuota,
}

impl AlgorithmName {
    /// Whether it forgets each charge by itself, so that it has no time that a debit belongs to.
    pub fn slides(self) -> bool {
        matches!(self, Self::SlidingWindow | Self::SlidingLog)
    }

    /// `burst` is the burst or the capacity, and the count without one.
    pub fn build(self, count: u64, unit: Unit, burst: Option<u64>) -> Result<Algorithm, String> {
        use AlgorithmName::*;
        let rate = Rate::new(count, unit.period());
        let has_burst = matches!(self, Gcra | TokenBucket | LeakyMeter | IntervalBucket);
        if burst.is_some() && !has_burst {
            let remedy = "remove it, or choose gcra, token-bucket, leaky-meter or interval-bucket";
            return Err(format!("this algorithm has no burst; {remedy}"));
        }
        let burst = burst.unwrap_or(count);
        let built = match self {
            FixedWindow => core::FixedWindow::new(rate).build(),
            Gcra => core::Gcra::new(rate).burst(burst).build(),
            TokenBucket => core::TokenBucket::new(rate).burst(burst).build(),
            LeakyMeter => core::LeakyMeter::new(rate).capacity(burst).build(),
            IntervalBucket => core::IntervalBucket::new(burst)
                .refill(count, unit.period())
                .build(),
            SlidingWindow => core::SlidingWindow::new(rate).build(),
            SlidingLog => core::SlidingLog::new(rate).build(),
            CalendarQuota => match unit.name() {
                "DAY" => core::CalendarQuota::daily(count).build(),
                "WEEK" => core::CalendarQuota::weekly(count).build(),
                "MONTH" => core::CalendarQuota::monthly(count).build(),
                unit => {
                    let remedy = "write day, week or month";
                    return Err(format!("a calendar quota has no unit {unit:?}; {remedy}"));
                }
            },
        };
        built.map_err(|error| error.to_string())
    }
}

use std::time::Duration;

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit as Number;

/// A unit of time, from a second to a year of 365 days.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit(Number);

impl Unit {
    /// The unit of a name in any case.
    pub fn named(name: &str) -> Option<Self> {
        Self::known(Number::from_str_name(&name.to_ascii_uppercase())?)
    }

    /// The unit of a number of the protocol.
    pub fn numbered(number: i32) -> Option<Self> {
        Self::known(Number::try_from(number).ok()?)
    }

    fn known(number: Number) -> Option<Self> {
        (number != Number::Unknown).then_some(Self(number))
    }

    pub fn number(self) -> i32 {
        self.0 as i32
    }

    pub fn name(self) -> &'static str {
        self.0.as_str_name()
    }

    pub fn period(self) -> Duration {
        const DAY: u64 = 24 * 60 * 60;
        Duration::from_secs(match self.0 {
            Number::Unknown | Number::Second => 1,
            Number::Minute => 60,
            Number::Hour => 60 * 60,
            Number::Day => DAY,
            Number::Week => 7 * DAY,
            Number::Month => 30 * DAY,
            Number::Year => 365 * DAY,
        })
    }
}

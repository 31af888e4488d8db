use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};

use super::allowance::UpstreamLimits;
use super::spellings::{Refill, Reset, Spelling};
use super::time_text::{self, longest};
use crate::headers::structured;

/// More than any API counts. Larger numbers count as this one.
const MOST: u64 = 999_999_999_999_999;

/// A quota as one header states it.
pub(super) struct UpstreamQuota {
    spelling: &'static Spelling,
    remaining: u64,
    /// All of it, where the same header states that.
    limit: Option<u64>,
    /// Its period in seconds, where the same header states that.
    period: Option<u64>,
}

impl UpstreamQuota {
    /// `None` if the header states no quota, or cannot be read.
    pub(super) fn read(name: &HeaderName, value: &HeaderValue) -> Option<Self> {
        let spelling = Spelling::of(name)?;
        let text = value.as_bytes();
        if matches!(spelling.refill, Refill::SteadyUsed) {
            let slash = text.iter().position(|byte| *byte == b'/')?;
            let limit = count(&text[slash + 1..])?;
            return Some(Self {
                spelling,
                remaining: limit.saturating_sub(count(&text[..slash])?),
                limit: Some(limit),
                period: None,
            });
        }
        let mut period = None;
        let number = structured::single_number(text, |key, value| {
            if key == b"w" {
                period = value;
            }
        })?;
        Some(Self {
            spelling,
            remaining: whole(number)?,
            limit: None,
            period,
        })
    }

    pub(super) fn is_used_up(&self) -> bool {
        self.remaining == 0
    }

    /// Adds the effect of the quota on later calls. It has none if it is not known when the quota
    /// is reset, or if what is left has no effect: units of which a call takes many cannot be
    /// compared with a pace of calls, and of a period that may end at any time nothing needs to
    /// last.
    pub(super) fn add_to(&self, limits: &mut UpstreamLimits, headers: &HeaderMap) {
        let mut resets = self.spelling.resets.iter();
        let Some((whole_in, is_end)) = resets.find_map(|reset| self.whole_in(reset, headers))
        else {
            return;
        };
        if is_end && matches!(self.spelling.refill, Refill::AtReset) {
            limits.add(self.remaining, whole_in);
        } else if self.is_used_up() {
            let limit = match self.spelling.refill {
                Refill::Steady(limit) => {
                    headers.get(limit).and_then(|limit| count(limit.as_bytes()))
                }
                Refill::AtReset | Refill::Unknown | Refill::SteadyUsed => self.limit,
            };
            limits.add_used_up(part(whole_in, limit));
        }
    }

    /// The time until the quota is whole again, and whether that is its end. A period may have just
    /// begun.
    fn whole_in(&self, reset: &Reset, headers: &HeaderMap) -> Option<(Duration, bool)> {
        let until_reset = |text: &[u8]| time_text::until_reset(text, headers);
        let (time, is_end) = match reset {
            Reset::End(name) => (longest(headers, name, until_reset), true),
            Reset::EndMillis(name) => (longest(headers, name, time_text::millis), true),
            Reset::Period(name) => (longest(headers, name, time_text::seconds), false),
            Reset::PeriodMillis(name) => (longest(headers, name, time_text::millis), false),
            Reset::PeriodOf(period) => (Some(*period), false),
            Reset::PeriodParameter => (self.period.map(Duration::from_secs), false),
        };
        Some((time?, is_end))
    }
}

/// The time until the next unit, if the units come back one by one. Without a limit they come back
/// together.
fn part(whole_in: Duration, limit: Option<u64>) -> Duration {
    let nanos = whole_in
        .as_nanos()
        .div_ceil(u128::from(limit.unwrap_or(1).max(1)));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// A number, rounded down.
fn count(text: &[u8]) -> Option<u64> {
    whole(structured::single_number(text, |_, _| {})?)
}

fn whole(number: &[u8]) -> Option<u64> {
    time_text::whole_part(number).map(|units| units.min(MOST))
}

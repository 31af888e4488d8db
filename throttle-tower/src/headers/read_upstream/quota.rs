use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};

use super::allowance::Allowance;
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

/// The effect of a quota on later calls.
pub(super) enum Statement {
    Left(Allowance),
    UsedUpFor(Duration),
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
                period = value.count();
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

    /// `None` if it is not known when the quota is reset, or if what is left has no effect: units
    /// of which a call takes many cannot be compared with a pace of calls, and of a period that may
    /// end at any time nothing needs to last.
    pub(super) fn statement(
        &self,
        headers: &HeaderMap,
        now_unix_us: &impl Fn() -> u64,
    ) -> Option<Statement> {
        let resets = self.spelling.resets.iter();
        let mut ends = resets.clone();
        let until_reset = ends.find_map(|reset| self.until_end(reset, headers, now_unix_us));
        if let (Refill::AtReset, Some(within)) = (&self.spelling.refill, until_reset) {
            let remaining = self.remaining;
            return Some(Statement::Left(Allowance { remaining, within }));
        }
        if !self.is_used_up() {
            return None;
        }
        let mut periods = resets.filter_map(|reset| self.period(reset, headers));
        let whole_in = until_reset.or_else(|| periods.next())?;
        let limit = match self.spelling.refill {
            Refill::AtReset | Refill::Unknown => None,
            Refill::Steady(limit) => headers.get(limit).and_then(|limit| count(limit.as_bytes())),
            Refill::SteadyUsed => self.limit,
        };
        Some(Statement::UsedUpFor(part(whole_in, limit)))
    }

    fn until_end(
        &self,
        reset: &Reset,
        headers: &HeaderMap,
        now_unix_us: &impl Fn() -> u64,
    ) -> Option<Duration> {
        match reset {
            Reset::End(name) => longest(headers, name, |text| {
                time_text::until_reset(text, now_unix_us)
            }),
            Reset::EndMillis(name) => longest(headers, name, time_text::millis),
            _ => None,
        }
    }

    fn period(&self, reset: &Reset, headers: &HeaderMap) -> Option<Duration> {
        match reset {
            Reset::Period(name) => longest(headers, name, time_text::seconds),
            Reset::PeriodMillis(name) => longest(headers, name, time_text::millis),
            Reset::PeriodOf(period) => Some(*period),
            Reset::PeriodParameter => self.period.map(Duration::from_secs),
            Reset::End(_) | Reset::EndMillis(_) => None,
        }
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

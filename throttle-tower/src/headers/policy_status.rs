use throttle_core::{Algorithm, Policy, Rate};

use super::value_text::{self, MAX_INTEGER};
use crate::json::quoted;

/// The announcement of a policy, the same in every response.
#[derive(Clone, Debug)]
pub(crate) struct PolicyTerms {
    /// Its index among all that a layer may announce.
    pub(crate) number: usize,
    /// A public alias, because every client reads it. It is in quotes: names are printable ASCII,
    /// of which a String of RFC 9651 is written as one of JSON.
    pub(crate) name: Box<str>,
    pub(crate) quota: QuotaWindow,
    /// The unit that is counted. `None` for requests, the default of the drafts.
    pub(crate) unit: Option<Box<str>>,
    /// The class of the requests to which this is announced.
    pub(crate) class: Option<Box<str>>,
}

impl PolicyTerms {
    /// The announcement of a policy under its first parameters to requests that leave a reserve
    /// free. Making it takes longer than writing a header.
    pub(crate) fn of(
        policy: &Policy,
        number: usize,
        (class, reserve): (Option<&str>, u64),
    ) -> Self {
        Self {
            number,
            name: quoted(policy.name()).into(),
            quota: QuotaWindow::of(policy.algorithm(), reserve),
            unit: policy.unit().map(Into::into),
            class: class.map(Into::into),
        }
    }
}

/// The status of one client under one policy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PolicyStatus<'a> {
    pub(crate) terms: &'a PolicyTerms,
    pub(crate) remaining: u64,
    /// The time within which no more than `remaining` may be used; for a violated policy, the wait.
    pub(crate) effective_us: u64,
    /// The time until the key equals an unused one.
    pub(crate) reset_us: u64,
    pub(crate) violated: bool,
    /// For a violated policy only: `None` when no wait can help.
    pub(crate) retry_us: Option<u64>,
}

impl PolicyStatus<'_> {
    /// The parameter `r`: at most the quota, or a client would compute a negative number of units
    /// used.
    pub(super) fn r(&self) -> u64 {
        self.remaining.min(self.terms.quota.q)
    }

    /// When the key equals an unused one, in µs, and never before the end of the wait.
    pub(super) fn full_after_us(&self) -> u64 {
        self.reset_us.max(self.retry_us.unwrap_or(0))
    }

    /// The parameter `t`.
    pub(super) fn t(&self) -> u64 {
        value_text::seconds(self.effective_us)
    }
}

/// `q` units in `w` seconds: a policy's rate, as every dialect with windows announces it.
///
/// Headers hold whole units and whole seconds only, and a client takes `q` for the most that can
/// remain. So the rate is scaled up until it fills whole seconds and holds the burst: 10 a second
/// with a burst of 20 is 20 in 2 seconds, 100 in 100 ms are 1000 in a second. A rate that no window
/// of reasonable length expresses exactly is announced up to 2 % lower, never higher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QuotaWindow {
    /// At least the policy's capacity, unless that is above [`MAX_INTEGER`].
    pub(crate) q: u64,
    /// At least 1: drafts from -09 on forbid a window of no seconds.
    pub(crate) w: u64,
    /// The most that can remain, which dialects without windows announce.
    pub(crate) most: u64,
}

/// How many seconds a window may be longer than necessary. One of sixty windows loses less than one
/// part in 59 by rounding.
const SLACK: u128 = 59;

const MICROS_PER_SECOND: u128 = 1_000_000;

impl QuotaWindow {
    /// Returns the quota that headers state of an algorithm, for a class that leaves `reserve` units
    /// free. Each window has as many units less; a bucket that drains misses them once only.
    ///
    /// It tries up to sixty windows, so it is called when a layer is built and not for each request.
    pub(crate) fn of(algorithm: &Algorithm, reserve: u64) -> Self {
        let (rate, capacity) = (
            algorithm.rate(),
            algorithm.capacity().saturating_sub(reserve).max(1),
        );
        let is_whole = reserve == 0 || algorithm.drains();
        let count = if is_whole {
            rate.count()
        } else {
            rate.count().min(capacity)
        };
        Self::new(Rate::new(count, rate.period()), capacity)
    }

    pub(super) fn new(rate: Rate, capacity: u64) -> Self {
        let (count, period_us) = (u128::from(rate.count()), u128::from(rate.period_micros()));
        // The units that a window of so many seconds admits, in parts of which `period_us` make a
        // unit.
        let parts_in = |seconds: u128| seconds * MICROS_PER_SECOND * count;
        let units_in = |seconds: u128| parts_in(seconds) / period_us;
        let seconds_of = |units: u128| (units * period_us).div_ceil(count * MICROS_PER_SECOND);

        let shortest = seconds_of(count.max(capacity.into()));
        let longest = (2 * shortest).max(shortest + SLACK);
        // Multiples of this hold whole units. For a rate per whole seconds there always is one up
        // to `longest`.
        let exact =
            shortest.next_multiple_of(period_us / gcd(period_us, count * MICROS_PER_SECOND));
        let is_close = |w: &u128| parts_in(*w) % period_us * 50 <= parts_in(*w);
        let w = if exact <= longest {
            exact
        } else {
            (shortest..=longest).find(is_close).unwrap_or(longest)
        };

        let most = u128::from(MAX_INTEGER);
        let (q, w) = if units_in(w) > most {
            (most, seconds_of(most))
        } else {
            (units_in(w), w)
        };
        let whole = |number: u128| {
            u64::try_from(number).map_or(MAX_INTEGER, |number| number.min(MAX_INTEGER))
        };
        Self {
            q: whole(q),
            w: whole(w),
            most: capacity.min(MAX_INTEGER),
        }
    }
}

fn gcd(a: u128, b: u128) -> u128 {
    if b == 0 { a } else { gcd(b, a % b) }
}

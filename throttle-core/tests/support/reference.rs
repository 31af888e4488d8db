//! A second implementation of the contract, in exact fractions, one plain rule per line. It shares
//! nothing with the crate but the contract: no scaled integers, no envelope, no packed state.
//!
//! Fractions of `i128` are enough: denominators are periods or counts below 2^53, values are
//! instants or levels below 2^54, and overflow panics in tests.

mod composite;
mod rates;
mod sliding;
mod tiered;
mod windows;

use std::fmt::Debug;

use num_rational::Ratio;
use num_traits::ToPrimitive;

pub(crate) use composite::Reference;

use super::plans::Plan;
use super::spec::Spec;

pub(crate) type Q = Ratio<i128>;

pub(crate) fn q(whole: i128) -> Q {
    Q::from_integer(whole)
}

pub(crate) fn fraction(numerator: u64, denominator: u64) -> Q {
    Q::new(i128::from(numerator), i128::from(denominator))
}

pub(crate) fn floor(value: Q) -> i128 {
    value.floor().to_integer()
}

pub(crate) fn ceil(value: Q) -> i128 {
    value.ceil().to_integer()
}

/// What an admitted request took, and from which place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Paid {
    pub(crate) cost: i128,
    pub(crate) at: i128,
    pub(crate) place: Place,
    /// The number of the parameters that were charged; 0 for a limit that has only one.
    pub(crate) tier: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Place {
    Anywhere,
    /// The window that starts at this instant.
    Window(i128),
    /// The entry of an instant.
    Entry(i128),
    /// A sub-window by its number.
    SubWindow(i128),
    /// A stretch of a schedule.
    Slots {
        first: Q,
        after: Q,
    },
}

/// One limiter. Costs are at least 1. `can`, `retry` and `take` are called only with costs up to
/// the capacity, and `take` only if the cost was admitted.
pub(crate) trait Model: Debug + Send {
    fn capacity(&self) -> i128;
    fn can(&self, t: i128, cost: i128) -> bool;
    fn remaining(&self, t: i128) -> i128;
    fn retry(&self, t: i128, cost: i128) -> i128;
    fn reset(&self, t: i128) -> i128;
    fn take(&mut self, t: i128, cost: i128) -> Place;
    fn give_back(&mut self, t: i128, receipt: Paid, units: i128);

    fn delay(&self, _t: i128) -> i128 {
        0
    }

    /// The place of the latest charge that counts, as one of a charge that other parameters have
    /// made.
    fn latest(&self, _t: i128, _other: Paid) -> Place {
        Place::Anywhere
    }

    /// Whether the window of this charge is over, so that the charge no longer counts.
    fn is_over(&self, _t: i128, _place: Place) -> bool {
        false
    }

    /// Selects the parameters of later questions: the tiers, then the key's own; the first tier if
    /// there are none of that number.
    fn ask_in(&mut self, _number: usize) {}

    /// The number of a tier. An unknown one is the first.
    fn number_of_tier(&self, _tier: usize) -> usize {
        0
    }

    /// The number of such parameters of the key's own.
    fn number_of_own(&mut self, _own: Spec) -> usize {
        unreachable!("a limit with one set of parameters")
    }

    /// Forgets the key; only if nothing of it counts, if there is an instant.
    fn forget(&mut self, _unused_at: Option<i128>) {
        unreachable!("a limit without a key")
    }

    /// The number of the selected parameters.
    fn number(&self) -> usize {
        0
    }

    /// Whether the selected parameters are the key's own.
    fn is_under_own(&self) -> bool {
        false
    }

    /// Takes more for an earlier request, as far as units remain.
    fn debit(&mut self, t: i128, _receipt: Paid, units: i128) {
        let units = units.min(self.remaining(t));
        self.take(t, units);
    }
}

pub(crate) fn model(spec: &Spec) -> Box<dyn Model> {
    match *spec {
        Spec::Gcra {
            limit,
            period,
            burst,
        } => Box::new(rates::Gcra::new(limit, period, burst)),
        Spec::TokenBucket {
            limit,
            period,
            burst,
        } => Box::new(rates::TokenBucket::new(limit, period, burst)),
        Spec::LeakyMeter {
            limit,
            period,
            burst,
        } => Box::new(rates::LeakyMeter::new(limit, period, burst)),
        Spec::Shaper {
            limit,
            period,
            max_wait,
        } => Box::new(rates::Shaper::new(limit, period, max_wait, true)),
        Spec::Undelayed {
            limit,
            period,
            max_wait,
        } => Box::new(rates::Shaper::new(limit, period, max_wait, false)),
        Spec::Interval {
            capacity,
            refill,
            interval,
            aligned,
        } => Box::new(windows::Interval::new(capacity, refill, interval, aligned)),
        Spec::Fixed {
            limit,
            window,
            offset,
        } => Box::new(windows::Windowed::fixed(limit, window, offset)),
        Spec::Calendar {
            limit,
            cadence,
            offset_minutes,
            anchor,
        } => Box::new(windows::Windowed::calendar(
            limit,
            cadence,
            offset_minutes,
            anchor,
        )),
        Spec::Log { limit, window } => Box::new(sliding::Log::new(limit, window)),
        Spec::Buckets {
            limit,
            window,
            buckets,
        } => Box::new(sliding::Buckets::new(limit, window, buckets)),
    }
}

/// A configuration that the reference can model.
pub(crate) trait Modelled {
    fn model(&self) -> Box<dyn Model>;
}

impl Modelled for Spec {
    fn model(&self) -> Box<dyn Model> {
        model(self)
    }
}

impl Modelled for Plan {
    fn model(&self) -> Box<dyn Model> {
        Box::new(tiered::Tiered::new(&self.tiers))
    }
}

/// A decision, with the fields that the contract states.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) allowed: bool,
    pub(crate) remaining: u64,
    /// `None` is never.
    pub(crate) retry: Option<u64>,
    pub(crate) reset: u64,
    pub(crate) delay: u64,
    pub(crate) binding: Option<usize>,
    /// `None` is skipped.
    pub(crate) members: Vec<Option<MemberAnswer>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MemberAnswer {
    pub(crate) remaining: u64,
    pub(crate) retry: Option<u64>,
    pub(crate) reset: u64,
    pub(crate) charged: u64,
    pub(crate) violated: bool,
    pub(crate) audited: bool,
    pub(crate) tier: usize,
}

pub(crate) fn reported(decision: &throttle_core::Decision) -> Answer {
    let micros = |duration: std::time::Duration| duration.as_micros().to_u64().expect("fits");
    let member = |status: &throttle_core::Status| MemberAnswer {
        remaining: status.remaining(),
        retry: status.retry_after().map(micros),
        reset: micros(status.reset_after()),
        charged: status.charged(),
        violated: status.is_violated(),
        audited: status.is_audited(),
        tier: status.tier().into(),
    };
    Answer {
        allowed: decision.is_admitted(),
        remaining: decision.remaining(),
        retry: decision.retry_after().map(micros),
        reset: micros(decision.reset_after()),
        delay: micros(decision.delay()),
        binding: decision.binding(),
        members: decision
            .statuses()
            .iter()
            .map(|status| status.applies().then(|| member(status)))
            .collect(),
    }
}

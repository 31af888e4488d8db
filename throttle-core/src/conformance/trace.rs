//! Draws random traces.

use std::sync::Arc;
use std::time::Duration;

use super::random::Random;
use super::step::{ClockMove, TraceStep};
use super::subject::{DropPoint, Manner};
use crate::algorithm::{
    Algorithm, Ban, Exception, FixedWindow, Gcra, SlidingLog, TokenBucket, Treatment,
};
use crate::backend::{Call, KeyStep};
use crate::key::Key;
use crate::policy::Policy;
use crate::rate::Rate;
use crate::set::PolicySet;
use crate::time::Timestamp;

/// What a trace is made of.
#[derive(Clone, Copy, Debug)]
pub(super) struct TraceOptions {
    pub(super) seed: u64,
    pub(super) length: usize,
    /// µs in which the policies recover.
    pub(super) span: u64,
    pub(super) keys: u64,
    /// Whether the clock steps back and requests are decided as of an earlier instant.
    pub(super) steps_back: bool,
    /// Whether other parameters than those that charged a key charge it.
    pub(super) mixes_parameters: bool,
    /// Whether keys have exceptions and bans.
    pub(super) has_exceptions: bool,
}

/// How many parameters of a key's own a trace uses.
const OWN: u64 = 12;

/// A random trace on sets with the same policies. It is the same in every run.
pub(super) fn trace(options: &TraceOptions, sets: &[PolicySet]) -> Vec<TraceStep> {
    let mut draw = Draw {
        options,
        random: Random::new(options.seed),
        set: 0,
        charges: Vec::new(),
    };
    let mut steps = Vec::new();
    for number in 0..options.length {
        steps.extend(draw.clock().map(TraceStep::Clock));
        steps.push(draw.step(number, sets));
    }
    steps
}

struct Draw<'a> {
    options: &'a TraceOptions,
    random: Random,
    /// The set that decides.
    set: usize,
    /// The decisions that no settlement has named.
    charges: Vec<usize>,
}

impl Draw<'_> {
    fn clock(&mut self) -> Option<ClockMove> {
        let span = self.options.span;
        let forward = |micros: u64| ClockMove::By(micros.cast_signed());
        let random = &mut self.random;
        match random.below(100) {
            40..=59 => Some(forward(random.below(span / 40))),
            60..=69 => Some(forward(random.below(span / 4))),
            70..=72 => Some(forward(span + random.below(2 * span))),
            73..=76 => Some(forward(1)),
            77..=80 => Some(ClockMove::Wait),
            81..=83 => Some(ClockMove::AlmostTheWait),
            84..=85 => Some(ClockMove::AlmostTheReset),
            86 => Some(ClockMove::Reset),
            87..=97 if self.options.steps_back => {
                let back = random.below(span) * if random.chance(5) { 50 } else { 1 };
                Some(ClockMove::By(-back.cast_signed()))
            }
            // The rest stand still.
            _ => None,
        }
    }

    fn step(&mut self, number: usize, sets: &[PolicySet]) -> TraceStep {
        let set = &sets[self.set];
        let policies = set.policies().len() as u64;
        let policy = self.random.below(policies) as usize;
        let limit = &set.policies()[policy];
        let key = Key::from(self.random.below(self.options.keys));
        let own_key = || {
            Key::builder()
                .text("dropped")
                .number(number as u64)
                .finish()
        };
        let on_keys = |step| TraceStep::OnKeys { policy, step };
        match self.random.below(1_000) {
            0..=39 if self.options.mixes_parameters => {
                self.set = (self.set + 1) % sets.len();
                TraceStep::OtherSet
            }
            40..=69 => on_keys(KeyStep::Reset(key)),
            70..=74 => TraceStep::ResetAll {
                prefix: self.prefix(limit),
            },
            80..=189 => self.settle().unwrap_or(TraceStep::Forget),
            190..=199 => TraceStep::Drain {
                policy,
                call: self.parameters(limit, key, 0),
            },
            200..=209 => TraceStep::ReadClock {
                calls: self.calls(set),
            },
            210..=219 => TraceStep::DropDecision {
                key: own_key(),
                dropped: self.dropped(),
            },
            220..=229 => TraceStep::DropSettlement {
                key: own_key(),
                dropped: self.dropped(),
            },
            230..=259 => TraceStep::Forget,
            260..=299 if self.options.has_exceptions => {
                on_keys(KeyStep::Except(key, self.exception(limit)))
            }
            300..=339 if self.options.has_exceptions => on_keys(KeyStep::Strike(key, self.ban())),
            340..=369 if self.options.has_exceptions => {
                let most = if self.random.chance(50) { 1 } else { 100 };
                on_keys(KeyStep::Exceptions { most })
            }
            _ => {
                self.charges.push(number);
                TraceStep::Decide {
                    charge: number,
                    calls: self.calls(set),
                    manner: self.manner(),
                }
            }
        }
    }

    fn manner(&mut self) -> Manner {
        match self.random.below(100) {
            0..=14 => Manner::Immediate,
            15..=18 if self.options.steps_back => {
                Manner::AsOf(-self.random.below(100_000).cast_signed())
            }
            19..=20 => Manner::AsOf(self.random.below(self.options.span).cast_signed()),
            _ => Manner::Awaited,
        }
    }

    fn dropped(&mut self) -> DropPoint {
        if self.random.chance(50) {
            DropPoint::Unpolled
        } else {
            DropPoint::AfterOnePoll
        }
    }

    /// Names any of the open charges, however old. The next decision shows the effect.
    fn settle(&mut self) -> Option<TraceStep> {
        let open = self.charges.len() as u64;
        let index = (open > 0).then(|| self.random.below(open) as usize)?;
        Some(TraceStep::Settle {
            charge: self.charges.swap_remove(index),
            actual: match self.random.below(10) {
                0..=4 => 0,
                5 => u64::MAX,
                _ => self.random.below(13),
            },
        })
    }

    /// A name's beginning, or what another language of patterns takes for it.
    fn prefix(&mut self, policy: &Policy) -> String {
        let name = policy.name();
        match self.random.below(4) {
            0 => name.to_owned(),
            1 => name[..name.len() / 2].to_owned(),
            2 => name.replace(|c: char| c.is_ascii_lowercase(), "_"),
            _ => "%".to_owned(),
        }
    }

    fn exception(&mut self, policy: &Policy) -> Option<Exception> {
        let treatment = match self.random.below(6) {
            0 => Treatment::Exempt,
            1 | 2 => Treatment::Blocked,
            3 | 4 => Treatment::Limit(own(policy, self.random.below(OWN))),
            _ => return None,
        };
        let micros = 1 + self.random.below(self.options.span / 4);
        let until = Timestamp::from_micros(micros.cast_signed());
        Some(Exception { treatment, until })
    }

    fn ban(&mut self) -> Ban {
        let part = |of: u64| Duration::from_micros(1 + self.options.span / of);
        Ban::after(1 + self.random.below(3) as u32)
            .within(part(4))
            .lasting(part(20))
            .up_to(part(8))
            .forgotten_after(part(3))
    }

    /// Often one key for all members; else each member has a key of its own, or skips.
    fn calls(&mut self, set: &PolicySet) -> Vec<Call> {
        let keys = self.options.keys;
        let common = self.random.chance(50).then(|| self.random.below(keys));
        set.policies()
            .iter()
            .map(|policy| {
                let key = common.unwrap_or_else(|| self.random.below(keys));
                let call = self.parameters(policy, Key::from(key), key);
                let capacity = call.parameters(policy).capacity();
                let reserve = match self.random.below(100) {
                    0..=14 => self.random.between(1, capacity),
                    _ => 0,
                };
                let cost = match self.random.below(100) {
                    0..=14 => 0,
                    15..=74 => self.random.between(1, 3),
                    75..=92 => self.random.between(1, capacity),
                    93..=97 => capacity + 1,
                    _ => u64::MAX,
                };
                let call = call.costing(cost).reserving(reserve);
                match self.random.below(100) {
                    0..=9 if common.is_none() => Call::SKIP,
                    10..=24 => call.peeking(),
                    _ => call,
                }
            })
            .collect()
    }

    /// One unit by parameters of the policy.
    fn parameters(&mut self, policy: &Policy, key: Key, number: u64) -> Call {
        let call = Call::from(key);
        if !policy.is_tiered() {
            call
        } else if !self.options.mixes_parameters {
            call.in_tier((number % 3) as u8)
        } else if self.random.chance(50) {
            call.in_tier(self.random.below(3) as u8)
        } else {
            call.under(own(policy, self.random.below(OWN)))
        }
    }
}

/// Parameters of a key's own, of four algorithms in turn.
fn own(policy: &Policy, number: u64) -> Arc<Algorithm> {
    let rate = policy.algorithm().rate();
    let units = 2 + 3 * number;
    let faster = Rate::new(rate.count() * (1 + number), rate.period());
    let own = match number % 4 {
        0 => policy.own(Gcra::new(faster).burst(units)),
        1 => policy.own(TokenBucket::new(faster).burst(units)),
        2 => policy.own(FixedWindow::new(Rate::new(units, rate.period()))),
        _ => policy.own(SlidingLog::new(Rate::new(units, rate.period()))),
    };
    own.expect("parameters of the policy's pace")
}

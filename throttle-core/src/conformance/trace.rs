//! Draws random traces.

use std::sync::Arc;
use std::time::Duration;

use super::hostile_keys::hostile_keys;
use super::random::Random;
use super::replay::START;
use super::sample::span;
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

/// What a random trace contains.
#[derive(Clone, Debug)]
pub struct TraceOptions {
    /// Two traces of one seed are the same.
    pub seed: u64,
    /// How many steps there are, apart from those of the clock. Defaults to 300.
    pub length: usize,
    /// When the trace begins. Defaults to an instant at which no window starts.
    pub start: Timestamp,
    /// Whether the clock steps back and requests are decided as of an earlier instant. Defaults to
    /// `true`.
    pub steps_back: bool,
    /// Whether charges are settled. Defaults to `true`.
    pub settles: bool,
    /// Whether other parameters than those that charged a key charge it. Defaults to `true`.
    pub mixes_parameters: bool,
    /// Whether keys have exceptions and bans. Defaults to `true` for every other seed.
    pub has_exceptions: bool,
    /// The keys that all steps are about. Defaults to three that careless code would let meet.
    pub keys: Vec<Key>,
}

impl TraceOptions {
    /// Returns the defaults for a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut keys = hostile_keys();
        let number = keys.len();
        keys.rotate_left((seed % number as u64) as usize * 2 % number);
        keys.truncate(3);
        Self {
            seed,
            length: 300,
            start: START,
            steps_back: true,
            settles: true,
            mixes_parameters: true,
            has_exceptions: seed % 2 == 1,
            keys,
        }
    }
}

/// How many parameters of a key's own a trace uses.
const OWN: u64 = 12;

/// A random trace on sets with the same policies. It is the same in every run.
pub(super) fn trace(options: &TraceOptions, sets: &[PolicySet]) -> Vec<TraceStep> {
    let policies = sets.iter().flat_map(PolicySet::policies);
    let spans = policies.map(|policy| span(policy.algorithm())).collect();
    let mut draw = Draw {
        options,
        spans,
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
    /// µs in which each policy recovers.
    spans: Vec<u64>,
    random: Random,
    /// The set that decides, prepared once or once again.
    set: usize,
    /// The decisions that no settlement has named.
    charges: Vec<usize>,
}

impl Draw<'_> {
    /// µs in which one of the policies recovers.
    fn span(&mut self) -> u64 {
        self.spans[self.random.below(self.spans.len() as u64) as usize]
    }

    fn clock(&mut self) -> Option<ClockMove> {
        let span = self.span();
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
        let set = &sets[self.set % sets.len()];
        let policies = set.policies().len();
        let policy = self.random.below(policies as u64) as usize;
        let limit = &set.policies()[policy];
        let number_of_key = self.number();
        let key = self.options.keys[number_of_key].clone();
        let own_key = || {
            Key::builder()
                .text("dropped")
                .number(number as u64)
                .finish()
        };
        let on_keys = |step| TraceStep::OnKeys { policy, step };
        match self.random.below(1_000) {
            0..=39 if self.options.mixes_parameters => {
                self.set = self.random.below(2 * sets.len() as u64) as usize;
                TraceStep::Set(self.set)
            }
            40..=69 => on_keys(KeyStep::Reset(key)),
            75..=79 => TraceStep::OnKeys {
                policy: policies,
                step: match number % 3 {
                    0 => KeyStep::Reset(key),
                    1 => KeyStep::Except(key, None),
                    _ => KeyStep::Exceptions { most: 9 },
                },
            },
            70..=74 => TraceStep::ResetAll {
                prefix: self.prefix(limit),
            },
            80..=189 if self.options.settles => self.settle().unwrap_or(TraceStep::Forget),
            190..=199 if self.options.settles => TraceStep::Drain {
                policy,
                call: self.parameters(limit, number_of_key),
            },
            200..=209 => TraceStep::ReadClock {
                calls: self.calls(set),
            },
            210..=219 => TraceStep::DropDecision {
                key: own_key(),
                dropped: self.dropped(),
            },
            220..=229 if self.options.settles => TraceStep::DropSettlement {
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
            19..=20 => {
                let span = self.span();
                Manner::AsOf(self.random.below(span).cast_signed())
            }
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
            3 | 4 => Treatment::Limit(own(policy, self.random.below(OWN))?),
            _ => return None,
        };
        let span = self.span();
        let micros = 1 + self.random.below(span / 4);
        let until = Timestamp::from_micros(micros.cast_signed());
        Some(Exception { treatment, until })
    }

    fn ban(&mut self) -> Ban {
        let span = self.span();
        let part = |of: u64| Duration::from_micros(1 + span / of);
        Ban::after(1 + self.random.below(3) as u32)
            .within(part(4))
            .lasting(part(20))
            .up_to(part(8))
            .forgotten_after(part(3))
    }

    /// A key, by its index.
    fn number(&mut self) -> usize {
        self.random.below(self.options.keys.len() as u64) as usize
    }

    /// Often one key for all members; else each member has a key of its own, or skips. If a policy
    /// repeats, members often have different keys.
    fn calls(&mut self, set: &PolicySet) -> Vec<Call> {
        let common = self.random.chance(50).then(|| self.number());
        set.policies()
            .iter()
            .enumerate()
            .map(|(index, policy)| {
                let key = match common {
                    Some(key) if set.repeats => (key + index) % self.options.keys.len(),
                    Some(key) => key,
                    None => self.number(),
                };
                let call = self.parameters(policy, key);
                let capacity = call.parameters(policy).capacity();
                let reserve = match self.random.below(100) {
                    0..=14 => self.random.between(1, capacity),
                    _ => 0,
                };
                let cost = match self.random.below(100) {
                    0..=14 => 0,
                    15..=74 => self.random.between(1, 3),
                    75..=92 => self.random.between(1, capacity),
                    93..=97 => capacity.saturating_add(1),
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

    /// One unit of a key by parameters of the policy.
    fn parameters(&mut self, policy: &Policy, key: usize) -> Call {
        let call = Call::from(self.options.keys[key].clone());
        if !policy.is_tiered() {
            return call;
        }
        if !self.options.mixes_parameters {
            return call.in_tier((key % 3) as u8);
        }
        let tier = self.random.below(3) as u8;
        let own = own(policy, self.random.below(2 * OWN));
        match own {
            Some(own) => call.under(own),
            None => call.in_tier(tier),
        }
    }
}

/// Parameters of a key's own, of four algorithms in turn. Nothing for half of the numbers, and if
/// the policy cannot have such parameters.
fn own(policy: &Policy, number: u64) -> Option<Arc<Algorithm>> {
    let rate = policy.algorithm().rate();
    let units = 2 + 3 * number;
    let faster = Rate::new(rate.count().saturating_mul(1 + number), rate.period());
    if number >= OWN {
        return None;
    }
    let own = match number % 4 {
        0 => policy.own(Gcra::new(faster).burst(units)),
        1 => policy.own(TokenBucket::new(faster).burst(units)),
        2 => policy.own(FixedWindow::new(Rate::new(units, rate.period()))),
        _ => policy.own(SlidingLog::new(Rate::new(units, rate.period()))),
    };
    own.ok()
}

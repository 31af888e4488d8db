//! Configurations as plain numbers, from which both the crate's policies and the reference are
//! built.

use std::time::Duration;

use throttle_core::{
    Algorithm, AnyCharge, CalendarQuota, ConfigError, FixedWindow, Gcra, IntervalBucket,
    LeakyBucket, LeakyMeter, Policy, PolicySet, PolicyTree, Rate, SlidingLog, SlidingWindow,
    TokenBucket,
};

pub(crate) const SECOND: u64 = 1_000_000;
pub(crate) const MINUTE: u64 = 60 * SECOND;
pub(crate) const HOUR: u64 = 60 * MINUTE;
pub(crate) const DAY: u64 = 24 * HOUR;
/// 2026-09-21.
pub(crate) const TODAY: i64 = 1_790_000_000 * SECOND as i64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Gcra,
    TokenBucket,
    LeakyMeter,
    Interval,
    Fixed,
    Log,
    Buckets,
    Calendar,
    Shaper,
    /// A shaper that refuses what it would delay.
    Undelayed,
}

impl Kind {
    pub(crate) const ALL: [Self; 10] = [
        Self::Gcra,
        Self::TokenBucket,
        Self::LeakyMeter,
        Self::Interval,
        Self::Fixed,
        Self::Log,
        Self::Buckets,
        Self::Calendar,
        Self::Shaper,
        Self::Undelayed,
    ];
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cadence {
    Day,
    Week,
    Month,
}

/// When periods begin: a day of the week or month, or the last (0), and an hour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Anchor {
    pub(crate) day: Option<u8>,
    pub(crate) hour: u8,
}

/// One limit. Lengths are in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Spec {
    Gcra {
        limit: u64,
        period: u64,
        burst: u64,
    },
    TokenBucket {
        limit: u64,
        period: u64,
        burst: u64,
    },
    LeakyMeter {
        limit: u64,
        period: u64,
        burst: u64,
    },
    Interval {
        capacity: u64,
        refill: u64,
        interval: u64,
        aligned: bool,
    },
    Fixed {
        limit: u64,
        window: u64,
        offset: i64,
    },
    Log {
        limit: u64,
        window: u64,
    },
    Buckets {
        limit: u64,
        window: u64,
        buckets: u64,
    },
    Calendar {
        limit: u64,
        cadence: Cadence,
        offset_minutes: i32,
        anchor: Anchor,
    },
    Shaper {
        limit: u64,
        period: u64,
        max_wait: u64,
    },
    Undelayed {
        limit: u64,
        period: u64,
        max_wait: u64,
    },
}

/// Limits in one line, for tables.
impl Spec {
    pub(crate) const fn gcra(limit: u64, period: u64, burst: u64) -> Self {
        Self::Gcra {
            limit,
            period,
            burst,
        }
    }

    pub(crate) const fn token_bucket(limit: u64, period: u64, burst: u64) -> Self {
        Self::TokenBucket {
            limit,
            period,
            burst,
        }
    }

    pub(crate) const fn leaky_meter(limit: u64, period: u64, burst: u64) -> Self {
        Self::LeakyMeter {
            limit,
            period,
            burst,
        }
    }

    pub(crate) const fn shaper(limit: u64, period: u64, max_wait: u64) -> Self {
        Self::Shaper {
            limit,
            period,
            max_wait,
        }
    }

    /// Epoch-aligned.
    pub(crate) const fn fixed(limit: u64, window: u64) -> Self {
        Self::Fixed {
            limit,
            window,
            offset: 0,
        }
    }

    pub(crate) const fn log(limit: u64, window: u64) -> Self {
        Self::Log { limit, window }
    }

    pub(crate) const fn buckets(limit: u64, window: u64, buckets: u64) -> Self {
        Self::Buckets {
            limit,
            window,
            buckets,
        }
    }

    /// At the given offset from UTC.
    pub(crate) const fn calendar(limit: u64, cadence: Cadence, offset_minutes: i32) -> Self {
        Self::Calendar {
            limit,
            cadence,
            offset_minutes,
            anchor: Anchor { day: None, hour: 0 },
        }
    }
}

pub(crate) fn rate(count: u64, micros: u64) -> Rate {
    Rate::new(count, Duration::from_micros(micros))
}

impl Spec {
    pub(crate) fn build(&self) -> Result<Algorithm, ConfigError> {
        match *self {
            Self::Gcra {
                limit,
                period,
                burst,
            } => Gcra::new(rate(limit, period)).burst(burst).build(),
            Self::TokenBucket {
                limit,
                period,
                burst,
            } => TokenBucket::new(rate(limit, period)).burst(burst).build(),
            Self::LeakyMeter {
                limit,
                period,
                burst,
            } => LeakyMeter::new(rate(limit, period)).capacity(burst).build(),
            Self::Interval {
                capacity,
                refill,
                interval,
                aligned,
            } => {
                let bucket =
                    IntervalBucket::new(capacity).refill(refill, Duration::from_micros(interval));
                if aligned {
                    bucket.aligned().build()
                } else {
                    bucket.build()
                }
            }
            Self::Fixed {
                limit,
                window,
                offset,
            } => FixedWindow::new(rate(limit, window))
                .offset_micros(offset)
                .build(),
            Self::Log { limit, window } => SlidingLog::new(rate(limit, window)).build(),
            Self::Buckets {
                limit,
                window,
                buckets,
            } => SlidingWindow::new(rate(limit, window))
                .buckets(buckets)
                .build(),
            Self::Calendar {
                limit,
                cadence,
                offset_minutes,
                anchor,
            } => {
                let quota = match cadence {
                    Cadence::Day => CalendarQuota::daily(limit),
                    Cadence::Week => CalendarQuota::weekly(limit),
                    Cadence::Month => CalendarQuota::monthly(limit),
                };
                let quota = match anchor.day {
                    None => quota,
                    Some(0) => quota.anchor_last_day(),
                    Some(day) => quota.anchor_day(day),
                };
                quota
                    .anchor_hour(anchor.hour)
                    .utc_offset_minutes(offset_minutes)
                    .build()
            }
            Self::Shaper {
                limit,
                period,
                max_wait,
            } => LeakyBucket::new(rate(limit, period))
                .max_wait(Duration::from_micros(max_wait))
                .build(),
            Self::Undelayed {
                limit,
                period,
                max_wait,
            } => LeakyBucket::new(rate(limit, period))
                .max_wait(Duration::from_micros(max_wait))
                .without_delay()
                .build(),
        }
    }

    pub(crate) fn algorithm(&self) -> Algorithm {
        self.build()
            .unwrap_or_else(|error| panic!("{self:?}: {error}"))
    }

    /// The parameters that a trace gives to a key.
    pub(crate) fn of(own: &Algorithm) -> Self {
        let limit = own.rate().count();
        let period = own.rate().period_micros();
        let burst = own.capacity();
        match own.name() {
            "gcra" => Self::Gcra {
                limit,
                period,
                burst,
            },
            "token_bucket" => Self::TokenBucket {
                limit,
                period,
                burst,
            },
            "fixed_window" => Self::Fixed {
                limit,
                window: period,
                offset: 0,
            },
            "sliding_log" => Self::Log {
                limit,
                window: period,
            },
            other => panic!("no trace gives a key a {other}"),
        }
    }

    /// Whether both count alike in everything, so that a state has the same meaning in both.
    pub(crate) fn counts_like(&self, other: &Self) -> bool {
        let drain = |spec: &Self| match *spec {
            Self::Gcra {
                limit,
                period,
                burst,
            } => Some((Kind::Gcra, limit, period, burst)),
            Self::TokenBucket {
                limit,
                period,
                burst,
            } => Some((Kind::TokenBucket, limit, period, burst)),
            Self::LeakyMeter {
                limit,
                period,
                burst,
            } => Some((Kind::LeakyMeter, limit, period, burst)),
            Self::Shaper {
                limit,
                period,
                max_wait,
            } => Some((Kind::Shaper, limit, period, max_wait)),
            Self::Undelayed {
                limit,
                period,
                max_wait,
            } => Some((Kind::Undelayed, limit, period, max_wait)),
            _ => None,
        };
        match (self, other) {
            (
                Self::Fixed { offset, .. },
                Self::Fixed {
                    limit,
                    window,
                    offset: other,
                },
            ) => {
                let first = |offset: i64| offset.rem_euclid(*window as i64);
                let same = Self::Fixed {
                    limit: *limit,
                    window: *window,
                    offset: *offset,
                };
                *self == same && first(*offset) == first(*other)
            }
            (
                Self::Calendar { limit, cadence, .. },
                Self::Calendar {
                    limit: count,
                    cadence: other_cadence,
                    ..
                },
            ) => {
                limit == count
                    && cadence == other_cadence
                    && self.minutes_ahead() == other.minutes_ahead()
            }
            _ => match (drain(self), drain(other)) {
                // Two a second are four in two seconds.
                (Some((kind, limit, period, burst)), Some((of, count, micros, most))) => {
                    let pace = |one: u64, two: u64| u128::from(one) * u128::from(two);
                    kind == of && burst == most && pace(limit, micros) == pace(count, period)
                }
                _ => self == other,
            },
        }
    }

    /// How far the clock by which a quota's periods begin is ahead of UTC: six o'clock at +01:00 is
    /// five at +00:00.
    fn minutes_ahead(&self) -> i32 {
        let Self::Calendar {
            offset_minutes,
            anchor,
            ..
        } = self
        else {
            return 0;
        };
        let days = anchor.day.map_or(0, |day| i32::from(day) - 1);
        offset_minutes - 60 * i32::from(anchor.hour) - 24 * 60 * days
    }

    /// A natural step of time for traces, µs.
    pub(crate) fn step(&self) -> i64 {
        let micros = match *self {
            Self::Gcra { limit, period, .. }
            | Self::TokenBucket { limit, period, .. }
            | Self::LeakyMeter { limit, period, .. }
            | Self::Shaper { limit, period, .. }
            | Self::Undelayed { limit, period, .. } => (period / limit).max(1),
            Self::Interval { interval, .. } => interval,
            Self::Fixed { window, .. }
            | Self::Log { window, .. }
            | Self::Buckets { window, .. } => window,
            Self::Calendar {
                cadence: Cadence::Day,
                ..
            } => DAY,
            Self::Calendar {
                cadence: Cadence::Week,
                ..
            } => 7 * DAY,
            Self::Calendar {
                cadence: Cadence::Month,
                ..
            } => 30 * DAY,
        };
        micros as i64
    }
}

/// A composition; the flag of an `any` says whether every admitting member is charged, or only the
/// first.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Tree<L = Spec> {
    Leaf(L),
    Audited(L),
    All(Vec<Tree<L>>),
    Any(Vec<Tree<L>>, bool),
}

impl<L> Tree<L> {
    pub(crate) fn map<M>(&self, leaf: &mut impl FnMut(&L) -> M) -> Tree<M> {
        let mut each = |members: &[Self]| members.iter().map(|member| member.map(leaf)).collect();
        match self {
            Self::All(members) => Tree::All(each(members)),
            Self::Any(members, every) => Tree::Any(each(members), *every),
            Self::Leaf(value) => Tree::Leaf(leaf(value)),
            Self::Audited(value) => Tree::Audited(leaf(value)),
        }
    }

    pub(crate) fn leaves(&self) -> Vec<&L> {
        match self {
            Self::Leaf(leaf) | Self::Audited(leaf) => vec![leaf],
            Self::All(members) | Self::Any(members, _) => {
                members.iter().flat_map(Self::leaves).collect()
            }
        }
    }

    /// The same without audited leaves, which are not the only ones of any node.
    pub(crate) fn without_audited(&self) -> Self
    where
        L: Clone,
    {
        match self {
            Self::All(members) => {
                let enforced = members
                    .iter()
                    .filter(|member| !matches!(member, Self::Audited(_)));
                Self::All(enforced.map(Self::without_audited).collect())
            }
            other => other.clone(),
        }
    }

    /// The same, where audited leaves are enforced.
    pub(crate) fn enforced(&self) -> Self
    where
        L: Clone,
    {
        match self {
            Self::Audited(leaf) => Self::Leaf(leaf.clone()),
            Self::All(members) => Self::All(members.iter().map(Self::enforced).collect()),
            other => other.clone(),
        }
    }

    /// Whether each leaf is audited, in their order.
    pub(crate) fn audited(&self) -> Vec<bool> {
        match self {
            Self::Leaf(_) => vec![false],
            Self::Audited(_) => vec![true],
            Self::All(members) | Self::Any(members, _) => {
                members.iter().flat_map(Self::audited).collect()
            }
        }
    }
}

/// A leaf of a composition.
pub(crate) trait Leaf {
    fn policy(&self, name: &str) -> Policy;

    /// A natural step of time for traces, µs.
    fn step(&self) -> i64;
}

impl Leaf for Spec {
    fn policy(&self, name: &str) -> Policy {
        Policy::new(name, self.algorithm()).expect("a valid name")
    }

    fn step(&self) -> i64 {
        self.step()
    }
}

impl<L: Leaf> Tree<L> {
    fn rule(&self, next: &mut usize) -> PolicyTree {
        match self {
            Self::Leaf(leaf) | Self::Audited(leaf) => {
                *next += 1;
                let policy = leaf.policy(&format!("p{next}"));
                if matches!(self, Self::Audited(_)) {
                    policy.audit().into()
                } else {
                    policy.into()
                }
            }
            Self::All(members) => {
                PolicyTree::All(members.iter().map(|member| member.rule(next)).collect())
            }
            Self::Any(members, every) => {
                let charge = if *every {
                    AnyCharge::EveryAdmitting
                } else {
                    AnyCharge::First
                };
                PolicyTree::Any(
                    members.iter().map(|member| member.rule(next)).collect(),
                    charge,
                )
            }
        }
    }

    pub(crate) fn policies(&self) -> PolicyTree {
        self.rule(&mut 0)
    }

    pub(crate) fn set(&self) -> PolicySet {
        PolicySet::new(self.policies()).expect("a valid set")
    }

    pub(crate) fn step(&self) -> i64 {
        self.leaves().into_iter().map(L::step).max().unwrap_or(1)
    }
}

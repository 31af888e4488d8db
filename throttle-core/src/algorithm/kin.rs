//! The states of one key, each under other parameters of its policy.
//!
//! A key has several when its limit has changed, or its tier, and it was charged on both sides of the change. The state
//! that was charged last stands first; the others are its *kin*. What a request charges under one set of parameters is
//! also debited to the kin, as far as units remain there. So each state tells what it would tell if its parameters had
//! been in force all along.

use std::ops::Deref;
use std::sync::Arc;

use smallvec::SmallVec;

use super::dispatch::Algorithm;
use super::stored::Repr;
use super::verdict::{Standing, Taken};
use crate::time::Timestamp;

/// Most kin of a key. Where there would be more, that with the smallest capacity is forgotten.
pub(crate) const MOST_KIN: usize = 7;

/// Before all instants, and exact as a double.
pub(crate) const BEFORE_ALL: i64 = -(1 << 53);

/// A state, and the parameters that wrote it.
#[derive(Clone, Debug)]
pub(crate) struct Kin<'a> {
    pub(crate) by: Writer<'a>,
    pub(crate) state: KinState,
}

/// The parameters of a state, and how a store knows them again.
#[derive(Clone, Debug)]
pub(crate) enum Writer<'a> {
    /// By a number. There are few of these, for limits that a program has set up.
    Numbered(&'a Algorithm, u8),
    /// They are kept beside the state: the numbers of one customer.
    Kept(Arc<Algorithm>),
}

impl<'a> Writer<'a> {
    /// Parameters of a state that no store keeps.
    pub(crate) fn of(algorithm: &'a Algorithm) -> Self {
        Self::Numbered(algorithm, 0)
    }
}

impl Deref for Writer<'_> {
    type Target = Algorithm;

    fn deref(&self) -> &Algorithm {
        match self {
            Self::Numbered(algorithm, _) => algorithm,
            Self::Kept(algorithm) => algorithm,
        }
    }
}

/// A key's state under one set of parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KinState {
    pub(crate) repr: Repr,
    /// When the key was last charged under these parameters, in µs. For a state that was alone until then, when it was
    /// no longer.
    pub(crate) since: i64,
    /// When the state last could not hold all of the units that it should count, in µs. Which units it holds is unknown
    /// for charges up to then, so they are not given back.
    pub(crate) cut: i64,
}

pub(crate) type States<'a> = SmallVec<[Kin<'a>; 1]>;

impl KinState {
    /// The state of a key that has no others.
    pub(crate) const fn alone(repr: Repr) -> Self {
        Self { repr, since: BEFORE_ALL, cut: BEFORE_ALL }
    }
}

impl<'a> Kin<'a> {
    pub(crate) fn alone(by: Writer<'a>, repr: Repr) -> Self {
        Self { by, state: KinState::alone(repr) }
    }

    pub(super) fn standing(&self, at: Timestamp) -> Standing {
        self.by.standing(&self.state.repr, at)
    }

    pub(super) fn is_idle(&self, at: Timestamp) -> bool {
        self.standing(at).reset == 0
    }

    /// Units that count as used. What remains is rounded down, so this is rounded up.
    pub(super) fn counted(&self, at: Timestamp) -> u64 {
        self.by.capacity().saturating_sub(self.standing(at).remaining)
    }

    /// Charges a cost as far as units remain.
    pub(super) fn debit(&mut self, at: Timestamp, cost: u64) {
        if cost <= self.standing(at).remaining {
            self.by.take(&mut self.state.repr, at, cost);
        } else {
            self.by.fill(&mut self.state.repr, at);
            self.state.cut = at.as_micros();
        }
    }

    /// Settles a charge that was made under other parameters at an instant or later, and debited here.
    pub(super) fn settle_debit(&mut self, at: Timestamp, from: i64, taken: Taken, actual: u64) {
        if actual > taken.cost {
            let more = actual - taken.cost;
            if more > self.standing(at).remaining {
                self.state.cut = at.as_micros();
            }
        } else if self.state.cut >= from && self.state.cut > BEFORE_ALL {
            return;
        }
        self.by.settle(&mut self.state.repr, at, taken, actual);
    }

    /// Whether the state is of no more use once the key is charged under parameters that hold `capacity`: nothing that
    /// was charged under its own parameters still counts, and it tells no more than is known without it.
    pub(super) fn is_forgotten(&self, at: Timestamp, capacity: u64) -> bool {
        let since = self.state.since;
        // A state that was alone until now was charged by itself.
        let recovers_in = |since| self.by.recovers_in(Timestamp::from_micros(since)).cast_signed();
        let is_old = since > BEFORE_ALL && at.as_micros() - since >= recovers_in(since);
        is_old && (self.by.capacity() <= capacity || self.is_idle(at))
    }
}

/// Forgets the kin that hold least, where they are too many. The first state stays, and that at `kept`.
pub(super) fn evict(states: &mut States<'_>, kept: usize) {
    while states.len() > MOST_KIN + 1 {
        let capacity = |place: &usize| states[*place].by.capacity();
        let others = (1..states.len()).rev().filter(|place| *place != kept);
        // Of equals, the one that was charged longest ago.
        let Some(least) = others.min_by_key(capacity) else { return };
        states.remove(least);
    }
}

/// Forgets a state that counts nothing, if there are too many for another one beside them.
pub(super) fn make_place(states: &mut States<'_>, at: Timestamp) {
    if states.len() > MOST_KIN
        && let Some(idle) = states.iter().position(|kin| kin.is_idle(at))
    {
        states.remove(idle);
    }
}

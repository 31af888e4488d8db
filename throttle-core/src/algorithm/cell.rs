//! A key's states together with the parameters that wrote them: the one place where requests meet states.
//!
//! [`Cell::wait`] asks without changing anything, [`Cell::take`] charges, [`Cell::standing`] reports and
//! [`Cell::settle`] corrects an earlier charge. A key that was charged under several sets of parameters, because its
//! limit was changed or it moves between tiers, has a state for each of them: its [kin](super::kin). The parameters that
//! decide read their own state. If they have none yet, they read the others in the terms of the parameters that wrote
//! them, and the first charge begins a state of their own.
//!
//! [`decide`] is the same decision on a state whose algorithm is known when the code is compiled.

use super::carry::{Carry, Conversion};
use super::kin::{BEFORE_ALL, Kin, KinState, MOST_KIN, States, Writer, evict, make_place};
use super::stored::Repr;
use super::transition::{Transition, ask};
use super::verdict::{NEVER, Standing, Taken};
use crate::time::Timestamp;

/// The states of a key, the parameters that decide about it, and the instant at which they do.
#[derive(Clone)]
pub(crate) struct Cell<'a> {
    by: Writer<'a>,
    /// How units that other parameters counted count under these.
    rule: Carry,
    /// At least one. The state that was charged last stands first, and lent ones stand last.
    states: States<'a>,
    /// The place of the state of the parameters that decide, if they have one.
    own: Option<usize>,
    /// Whether a refusal has begun the own state.
    has_begun: bool,
    at: Timestamp,
    /// µs by which the clock is behind `at`.
    lag: u64,
    /// Whether `at` counts only until the first charge; later requests are decided at the clock's time.
    until_charged: bool,
    /// How many of the states are another cell's. The own state begins with what they count, and they stay there. None
    /// once there is an own state.
    lent: u16,
    /// Whether no state that counts anything may be forgotten for another one, because they are many keys' states.
    is_shared: bool,
}

impl<'a> Cell<'a> {
    /// The cell of a key that was never used.
    pub(crate) fn fresh(by: Writer<'a>, at: Timestamp) -> Self {
        let repr = by.fresh_repr();
        Self::new(by, repr, at)
    }

    /// A state that the same parameters wrote, and no other.
    pub(crate) fn new(by: Writer<'a>, repr: Repr, at: Timestamp) -> Self {
        let mut states = States::new();
        states.push(Kin::alone(by.clone(), repr));
        Self::of(by, Carry::Keep, states, at)
    }

    /// A key's states, at least one, that any parameters wrote.
    pub(crate) fn of(by: Writer<'a>, rule: Carry, states: States<'a>, at: Timestamp) -> Self {
        let own = states.iter().position(|kin| kin.by.is_alike(&by));
        Self { by, rule, states, own, has_begun: false, at, lag: 0, until_charged: false, lent: 0, is_shared: false }
    }

    /// The cell of a key whose parameters are to begin with what others count, which are added. Without others it is
    /// [fresh](Self::or_fresh).
    pub(crate) fn unbegun(by: Writer<'a>, at: Timestamp) -> Self {
        Self::of(by, Carry::Keep, States::new(), at)
    }

    /// Begins the own state as an unused one, where there is no state at all.
    pub(crate) fn or_fresh(mut self) -> Self {
        if self.states.is_empty() {
            let repr = self.by.fresh_repr();
            self.states.push(Kin::alone(self.by.clone(), repr));
            self.own = Some(0);
        }
        self
    }

    /// Sets the clock's own time, which may be behind the instant that counts.
    pub(crate) fn behind(mut self, now: Timestamp) -> Self {
        self.lag = self.at.micros_since(now).unsigned_abs();
        self
    }

    /// Ends the lag with the first charge: the key has a slot then, and its next request is decided at the clock's
    /// time.
    pub(crate) fn until_charged(mut self) -> Self {
        self.until_charged = true;
        self
    }

    /// Forgets no state that counts anything. While there are too many, other parameters than theirs admit nothing.
    pub(crate) fn shared(mut self) -> Self {
        self.is_shared = true;
        self
    }

    /// The states as one key's, which is to keep them for itself.
    pub(crate) fn unshared(mut self) -> Self {
        self.is_shared = false;
        self
    }

    /// Whether there is a state of the parameters that decide.
    pub(crate) fn has_own(&self) -> bool {
        self.own.is_some()
    }

    /// Whether a refusal has changed the states.
    pub(crate) fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// The states; that which was charged last stands first.
    pub(crate) fn into_states(mut self) -> States<'a> {
        self.return_lent();
        self.states
    }

    /// The state of the parameters that decide, as it is or would begin now.
    pub(super) fn into_own(mut self) -> Repr {
        self.take_own().state.repr
    }

    /// Takes over the states of another cell under parameters that have none here.
    pub(crate) fn add_kin_of(&mut self, other: &Self) {
        for kin in &other.states {
            if !kin.is_idle(self.at) && self.states.iter().all(|own| !own.by.is_alike(&kin.by)) {
                self.states.push(kin.clone());
            }
        }
        // The first charge counts all of them, and forgets those that are too many.
        self.own = self.states.iter().position(|kin| kin.by.is_alike(&self.by));
    }

    /// Reads the states of another cell, too, until the own state begins. They stay where they are.
    pub(crate) fn read_states_of(&mut self, other: &Self) {
        if self.own.is_none() {
            let before = self.states.len();
            self.states.extend(other.states.iter().filter(|kin| !kin.is_idle(self.at)).cloned());
            self.lent += (self.states.len() - before) as u16;
        }
    }

    fn return_lent(&mut self) {
        self.states.truncate(self.states_here());
        self.lent = 0;
    }

    /// How many states are not lent.
    fn states_here(&self) -> usize {
        self.states.len() - usize::from(self.lent)
    }

    /// µs until `cost` is admitted: 0 for now, [`NEVER`] for a cost above the capacity.
    pub(crate) fn wait(&self, cost: u64) -> u64 {
        let wait = if self.is_locked(cost) {
            let converted = self.converted();
            converted.by.wait(&converted.state.repr, self.at, cost)
        } else {
            self.wait_from_at(cost)
        };
        match wait {
            NEVER => NEVER,
            wait => self.since_now(wait),
        }
    }

    /// Charges an admitted cost. Returns the µs to wait before going on, and the charge.
    pub(crate) fn take(&mut self, cost: u64) -> (u64, Taken) {
        let mut own = self.take_own();
        let (delay, taken) = self.by.take(&mut own.state.repr, self.at, cost);
        self.charge_kin(own, cost);
        // Until the clock has caught up, nothing may leave.
        let delay = if self.by.delays() { delay + self.lag } else { delay };
        if self.until_charged {
            self.at = Timestamp::from_micros(self.at.as_micros().saturating_sub_unsigned(self.lag));
            self.lag = 0;
        }
        (delay, taken)
    }

    /// Charges a cost as far as units remain.
    pub(crate) fn debit(&mut self, cost: u64) {
        let mut own = self.take_own();
        own.debit(self.at, cost);
        self.charge_kin(own, cost);
    }

    /// Charges a cost as far as units remain. Where there is no place for an own state, the others count it.
    pub(crate) fn debit_any(&mut self, cost: u64) {
        if self.wait_for_place() == 0 { self.debit(cost) } else { self.debit_all(cost) }
    }

    /// Charges a cost to every state, as far as units remain there, and begins none.
    pub(crate) fn debit_all(&mut self, cost: u64) {
        for kin in &mut self.states {
            kin.debit(self.at, cost);
        }
    }

    /// Notes that a cost was refused. A request of parameters without a state of their own changes nothing, unless the
    /// others' states would lock it out for longer than its own limit ever would: then its own state begins now.
    pub(crate) fn refuse(&mut self, cost: u64) {
        if self.is_locked(cost) {
            let own = self.converted();
            self.return_lent();
            self.make_place();
            let place = self.states.len();
            self.states.push(own);
            evict(&mut self.states, place);
            (self.own, self.has_begun) = (Some(self.states.len() - 1), true);
        }
    }

    /// Where the key stands.
    pub(crate) fn standing(&self) -> Standing {
        let Standing { remaining, reset, next } = self.standing_at();
        Standing { remaining, reset: self.since_now(reset), next: self.since_now(next) }
    }

    /// Makes an earlier charge one of `actual` units: gives back the difference, or debits it as far as something is
    /// left.
    pub(crate) fn settle(&mut self, taken: Taken, actual: u64) {
        let at = self.at;
        if let (Some(0), [own]) = (self.own, &mut *self.states) {
            return own.by.settle(&mut own.state.repr, at, taken, actual);
        }
        if !self.is_shared && self.is_idle() {
            // The key is as good as unused, so which parameters wrote its states does not matter.
            let mut own = match self.own {
                Some(place) => Kin::alone(self.by.clone(), self.states[place].state.repr.clone()),
                None => Kin::alone(self.by.clone(), self.by.fresh_repr()),
            };
            self.by.settle(&mut own.state.repr, at, taken, actual);
            // A settlement with no effect does not write.
            if !own.is_idle(at) {
                self.states.clear();
                self.states.push(own);
                self.own = Some(0);
            }
            return;
        }
        let (is_over, from) = (self.by.is_over(at, taken.mark), self.by.charged_from(taken.mark));
        for (place, kin) in self.states.iter_mut().enumerate() {
            if self.own == Some(place) {
                kin.by.settle(&mut kin.state.repr, at, taken, actual);
            } else if !is_over {
                let conversion = Conversion { rule: self.rule, from: self.by.capacity(), to: kin.by.capacity() };
                if let Some((cost, actual)) = conversion.settlement(taken.cost, actual) {
                    kin.settle_debit(at, from, Taken { cost, ..taken }, actual);
                }
            }
        }
        if let [alone] = &mut *self.states {
            alone.state.cut = BEFORE_ALL;
        }
    }

    /// Takes the own state out, or begins it: what the others count as used stays used, as far as the carry rule says.
    fn take_own(&mut self) -> Kin<'a> {
        let starts_anew = !self.is_shared && self.own.is_none_or(|_| self.states.len() > 1) && self.is_idle();
        let mut own = match self.own.take() {
            Some(place) => self.states.remove(place),
            None => self.converted(),
        };
        self.return_lent();
        if starts_anew {
            self.states.clear();
        }
        own.by = self.by.clone();
        own
    }

    /// Whether the key is as good as unused under all parameters. A store may forget it then, so nothing may depend on
    /// whether it has.
    fn is_idle(&self) -> bool {
        self.states.iter().all(|kin| kin.is_idle(self.at))
    }

    /// Debits a cost to all states but the own one, which was charged and becomes the first.
    fn charge_kin(&mut self, mut own: Kin<'a>, cost: u64) {
        let (at, capacity) = (self.at, self.by.capacity());
        if self.rule == Carry::Keep {
            if !self.is_shared {
                self.states.retain(|kin| !kin.is_forgotten(at, capacity));
            }
            self.make_place();
            for kin in &mut self.states {
                if kin.state.since == BEFORE_ALL {
                    kin.state.since = at.as_micros();
                }
                kin.debit(at, cost);
            }
        } else {
            self.states.clear();
        }
        if self.states.is_empty() {
            own.state = KinState::alone(own.state.repr);
        } else {
            own.state.since = at.as_micros();
        }
        self.states.insert(0, own);
        self.own = Some(0);
        evict(&mut self.states, 0);
    }

    fn make_place(&mut self) {
        if self.is_shared {
            make_place(&mut self.states, self.at);
        }
    }

    /// µs until there is a place for an own state.
    fn wait_for_place(&self) -> u64 {
        if !self.is_shared || self.own.is_some() || self.states_here() <= MOST_KIN {
            return 0;
        }
        self.states[..self.states_here()].iter().map(|kin| kin.standing(self.at).reset).min().unwrap_or(0)
    }

    /// The own state that begins now.
    fn converted(&self) -> Kin<'a> {
        let (used, is_cut) = self.used();
        let mut repr = self.by.fresh_repr();
        if used > 0 {
            self.by.take(&mut repr, self.at, used);
        }
        let since = self.at.as_micros();
        let cut = if is_cut { since } else { BEFORE_ALL };
        Kin { by: self.by.clone(), state: KinState { repr, since, cut } }
    }

    /// Units that count as used by what the others' states count, and whether those are more than fit.
    fn used(&self) -> (u64, bool) {
        let each = self.states.iter().map(|kin| {
            let counted = kin.counted(self.at);
            (self.conversion_from(kin).used(counted), counted > self.by.capacity())
        });
        each.fold((0, false), |(most, is_cut), (used, cuts)| (most.max(used), is_cut || cuts))
    }

    /// Whether a cost that parameters without an own state could admit would wait for longer than their own limit, all
    /// used up, takes to recover.
    fn is_locked(&self, cost: u64) -> bool {
        let may_be = self.own.is_none() && self.rule == Carry::Keep && cost > 0 && cost <= self.by.capacity();
        may_be && self.wait_for_place() == 0 && self.wait_from_at(cost) > self.by.recovers_in(self.at)
    }

    fn wait_from_at(&self, cost: u64) -> u64 {
        if let Some(own) = self.own {
            return self.by.wait(&self.states[own].state.repr, self.at, cost);
        }
        let capacity = self.by.capacity();
        if cost == 0 || cost > capacity {
            return if cost == 0 { 0 } else { NEVER };
        }
        let waits = self.states.iter().map(|kin| {
            // The writer admits this much exactly when no more is used than leaves room for the cost.
            let conversion = self.conversion_from(kin);
            let room = if self.by.admits_only_when_idle() { capacity } else { cost };
            kin.by.wait(&kin.state.repr, self.at, conversion.from - conversion.most(room))
        });
        waits.max().unwrap_or(0).max(self.wait_for_place())
    }

    fn standing_at(&self) -> Standing {
        if let Some(own) = self.own {
            return self.states[own].standing(self.at);
        }
        let used = if self.wait_for_place() > 0 { self.by.capacity() } else { self.used().0 };
        match used {
            0 => self.by.standing(&self.by.fresh_repr(), self.at),
            used => {
                let remaining = if self.by.admits_only_when_idle() { 0 } else { self.by.capacity() - used };
                let reset = self.states.iter().map(|kin| kin.standing(self.at).reset).max().unwrap_or(0);
                Standing { remaining, reset, next: self.wait_from_at(remaining + 1) }
            }
        }
    }

    fn conversion_from(&self, kin: &Kin<'_>) -> Conversion {
        Conversion { rule: self.rule, from: kin.by.capacity(), to: self.by.capacity() }
    }

    /// A wait from the instant that counts, as a wait from the clock's time.
    fn since_now(&self, micros: u64) -> u64 {
        if micros > 0 { micros + self.lag } else { 0 }
    }
}

/// What a request did to a state.
#[derive(Clone, Copy)]
pub(crate) struct Outcome {
    /// µs until the cost is admitted.
    pub(crate) wait: u64,
    /// µs to wait before going on.
    pub(crate) delay: u64,
    pub(crate) taken: Taken,
}

/// Asks for `cost` units of a state that the same parameters wrote, and charges them if they are admitted and `charge`
/// is set. A cost of 0 is admitted and charges nothing.
#[inline(always)]
pub(crate) fn decide<A: Transition>(
    algorithm: &A,
    state: &mut A::State,
    now: Timestamp,
    cost: u64,
    charge: bool,
) -> Outcome {
    let wait = ask(algorithm, state, now, cost);
    if wait > 0 || cost == 0 || !charge {
        return Outcome { wait, delay: 0, taken: Taken::default() };
    }
    take(algorithm, state, now, cost)
}

/// Charges `cost` units that [`ask`] has just admitted.
#[inline(always)]
pub(crate) fn take<A: Transition>(algorithm: &A, state: &mut A::State, now: Timestamp, cost: u64) -> Outcome {
    let delay = algorithm.delay(state, now);
    let mark = algorithm.take(state, now, cost);
    Outcome { wait: 0, delay, taken: Taken { cost, mark } }
}

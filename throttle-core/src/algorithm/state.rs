use std::sync::Arc;

use smallvec::SmallVec;

use super::carry::Carry;
use super::cell::Cell;
use super::dispatch::Algorithm;
use super::kin::{Kin, KinState, States, Writer};
use super::stored::Repr;
use super::verdict::Verdict;
use crate::time::Timestamp;

/// What a backend keeps for one key of one policy.
///
/// Opaque: only the [`Algorithm`](crate::Algorithm) that made it can read it. Backends that keep states in another
/// process use [`to_wire`](Self::to_wire) and [`from_wire`](Self::from_wire).
///
/// ```
/// use throttle_core::{Gcra, Rate, Timestamp};
///
/// let gcra = Gcra::new(Rate::per_minute(60)).burst(2).build()?;
/// let (state, verdict) = gcra.decide(gcra.fresh(), Timestamp::EPOCH, 2);
/// assert!(verdict.is_admitted());
/// assert_eq!(gcra.peek(&state, Timestamp::EPOCH).remaining(), 0);
/// assert_eq!(gcra.fresh_at(&state), Timestamp::from_micros(2_000_000));
/// # Ok::<(), throttle_core::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// The state that was charged last.
    pub(crate) first: KinState,
    /// The parameters that wrote it. A state from an [`Algorithm`] alone names none: it is that algorithm's.
    pub(crate) under: Option<Arc<Algorithm>>,
    /// The key's states under other parameters.
    pub(crate) kin: Vec<(Arc<Algorithm>, KinState)>,
}

impl State {
    pub(crate) const fn alone(repr: Repr) -> Self {
        Self { first: KinState::alone(repr), under: None, kin: Vec::new() }
    }

    /// Names the parameters that wrote a state which names none: one that an [`Algorithm`] has made or decided alone.
    /// Needed before a policy with other parameters decides about it. A state names its parameters already, and keeps
    /// them here, if a set has [charged](crate::PolicySet::decide) it, if a receipt has
    /// [settled](crate::backend::ReceiptItem::apply_to) it, or if it was [read](Self::from_wire_of) as one that others
    /// than the policy's own had written.
    ///
    /// ```
    /// use throttle_core::backend::Call;
    /// use throttle_core::{Gcra, Key, Policy, PolicySet, Rate, Timestamp};
    ///
    /// let limit = |count| PolicySet::new(Policy::new("per-user", Gcra::new(Rate::per_day(count)))?);
    /// let (large, small) = (limit(100)?, limit(10)?);
    /// let of_large = *large.policies()[0].algorithm();
    /// let (now, call) = (Timestamp::EPOCH, |cost| [Call::from(Key::from("ada")).costing(cost)]);
    ///
    /// let (state, _) = of_large.decide(of_large.fresh(), now, 8);
    /// let mut states = [state.written_under(&of_large)];
    /// assert_eq!(small.decide(&mut states, now, &call(1)).remaining(), 1);
    /// // The state names by now what wrote it.
    /// assert_eq!(large.decide(&mut states, now, &call(1)).remaining(), 90);
    /// # Ok::<(), throttle_core::ConfigError>(())
    /// ```
    #[must_use]
    pub fn written_under(mut self, algorithm: &Algorithm) -> Self {
        self.under.get_or_insert_with(|| Arc::new(*algorithm));
        self
    }

    /// Whether the state names no parameters, and no others have a state of the key: so of one that was
    /// [read](Self::from_wire_of) and that the parameters of the policy's first tier wrote.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        self.under.is_none() && self.kin.is_empty()
    }

    /// The parameters that wrote the states of the key; `first` wrote what names none.
    pub(crate) fn writers(&self, first: &Algorithm) -> Writers {
        let other = |(by, _): &(Arc<Algorithm>, KinState)| **by;
        std::iter::once(self.under.as_deref().map_or(*first, |by| *by)).chain(self.kin.iter().map(other)).collect()
    }

    /// Moves the states out.
    pub(crate) fn take<'a>(&mut self, writers: &'a Writers) -> States<'a> {
        let empty = KinState::alone(Repr::EMPTY);
        let first = std::mem::replace(&mut self.first, empty);
        let states = std::iter::once(first).chain(self.kin.drain(..).map(|(_, state)| state));
        writers.iter().zip(states).map(|(by, state)| Kin { by: Writer::of(by), state }).collect()
    }

    /// Moves states in. `first` are the parameters that an uncharged state need not name.
    pub(crate) fn put(&mut self, states: States<'_>, first: &Algorithm, charged: bool) {
        let mut states = states.into_iter();
        if let Some(kin) = states.next() {
            self.first = kin.state;
            // The next set that decides about a charged state may have other parameters.
            let needs_name = charged || self.under.is_some() || !kin.by.is_alike(first);
            if needs_name && self.under.as_deref().is_none_or(|under| !under.is_alike(&kin.by)) {
                self.under = Some(Arc::new(*kin.by));
            }
        }
        self.kin = states.map(|kin| (Arc::new(*kin.by), kin.state)).collect();
    }
}

/// The parameters of each of a key's states, in their order.
pub(crate) type Writers = SmallVec<[Algorithm; 1]>;

impl Algorithm {
    /// The state of a key that was never used.
    #[must_use]
    pub fn fresh(&self) -> State {
        State::alone(self.fresh_repr())
    }

    /// Decides about `cost` units and charges them if they are admitted. A cost of 0 peeks: it is always admitted and
    /// charges nothing.
    ///
    /// A state that another algorithm made counts as fresh. A state of the same algorithm with other parameters must be
    /// [carried over](Self::carry_over) first, or decided by a [`PolicySet`](crate::PolicySet), which knows how.
    #[must_use]
    pub fn decide(&self, state: State, now: Timestamp, cost: u64) -> (State, Verdict) {
        let under = state.under;
        let mut cell = Cell::new(Writer::of(self), state.first.repr, now);
        let wait = cell.wait(cost);
        let delay = if wait == 0 && cost > 0 { cell.take(cost).0 } else { 0 };
        let verdict = Verdict { standing: cell.standing(), wait, delay };
        let mut state = State { under, ..State::alone(Repr::EMPTY) };
        if let Some(kin) = cell.into_states().into_iter().next() {
            state.first = kin.state;
        }
        (state, verdict)
    }

    /// Returns the verdict for a cost of 0, which charges nothing.
    #[must_use]
    pub fn peek(&self, state: &State, now: Timestamp) -> Verdict {
        Verdict { standing: self.standing(&state.first.repr, now), wait: 0, delay: 0 }
    }

    /// Returns the first instant from which `state` equals a fresh one in every later decision. From then on it may be
    /// dropped, as long as the clock does not step back before that instant.
    #[must_use]
    pub fn fresh_at(&self, state: &State) -> Timestamp {
        let by = state.under.as_deref().unwrap_or(self);
        let kin = state.kin.iter().map(|(by, kin)| by.repr_fresh_at(&kin.repr));
        kin.fold(by.repr_fresh_at(&state.first.repr), Timestamp::max)
    }

    /// Converts a state of `old`, another limit, to a state of this one alone: used units stay used, up to the capacity.
    ///
    /// A [`PolicySet`](crate::PolicySet) converts a state when a request is first charged under changed limits, and
    /// keeps the state of the former limit beside it, so that a limit that is changed back has lost nothing.
    #[must_use]
    pub fn carry_over(&self, old: &Self, state: &State, now: Timestamp) -> State {
        let mut states = States::new();
        states.push(Kin { by: Writer::of(old), state: state.first.clone() });
        State::alone(Cell::of(Writer::of(self), Carry::Keep, states, now).into_own())
    }
}

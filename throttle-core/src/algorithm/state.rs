use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use super::cell::{Cell, Writer};
use super::exception::Exception;
use super::kind::Algorithm;
use super::stored::Repr;
use super::verdict::Verdict;
use crate::time::Timestamp;

/// What a backend keeps for one key of one policy.
///
/// Opaque: it is read by the [`Algorithm`](crate::Algorithm) that wrote it. Backends that keep
/// states in another process use [`to_wire`](Self::to_wire) and [`from_wire`](Self::from_wire).
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
    pub(crate) repr: Repr,
    /// The parameters that wrote it. A state that names none is taken for one of those that read
    /// it.
    pub(crate) writer: Option<Arc<Algorithm>>,
}

impl State {
    pub(crate) const fn of(repr: Repr) -> Self {
        Self { repr, writer: None }
    }

    /// Names the parameters that wrote a state which names none: one that an [`Algorithm`] has made
    /// or decided alone. Needed before a policy with other parameters decides about it. A state
    /// that a set has [charged](crate::PolicySet::decide), or that was [read](Self::from_wire) from
    /// bytes, names its parameters already, and keeps them here.
    ///
    /// ```
    /// use throttle_core::backend::Call;
    /// use throttle_core::{Gcra, Key, Policy, PolicySet, Rate, Timestamp};
    ///
    /// let limit =
    ///     |count| PolicySet::new(Policy::new("per-user", Gcra::new(Rate::per_day(count)))?);
    /// let (large, small) = (limit(100)?, limit(10)?);
    /// let of_large = *large.policies()[0].algorithm();
    /// let (now, call) = (Timestamp::EPOCH, |cost| {
    ///     [Call::from(Key::from("ada")).costing(cost)]
    /// });
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
        self.writer.get_or_insert_with(|| Arc::new(*algorithm));
        self
    }

    /// Sets an exception over the state in place of one that there is, or lifts it.
    ///
    /// ```
    /// use throttle_core::backend::{Exception, Treatment};
    /// use throttle_core::{Gcra, Rate, Timestamp};
    ///
    /// let gcra = Gcra::new(Rate::per_day(9)).build()?;
    /// let until = Timestamp::from_micros(60_000_000);
    /// let blocked = gcra.fresh().excepted(Some(Exception {
    ///     treatment: Treatment::Blocked,
    ///     until,
    /// }));
    /// let (blocked, verdict) = gcra.decide(blocked, Timestamp::EPOCH, 1);
    /// assert_eq!(verdict.retry_after_micros(), Some(60_000_000));
    /// assert!(gcra.decide(blocked, until, 1).1.is_admitted());
    /// # Ok::<(), throttle_core::ConfigError>(())
    /// ```
    #[must_use]
    pub fn excepted(self, exception: Option<Exception>) -> Self {
        let (_, repr) = self.repr.without_exception();
        Self {
            repr: repr.beneath(exception.map(Box::new)),
            writer: self.writer,
        }
    }

    /// Returns the instant from which a database may delete the row of this state: when the state
    /// [is as a fresh one](Algorithm::fresh_at) and its exception is over, and then as long again
    /// as clocks may be apart. `algorithm` is the one that wrote the state, if the state does not
    /// name it.
    ///
    /// Write the instant into a column beside the state. A job deletes the rows whose instant has
    /// passed, for example once a minute. Law 9 allows it, because the next decision is the same
    /// with the row or without it.
    ///
    /// A decision that deletes rows as soon as they are as fresh ones breaks law 7. Suppose that
    /// the clocks of two processes are a minute apart. The one that is ahead deletes a row that is
    /// in use for the other, and the key has its whole capacity again, as often as the processes
    /// take turns. A clock that is set back does the same. So `apart` is the longest time by which
    /// clocks differ or step back, such as ten minutes where they are synchronized.
    ///
    /// ```
    /// use std::time::Duration;
    /// use throttle_core::{Gcra, Rate, Timestamp};
    ///
    /// let gcra = Gcra::new(Rate::per_minute(60)).build()?;
    /// let (state, _) = gcra.decide(gcra.fresh(), Timestamp::EPOCH, 3);
    /// assert_eq!(gcra.fresh_at(&state), Timestamp::from_micros(3_000_000));
    /// let kept = state.kept_until(&gcra, Duration::from_secs(600));
    /// assert_eq!(kept, Timestamp::from_micros(603_000_000));
    /// # Ok::<(), throttle_core::ConfigError>(())
    /// ```
    #[must_use]
    pub fn kept_until(&self, algorithm: &Algorithm, apart: Duration) -> Timestamp {
        algorithm.fresh_at(self) + apart
    }

    /// The parameters that wrote the state, if it names them.
    pub(crate) fn writer(&self) -> Option<Writer<'static>> {
        self.writer.clone().map(Cow::Owned)
    }

    /// Moves the state out.
    pub(crate) fn take(&mut self) -> Repr {
        std::mem::replace(&mut self.repr, Repr::EMPTY)
    }

    /// Moves a state in again that `by` has decided.
    pub(crate) fn put(&mut self, cell: Cell<'_>, by: &Algorithm, was_charged: bool) {
        // An exception's limit may have charged it, or the next set that decides about it may have
        // other parameters.
        if let Some(writer) = cell.writer.as_ref().filter(|_| was_charged) {
            self.writer = Some(Arc::clone(writer));
        } else if was_charged
            && cell.is_own()
            && self
                .writer
                .as_deref()
                .is_none_or(|writer| !writer.is_alike(by))
        {
            self.writer = Some(Arc::new(*by));
        }
        self.repr = cell.into_repr();
    }
}

impl Algorithm {
    /// The state of a key that was never used, for these parameters alone. Name them by
    /// [`written_under`](State::written_under) if others may decide about the key, such as another
    /// tier or the limit of an exception: they read the state as unused only then.
    #[must_use]
    pub fn fresh(&self) -> State {
        State::of(self.fresh_repr())
    }

    /// Decides about `cost` units and charges them if they are admitted. A cost of 0 peeks: it is
    /// always admitted and charges nothing.
    ///
    /// A state that another algorithm made counts as fresh. For a state of other parameters, use a
    /// [`PolicySet`](crate::PolicySet), which reads it by those that wrote it.
    #[must_use]
    pub fn decide(&self, state: State, now: Timestamp, cost: u64) -> (State, Verdict) {
        let State { repr, writer } = state;
        let mut cell = Cell::new(self, None, repr, now);
        let wait = cell.wait(cost);
        let delay = if wait == 0 && cost > 0 {
            cell.take(cost).0
        } else {
            0
        };
        let verdict = Verdict {
            standing: cell.standing(),
            wait,
            delay,
        };
        let writer = writer.filter(|writer| writer.is_alike(self));
        (
            State {
                repr: cell.into_repr(),
                writer,
            },
            verdict,
        )
    }

    /// Returns the verdict for a cost of 0, which charges nothing.
    #[must_use]
    pub fn peek(&self, state: &State, now: Timestamp) -> Verdict {
        let standing = match &state.repr {
            Repr::Excepted(..) => Cell::new(self, None, state.repr.clone(), now).standing(),
            repr => self.standing(repr, now),
        };
        Verdict {
            standing,
            wait: 0,
            delay: 0,
        }
    }

    /// Returns the first instant from which `state` equals a fresh one in every later decision.
    /// From then on it may be dropped, as long as the clock does not step back before that instant;
    /// [`State::kept_until`] adds the time by which it may.
    #[must_use]
    pub fn fresh_at(&self, state: &State) -> Timestamp {
        state
            .writer
            .as_deref()
            .unwrap_or(self)
            .repr_fresh_at(&state.repr)
    }
}

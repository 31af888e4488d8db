//! How a key is decided while an [`Exception`] stands over its state.

use std::borrow::Cow;
use std::sync::Arc;

use super::cell::Cell;
use super::exception::{Exception, Treatment};
use super::kind::Algorithm;
use super::stored::Repr;
use super::verdict::{NEVER, Standing, StateCharge};
use crate::time::Timestamp;

/// Whether an exception decides about a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ExceptionEffect {
    #[default]
    No,
    Banned,
    Otherwise,
}

impl<'a> Cell<'a> {
    /// Sets an exception in place of one that there is, or lifts it. The state beneath stays as it
    /// is.
    pub(crate) fn except(&mut self, exception: Option<Exception>) {
        self.exception = exception.map(Box::new);
    }

    /// The exception, if it decides.
    pub(super) fn in_force(&self) -> Option<&Exception> {
        self.exception()
            .filter(|exception| self.at < exception.ends())
    }

    /// What stands over the state, whether it decides or not.
    pub(crate) fn exception(&self) -> Option<&Exception> {
        self.exception.as_deref()
    }

    /// Forgets an exception that is over.
    pub(super) fn forget_past(&mut self) {
        self.exception = self
            .exception
            .take()
            .filter(|exception| self.at < exception.until);
    }

    /// Whether an exception decides.
    pub(crate) fn excepted(&self) -> ExceptionEffect {
        match self.in_force() {
            None => ExceptionEffect::No,
            Some(Exception {
                treatment: Treatment::Struck(_),
                ..
            }) => ExceptionEffect::Banned,
            Some(_) => ExceptionEffect::Otherwise,
        }
    }

    /// The parameters that wrote the state, if an exception stands over it: they are kept beside
    /// the state then. Those that were there before may be the same.
    pub(crate) fn writer_beneath(&self, before: Option<Arc<Algorithm>>) -> Option<Arc<Algorithm>> {
        self.exception.as_ref()?;
        Some(match &self.writer {
            Some(writer) => Arc::clone(writer),
            None => before
                .filter(|before| before.is_alike(self.by))
                .unwrap_or_else(|| Arc::new(*self.by)),
        })
    }

    /// µs until the cost is admitted: under the exception, or else after it.
    pub(super) fn wait_under(&self, exception: &Exception, cost: u64) -> u64 {
        let wait = match &exception.treatment {
            Treatment::Exempt if cost > self.by.capacity() => NEVER,
            Treatment::Blocked | Treatment::Struck(_) if cost > 0 => NEVER,
            Treatment::Exempt | Treatment::Blocked | Treatment::Struck(_) => 0,
            Treatment::Limit(limit) => self.under(limit).wait(cost),
        };
        let left = self.left_of(exception);
        if wait < left {
            wait
        } else {
            self.after(exception).wait(cost).saturating_add(left)
        }
    }

    /// Where the key stands under the exception.
    pub(super) fn standing_under(&self, exception: &Exception) -> Standing {
        let unused = || self.by.standing(&self.by.fresh_repr(), self.at);
        let mut standing = match &exception.treatment {
            Treatment::Exempt => unused(),
            Treatment::Blocked | Treatment::Struck(_) => Standing {
                remaining: 0,
                ..unused()
            },
            Treatment::Limit(limit) => self.under(limit).standing(),
        };
        standing.reset = self.left_of(exception) + self.after(exception).standing().reset;
        if exception.treatment != Treatment::Exempt {
            match self.wait_under(exception, standing.remaining.saturating_add(1)) {
                NEVER => {}
                wait => standing.next = wait,
            }
        }
        standing
    }

    /// Charges an admitted cost under the exception.
    pub(super) fn take_under(&mut self, treatment: &Treatment, cost: u64) -> (u64, StateCharge) {
        let Treatment::Limit(limit) = treatment else {
            return Default::default();
        };
        // Moved, because a log is dear to copy.
        let repr = std::mem::replace(&mut self.repr, Cow::Owned(Repr::EMPTY));
        let mut cell = Cell {
            repr,
            ..self.under(limit)
        };
        let taken = cell.take(cost);
        self.repr = Cow::Owned(cell.repr.into_owned());
        self.writer = if limit.is_alike(self.by) {
            None
        } else {
            Some(Cow::Owned(Arc::clone(limit)))
        };
        taken
    }

    /// µs until the exception is over. An exception stands over a slot of the key's own, whose
    /// clock is never behind.
    fn left_of(&self, exception: &Exception) -> u64 {
        exception.ends().micros_since(self.at).unsigned_abs()
    }

    /// The same state, as the exception's limit reads it.
    fn under<'b>(&'b self, limit: &'b Algorithm) -> Cell<'b> {
        let cell = self.at_instant(self.at);
        let writer = cell
            .writer
            .unwrap_or_else(|| Cow::Owned(Arc::new(*self.by)));
        Cell {
            by: limit,
            writer: Some(writer).filter(|writer| !writer.is_alike(limit)),
            ..cell
        }
    }

    /// The same state at the end of the exception.
    fn after(&self, exception: &Exception) -> Cell<'_> {
        self.at_instant(exception.ends())
    }

    /// The same state without the exception, at some instant.
    fn at_instant(&self, at: Timestamp) -> Cell<'_> {
        let Self {
            by,
            writer,
            lag,
            until_charged,
            reserve,
            ..
        } = self;
        let (repr, writer) = (
            Cow::Borrowed(&*self.repr),
            writer.as_deref().map(Cow::Borrowed),
        );
        let (lag, until_charged, reserve) = (*lag, *until_charged, *reserve);
        Cell {
            by,
            repr,
            writer,
            at,
            exception: None,
            lag,
            until_charged,
            reserve,
        }
    }
}

//! How a key is decided while an [`Exception`] stands over its state.

use std::borrow::Cow;
use std::sync::Arc;

use super::cell::Cell;
use super::exception::{Exception, Treatment};
use super::kind::Algorithm;
use super::verdict::{NEVER, Standing, Taken};
use crate::time::Timestamp;

/// Whether an exception decides about a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Excepted {
    #[default]
    No,
    Banned,
    Otherwise,
}

impl<'a> Cell<'a> {
    /// Sets an exception in place of one that there is, or lifts it. The state beneath stays as it is.
    pub(crate) fn except(&mut self, exception: Option<Exception>) {
        self.exception = exception.map(Box::new);
    }

    /// The exception, if it decides.
    pub(super) fn in_force(&self) -> Option<&Exception> {
        self.exception.as_deref().filter(|exception| self.at < exception.ends())
    }

    /// What stands over the state, whether it decides or not.
    pub(crate) fn exception(&self) -> Option<&Exception> {
        self.exception.as_deref()
    }

    /// Forgets an exception that is over.
    pub(super) fn forget_past(&mut self) {
        self.exception = self.exception.take().filter(|exception| self.at < exception.until);
    }

    /// Whether an exception decides.
    pub(crate) fn excepted(&self) -> Excepted {
        match self.in_force() {
            None => Excepted::No,
            Some(Exception { treatment: Treatment::Struck(_), .. }) => Excepted::Banned,
            Some(_) => Excepted::Otherwise,
        }
    }

    /// The parameters that wrote the state, if an exception stands over it: they are kept beside the state then.
    pub(crate) fn writer_beneath(&self) -> Option<Arc<Algorithm>> {
        self.exception.as_ref()?;
        Some(self.writer.clone().unwrap_or_else(|| Arc::new(*self.by)))
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
        if wait < left { wait } else { self.after(exception).wait(cost).saturating_add(left) }
    }

    /// Where the key stands under the exception.
    pub(super) fn standing_under(&self, exception: &Exception) -> Standing {
        let unused = || Cell::fresh(self.by, self.at).standing();
        let mut standing = match &exception.treatment {
            Treatment::Exempt => unused(),
            Treatment::Blocked | Treatment::Struck(_) => Standing { remaining: 0, ..unused() },
            Treatment::Limit(limit) => self.under(limit).standing(),
        };
        standing.reset = self.left_of(exception) + self.after(exception).standing().reset;
        match self.wait_under(exception, standing.remaining.saturating_add(1)) {
            NEVER => {}
            wait => standing.next = wait,
        }
        standing
    }

    /// Charges an admitted cost under the exception.
    pub(super) fn take_under(&mut self, treatment: &Treatment, cost: u64) -> (u64, Taken) {
        let Treatment::Limit(limit) = treatment else { return Default::default() };
        let mut cell = self.under(limit);
        let taken = cell.take(cost);
        let (repr, writer) = (cell.repr.into_owned(), cell.writer.unwrap_or_else(|| Arc::clone(limit)));
        (self.repr, self.writer) = (Cow::Owned(repr), Some(writer).filter(|writer| !writer.is_alike(self.by)));
        taken
    }

    /// µs until the exception is over. An exception stands over a slot of the key's own, whose clock is never behind.
    fn left_of(&self, exception: &Exception) -> u64 {
        exception.ends().micros_since(self.at).unsigned_abs()
    }

    /// The same state, as the exception's limit reads it.
    fn under<'b>(&'b self, limit: &'b Algorithm) -> Cell<'b> {
        let writer = self.writer.as_deref().unwrap_or(self.by);
        let writer = if writer.is_alike(limit) { None } else { Some(Arc::new(*writer)) };
        Cell { by: limit, writer, ..self.at_instant(self.at) }
    }

    /// The same state at the end of the exception.
    fn after(&self, exception: &Exception) -> Cell<'_> {
        self.at_instant(exception.ends())
    }

    /// The same state without the exception, at some instant.
    fn at_instant(&self, at: Timestamp) -> Cell<'_> {
        let Self { by, writer, lag, until_charged, reserve, .. } = self;
        let (repr, writer) = (Cow::Borrowed(&*self.repr), writer.clone());
        let (lag, until_charged, reserve) = (*lag, *until_charged, *reserve);
        Cell { by, repr, writer, at, exception: None, lag, until_charged, reserve }
    }
}

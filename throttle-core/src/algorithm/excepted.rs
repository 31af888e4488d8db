//! How a key is decided while an [`Exception`] stands over its state.

use std::sync::Arc;

use super::cell::Cell;
use super::exception::{Exception, Treatment};
use super::kind::Algorithm;
use super::verdict::{NEVER, Standing, Taken};

impl<'a> Cell<'a> {
    /// Sets an exception in place of one that there is, or lifts it. The state beneath stays as it is.
    pub(crate) fn except(&mut self, exception: Option<Exception>) {
        self.exception = exception.map(Box::new);
    }

    /// The exception, unless it is over.
    pub(super) fn in_force(&self) -> Option<&Exception> {
        self.exception.as_deref().filter(|exception| self.at < exception.until)
    }

    /// Whether an exception decides.
    pub(crate) fn is_excepted(&self) -> bool {
        self.in_force().is_some()
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
            Treatment::Blocked if cost > 0 => NEVER,
            Treatment::Exempt | Treatment::Blocked => 0,
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
            Treatment::Blocked => Standing { remaining: 0, ..unused() },
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
        self.adopt(limit, cell);
        taken
    }

    /// Settles a charge by the parameters in force: also one that was made before, as other parameters do.
    pub(super) fn settle_under(&mut self, limit: &Arc<Algorithm>, taken: Taken, actual: u64) {
        let mut cell = self.under(limit);
        cell.settle(taken, actual);
        self.adopt(limit, cell);
    }

    /// µs until the exception is over. An exception stands over a slot of the key's own, whose clock is never behind.
    fn left_of(&self, exception: &Exception) -> u64 {
        exception.until.micros_since(self.at).unsigned_abs()
    }

    /// The same state, as the exception's limit reads it.
    fn under<'b>(&self, limit: &'b Algorithm) -> Cell<'b> {
        let writer = self.writer.as_deref().unwrap_or(self.by);
        Cell::new(limit, writer, self.repr.clone(), self.at).leaving(self.reserve)
    }

    /// The same state at the end of the exception.
    fn after(&self, exception: &Exception) -> Self {
        let mut cell = self.clone();
        (cell.at, cell.exception) = (exception.until, None);
        cell
    }

    /// Takes over the state that the exception's limit has left.
    fn adopt(&mut self, limit: &Arc<Algorithm>, cell: Cell<'_>) {
        let Cell { repr, writer, .. } = cell;
        let writer = writer.unwrap_or_else(|| Arc::clone(limit));
        (self.repr, self.writer) = (repr, Some(writer).filter(|writer| !writer.is_alike(self.by)));
    }
}

//! A state that lies beside the table because of an exception over it, or because its parameters
//! have no number.
//!
//! It is decided where it lies, as long as its charge leaves it there.

use std::borrow::Cow;

use super::policies::Policies;
use super::shard::Rest;
use super::slot::Content;
use crate::algorithm::{Algorithm, Cell, Repr, Taken};
use crate::decision::Status;
use crate::time::Timestamp;

/// Where a policy's state lies, and how it is decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// In its slot.
    Small,
    /// In its slot, or unused, and it is not charged in any case.
    Looked,
    /// Beside the table, by the parameters that wrote it.
    Large,
    /// Beside the table, by a [`Cell`].
    Beside,
}

/// A state beside the table, and what decides on it.
pub(super) struct Beside<'a> {
    pub(super) content: Content,
    pub(super) by: &'a Algorithm,
    pub(super) reserve: u64,
    pub(super) now: Timestamp,
    pub(super) policies: &'a Policies,
}

impl Beside<'_> {
    /// How it is decided. `None` if it is in its slot, or if a charge would move it there or to
    /// other parameters.
    pub(super) fn kind(&self, rest: &Rest) -> Option<Kind> {
        let (repr, writer) = rest.look(&self.content, self.policies)?;
        match repr {
            Repr::Excepted(over, _) if self.now < over.ends() => Some(Kind::Beside),
            Repr::Excepted(over, _) if self.now >= over.until => None,
            _ if !writer.is_alike(self.by) => None,
            _ => Some(if self.reserve == 0 {
                Kind::Large
            } else {
                Kind::Beside
            }),
        }
    }

    pub(super) fn ask(&self, rest: &Rest, cost: u64, status: &mut Status) {
        if let Some(cell) = self.cell(rest) {
            status.ask(cell.wait(cost), cost);
            status.excepted = cell.excepted();
        }
    }

    /// Charges what the set has left to be charged. Returns the µs to wait before going on.
    pub(super) fn answer(&self, rest: &mut Rest, status: &mut Status) -> u64 {
        let Some(cell) = self.cell(rest) else {
            return 0;
        };
        if status.taken.cost == 0 || !cell.charges() {
            (status.taken, status.standing) = (Taken::default(), cell.standing());
            return 0;
        }
        let Some((repr, unnumbered)) = rest.large_place(self.content.words()) else {
            return 0;
        };
        let writer = self
            .content
            .algorithm(self.policies)
            .or(unnumbered.as_ref())
            .cloned()
            .map(Cow::Owned);
        // Moved, because a log is dear to copy.
        let state = std::mem::replace(repr, Repr::EMPTY);
        let mut cell = Cell::new(self.by, writer, state, self.now).leaving(self.reserve);
        let (delay, taken) = cell.take(status.taken.cost);
        (status.taken, status.standing) = (taken, cell.standing());
        if cell.exception().is_some() {
            *unnumbered = cell.writer_beneath(unnumbered.take());
        }
        *repr = cell.into_repr();
        delay
    }

    fn cell<'a>(&'a self, rest: &'a Rest) -> Option<Cell<'a>> {
        let (repr, writer) = rest.look(&self.content, self.policies)?;
        Some(Cell::lent(self.by, writer, repr, self.now).leaving(self.reserve))
    }
}

//! Several policies composed, and the one function that decides about them: all that it says, or nothing.

mod decide;
mod rule;

pub(crate) use decide::{Member, Members, decide};
pub use rule::{AnyCharge, PolicyNode, PolicySet, PolicyTree};

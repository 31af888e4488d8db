//! Several policies composed with `all` and `any`, and the one function that decides a request
//! against all of them.

mod decide;
mod policy_set;

pub(crate) use decide::{conclude, sum_up};
pub use policy_set::{AnyCharge, PolicyNode, PolicySet, PolicyTree};

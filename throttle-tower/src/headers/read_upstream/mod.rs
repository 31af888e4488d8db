//! Reads how an upstream limits its clients, as a client that keeps to it does.
//!
//! An API whose headers are not read gets a row in `spellings`, and its headers a row in the tests.

mod allowance;
mod grpc;
mod quota;
mod refusal;
mod spellings;
mod stated;
#[cfg(test)]
mod tests;
pub(super) mod time_text;

pub(crate) use self::allowance::Allowance;
pub(crate) use self::refusal::refusal;
pub(crate) use self::stated::stated;
pub(crate) use self::time_text::{go_duration, millis};

//! Reads how an upstream limits its clients, as a client that keeps to it does.

mod allowance;
mod base64;
mod grpc;
mod providers;
mod refusal;
#[cfg(test)]
mod tests;
mod time_text;

pub(crate) use self::allowance::{Allowance, allowance};
pub(crate) use self::providers::used_up;
pub(crate) use self::refusal::{is_refusal, wait};
pub(crate) use self::time_text::{go_duration, millis};

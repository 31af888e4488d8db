//! What is wrong with a configuration, and what to write instead.

use std::convert::Infallible;
use std::fmt;

/// A setting of this module that cannot be used. Its message names the setting, the value given, and what to write.
///
/// Only building a configuration can fail; [`ClientIp::resolve`](super::ClientIp::resolve) never does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientIpError {
    field: &'static str,
    value: String,
    problem: &'static str,
    remedy: &'static str,
}

impl ClientIpError {
    pub(super) fn new(
        field: &'static str,
        value: impl fmt::Display,
        problem: &'static str,
        remedy: &'static str,
    ) -> Self {
        Self { field, value: value.to_string(), problem, remedy }
    }
}

impl fmt::Display for ClientIpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { field, value, problem, remedy } = self;
        // Quoted with escapes: the value may come from an environment variable, and this may go to a terminal.
        write!(f, "{field} {value:?} {problem}; {remedy}")
    }
}

impl std::error::Error for ClientIpError {}

/// Lets [`TrustedProxies::new`](super::TrustedProxies::new) take values that need no parsing.
impl From<Infallible> for ClientIpError {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

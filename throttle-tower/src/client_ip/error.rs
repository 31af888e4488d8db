use std::convert::Infallible;
use std::fmt;

/// A setting that cannot be used. The message names the setting, the value, and what to write instead.
///
/// Only building a configuration can fail; [`ClientIp::resolve`](super::ClientIp::resolve) never does.
///
/// ```
/// use throttle_tower::client_ip::ClientIp;
///
/// let error = ClientIp::x_forwarded_for_hops(0).unwrap_err();
/// assert!(error.to_string().starts_with(r#"hops "0" is out of range; write 1 to 20"#));
/// ```
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

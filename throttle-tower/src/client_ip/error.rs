use std::convert::Infallible;
use std::fmt;

use throttle_core::ConfigError;

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

/// Lets a function that builds limits, and returns [`ConfigError`], name its proxies with `?` as well.
///
/// ```
/// use throttle_tower::{ClientIp, ConfigError, Gcra, Rate, ThrottleLayer, TrustedProxies, limit};
///
/// fn throttle(proxy: &str) -> Result<ThrottleLayer, ConfigError> {
///     let client = ClientIp::x_forwarded_for(TrustedProxies::new([proxy])?);
///     ThrottleLayer::new(limit("per-ip", Gcra::new(Rate::per_second(10))).by(client))
/// }
///
/// assert!(throttle("10.0.0.0/28").is_ok());
/// assert_eq!(throttle("0.0.0.0/0").unwrap_err().field(), "trusted network");
/// ```
impl From<ClientIpError> for ConfigError {
    fn from(error: ClientIpError) -> Self {
        let ClientIpError { field, value, problem, remedy } = error;
        Self::new(field, format_args!("{value:?}"), format!("{problem}; {remedy}"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ClientIp, IpPrefix, TrustedProxies};
    use super::*;

    #[test]
    fn config_error_of_a_client_ip_setting_keeps_value_problem_and_remedy() {
        let no_proxies = TrustedProxies::new([""; 0]).map(|_| ());
        for error in [
            ClientIp::x_forwarded_for_hops(0).map(|_| ()),
            ClientIp::header("x_real_ip", TrustedProxies::new(["10.0.0.1"]).unwrap()).map(|_| ()),
            IpPrefix::new(0, 64).map(|_| ()),
            TrustedProxies::new(["10.0.0.300\x1b"]).map(|_| ()),
            TrustedProxies::new(["0.0.0.0/0"]).map(|_| ()),
            no_proxies,
        ] {
            let error = error.unwrap_err();
            let ClientIpError { field, value, problem, remedy } = error.clone();
            let config = ConfigError::from(error);
            assert_eq!((config.field(), config.policy()), (field, None));
            assert_eq!(config.to_string(), format!("{field} is {value:?}: {problem}; {remedy}"));
        }
    }

    #[test]
    fn question_mark_turns_a_client_ip_error_into_a_config_error() {
        fn client(proxy: &str) -> Result<ClientIp, ConfigError> {
            Ok(ClientIp::x_forwarded_for(TrustedProxies::new([proxy])?))
        }
        assert!(client("10.0.0.1").is_ok());
        let message = client("10.0.0").unwrap_err().to_string();
        assert!(
            message.starts_with(r#"network is "10.0.0": is not an address or a CIDR network; write "#),
            "{message}"
        );
    }
}

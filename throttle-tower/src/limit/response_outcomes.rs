//! Responses by their status, for the rules of a limit that depend on one:
//! [`refund_if`](crate::Limit::refund_if) and [`strike_if`](crate::Limit::strike_if).

use http::{HeaderMap, StatusCode};

/// Returns whether a response is a success or a redirection: 2xx and 3xx. To refund such requests
/// makes a limit one on failures, for example of logins.
#[must_use]
pub fn successful(status: StatusCode, _: &HeaderMap) -> bool {
    status.is_success() || status.is_redirection()
}

/// Returns whether a response is an error, of the client or of the server: 4xx and 5xx. To refund
/// such requests makes a limit one on successful responses.
#[must_use]
pub fn failed(status: StatusCode, _: &HeaderMap) -> bool {
    status.is_client_error() || status.is_server_error()
}

/// Returns whether a response is an error of the server: 5xx.
#[must_use]
pub fn server_error(status: StatusCode, _: &HeaderMap) -> bool {
    status.is_server_error()
}

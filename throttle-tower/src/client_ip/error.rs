use std::fmt;

use throttle_core::ConfigError;

/// A setting that cannot be used: its value has a problem ("is out of range"), and the remedy says
/// what to write instead.
pub(super) fn refused(
    field: &'static str,
    value: impl fmt::Display,
    problem: &str,
    remedy: &str,
) -> ConfigError {
    // Quoted with escapes: the value may come from an environment variable, and this may go to a
    // terminal.
    ConfigError::new(
        field,
        format_args!("{:?}", value.to_string()),
        format!("it {problem}; {remedy}"),
    )
}

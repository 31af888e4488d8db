//! What the crate logs: mistakes in the program around it, each with what to write instead. Without the feature
//! `tracing` nothing is logged.

use std::fmt::Display;

/// Logs a configuration that works, but hardly as intended.
pub(crate) fn warn(message: &dyn Display) {
    #[cfg(feature = "tracing")]
    tracing::warn!("{message}");
    #[cfg(not(feature = "tracing"))]
    let _ = message;
}

/// Logs why a request is answered 500. The response does not say it, because it names parts of the program.
#[cfg(feature = "axum")]
pub(crate) fn error(message: &dyn Display) {
    #[cfg(feature = "tracing")]
    tracing::error!("{message}");
    #[cfg(not(feature = "tracing"))]
    let _ = message;
}

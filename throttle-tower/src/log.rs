//! What the crate logs: mistakes of the program around it, each with what to write instead. Without the feature `tracing`,
//! nothing.

use std::fmt::Display;

/// Logs something that works, but hardly as it was meant.
pub(crate) fn warn(message: &dyn Display) {
    #[cfg(feature = "tracing")]
    tracing::warn!("{message}");
    #[cfg(not(feature = "tracing"))]
    let _ = message;
}

/// Logs why a request is answered 500. The client must not read it: it names what the program is made of.
#[cfg(feature = "axum")]
pub(crate) fn error(message: &dyn Display) {
    #[cfg(feature = "tracing")]
    tracing::error!("{message}");
    #[cfg(not(feature = "tracing"))]
    let _ = message;
}

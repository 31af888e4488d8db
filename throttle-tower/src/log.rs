//! What the crate logs: mistakes in the program around it, each with what to write instead. Without
//! the feature `tracing` nothing is logged.

use std::fmt::Display;
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use crate::lock::lock;

/// Logs a configuration that works, but hardly as intended.
pub(crate) fn warn(message: &dyn Display) {
    #[cfg(feature = "tracing")]
    tracing::warn!("{message}");
    #[cfg(not(feature = "tracing"))]
    let _ = message;
}

/// Logs why a request is answered 500. The response does not say it, because it names parts of the
/// program.
#[cfg(feature = "axum")]
pub(crate) fn error(message: &dyn Display) {
    #[cfg(feature = "tracing")]
    tracing::error!("{message}");
    #[cfg(not(feature = "tracing"))]
    let _ = message;
}

/// How long a warning is not repeated.
const PAUSE: Duration = Duration::from_secs(60);

/// A warning for which many requests may give cause: it is logged at most once a minute, with how
/// often there was cause since.
#[derive(Default)]
pub(crate) struct OncePerMinute(Mutex<Option<LastWarning>>);

struct LastWarning {
    at: Instant,
    kept_back: u64,
}

impl OncePerMinute {
    pub(crate) fn warn(&self, message: &dyn Display) {
        let now = Instant::now();
        let mut last = lock(&self.0);
        let kept_back = match &mut *last {
            Some(LastWarning { at, kept_back }) if now.saturating_duration_since(*at) < PAUSE => {
                *kept_back += 1;
                return;
            }
            last => last.take().map_or(0, |last| last.kept_back),
        };
        *last = Some(LastWarning {
            at: now,
            kept_back: 0,
        });
        drop(last);
        match kept_back {
            0 => warn(message),
            more => warn(&format_args!(
                "{message}; {more} more such causes since the last warning"
            )),
        }
    }
}

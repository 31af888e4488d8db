//! Logs the pauses of keys, and what their resets turn out to be.

use tokio::time::Instant;

use super::error::Pause;
#[cfg(feature = "tracing")]
use super::error::PauseCause;
use super::pauses::Resets;
use super::schedule::Schedule;

// No event contains a key.
impl Schedule {
    /// A pause of a key begins.
    pub(super) fn report_pause(&self, _pause: Pause, _now: Instant) {
        #[cfg(feature = "tracing")]
        if let Some(left_out) = self.events.take(crate::time::wall_micros() / 1_000_000) {
            let wait = _pause.until.saturating_duration_since(_now);
            let (by, status) = match _pause.cause {
                PauseCause::Refusal(status) => ("refused", Some(status.as_u16())),
                PauseCause::NothingLeft => ("nothing_left", None),
                PauseCause::Program => ("program", None),
                PauseCause::Fleet => ("fleet", None),
            };
            tracing::info!(target: "throttle", status, ?wait, by, left_out, "calls paused");
        }
    }
}

/// The resets of a key turn out to be of a kind.
pub(super) fn report_resets(_resets: Resets) {
    #[cfg(feature = "tracing")]
    tracing::debug!(target: "throttle", resets = ?_resets, "resets understood");
}

#[cfg(all(test, feature = "tracing"))]
mod tests;

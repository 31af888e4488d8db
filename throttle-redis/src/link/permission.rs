//! Whether the server may be asked.

use std::sync::Arc;

use super::Link;
use super::call_error::CallError;
use crate::breaker::Permission;

impl Link {
    /// Returns permission to ask.
    #[inline]
    pub(crate) fn permission(self: &Arc<Self>) -> Result<Permission<'_>, CallError> {
        match self.breaker.permission() {
            Some(permission) => Ok(permission),
            None => self.suspended(),
        }
    }

    /// Restarts the task that waits for a sign of life, in case its runtime is gone: no other
    /// request would notice.
    fn suspended(self: &Arc<Self>) -> Result<Permission<'_>, CallError> {
        self.reconnect();
        // The connection was silent, and is being replaced: the request waits for the new one. If
        // that takes longer than a deadline, the network may be at fault, and requests that wait
        // would all do so in vain.
        if self
            .silent_for()
            .is_some_and(|silent| silent < self.deadlines.decision)
            && self.breaker.is_late_only()
        {
            return Ok(Permission::default());
        }
        // Late answers may be the fault of this process as much as of the server: no error shows
        // that the server is broken.
        let is_late_only = self.breaker.is_late_only() && self.current.load().is_some();
        Err(if is_late_only {
            CallError::Overdue
        } else {
            CallError::Suspended
        })
    }

    /// Whether there is a connection and the breaker is not open.
    pub(crate) fn is_healthy(&self) -> bool {
        self.is_connected() && !self.is_silent() && !self.breaker.is_open()
    }
}

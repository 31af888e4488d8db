//! Whether the store may be asked.

use std::sync::Arc;

use super::Link;
use super::call_error::CallError;
use crate::breaker::{Breaker, Permission};

impl Link {
    /// Returns permission to ask about a key of this slot.
    #[inline]
    pub(crate) fn permission(self: &Arc<Self>, slot: u16) -> Result<Permission<'_>, CallError> {
        let breaker = &self.breakers[self.range(slot)];
        match breaker.permission() {
            Some(permission) => Ok(permission),
            None => self.suspended(breaker),
        }
    }

    /// Restarts the task that waits for a sign of life, in case its runtime is gone: no other
    /// request would notice.
    #[cold]
    fn suspended(self: &Arc<Self>, breaker: &Breaker) -> Result<Permission<'_>, CallError> {
        self.reconnect();
        // The connection was silent, and is being replaced: the request waits for the new one. If
        // that takes longer than a deadline, the network may be at fault, and requests that wait
        // would all do so in vain.
        if self
            .silent_for()
            .is_some_and(|silent| silent < self.deadlines.decision)
            && breaker.is_late_only()
        {
            return Ok(Permission::default());
        }
        // Late answers may be the fault of this process as much as of the server: no error shows
        // that the server is broken.
        let is_late_only = breaker.is_late_only() && self.current.load().is_some();
        Err(if is_late_only {
            CallError::Overdue
        } else {
            CallError::Suspended
        })
    }

    /// Whether no breaker is open. A half-open breaker counts as healthy, because it waits for a
    /// decision: if it counted as unhealthy, a process that receives requests only while it is
    /// healthy would wait for ever.
    pub(crate) fn is_healthy(&self) -> bool {
        self.is_connected() && !self.is_silent() && !self.breakers.iter().any(Breaker::is_open)
    }
}

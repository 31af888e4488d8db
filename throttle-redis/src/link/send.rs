//! Sends a command when its server may be asked and there is room for it.

use std::sync::Arc;

use tokio::time::Instant;

use super::Link;
use super::call_error::CallError;
use super::connection::{Command, Reply};
use super::in_flight_limit::{InFlightLimit, InFlightPermit};
use super::live_connection::LiveConnection;
use super::sent_command::{LateAnswer, PATIENCE};
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

    /// Waits until `until` for room for one decision: at the server, or the share of it that a set
    /// may take.
    #[inline]
    pub(crate) async fn room_for_one<'a>(
        &self,
        room: &'a InFlightLimit,
        work: u32,
        until: Instant,
    ) -> Result<InFlightPermit<'a>, CallError> {
        if let Some(held) = room.take_now(work) {
            return Ok(held);
        }
        let _waiting = self.counters.waiting();
        room.take_by(work, until).await.ok_or(CallError::Expired)
    }

    /// Sends a command about a key at `now`, and waits for the answer until `until`. The store has
    /// a full deadline, counted from `now`: the link also learns from an answer that arrives after
    /// the caller's deadline, and `late` receives it.
    ///
    /// Not an `async fn`, whose future would have room for the command.
    pub(crate) fn send<'a>(
        self: &'a Arc<Self>,
        live: &'a Arc<LiveConnection>,
        name: &'a [u8],
        command: Command,
        now: Instant,
        until: Instant,
        late: Option<&'a LateAnswer>,
    ) -> impl Future<Output = Result<Reply, CallError>> + Send + use<'a> {
        let sent = (now < until).then(|| live.send(command, now, self.deadlines.decision));
        async move {
            let mut underway = sent.ok_or(CallError::TooLate)?;
            match underway.answer_by(until).await {
                Some(answer) => {
                    self.answered.note();
                    answer.map_err(CallError::Fault)
                }
                None => {
                    if let Some(late) = late {
                        let patience = self
                            .deadlines
                            .correction
                            .max((PATIENCE + 1) * self.deadlines.decision);
                        let answer;
                        (underway, answer) = underway.forward(patience);
                        *late.lock() = Some(answer);
                    }
                    self.watch(underway, live, name);
                    Err(CallError::Late)
                }
            }
        }
    }
}

//! Sends a command when there is room for it at its server.

use std::sync::Arc;

use tokio::time::Instant;

use super::Link;
use super::call_error::CallError;
use super::connection::{Command, Reply};
use super::in_flight_limit::{InFlightLimit, InFlightPermit};
use super::live_connection::LiveConnection;
use super::sent_command::{LateAnswer, PATIENCE};

impl Link {
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

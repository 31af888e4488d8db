use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::call_error::CallError;
use super::connection::{Command, Connection, Reply};
use super::sent_command::SentCommand;

/// A connection in use.
pub(crate) struct LiveConnection {
    connection: Box<dyn Connection>,
    /// Distinguishes a connection from the one that replaced it.
    pub(super) generation: u64,
}

impl LiveConnection {
    pub(crate) fn new(connection: Box<dyn Connection>, generation: u64) -> Self {
        Self {
            connection,
            generation,
        }
    }

    /// Sends one command and waits for its answer.
    pub(crate) async fn call(&self, command: Command, until: Instant) -> Result<Reply, CallError> {
        // A timeout polls what it waits for before it checks the clock.
        if Instant::now() >= until {
            return Err(CallError::TooLate);
        }
        match timeout_at(until, self.connection.call(command)).await {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(fault)) => Err(CallError::Fault(fault)),
            Err(_) => Err(CallError::Late),
        }
    }

    /// Calls `notify` when the connection ends.
    pub(super) fn on_end(&self, notify: impl FnOnce() + Send + 'static) {
        self.connection.on_end(Box::new(notify));
    }

    /// Sends one command at `now` that the store has `deadline` to answer, however long the caller
    /// waits.
    pub(super) fn send(&self, command: Command, now: Instant, deadline: Duration) -> SentCommand {
        SentCommand::new(self.connection.call(command), now, deadline)
    }
}

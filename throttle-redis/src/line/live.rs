use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::underway::Underway;
use super::{RANGES, SLOTS, Trouble};
use crate::connection::{Command, Connection, Reply};
use crate::owners::Owners;
use crate::script::Script;

/// A connection in use.
pub(crate) struct Live {
    connection: Box<dyn Connection>,
    /// Tells connections apart that replaced one another.
    pub(super) generation: u64,
    /// Who had which slots when it was made; nobody where that does not matter, or was not told.
    pub(super) owners: Owners,
    /// When each script was last loaded, by slot range: one decision loads it for all.
    loading: [tokio::sync::Mutex<HashMap<String, Instant>>; RANGES],
}

impl Live {
    pub(super) fn new(connection: Box<dyn Connection>, generation: u64) -> Self {
        Self { connection, generation, owners: Owners::default(), loading: Default::default() }
    }

    /// Sends one command and waits for its answer.
    pub(crate) async fn call(&self, command: Command, until: Instant) -> Result<Reply, Trouble> {
        // A timeout lets the call begin before it looks at the clock.
        if Instant::now() >= until {
            return Err(Trouble::TooLate);
        }
        match tokio::time::timeout_at(until, self.connection.call(command)).await {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(fault)) => Err(Trouble::Fault(fault)),
            Err(_) => Err(Trouble::Late),
        }
    }

    /// One command that the store has `deadline` to answer, however long its caller waits.
    pub(super) fn send(&self, command: Command, deadline: Duration) -> Underway {
        Underway::new(self.connection.call(command), deadline)
    }

    /// Loads a script into the server of a slot by `load`, unless another decision has since `missed`. Returns whether it
    /// did.
    pub(crate) async fn load(
        &self,
        script: &Script,
        slot: u16,
        missed: Instant,
        until: Instant,
        load: impl Future<Output = Result<Reply, Trouble>>,
    ) -> Result<bool, Trouble> {
        let range = usize::from(slot) * RANGES / SLOTS;
        // The decision that loads it need not be polled on: after half of the time that is left, this one loads it too.
        let now = Instant::now();
        let patience = now + until.saturating_duration_since(now) / 2;
        let mut loaded = tokio::time::timeout_at(patience, self.loading[range].lock()).await.ok();
        if loaded.as_ref().is_some_and(|loaded| loaded.get(script.sha()).is_some_and(|at| *at >= missed)) {
            return Ok(false);
        }
        match load.await {
            Ok(_) => {
                if let Some(loaded) = &mut loaded {
                    loaded.insert(script.sha().to_owned(), Instant::now());
                }
                Ok(true)
            }
            // The decision itself was not sent.
            Err(Trouble::Late) => Err(Trouble::TooLate),
            Err(trouble) => Err(trouble),
        }
    }
}

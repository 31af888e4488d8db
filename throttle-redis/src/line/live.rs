use std::collections::HashMap;

use tokio::time::Instant;

use super::{RANGES, SLOTS, Trouble};
use crate::connection::{Command, Connection, Reply, Route};
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

    /// Loads a script into the server of a slot, unless somebody else has since `missed`. Returns whether it did.
    pub(crate) async fn load(
        &self,
        script: &Script,
        slot: u16,
        route: &Route,
        missed: Instant,
        until: Instant,
    ) -> Result<bool, Trouble> {
        let range = usize::from(slot) * RANGES / SLOTS;
        let waiting = tokio::time::timeout_at(until, self.loading[range].lock()).await;
        let mut loaded = waiting.map_err(|_| Trouble::TooLate)?;
        if loaded.get(script.sha()).is_some_and(|at| *at >= missed) {
            return Ok(false);
        }
        let route = match route.clone() {
            // No key, so nothing to ask for.
            Route::Address { host, port, .. } => Route::Address { host, port, asking: false },
            route => route,
        };
        let load = Command::new("SCRIPT").arg("LOAD").arg(script.source()).to(route);
        match self.call(load, until).await {
            Ok(_) => loaded.insert(script.sha().to_owned(), Instant::now()),
            // The decision itself was not sent.
            Err(Trouble::Late) => return Err(Trouble::TooLate),
            Err(trouble) => return Err(trouble),
        };
        Ok(true)
    }
}

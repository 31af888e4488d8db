use std::collections::HashMap;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::call_error::CallError;
use super::connection::{Command, Connection, Pending, Place, Reply, Route};
use super::hash_slot::{RANGES, SLOTS};
use super::late_answer::SentCommand;
use super::script::Script;
use super::slot_map::SlotMap;

/// A connection in use.
pub(crate) struct LiveConnection {
    connection: Box<dyn Connection>,
    /// Distinguishes a connection from the one that replaced it.
    pub(super) generation: u64,
    /// Which server had which slots when the connection was opened. Empty without a cluster, or if no server answered.
    pub(super) slot_map: SlotMap,
    /// When each script was last loaded, by slot range: one decision loads it for all decisions.
    loading: [tokio::sync::Mutex<HashMap<String, Instant>>; RANGES],
}

impl LiveConnection {
    pub(super) fn new(connection: Box<dyn Connection>, generation: u64) -> Self {
        Self { connection, generation, slot_map: SlotMap::default(), loading: Default::default() }
    }

    /// Sends one command and waits for its answer.
    pub(crate) async fn call(&self, command: Command, until: Instant) -> Result<Reply, CallError> {
        // A timeout polls what it waits for before it checks the clock.
        if Instant::now() >= until {
            return Err(CallError::TooLate);
        }
        let Some(place) = self.connection.place(&command) else { return self.call_at_once(command, until).await };
        let place = timeout_at(until, place).await.map_err(|_| CallError::Expired)?.map_err(CallError::Fault)?;
        answer_by(until, place(command)).await
    }

    /// The same, without waiting for a place: for commands that find out whether a server is alive.
    pub(super) async fn call_at_once(&self, command: Command, until: Instant) -> Result<Reply, CallError> {
        if Instant::now() >= until {
            return Err(CallError::TooLate);
        }
        answer_by(until, self.connection.call(command)).await
    }

    /// Asks a server of a cluster which server has which slots.
    pub(crate) async fn ask_for_slots(&self, server: Route, until: Instant) -> Result<SlotMap, CallError> {
        self.slots_by(Command::new("CLUSTER").arg("SLOTS").to(server), until).await
    }

    /// The same, over the connection that commands about a slot take.
    pub(super) async fn ask_about_slot(&self, slot: u16, server: Route, until: Instant) -> Result<SlotMap, CallError> {
        self.slots_by(Command::new("CLUSTER").arg("SLOTS").to(server).about(slot), until).await
    }

    async fn slots_by(&self, command: Command, until: Instant) -> Result<SlotMap, CallError> {
        let reply = self.call_at_once(command, until).await?;
        SlotMap::read(reply).ok_or(CallError::Malformed("CLUSTER SLOTS answered something else"))
    }

    /// Calls `notify` when the connection ends.
    pub(super) fn on_end(&self, notify: impl FnOnce() + Send + 'static) {
        self.connection.on_end(Box::new(notify));
    }

    /// Waits for a place for a command, if the connection bounds its calls.
    #[inline]
    pub(super) fn place(&self, command: &Command) -> Option<Pending<Place>> {
        self.connection.place(command)
    }

    /// Sends one command at `now` that the store has `deadline` to answer, however long the caller waits.
    pub(super) fn send(&self, command: Command, now: Instant, deadline: Duration) -> SentCommand {
        SentCommand::new(self.connection.call(command), now, deadline)
    }

    /// Loads a script into the server of a slot with `load`, unless another decision has loaded it since `missed`.
    /// Returns whether it did.
    pub(crate) async fn load(
        &self,
        script: &Script,
        slot: u16,
        missed: Instant,
        until: Instant,
        load: impl Future<Output = Result<Reply, CallError>>,
    ) -> Result<bool, CallError> {
        let range = usize::from(slot) * RANGES / SLOTS;
        // The decision that loads the script may never be polled again. After half of the remaining time, this decision
        // loads it too.
        let now = Instant::now();
        let patience = now + until.saturating_duration_since(now) / 2;
        let mut loaded = timeout_at(patience, self.loading[range].lock()).await.ok();
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
            Err(CallError::Late) => Err(CallError::TooLate),
            Err(error) => Err(error),
        }
    }
}

async fn answer_by(until: Instant, call: Pending<Reply>) -> Result<Reply, CallError> {
    match timeout_at(until, call).await {
        Ok(Ok(reply)) => Ok(reply),
        Ok(Err(fault)) => Err(CallError::Fault(fault)),
        Err(_) => Err(CallError::Late),
    }
}

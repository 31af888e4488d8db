//! One script call, at most once: which calls may be repeated, and which may not.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::Link;
use super::call_error::CallError;
use super::connection::{Command, FaultKind, Route};
use super::live_connection::LiveConnection;
use super::script::Script;

/// Redirections followed for one call.
const REDIRECTIONS: u32 = 4;

/// A script with what it is called on.
pub(crate) struct ScriptCall<'a> {
    pub(crate) script: &'a Script,
    pub(crate) keys: &'a [&'a [u8]],
    /// The arguments before the calls: time, slack, headers.
    pub(crate) head: &'a [&'a [u8]],
    pub(crate) rest: &'a [&'a [u8]],
    /// The slot of the keys.
    pub(crate) slot: u16,
}

impl ScriptCall<'_> {
    fn command(&self, route: Route) -> Command {
        let mut command = Command::new("EVALSHA");
        command.push(self.script.sha());
        command.push(self.keys.len().to_string());
        for word in self.keys.iter().chain(self.head).chain(self.rest) {
            command.push(word);
        }
        command.to(route)
    }

    fn load(&self, route: Route) -> Command {
        let route = match route {
            // `ASKING` is for commands with keys, and this one has none.
            Route::Address { host, port, .. } => Route::Address { host, port, asking: false },
            route => route,
        };
        Command::new("SCRIPT").arg("LOAD").arg(self.script.source()).to(route)
    }

    /// Runs the call, and lets the link learn from its outcome.
    pub(crate) async fn run(&self, link: &Arc<Link>, until: Instant) -> Result<Vec<u8>, CallError> {
        let name = self.keys.first().copied().unwrap_or_default();
        let live = link.live_for((self.slot, name), until).await?;
        let answer = match self.run_on(link, &live, name, until).await {
            // The server is healthy: the value of a key is not.
            Err(CallError::Fault(fault)) if *fault.kind() == FaultKind::Script => {
                Err(CallError::Malformed("a script failed on what a key holds"))
            }
            answer => answer,
        };
        link.learn(self.slot, name, Some(&live), answer.as_ref().map(|_| ()));
        answer
    }

    /// Sends the call again only after an answer that proves that it did not run.
    async fn run_on(
        &self,
        link: &Arc<Link>,
        live: &Arc<LiveConnection>,
        name: &[u8],
        until: Instant,
    ) -> Result<Vec<u8>, CallError> {
        let about = (self.slot, name);
        let (mut route, mut redirections, mut pause) = (Route::Slot(self.slot), 0, Duration::from_millis(1));
        for attempt in 0.. {
            if attempt > 0 {
                link.counters.repeat();
            }
            let sent = Instant::now();
            link.counters.called();
            let fault = match link.send(live, about, self.command(route.clone()), until).await {
                Ok(reply) => return reply.into_bytes().ok_or(CallError::Malformed("the script's reply is no string")),
                Err(CallError::Fault(fault)) => fault,
                Err(error) => return Err(error),
            };
            if let Some(redirection) = fault.redirection().filter(|_| redirections < REDIRECTIONS) {
                redirections += 1;
                route = redirection;
                continue;
            }
            route = match fault.kind() {
                FaultKind::NoScript => {
                    // Load into the server that answered, which may differ from the one that the client has for the
                    // slot.
                    let load = link.send(live, about, self.load(route.clone()), until);
                    if live.load(self.script, self.slot, sent, until, load).await? {
                        link.counters.loaded();
                    }
                    route
                }
                // A redirection to a server that the client does not know yet fails; meanwhile the client refreshes its
                // slot map.
                FaultKind::NotSent if redirections > 0 && Instant::now() + pause < until => {
                    sleep_until(Instant::now() + pause).await;
                    pause *= 2;
                    Route::Slot(self.slot)
                }
                FaultKind::NotNow if Instant::now() + pause < until => {
                    sleep_until(Instant::now() + pause).await;
                    pause *= 2;
                    Route::Slot(self.slot)
                }
                _ => return Err(CallError::Fault(fault)),
            };
        }
        unreachable!("attempts end with the deadline at the latest")
    }
}

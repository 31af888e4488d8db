//! Reconnects, and asks for signs of life, while the link is broken.

use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::call_error::CallError;
use super::connection::{Command, Fault, FaultKind, Route};
use super::live_connection::LiveConnection;
use super::script::Script;
use super::{Link, Suspect};
use crate::breaker::Breaker;
use crate::stats::Count;

/// A connection younger than this is not replaced for lack of a sign of life.
const YOUNG: Duration = Duration::from_millis(500);

/// Redirections followed for a sign of life.
const SIGN_REDIRECTIONS: u32 = 2;

impl Link {
    /// Starts the task that reconnects, if the link is broken and no task is running.
    pub(crate) fn reconnect(self: &Arc<Self>) {
        let mut reconnecting = self.reconnecting.lock();
        if !reconnecting.is_at_work() && self.is_broken() {
            reconnecting.start(|number| tokio::spawn(reconnect(Arc::downgrade(self), number)));
        }
    }

    fn goes_on(&self, number: u64) -> bool {
        let step = self.deadlines.connect + self.deadlines.decision;
        self.reconnecting.lock().report(number, step)
    }

    /// Whether the task may end. Checked under the lock, so that a request that finds the link
    /// broken after this starts another task.
    fn is_mended(&self) -> bool {
        let mut reconnecting = self.reconnecting.lock();
        let mended = !self.is_broken();
        if mended {
            reconnecting.end();
        }
        mended
    }

    fn is_broken(&self) -> bool {
        self.needs_connection() || self.breakers.iter().any(Breaker::is_open)
    }

    /// Whether there is no connection, or nothing arrives on it.
    fn needs_connection(&self) -> bool {
        !self.is_connected() || self.is_silent()
    }

    /// Opens a connection. If another task has taken over meanwhile, the connection is dropped: the
    /// runtime of this task stood still, and may do so again.
    async fn connect(self: &Arc<Self>, task: u64) -> Result<(), Fault> {
        let within = self.deadlines.connect;
        let connecting = timeout(within, self.connector.connect(within)).await;
        let opened = connecting.unwrap_or_else(|_| {
            let message = format!("connecting takes longer than connect_timeout, {within:?}");
            Err(Fault::new(FaultKind::NotSent, message))
        });
        match opened {
            Ok(_) if !self.goes_on(task) => Ok(()),
            Ok(connection) => {
                let generation = self.generation.fetch_add(1, Ordering::Relaxed);
                let live = LiveConnection::new(connection, generation);
                self.put_in_use(&Arc::new(live));
                Ok(())
            }
            Err(fault) => {
                let fault = match self.connector.address() {
                    Some(address) => fault.of(address),
                    None => fault,
                };
                self.counters.count(Count::ConnectingFailed);
                self.silent_since.store(0, Ordering::Release);
                self.attempts.send_modify(|attempts| {
                    attempts.failed += 1;
                    attempts.why = Some(fault.clone());
                });
                Err(fault)
            }
        }
    }

    fn put_in_use(self: &Arc<Self>, live: &Arc<LiveConnection>) {
        let was_silent = self.is_silent();
        self.current.store(Some(Arc::clone(live)));
        self.silent_since.store(0, Ordering::Release);
        if was_silent {
            self.renewed.store(self.micros(), Ordering::Relaxed);
            self.breakers.iter().for_each(Breaker::excuse_late);
            self.counters.observed.breaker_changed();
        }
        self.counters.count(Count::Connected);
        self.attempts.send_modify(|attempts| attempts.why = None);
        let (link, generation, opened) = (Arc::downgrade(self), live.generation, Instant::now());
        live.on_end(move || {
            if let Some(link) = link.upgrade() {
                link.note_end(generation, opened);
            }
        });
    }

    /// Asks for a sign of life for each open breaker. Returns whether another connection would
    /// change nothing: each server gave one, or has no memory or no permission for decisions.
    async fn probe(self: &Arc<Self>) -> bool {
        let Some(live) = self.current.load_full() else {
            return false;
        };
        let mut asking = JoinSet::new();
        for range in (0..self.breakers.len()).filter(|range| self.breakers[*range].is_open()) {
            let (link, live) = (Arc::clone(self), Arc::clone(&live));
            asking.spawn(async move {
                match link.sign_of_life(&live, range).await {
                    Ok(()) => {
                        link.breakers[range].half_open();
                        link.counters.observed.breaker_changed();
                        true
                    }
                    Err(CallError::Fault(fault)) => {
                        matches!(fault.kind(), FaultKind::OutOfMemory | FaultKind::Refused)
                    }
                    Err(_) => false,
                }
            });
        }
        let mut all = true;
        while let Some(keeps) = asking.join_next().await {
            all &= keeps.unwrap_or(false);
        }
        all
    }

    /// Runs a script with all that a decision needs: a server that decides nothing, because it is a
    /// replica, is full or denies a command, is no better than one that does not answer.
    pub(super) async fn sign_of_life(
        &self,
        live: &LiveConnection,
        range: usize,
    ) -> Result<(), CallError> {
        static SCRIPT: LazyLock<Script> =
            LazyLock::new(|| Script::new(include_str!("../lua/sign_of_life.lua").to_owned()));
        let Suspect { slot, mut name } = self.suspects[range].lock().clone();
        // The slot and the rights are those of the key. No name of a key has a space.
        name.push(b' ');
        let (until, mut route) = (Instant::now() + self.deadlines.decision, Route::Slot(slot));
        let (mut redirections, mut is_missing) = (0, false);
        loop {
            let call = Command::new("EVALSHA").arg(SCRIPT.sha());
            let mut call = call.arg("1").arg(&name).to(route.clone());
            if is_missing {
                call = call.with_source(SCRIPT.source());
            }
            let fault = match live.call(call, until).await {
                Ok(_) => return Ok(()),
                Err(CallError::Fault(fault)) => fault,
                Err(error) => return Err(error),
            };
            if *fault.kind() == FaultKind::NoScript && !is_missing {
                is_missing = true;
            } else if let Some(redirection) = fault.redirection()
                && redirections < SIGN_REDIRECTIONS
            {
                redirections += 1;
                // Each server has scripts of its own.
                (route, is_missing) = (redirection, false);
            } else {
                return Err(CallError::Fault(fault));
            }
        }
    }
}

/// Connects, and asks for signs of life, until the link works again.
async fn reconnect(link: Weak<Link>, number: u64) {
    let mut warned = false;
    let mut connected_at: Option<Instant> = None;
    loop {
        let going_on = link.upgrade().filter(|link| link.goes_on(number));
        let Some((wait, wanted)) =
            going_on.map(|link| (link.pauses.lock().wait(), Arc::clone(&link.wanted)))
        else {
            return;
        };
        // A request that waits for a connection cuts the pause short.
        if timeout(wait, wanted.notified()).await.is_ok() {
            let going_on = link.upgrade().filter(|link| link.goes_on(number));
            let Some(wait) = going_on.map(|link| link.pauses.lock().short_wait()) else {
                return;
            };
            tokio::time::sleep(wait).await;
        }
        let Some(link) = link.upgrade().filter(|link| link.goes_on(number)) else {
            return;
        };
        link.pauses.lock().begin();
        let stale = connected_at.is_none_or(|at| at.elapsed() > YOUNG);
        // A connection without a sign of life is replaced: its server may have gone silent, or
        // another may have taken its place. The connection of a cluster is also one to servers that
        // answer.
        if link.needs_connection() || (!link.probe().await && stale && !link.is_cluster()) {
            if !link.goes_on(number) {
                return;
            }
            match link.connect(number).await {
                Ok(()) => {
                    connected_at = Some(Instant::now());
                    link.probe().await;
                }
                Err(fault) if !warned => {
                    warned = true;
                    tracing::warn!(%fault, "the rate-limit store cannot be reached; trying on");
                }
                Err(_) => {}
            }
        }
        if link.is_mended() {
            // Requests may wait for the connection that was silent and has answered since.
            link.attempts.send_modify(|_| {});
            return;
        }
    }
}

#[cfg(test)]
mod tests;

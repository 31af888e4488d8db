//! Reconnects, and asks for signs of life, while the link is broken.

use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::call_error::CallError;
use super::connection::{Command, Fault, FaultKind, Reply};
use super::live_connection::LiveConnection;
use super::reconnect_pauses::random;
use super::script::Script;
use super::{Link, LinkKind};
use crate::stats::Count;

/// A connection younger than this is not replaced for lack of a sign of life.
const YOUNG: Duration = Duration::from_millis(500);

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
        self.needs_connection() || self.breaker.is_open()
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
                self.silent_since.clear();
                self.note_failed_attempt(fault.clone());
                Err(fault)
            }
        }
    }

    fn put_in_use(self: &Arc<Self>, live: &Arc<LiveConnection>) {
        let was_silent = self.is_silent();
        self.current.store(Some(Arc::clone(live)));
        self.silent_since.clear();
        if was_silent {
            self.renewed.note();
            self.breaker.excuse_late();
        }
        if self.kind != LinkKind::Member {
            self.counters.count(Count::Connected);
        }
        self.attempts.send_modify(|attempts| attempts.why = None);
        let (link, generation, opened) = (Arc::downgrade(self), live.generation, Instant::now());
        live.on_end(move || {
            if let Some(link) = link.upgrade() {
                link.note_end(generation, opened);
            }
        });
    }

    /// Asks for a sign of life if the breaker is open. Returns whether another connection would
    /// change nothing: the server gave one, or has no memory or no permission for decisions.
    async fn probe(&self) -> bool {
        let Some(live) = self.current.load_full() else {
            return false;
        };
        if !self.breaker.is_open() {
            return true;
        }
        match self.sign_of_life(&live).await {
            Err(CallError::Fault(fault)) if !self.is_answered_by(&fault) => {
                matches!(fault.kind(), FaultKind::OutOfMemory | FaultKind::Refused)
            }
            Ok(_) | Err(CallError::Fault(_)) => {
                self.breaker.half_open();
                // No decision will close the breaker.
                if self.kind == LinkKind::Finder {
                    self.succeed();
                }
                true
            }
            Err(_) => false,
        }
    }

    /// Runs a script with all that a decision needs: a server that decides nothing, because it is a
    /// replica, is full or denies a command, is no better than one that does not answer.
    async fn sign_of_life(&self, live: &LiveConnection) -> Result<Reply, CallError> {
        static SCRIPT: LazyLock<Script> =
            LazyLock::new(|| Script::new(include_str!("../lua/sign_of_life.lua").to_owned()));
        let mut name = self.suspect.lock().clone();
        // The slot and the rights are those of the key. No name of a key has a space.
        name.push(b' ');
        let until = Instant::now() + self.deadlines.decision;
        let call = Command::new("EVALSHA")
            .arg(SCRIPT.sha())
            .arg("1")
            .arg(&name);
        let whole = call.with_source(SCRIPT.source());
        match live.call(call, until).await {
            Err(CallError::Fault(fault)) if *fault.kind() == FaultKind::NoScript => {
                live.call(whole, until).await
            }
            answer => answer,
        }
    }
}

/// Connects, and asks for signs of life, until the link works again.
async fn reconnect(link: Weak<Link>, number: u64) {
    let going_on = || link.upgrade().filter(|link| link.goes_on(number));
    let mut warned = false;
    let mut connected_at: Option<Instant> = None;
    loop {
        let Some((wait, wanted)) = going_on().map(|link| {
            (
                link.pauses.lock().wait(Instant::now()),
                Arc::clone(&link.wanted),
            )
        }) else {
            return;
        };
        // A request that waits for a connection cuts the pause short.
        if timeout(wait, wanted.notified()).await.is_ok() {
            let Some(wait) = going_on().map(|link| link.pauses.lock().short_wait(Instant::now()))
            else {
                return;
            };
            tokio::time::sleep(wait).await;
        }
        let Some(link) = going_on() else {
            return;
        };
        link.pauses.lock().begin(Instant::now(), random());
        let stale = connected_at.is_none_or(|at| at.elapsed() > YOUNG);
        // A connection without a sign of life is replaced: its server may have gone silent, or
        // another may have taken its place.
        if link.needs_connection() || (!link.probe().await && stale) {
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

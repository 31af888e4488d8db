//! The connection in use: which one it is, how long a request waits for one, and what ends it.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::yield_now;
use tokio::time::{Instant, timeout_at};

use super::Link;
use super::call_error::CallError;
use super::connection::{Fault, FaultKind};
use super::live_connection::LiveConnection;

/// How often a request that waits for a connection checks whether the connection is still being
/// opened.
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// The connection may have ended unnoticed if no command was answered for this long before a
/// decision began.
const IDLE: Duration = Duration::from_micros(200);

/// Turns of the runtime until the end of a connection is known: in one its sockets are read, in the
/// next the task of the connection runs.
const TURNS: u32 = 2;

/// A connection that ends this soon, before anything was answered, was of no use to the requests
/// that waited for it.
const AT_ONCE: Duration = Duration::from_millis(20);

impl Link {
    /// Returns the connection. Waits for it while it is being opened, until that fails.
    pub(crate) async fn live(
        self: &Arc<Self>,
        until: Instant,
    ) -> Result<Arc<LiveConnection>, CallError> {
        // The end of the connection may have arrived, and not have been read yet.
        for _ in 0..TURNS {
            yield_now().await;
        }
        match self.current.load_full() {
            Some(live) if !self.is_silent() => Ok(live),
            _ => self.opened(until).await,
        }
    }

    /// Waits for the connection that is being opened.
    async fn opened(self: &Arc<Self>, until: Instant) -> Result<Arc<LiveConnection>, CallError> {
        let mut attempts = self.attempts.subscribe();
        let failed = attempts.borrow().failed;
        loop {
            // The runtime of the task that connects may stand still, so this request checks the
            // task for as long as it waits.
            self.reconnect();
            self.wanted.notify_one();
            let look_again = until.min(Instant::now() + LOOK_AGAIN);
            let is_open = || self.is_connected() && !self.is_silent();
            let settled = attempts.wait_for(|attempts| is_open() || attempts.failed > failed);
            if timeout_at(look_again, settled).await.is_ok() {
                // If a silent connection cannot be replaced, it stays in use.
                return self
                    .current
                    .load_full()
                    .ok_or_else(|| CallError::Fault(self.no_connection()));
            }
            if look_again == until {
                // An attempt that hangs after one that failed is no better news.
                let is_cut_off = !self.is_connected() && self.attempts.borrow().why.is_some();
                return Err(if is_cut_off {
                    CallError::Fault(self.no_connection())
                } else {
                    CallError::TooLate
                });
            }
        }
    }

    fn no_connection(&self) -> Fault {
        let message = match &self.attempts.borrow().why {
            Some(why) => format!("there is no connection: {why}"),
            None => "there is no connection".to_owned(),
        };
        Fault::new(FaultKind::NotSent, message)
    }

    /// Returns the connection for a command about a key. Records a failure if there is none.
    #[inline]
    pub(crate) async fn live_for(
        self: &Arc<Self>,
        name: &[u8],
        now: Instant,
        until: Instant,
    ) -> Result<Arc<LiveConnection>, CallError> {
        if self.is_in_use(now)
            && let Some(live) = self.current.load_full()
        {
            return Ok(live);
        }
        // Boxed because it is rare: every call's future would have room for it.
        let live = Box::pin(self.live(until)).await;
        if let Err(error) = &live {
            self.learn(name, None, Err(error));
        }
        live
    }

    /// Whether a command was answered a moment ago.
    #[inline]
    fn is_in_use(&self, now: Instant) -> bool {
        self.answered.get().is_some_and(|at| at + IDLE > now)
    }

    /// Returns the connection that replaces one on which a command could not be sent, if there is
    /// one in time.
    pub(crate) async fn next_after(
        self: &Arc<Self>,
        live: &LiveConnection,
        until: Instant,
    ) -> Option<Arc<LiveConnection>> {
        self.drop_connection(live);
        let next = self.live(until).await.ok()?;
        (next.generation != live.generation).then_some(next)
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.current.load().is_some()
    }

    /// Whether the connection is being replaced, and nothing has arrived since.
    pub(crate) fn is_silent(&self) -> bool {
        self.silent_for().is_some()
    }

    /// How long a silent connection has been replaced for.
    pub(super) fn silent_for(&self) -> Option<Duration> {
        let since = self.silent_since.get()?;
        (self.answered.get() <= Some(since)).then(|| since.elapsed())
    }

    /// Drops a connection that is of no more use, unless it has been replaced.
    pub(super) fn drop_connection(self: &Arc<Self>, live: &LiveConnection) {
        if self.take(live.generation) {
            self.reconnect();
        }
    }

    /// Notes that a connection has ended, and opens another one. May be called outside of a
    /// runtime.
    pub(super) fn note_end(self: &Arc<Self>, generation: u64, opened: Instant) {
        if self.take(generation) {
            if let Some(kept_back) = self.ends.pass() {
                tracing::info!(
                    kept_back,
                    "the connection to the rate-limit store has ended; another one is opened"
                );
            }
            // Requests that wait for a connection do not wait on for one that ends as soon as it is
            // open.
            if opened.elapsed() < AT_ONCE && self.answered.get() <= Some(opened) {
                let why = "the connection ended as soon as it was open";
                self.note_failed_attempt(Fault::new(FaultKind::NotSent, why));
            }
            self.reconnect_here();
        }
    }

    pub(super) fn note_failed_attempt(&self, why: Fault) {
        self.attempts.send_modify(|attempts| {
            attempts.failed += 1;
            attempts.why = Some(why);
        });
    }

    /// Takes a connection out of use. Returns whether it was in use.
    fn take(&self, generation: u64) -> bool {
        let current = self.current.load();
        if current
            .as_ref()
            .is_none_or(|current| current.generation != generation)
        {
            return false;
        }
        let dropped = self.current.compare_and_swap(&current, None);
        let taken = dropped
            .as_ref()
            .is_some_and(|dropped| dropped.generation == generation);
        if taken {
            self.silent_since.clear();
        }
        taken
    }

    pub(super) fn is_current(&self, generation: u64) -> bool {
        self.current
            .load()
            .as_ref()
            .is_some_and(|current| current.generation == generation)
    }

    /// Starts the task that reconnects if there is a runtime; otherwise the next decision does.
    pub(super) fn reconnect_here(self: &Arc<Self>) {
        if Handle::try_current().is_ok() {
            self.reconnect();
        }
    }
}

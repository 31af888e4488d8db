//! The line to the store: one connection, watched, mended, and not asked while it is down.

mod live;
mod mend;
mod trouble;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::breaker::{Breaker, Failure, Leave};
use crate::connection::{Connector, Fault, FaultKind};
use crate::stats::Counters;

pub(crate) use live::Live;
use mend::{Mender, Pace};
pub(crate) use trouble::Trouble;

/// Hash slots of a cluster, in ranges that each have a breaker: a primary that is down takes the ranges with it that it
/// serves, and leaves the others alone.
const RANGES: usize = 16;
/// How often a request that waits for the first connection looks whether it is still being opened.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
const SLOTS: usize = 16_384;

pub(crate) struct Line {
    connector: Box<dyn Connector>,
    current: ArcSwapOption<Live>,
    /// Counts what became of attempts to connect, for those who wait for the first.
    attempts: watch::Sender<Attempts>,
    breakers: Vec<Breaker>,
    /// Of each breaker's slots the one that failed last, and a key there: whether that server is well says the most.
    suspects: Vec<Mutex<Suspect>>,
    mender: Mutex<Mender>,
    pace: Mutex<Pace>,
    generation: AtomicU64,
    pub(crate) deadline: Duration,
    pub(crate) counters: Counters,
}

#[derive(Clone, Debug, Default)]
struct Suspect {
    slot: u16,
    name: Vec<u8>,
}

#[derive(Clone, Debug, Default)]
struct Attempts {
    failed: u64,
    connected: bool,
    /// Why the last one failed.
    why: Option<Fault>,
}

impl Line {
    pub(crate) fn new(connector: Box<dyn Connector>, deadline: Duration, threshold: u32) -> Arc<Self> {
        let ranges = if connector.is_cluster() { RANGES } else { 1 };
        let line = Arc::new(Self {
            connector,
            current: ArcSwapOption::empty(),
            attempts: watch::Sender::new(Attempts::default()),
            breakers: (0..ranges).map(|_| Breaker::new(threshold)).collect(),
            suspects: (0..ranges).map(|_| Mutex::default()).collect(),
            mender: Mutex::default(),
            pace: Mutex::default(),
            generation: AtomicU64::new(0),
            deadline,
            counters: Counters::default(),
        });
        // Started inside a runtime, the connection is there before the first request is.
        if tokio::runtime::Handle::try_current().is_ok() {
            line.mend();
        }
        line
    }

    pub(crate) fn is_cluster(&self) -> bool {
        self.connector.is_cluster()
    }

    pub(crate) fn range(&self, slot: u16) -> usize {
        usize::from(slot) * self.breakers.len() / SLOTS
    }

    /// Leave to ask for a key of this slot.
    #[inline]
    pub(crate) fn leave(self: &Arc<Self>, slot: u16) -> Result<Leave<'_>, Trouble> {
        let breaker = &self.breakers[self.range(slot)];
        breaker.leave().ok_or_else(|| self.suspended(breaker))
    }

    /// Nobody asks, so nobody else would notice that the runtime of the one who waits for a sign of life is gone.
    #[cold]
    fn suspended(self: &Arc<Self>, breaker: &Breaker) -> Trouble {
        self.mend();
        // Late answers say as much about this process as about the server: no error tells that it is broken.
        let is_late_only = breaker.is_late_only() && self.current.load().is_some();
        if is_late_only { Trouble::Overdue } else { Trouble::Suspended }
    }

    /// Whether no breaker is open. One that is half open waits for a decision: a process that gets no requests because it
    /// is not healthy would wait for ever.
    pub(crate) fn is_healthy(&self) -> bool {
        self.current.load().is_some() && !self.breakers.iter().any(Breaker::is_open)
    }

    /// The connection. Waits only for the very first one: later, who finds none is told so at once.
    pub(crate) async fn live(self: &Arc<Self>, until: Instant) -> Result<Arc<Live>, Trouble> {
        if let Some(live) = self.current.load_full() {
            return Ok(live);
        }
        let mut attempts = self.attempts.subscribe();
        loop {
            // The task that connects may stand still with its runtime: it is looked after for as long as this one waits.
            self.mend();
            let look_again = until.min(Instant::now() + LOOK_AGAIN);
            let settled = attempts.wait_for(|attempts| attempts.connected || attempts.failed > 0);
            if tokio::time::timeout_at(look_again, settled).await.is_ok() {
                return self.current.load_full().ok_or_else(|| Trouble::Fault(self.no_connection()));
            }
            if look_again == until {
                return Err(Trouble::TooLate);
            }
        }
    }

    #[cold]
    fn no_connection(&self) -> Fault {
        let message = match &self.attempts.borrow().why {
            Some(why) => format!("there is no connection: {why}"),
            None => "there is no connection".to_owned(),
        };
        Fault::new(FaultKind::NotSent, message)
    }

    /// Learns from what became of a command about some key.
    #[inline]
    pub(crate) fn learn(self: &Arc<Self>, slot: u16, name: &[u8], live: Option<&Live>, outcome: Result<(), &Trouble>) {
        let breaker = &self.breakers[self.range(slot)];
        let trouble = match outcome {
            Ok(()) => {
                if breaker.succeed() {
                    tracing::info!("the rate-limit store answers again");
                }
                return;
            }
            Err(trouble) => trouble,
        };
        let fault = match trouble {
            // These say nothing about the server.
            Trouble::Suspended | Trouble::Overdue | Trouble::Saturated | Trouble::Nonsense(_) | Trouble::Partly(_) => {
                return;
            }
            Trouble::Late | Trouble::TooLate => None,
            Trouble::Fault(fault) => Some(fault),
        };
        if self.is_cluster() {
            *self.suspects[self.range(slot)].lock() = Suspect { slot, name: name.to_owned() };
        }
        if breaker.fail(fault.map_or(Failure::Late, |_| Failure::Fault)) {
            self.counters.breaker_opened();
            let why = fault.map_or("no answer within the deadline".to_owned(), ToString::to_string);
            tracing::warn!(why, "the rate-limit store fails; it is not asked until it gives a sign of life");
            self.mend();
        }
        let broken = fault.is_some_and(|fault| match fault.kind() {
            FaultKind::ReadOnly => true,
            // A cluster connection mends its own connections, and is replaced when that does not help.
            FaultKind::Lost | FaultKind::NotSent => !self.is_cluster(),
            _ => false,
        });
        if broken && let Some(live) = live {
            self.drop_connection(live);
        }
    }

    /// Lets a connection go that is of no more use, unless it has been replaced.
    fn drop_connection(self: &Arc<Self>, live: &Live) {
        let current = self.current.load();
        if current.as_ref().is_some_and(|current| current.generation == live.generation) {
            let dropped = self.current.compare_and_swap(&current, None);
            if dropped.as_ref().is_some_and(|dropped| dropped.generation == live.generation) {
                self.mend();
            }
        }
    }
}

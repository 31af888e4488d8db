//! The line to the store: one connection, watched, mended, and not asked while it is down.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use throttle_core::{BackendError, BackendErrorKind};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, timeout};

use crate::breaker::{Breaker, Leave};
use crate::connection::{Command, Connection, Connector, Fault, FaultKind, Reply, Route};
use crate::owners::Owners;
use crate::script::Script;
use crate::stats::Counters;

/// Hash slots of a cluster, in ranges that each have a breaker: a primary that is down takes the ranges with it that it
/// serves, and leaves the others alone.
const RANGES: usize = 16;
const SLOTS: usize = 16_384;

/// Shortest time between two attempts to connect, and between two signs of life.
const PAUSE: Duration = Duration::from_millis(100);
/// Longest: the first decision after the store's return is due half a second later.
const LONGEST_PAUSE: Duration = Duration::from_millis(350);
/// After so long without anything to mend, pauses are short again.
const CALM: Duration = Duration::from_secs(2);
/// How long an attempt to connect may take.
const CONNECT: Duration = Duration::from_millis(400);
/// The same for all servers of a cluster: one that hangs is waited for, by the client, and must not stop the others.
const CONNECT_CLUSTER: Duration = Duration::from_secs(1);

/// How long to wait for the list of who has which slots.
const ASKING_FOR_OWNERS: Duration = Duration::from_millis(100);

/// How many servers are asked for it.
const ASKED_FOR_OWNERS: u32 = 4;

/// No text has this digest.
const NO_SCRIPT: &str = "0000000000000000000000000000000000000000";
/// Redirections followed for a sign of life.
const SIGN_REDIRECTIONS: u32 = 2;

pub(crate) struct Line {
    connector: Box<dyn Connector>,
    current: ArcSwapOption<Live>,
    /// Counts what became of attempts to connect, for those who wait for the first.
    attempts: watch::Sender<Attempts>,
    breakers: Vec<Breaker>,
    /// Of each breaker's slots the one that failed last, and a key there: whether that server is well says the most.
    suspects: Vec<Mutex<Suspect>>,
    mender: Mutex<Option<JoinHandle<()>>>,
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

#[derive(Clone, Copy, Debug, Default)]
struct Attempts {
    failed: u64,
    connected: bool,
}

/// A connection in use.
pub(crate) struct Live {
    connection: Box<dyn Connection>,
    generation: u64,
    /// Who had which slots when it was made; nobody where that does not matter, or was not told.
    owners: Owners,
    /// When each script was last loaded, by slot range: one decision loads it for all.
    loading: [tokio::sync::Mutex<HashMap<String, Instant>>; RANGES],
}

impl Live {
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

/// Why a command has no answer.
#[derive(Clone, Debug)]
pub(crate) enum Trouble {
    Fault(Fault),
    /// Sent, and not answered in time.
    Late,
    /// Not sent, and now it is too late.
    TooLate,
    /// Not sent: the breaker is open.
    Suspended,
    /// Not sent: too many wait already.
    Saturated,
    /// The answer makes no sense.
    Nonsense(&'static str),
    /// Something else went wrong, and part of the request stays charged.
    Partly(Box<Trouble>),
}

impl Trouble {
    /// Whether nothing was charged for sure.
    pub(crate) fn is_uncharged(&self) -> bool {
        match self {
            Self::Fault(fault) => fault.did_not_run(),
            Self::TooLate | Self::Suspended | Self::Saturated => true,
            Self::Late | Self::Nonsense(_) | Self::Partly(_) => false,
        }
    }
}

impl From<Trouble> for BackendError {
    fn from(trouble: Trouble) -> Self {
        let kind = trouble.kind();
        let error = if trouble.is_uncharged() { Self::new(kind).uncharged() } else { Self::new(kind) };
        match trouble {
            Trouble::Fault(fault) => error.with_source(fault),
            Trouble::Nonsense(what) => error.with_source(what),
            Trouble::Partly(trouble) => error.with_source(Self::from(*trouble)),
            _ => error,
        }
    }
}

impl Trouble {
    fn kind(&self) -> BackendErrorKind {
        match self {
            Self::Late | Self::TooLate => BackendErrorKind::Timeout,
            Self::Suspended => BackendErrorKind::Suspended,
            Self::Saturated => BackendErrorKind::Saturated,
            Self::Nonsense(_) => BackendErrorKind::Protocol,
            Self::Partly(trouble) => trouble.kind(),
            Self::Fault(fault) => match fault.kind() {
                FaultKind::NotSent | FaultKind::Lost | FaultKind::NotNow | FaultKind::ReadOnly => {
                    BackendErrorKind::Unavailable
                }
                // Followed as far as it led: to a server that does not answer, say.
                FaultKind::Moved(_) | FaultKind::Ask(_) => BackendErrorKind::Unavailable,
                _ => BackendErrorKind::Protocol,
            },
        }
    }
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
        self.breakers[self.range(slot)].leave().ok_or_else(|| self.suspended())
    }

    /// Nobody asks, so nobody else would notice that the runtime of the one who waits for a sign of life is gone.
    #[cold]
    fn suspended(self: &Arc<Self>) -> Trouble {
        self.mend();
        Trouble::Suspended
    }

    /// Whether every breaker is closed.
    pub(crate) fn is_healthy(&self) -> bool {
        self.current.load().is_some() && self.breakers.iter().all(Breaker::is_closed)
    }

    /// The connection. Waits only for the very first one: later, who finds none is told so at once.
    pub(crate) async fn live(self: &Arc<Self>, until: Instant) -> Result<Arc<Live>, Trouble> {
        if let Some(live) = self.current.load_full() {
            return Ok(live);
        }
        self.mend();
        let mut attempts = self.attempts.subscribe();
        let settled = attempts.wait_for(|attempts| attempts.connected || attempts.failed > 0);
        match tokio::time::timeout_at(until, settled).await {
            Ok(_) => {
                let none = || Trouble::Fault(Fault::new(FaultKind::NotSent, "there is no connection"));
                self.current.load_full().ok_or_else(none)
            }
            Err(_) => Err(Trouble::TooLate),
        }
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
            Trouble::Suspended | Trouble::Saturated | Trouble::Nonsense(_) | Trouble::Partly(_) => return,
            Trouble::Late | Trouble::TooLate => None,
            Trouble::Fault(fault) => Some(fault),
        };
        if self.is_cluster() {
            *self.suspects[self.range(slot)].lock() = Suspect { slot, name: name.to_owned() };
        }
        if breaker.fail() {
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

    /// Sees to it that somebody is connecting, or waiting for a sign of life, if that is needed.
    pub(crate) fn mend(self: &Arc<Self>) {
        let mut mender = self.mender.lock();
        // A task whose runtime was shut down is finished too.
        if mender.as_ref().is_none_or(JoinHandle::is_finished) && self.needs_mending() {
            *mender = Some(tokio::spawn(mend(Arc::downgrade(self))));
        }
    }

    /// Whether the mender may go. Under the lock: whoever finds something to mend from now on starts another one.
    fn is_mended(&self) -> bool {
        let mut mender = self.mender.lock();
        let mended = !self.needs_mending();
        if mended {
            *mender = None;
        }
        mended
    }

    fn needs_mending(&self) -> bool {
        self.current.load().is_none() || self.breakers.iter().any(Breaker::is_open)
    }

    async fn connect(&self) -> Result<(), Fault> {
        let limit = if self.is_cluster() { CONNECT_CLUSTER } else { CONNECT };
        let connecting = timeout(limit, self.connector.connect()).await;
        let opened = connecting.unwrap_or_else(|_| Err(Fault::new(FaultKind::NotSent, "connecting took too long")));
        match opened {
            Ok(connection) => {
                let generation = self.generation.fetch_add(1, Ordering::Relaxed);
                let mut live = Live { connection, generation, owners: Owners::default(), loading: Default::default() };
                if self.is_cluster() {
                    live.owners = Owners::ask(&live, Instant::now() + ASKING_FOR_OWNERS).await.unwrap_or_default();
                }
                self.current.store(Some(Arc::new(live)));
                self.counters.connected();
                self.attempts.send_modify(|attempts| attempts.connected = true);
                Ok(())
            }
            Err(fault) => {
                self.counters.connecting_failed();
                self.attempts.send_modify(|attempts| attempts.failed += 1);
                Err(fault)
            }
        }
    }

    /// Asks for a sign of life on behalf of the breakers that are open. Returns whether all of them got one.
    async fn probe(self: &Arc<Self>) -> bool {
        let Some(live) = self.current.load_full() else { return false };
        let mut asking = JoinSet::new();
        for range in (0..self.breakers.len()).filter(|range| self.breakers[*range].is_open()) {
            let (line, live) = (Arc::clone(self), Arc::clone(&live));
            asking.spawn(async move {
                let alive = line.gives_sign_of_life(&live, range).await;
                if alive {
                    line.breakers[range].half_open();
                }
                alive
            });
        }
        let mut all = true;
        while let Some(alive) = asking.join_next().await {
            all &= alive.unwrap_or(false);
        }
        all
    }

    /// Whether a connection without all signs of life is to be replaced. That of a cluster is one to several servers: as long
    /// as others say that the silent one is still to be asked, a new one would be no better, and while it tries to reach
    /// that server it serves nobody.
    async fn is_outdated(&self) -> bool {
        let Some(live) = self.current.load_full().filter(|_| self.is_cluster()) else { return true };
        for _ in 0..ASKED_FOR_OWNERS {
            // Any server is asked, the silent one among them.
            if let Ok(now) = Owners::ask(&live, Instant::now() + self.deadline).await {
                let open = self.breakers.iter().zip(&self.suspects).filter(|(breaker, _)| breaker.is_open());
                let mut slots = open.map(|(_, suspect)| suspect.lock().slot);
                return slots.any(|slot| now.of(slot) != live.owners.of(slot));
            }
        }
        true
    }

    /// Calls a script that nobody has. A `PING` would be answered by a server that has nothing to do with the slot, where
    /// a cluster client asks any other one for a dead one; and a user who may decide need not be allowed anything else.
    async fn gives_sign_of_life(&self, live: &Live, range: usize) -> bool {
        let Suspect { slot, name } = self.suspects[range].lock().clone();
        let (until, mut route) = (Instant::now() + self.deadline, Route::Slot(slot));
        for _ in 0..=SIGN_REDIRECTIONS {
            let call = Command::new("EVALSHA").arg(NO_SCRIPT);
            let call = if self.is_cluster() { call.arg("1").arg(&name) } else { call.arg("0") };
            let Err(Trouble::Fault(fault)) = live.call(call.to(route), until).await else { return false };
            route = match fault.kind() {
                FaultKind::NoScript => return true,
                FaultKind::Moved(Some((host, port))) => {
                    Route::Address { host: host.clone(), port: *port, asking: false }
                }
                FaultKind::Ask(Some((host, port))) => Route::Address { host: host.clone(), port: *port, asking: true },
                _ => return false,
            };
        }
        false
    }
}

/// How often a line is mended. It outlives the one who mends: a server that gives signs of life and fails every decision
/// would otherwise be tried with each of them.
#[derive(Debug, Default)]
struct Pace {
    pause: Duration,
    /// When the last try began, and when the next may.
    last: Option<(Instant, Instant)>,
}

impl Pace {
    /// How long to wait before the next try.
    fn wait(&self) -> Duration {
        self.last.map_or(Duration::ZERO, |(_, next)| next.saturating_duration_since(Instant::now()))
    }

    /// A try begins. The pauses grow, and are short again when nothing was to mend for a while.
    fn begin(&mut self) {
        let now = Instant::now();
        let recently = self.last.is_some_and(|(last, _)| now.saturating_duration_since(last) < CALM);
        self.pause = if recently { (self.pause * 2).min(LONGEST_PAUSE) } else { PAUSE };
        self.last = Some((now, now + jittered(self.pause)));
    }
}

/// Connects, and waits for signs of life, until there is nothing left to mend.
async fn mend(line: std::sync::Weak<Line>) {
    let mut told = false;
    let mut connected_at: Option<Instant> = None;
    loop {
        let Some(wait) = line.upgrade().map(|line| line.pace.lock().wait()) else { return };
        tokio::time::sleep(wait).await;
        let Some(line) = line.upgrade() else { return };
        line.pace.lock().begin();
        let stale = connected_at.is_none_or(|at| at.elapsed() > Duration::from_millis(500));
        // One that gives no sign of life is replaced: its server may have gone silent, or another one taken its place.
        if line.current.load().is_none() || (!line.probe().await && stale && line.is_outdated().await) {
            match line.connect().await {
                Ok(()) => {
                    connected_at = Some(Instant::now());
                    line.probe().await;
                }
                Err(fault) if !told => {
                    told = true;
                    tracing::warn!(%fault, "the rate-limit store cannot be reached; trying on");
                }
                Err(_) => {}
            }
        }
        if line.is_mended() {
            return;
        }
    }
}

/// Half of it to all of it, so that processes that lost the store together do not come back together.
fn jittered(pause: Duration) -> Duration {
    use std::hash::{BuildHasher, RandomState};
    let share = RandomState::new().hash_one(0_u8) % 512;
    pause * (512 + share as u32) / 1024
}

//! Connections opened anew, and signs of life, while something is broken.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, timeout};

use super::{Line, Live, Suspect, Trouble};
use crate::breaker::Breaker;
use crate::connection::{Command, Fault, FaultKind, Route};
use crate::owners::Owners;

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

/// A mender that has not begun by then may never begin: the runtime that it was started in need not be driven.
const BEGINS: Duration = Duration::from_millis(100);
/// How long a mender may take for one step, beyond the deadline of a decision.
const STEP: Duration = Duration::from_secs(2);

/// How long to wait for the list of who has which slots.
const ASKING_FOR_OWNERS: Duration = Duration::from_millis(100);

/// No text has this digest.
const NO_SCRIPT: &str = "0000000000000000000000000000000000000000";
/// Redirections followed for a sign of life.
const SIGN_REDIRECTIONS: u32 = 2;

impl Line {
    /// Sees to it that somebody is connecting, or waiting for a sign of life, if that is needed.
    pub(crate) fn mend(self: &Arc<Self>) {
        let mut mender = self.mender.lock();
        if !mender.is_at_work() && self.needs_mending() {
            mender.last += 1;
            mender.due = Instant::now() + BEGINS;
            mender.task = Some(tokio::spawn(mend(Arc::downgrade(self), mender.last)));
        }
    }

    /// A mender reports before each of its steps. Returns whether it is still the one that mends.
    fn goes_on(&self, number: u64) -> bool {
        let mut mender = self.mender.lock();
        if number < mender.active {
            return false;
        }
        mender.active = number;
        mender.due = Instant::now() + self.deadline + STEP;
        true
    }

    /// Whether the mender may go. Under the lock: a request that finds something to mend from now on starts another one.
    fn is_mended(&self) -> bool {
        let mut mender = self.mender.lock();
        let mended = !self.needs_mending();
        if mended {
            mender.task = None;
        }
        mended
    }

    fn needs_mending(&self) -> bool {
        self.current.load().is_none() || self.breakers.iter().any(Breaker::is_open)
    }

    /// A connection that comes after another mender has taken over is dropped: its runtime stood still, and may again.
    async fn connect(&self, mender: u64) -> Result<(), Fault> {
        let limit = if self.is_cluster() { CONNECT_CLUSTER } else { CONNECT };
        let connecting = timeout(limit, self.connector.connect()).await;
        let opened = connecting.unwrap_or_else(|_| Err(Fault::new(FaultKind::NotSent, "connecting took too long")));
        match opened {
            Ok(_) if !self.goes_on(mender) => Ok(()),
            Ok(connection) => {
                let generation = self.generation.fetch_add(1, Ordering::Relaxed);
                let mut live = Live::new(connection, generation);
                if self.is_cluster() {
                    let until = Instant::now() + ASKING_FOR_OWNERS;
                    live.owners = Owners::ask(&live, Route::Any, until).await.unwrap_or_default();
                }
                self.current.store(Some(Arc::new(live)));
                self.counters.connected();
                self.attempts.send_modify(|attempts| {
                    attempts.connected = true;
                    attempts.why = None;
                });
                Ok(())
            }
            Err(fault) => {
                let fault = match self.connector.address() {
                    Some(address) => Fault::new(fault.kind().clone(), format!("{address}: {fault}")),
                    None => fault,
                };
                self.counters.connecting_failed();
                self.attempts.send_modify(|attempts| {
                    attempts.failed += 1;
                    attempts.why = Some(fault.clone());
                });
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
        let open = self.breakers.iter().zip(&self.suspects).filter(|(breaker, _)| breaker.is_open());
        let slots: Vec<u16> = open.map(|(_, suspect)| suspect.lock().slot).collect();
        let silent: Vec<_> = slots.iter().filter_map(|slot| live.owners.of(*slot)).collect();
        let (mut told, mut moved) = (false, true);
        for server in live.owners.routes_but(&silent) {
            if let Ok(now) = Owners::ask(&live, server, Instant::now() + self.deadline).await {
                told = true;
                // The news spreads; a client that asked one who has not heard it would be no wiser.
                moved &= slots.iter().any(|slot| now.of(*slot) != live.owners.of(*slot));
            }
        }
        moved || !told
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
            if *fault.kind() == FaultKind::NoScript {
                return true;
            }
            let Some(redirection) = fault.redirection() else { return false };
            route = redirection;
        }
        false
    }
}

/// How often a line is mended. It outlives the one who mends: a server that gives signs of life and fails every decision
/// would otherwise be tried with each of them.
#[derive(Debug, Default)]
pub(super) struct Pace {
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

/// The task that mends. Its runtime may be shut down, or stand still, at any point of it: then a request that finds
/// something to mend starts another one where that request runs.
#[derive(Debug)]
pub(super) struct Mender {
    /// How many were started.
    last: u64,
    /// The last one that has reported; those before it end.
    active: u64,
    task: Option<JoinHandle<()>>,
    /// When it has to have reported again.
    due: Instant,
}

impl Default for Mender {
    fn default() -> Self {
        Self { last: 0, active: 0, task: None, due: Instant::now() }
    }
}

impl Mender {
    /// A task whose runtime was shut down is finished too.
    fn is_at_work(&self) -> bool {
        self.task.as_ref().is_some_and(|task| !task.is_finished()) && Instant::now() < self.due
    }
}

/// Connects, and waits for signs of life, until there is nothing left to mend.
async fn mend(line: std::sync::Weak<Line>, number: u64) {
    let mut told = false;
    let mut connected_at: Option<Instant> = None;
    loop {
        let going_on = line.upgrade().filter(|line| line.goes_on(number));
        let Some(wait) = going_on.map(|line| line.pace.lock().wait()) else { return };
        tokio::time::sleep(wait).await;
        let Some(line) = line.upgrade().filter(|line| line.goes_on(number)) else { return };
        line.pace.lock().begin();
        let stale = connected_at.is_none_or(|at| at.elapsed() > Duration::from_millis(500));
        // One that gives no sign of life is replaced: its server may have gone silent, or another one taken its place.
        if line.current.load().is_none() || (!line.probe().await && stale && line.is_outdated().await) {
            if !line.goes_on(number) {
                return;
            }
            match line.connect(number).await {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_until_nothing_was_to_mend_for_a_while() {
        let mut pace = Pace::default();
        assert_eq!(pace.wait(), Duration::ZERO);
        let mut begin = || {
            pace.begin();
            assert!((pace.pause / 2..=pace.pause).contains(&pace.wait()), "{pace:?}");
            pace.pause.as_millis()
        };
        assert_eq!([(); 4].map(|()| begin()), [100, 200, 350, 350]);
        tokio::time::advance(CALM).await;
        assert_eq!(begin(), 100);
    }
}

//! The link to the store: one connection, which is watched, reopened when it breaks, and not used while the store is
//! down.

pub(crate) mod call_error;
pub(crate) mod connection;
mod doubt;
pub(crate) mod hash_slot;
pub(crate) mod in_flight_limit;
mod late_answer;
pub(crate) mod live_connection;
mod moving_slots;
mod reconnect;
mod reconnect_pauses;
pub(crate) mod script;
pub(crate) mod script_call;
mod server_clock;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::task::yield_now;
use tokio::time::{Instant, timeout_at};

use connection::{Command, Connector, Fault, FaultKind, Reply};
use late_answer::{EARLY, SentCommand, Verdict};
use reconnect_pauses::{Pauses, Reconnecting};
use server_clock::ServerClock;

use call_error::CallError;
use doubt::Doubt;
use hash_slot::{RANGES, SLOTS};
use in_flight_limit::{Held, InFlightLimit};
use live_connection::LiveConnection;
use moving_slots::MovingSlots;

use crate::breaker::{Breaker, Failure, Leave};
use crate::counters::Counters;
use crate::observed::Label;
use crate::seldom::Line;
use crate::stats::Count;

/// How often a request that waits for a connection checks whether the connection is still being opened.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// The connection may have ended unnoticed if no command was answered for this long before a decision began.
const IDLE: Duration = Duration::from_micros(200);

/// Turns of the runtime until the end of a connection is known: in one its sockets are read, in the next the task of the
/// connection runs.
const TURNS: u32 = 2;

/// The work under way to a server at a time is a deadline's time divided by this. Further work waits here, and can
/// still be given up uncharged.
const SHARE: u32 = 4;
/// The same share for one of the ranges, of which a server may have several.
const SHARE_OF_RANGE: u32 = 8;

/// A connection that ends this soon, before anything was answered, was of no use to the requests that waited for it.
const AT_ONCE: Duration = Duration::from_millis(20);

const NO_ANSWER: &str = "no answer within the deadline";

pub(crate) struct Link {
    connector: Box<dyn Connector>,
    current: ArcSwapOption<LiveConnection>,
    /// Since when the connection is being replaced because nothing arrives on it, in microseconds since the beginning;
    /// 0 for not at all. Never set for a cluster, whose connection covers several servers.
    silent_since: AtomicU64,
    /// When a silent connection was last replaced, in microseconds since the beginning; 0 for never.
    renewed: AtomicU64,
    /// The outcomes of attempts to connect, for requests that wait for a connection.
    attempts: watch::Sender<Attempts>,
    /// A request waits for a connection.
    wanted: Arc<Notify>,
    breakers: Arc<[Breaker]>,
    /// For each breaker's slots, the slot that failed last and a key in it: it shows best whether that server is
    /// healthy.
    suspects: Vec<Mutex<Suspect>>,
    /// For each breaker's slots, the late answers of a server that is being asked for a sign of life.
    doubts: Vec<Doubt>,
    began: Instant,
    /// For each breaker's slots, when a command was last answered, in microseconds since the beginning.
    answered: Vec<AtomicU64>,
    /// For each breaker's slots, the clock of their server.
    clocks: Vec<ServerClock>,
    /// For each breaker's slots, the work that may be under way.
    pub(crate) room: InFlightLimit,
    pub(crate) moving: MovingSlots,
    reconnecting: Mutex<Reconnecting>,
    pauses: Mutex<Pauses>,
    generation: AtomicU64,
    /// That a connection has ended.
    ends: Line,
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
    /// Why the last attempt failed.
    why: Option<Fault>,
}

impl Link {
    pub(crate) fn new(connector: Box<dyn Connector>, deadline: Duration, threshold: u32, label: Label) -> Arc<Self> {
        let ranges = if connector.is_cluster() { RANGES } else { 1 };
        let breakers: Arc<[Breaker]> = (0..ranges).map(|_| Breaker::new(threshold)).collect();
        let share = if ranges > 1 { SHARE_OF_RANGE } else { SHARE };
        let link = Arc::new(Self {
            connector,
            current: ArcSwapOption::empty(),
            silent_since: AtomicU64::new(0),
            renewed: AtomicU64::new(0),
            wanted: Arc::default(),
            attempts: watch::Sender::new(Attempts::default()),
            counters: Counters::new(label, &breakers),
            breakers,
            suspects: (0..ranges).map(|_| Mutex::default()).collect(),
            doubts: (0..ranges).map(|_| Doubt::default()).collect(),
            began: Instant::now(),
            answered: (0..ranges).map(|_| AtomicU64::new(0)).collect(),
            clocks: (0..ranges).map(|_| ServerClock::default()).collect(),
            room: InFlightLimit::new(ranges, deadline / share),
            moving: MovingSlots::new(),
            reconnecting: Mutex::default(),
            pauses: Mutex::default(),
            generation: AtomicU64::new(0),
            ends: Line::default(),
            deadline,
        });
        // If the backend is built inside a runtime, the connection is ready before the first request.
        link.reconnect_here();
        link
    }

    pub(crate) fn is_cluster(&self) -> bool {
        self.connector.is_cluster()
    }

    /// The limit on the work under way of one set that is not batched: half of the total, so that no set takes all of
    /// it.
    pub(crate) fn room_of_set(&self) -> InFlightLimit {
        self.room.half()
    }

    pub(crate) fn range(&self, slot: u16) -> usize {
        usize::from(slot) * self.breakers.len() / SLOTS
    }

    /// The clock of the server that a slot is at.
    pub(crate) fn clock(&self, slot: u16) -> &ServerClock {
        &self.clocks[self.range(slot)]
    }

    /// Returns permission to ask about a key of this slot.
    #[inline]
    pub(crate) fn leave(self: &Arc<Self>, slot: u16) -> Result<Leave<'_>, CallError> {
        let breaker = &self.breakers[self.range(slot)];
        match breaker.leave() {
            Some(leave) => Ok(leave),
            None => self.suspended(breaker),
        }
    }

    /// Restarts the task that waits for a sign of life, in case its runtime is gone: no other request would notice.
    #[cold]
    fn suspended(self: &Arc<Self>, breaker: &Breaker) -> Result<Leave<'_>, CallError> {
        self.reconnect();
        // The connection was silent, and is being replaced: the request waits for the new one. If that takes longer than a
        // deadline, the network may be at fault, and requests that wait would all do so in vain.
        if self.silent_for().is_some_and(|silent| silent < self.deadline) && breaker.is_late_only() {
            return Ok(Leave::default());
        }
        // Late answers may be the fault of this process as much as of the server: no error shows that the server is
        // broken.
        let is_late_only = breaker.is_late_only() && self.current.load().is_some();
        Err(if is_late_only { CallError::Overdue } else { CallError::Suspended })
    }

    /// Whether no breaker is open. A half-open breaker counts as healthy, because it waits for a decision: if it
    /// counted as unhealthy, a process that receives requests only while it is healthy would wait for ever.
    pub(crate) fn is_healthy(&self) -> bool {
        self.is_connected() && !self.is_silent() && !self.breakers.iter().any(Breaker::is_open)
    }

    /// Returns the connection. Waits for it while it is being opened, until that fails.
    pub(crate) async fn live(self: &Arc<Self>, until: Instant) -> Result<Arc<LiveConnection>, CallError> {
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
            // The runtime of the task that connects may stand still, so this request checks the task for as long as it
            // waits.
            self.reconnect();
            self.wanted.notify_one();
            let look_again = until.min(Instant::now() + LOOK_AGAIN);
            let is_open = || self.is_connected() && !self.is_silent();
            let settled = attempts.wait_for(|attempts| is_open() || attempts.failed > failed);
            if timeout_at(look_again, settled).await.is_ok() {
                // If a silent connection cannot be replaced, it stays in use.
                return self.current.load_full().ok_or_else(|| CallError::Fault(self.no_connection()));
            }
            if look_again == until {
                // An attempt that hangs after one that failed is no better news.
                let is_cut_off = !self.is_connected() && self.attempts.borrow().why.is_some();
                return Err(if is_cut_off { CallError::Fault(self.no_connection()) } else { CallError::TooLate });
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

    /// Returns the connection for a command about a key. Records a failure if there is none.
    #[inline]
    pub(crate) async fn live_for(
        self: &Arc<Self>,
        (slot, name): (u16, &[u8]),
        now: Instant,
        until: Instant,
    ) -> Result<Arc<LiveConnection>, CallError> {
        if self.is_in_use(self.range(slot), now)
            && let Some(live) = self.current.load_full()
        {
            return Ok(live);
        }
        // Boxed because it is rare: every call's future would have room for it.
        let live = Box::pin(self.live(until)).await;
        if let Err(error) = &live {
            self.learn(slot, name, None, Err(error));
        }
        live
    }

    /// Whether a command was answered a moment ago.
    #[inline]
    fn is_in_use(&self, range: usize, now: Instant) -> bool {
        let answered = Duration::from_micros(self.answered[range].load(Ordering::Relaxed));
        self.began + answered + IDLE > now
    }

    /// Returns the connection that replaces one on which a command could not be sent, or what came of that.
    pub(crate) async fn next_after<T>(
        self: &Arc<Self>,
        live: &LiveConnection,
        not_sent: T,
        until: Instant,
    ) -> Result<Arc<LiveConnection>, T> {
        self.drop_connection(live);
        match self.live(until).await {
            Ok(next) if next.generation != live.generation => Ok(next),
            _ => Err(not_sent),
        }
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.current.load().is_some()
    }

    /// Whether the connection is being replaced, and nothing has arrived since.
    pub(crate) fn is_silent(&self) -> bool {
        self.silent_for().is_some()
    }

    /// How long a silent connection has been replaced for.
    fn silent_for(&self) -> Option<Duration> {
        let since = self.silent_since.load(Ordering::Acquire);
        let is_silent = since > 0 && self.answered[0].load(Ordering::Relaxed) <= since;
        is_silent.then(|| Duration::from_micros(self.micros().saturating_sub(since)))
    }

    /// Waits until `until` for room for one decision: at the server, or the share of it that a set may take.
    #[inline]
    pub(crate) async fn room_for_one<'a>(
        &self,
        room: &'a InFlightLimit,
        (slot, work): (u16, u32),
        until: Instant,
    ) -> Result<Held<'a>, CallError> {
        let range = self.range(slot);
        if let Some(held) = room.take_now(range, work) {
            return Ok(held);
        }
        let _waiting = self.counters.observed.waiting();
        room.take_by(range, work, until).await.ok_or(CallError::Expired)
    }

    /// Waits for room at the server of a slot until `until`.
    #[inline]
    pub(crate) async fn room_by(&self, slot: u16, work: u32, until: Instant) -> Result<Held<'_>, CallError> {
        self.room.take_by(self.range(slot), work, until).await.ok_or(CallError::Expired)
    }

    /// Sends a command about a key at `now`, and waits for the answer until `until`. The store has a full deadline,
    /// counted from `now`: the link also learns from an answer that arrives after the caller's deadline.
    ///
    /// Not an `async fn`, whose future would have room for the command.
    pub(crate) fn send<'a>(
        self: &'a Arc<Self>,
        live: &'a Arc<LiveConnection>,
        (slot, name): (u16, &'a [u8]),
        command: Command,
        now: Instant,
        until: Instant,
    ) -> impl Future<Output = Result<Reply, CallError>> + Send + use<'a> {
        let sent = (now < until).then(|| live.send(command, now, self.deadline));
        async move {
            let mut underway = sent.ok_or(CallError::TooLate)?;
            match underway.answer_by(until).await {
                Some(answer) => {
                    self.note_answer(self.range(slot));
                    answer.map_err(CallError::Fault)
                }
                None => {
                    self.watch(underway, live, (slot, name));
                    Err(CallError::Late)
                }
            }
        }
    }

    fn note_answer(&self, range: usize) {
        self.answered[range].store(self.micros(), Ordering::Relaxed);
    }

    /// Microseconds since the beginning.
    fn micros(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// Whether the server has answered a command that was still waited for at `instant` or later.
    fn has_answered_since(&self, range: usize, instant: Instant) -> bool {
        let answered = Duration::from_micros(self.answered[range].load(Ordering::Relaxed));
        self.began + answered > instant
    }

    /// Learns the outcome of a command whose caller no longer waits.
    fn watch(self: &Arc<Self>, underway: SentCommand, live: &Arc<LiveConnection>, (slot, name): (u16, &[u8])) {
        let (range, sent) = (self.range(slot), underway.sent());
        self.note_silence(live, range, sent);
        if underway.is_overdue() && !self.has_answered_since(range, sent) {
            return self.note_late((slot, name), live, sent);
        }
        let (link, live, name) = (Arc::clone(self), Arc::clone(live), name.to_owned());
        tokio::spawn(async move {
            match underway.verdict(|| link.has_answered_since(range, sent)).await {
                Verdict::Answered(Err(fault)) if !fault.is_a_sign_of_life() => {
                    link.learn(slot, &name, Some(&live), Err(&CallError::Fault(fault)));
                }
                Verdict::Answered(_) => link.learn(slot, &name, Some(&live), Ok(())),
                Verdict::Late => {
                    link.note_silence(&live, range, sent);
                    link.note_late((slot, &name), &live, sent);
                }
                Verdict::Undecided => {}
            }
        });
    }

    /// Counts a late answer. If a server of a cluster has answered nothing else either, it is asked for a sign of life
    /// first: the connection to it may have ended without a word, and is opened again for that.
    fn note_late(self: &Arc<Self>, (slot, name): (u16, &[u8]), live: &Arc<LiveConnection>, sent: Instant) {
        let range = self.range(slot);
        if !self.is_cluster() && !self.is_current(live.generation) {
            // It says nothing about the connection that has replaced its own.
            return;
        }
        if !self.is_cluster() || self.has_answered_since(range, sent) {
            return self.fail(slot, name, Failure::Late, NO_ANSWER);
        }
        *self.suspects[range].lock() = Suspect { slot, name: name.to_owned() };
        if !self.doubts[range].add(2 * self.deadline) {
            return;
        }
        let (link, live, name) = (Arc::clone(self), Arc::clone(live), name.to_owned());
        tokio::spawn(async move {
            let is_alive = link.gives_sign_of_life(&live, range).await;
            let late = link.doubts[range].end();
            let failures = if is_alive { 0 } else { late };
            for _ in 0..failures {
                link.fail(slot, &name, Failure::Late, NO_ANSWER);
            }
        });
    }

    /// If nothing has arrived within a deadline since a command was sent, the connection may have ended without a word:
    /// another one is opened, and replaces it. Whether the store is at fault is decided later.
    fn note_silence(self: &Arc<Self>, live: &LiveConnection, range: usize, sent: Instant) {
        let is_over = sent.elapsed() + EARLY >= self.deadline;
        // If nothing has arrived since a silent connection was replaced, the connection was not at fault.
        let renewed = self.renewed.load(Ordering::Relaxed);
        let may_help = renewed == 0 || self.answered[0].load(Ordering::Relaxed) > renewed;
        if is_over
            && may_help
            && !self.is_cluster()
            && self.is_current(live.generation)
            && !self.has_answered_since(range, sent)
        {
            self.silent_since.store(self.micros().max(1), Ordering::Release);
            self.reconnect();
        }
    }

    /// Learns from the answer to a command about a key. A missing answer is counted by [`send`](Self::send), because
    /// the caller's deadline may end before the store's.
    #[inline]
    pub(crate) fn learn(
        self: &Arc<Self>,
        slot: u16,
        name: &[u8],
        live: Option<&LiveConnection>,
        outcome: Result<(), &CallError>,
    ) {
        let fault = match outcome {
            Ok(()) => {
                if self.breakers[self.range(slot)].succeed() {
                    self.counters.observed.breaker_changed();
                    tracing::info!("the rate-limit store answers again");
                }
                return;
            }
            Err(CallError::Fault(fault)) => fault,
            // These errors say nothing about the server.
            Err(_) => return,
        };
        self.fail(slot, name, Failure::Fault, fault);
        let broken = match fault.kind() {
            FaultKind::ReadOnly => true,
            // A cluster connection reopens its own connections. It is replaced only if that does not help.
            FaultKind::Lost | FaultKind::NotSent => !self.is_cluster(),
            _ => false,
        };
        if broken && let Some(live) = live {
            self.drop_connection(live);
        }
    }

    /// Counts a failure of the store.
    fn fail(self: &Arc<Self>, slot: u16, name: &[u8], failure: Failure, why: impl fmt::Display) {
        if self.is_cluster() {
            *self.suspects[self.range(slot)].lock() = Suspect { slot, name: name.to_owned() };
        }
        if self.breakers[self.range(slot)].fail(failure) {
            self.counters.count(Count::BreakerOpened);
            self.counters.observed.breaker_changed();
            tracing::warn!(%why, "the rate-limit store fails; it is not asked until it gives a sign of life");
            self.reconnect();
        }
    }

    /// Drops a connection that is of no more use, unless it has been replaced.
    fn drop_connection(self: &Arc<Self>, live: &LiveConnection) {
        if self.take(live.generation) {
            self.reconnect();
        }
    }

    /// Notes that a connection has ended, and opens another one. May be called outside of a runtime.
    fn note_end(self: &Arc<Self>, generation: u64, opened: Instant) {
        if self.take(generation) {
            if let Some(kept_back) = self.ends.pass() {
                tracing::info!(kept_back, "the connection to the rate-limit store has ended; another one is opened");
            }
            // Requests that wait for a connection do not wait on for one that ends as soon as it is open.
            let answered =
                Duration::from_micros(self.answered.iter().map(|at| at.load(Ordering::Relaxed)).max().unwrap_or(0));
            if opened.elapsed() < AT_ONCE && self.began + answered <= opened {
                self.attempts.send_modify(|attempts| {
                    attempts.failed += 1;
                    attempts.why = Some(Fault::new(FaultKind::NotSent, "the connection ended as soon as it was open"));
                });
            }
            self.reconnect_here();
        }
    }

    /// Takes a connection out of use. Returns whether it was in use.
    fn take(&self, generation: u64) -> bool {
        let current = self.current.load();
        if current.as_ref().is_none_or(|current| current.generation != generation) {
            return false;
        }
        let dropped = self.current.compare_and_swap(&current, None);
        let taken = dropped.as_ref().is_some_and(|dropped| dropped.generation == generation);
        if taken {
            self.silent_since.store(0, Ordering::Release);
        }
        taken
    }

    fn is_current(&self, generation: u64) -> bool {
        self.current.load().as_ref().is_some_and(|current| current.generation == generation)
    }

    /// Starts the task that reconnects if there is a runtime; otherwise the next decision does.
    fn reconnect_here(self: &Arc<Self>) {
        if Handle::try_current().is_ok() {
            self.reconnect();
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;

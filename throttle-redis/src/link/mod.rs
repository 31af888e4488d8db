//! The link to the store: one connection, which is watched, reopened when it breaks, and not used while the store is
//! down.

pub(crate) mod breaker;
pub(crate) mod call_error;
pub(crate) mod connection;
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
mod slot_map;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use breaker::{Breaker, Failure, Leave};
use connection::{Command, Connector, Fault, FaultKind, Pending, Place, Reply};
use late_answer::{SentCommand, Verdict};
use reconnect_pauses::{Pauses, Reconnecting};
use server_clock::ServerClock;

use call_error::CallError;
use hash_slot::{RANGES, SLOTS};
use in_flight_limit::{Held, InFlightLimit};
use live_connection::LiveConnection;
use moving_slots::MovingSlots;

use crate::observed::Label;
use crate::stats::Counters;

/// How often a request that waits for the first connection checks whether the connection is still being opened.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// The work under way to a server at a time is a deadline's time divided by this. Further work waits here, and can
/// still be given up uncharged.
const SHARE: u32 = 4;
/// The same share for one of the ranges, of which a server may have several.
const SHARE_OF_RANGE: u32 = 8;

const NO_ANSWER: &str = "no answer within the deadline";

pub(crate) struct Link {
    connector: Box<dyn Connector>,
    current: ArcSwapOption<LiveConnection>,
    /// The outcomes of attempts to connect, for requests that wait for the first connection.
    attempts: watch::Sender<Attempts>,
    breakers: Arc<[Breaker]>,
    /// For each breaker's slots, the slot that failed last and a key in it: it shows best whether that server is
    /// healthy.
    suspects: Vec<Mutex<Suspect>>,
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
            attempts: watch::Sender::new(Attempts::default()),
            counters: Counters::new(label, &breakers),
            breakers,
            suspects: (0..ranges).map(|_| Mutex::default()).collect(),
            began: Instant::now(),
            answered: (0..ranges).map(|_| AtomicU64::new(0)).collect(),
            clocks: (0..ranges).map(|_| ServerClock::default()).collect(),
            room: InFlightLimit::new(ranges, deadline / share),
            moving: MovingSlots::new(),
            reconnecting: Mutex::default(),
            pauses: Mutex::default(),
            generation: AtomicU64::new(0),
            deadline,
        });
        // If the backend is built inside a runtime, the connection is ready before the first request.
        if tokio::runtime::Handle::try_current().is_ok() {
            link.reconnect();
        }
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
        breaker.leave().ok_or_else(|| self.suspended(breaker))
    }

    /// Restarts the task that waits for a sign of life, in case its runtime is gone: no other request would notice.
    #[cold]
    fn suspended(self: &Arc<Self>, breaker: &Breaker) -> CallError {
        self.reconnect();
        // Late answers may be the fault of this process as much as of the server: no error shows that the server is
        // broken.
        let is_late_only = breaker.is_late_only() && self.current.load().is_some();
        if is_late_only { CallError::Overdue } else { CallError::Suspended }
    }

    /// Whether no breaker is open. A half-open breaker counts as healthy, because it waits for a decision: if it
    /// counted as unhealthy, a process that receives requests only while it is healthy would wait for ever.
    pub(crate) fn is_healthy(&self) -> bool {
        self.current.load().is_some() && !self.breakers.iter().any(Breaker::is_open)
    }

    /// Returns the connection. Waits only for the very first one: later, a request without a connection fails at once.
    pub(crate) async fn live(self: &Arc<Self>, until: Instant) -> Result<Arc<LiveConnection>, CallError> {
        match self.current.load_full() {
            Some(live) => Ok(live),
            // Boxed because it is rare: every call's future would have room for it.
            None => Box::pin(self.first(until)).await,
        }
    }

    async fn first(self: &Arc<Self>, until: Instant) -> Result<Arc<LiveConnection>, CallError> {
        let mut attempts = self.attempts.subscribe();
        loop {
            // The runtime of the task that connects may stand still, so this request checks the task for as long as it
            // waits.
            self.reconnect();
            let look_again = until.min(Instant::now() + LOOK_AGAIN);
            let settled = attempts.wait_for(|attempts| attempts.connected || attempts.failed > 0);
            if tokio::time::timeout_at(look_again, settled).await.is_ok() {
                return self.current.load_full().ok_or_else(|| CallError::Fault(self.no_connection()));
            }
            if look_again == until {
                return Err(CallError::TooLate);
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
    pub(crate) async fn live_for(
        self: &Arc<Self>,
        (slot, name): (u16, &[u8]),
        until: Instant,
    ) -> Result<Arc<LiveConnection>, CallError> {
        let live = self.live(until).await;
        if let Err(error) = &live {
            self.learn(slot, name, None, Err(error));
        }
        live
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.current.load().is_some()
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

    /// Sends a command about a key, and waits for the answer until `until`. The store has a full deadline, counted from
    /// here: the link also learns from an answer that arrives after the caller's deadline.
    pub(crate) async fn send(
        self: &Arc<Self>,
        live: &Arc<LiveConnection>,
        (slot, name): (u16, &[u8]),
        command: Command,
        until: Instant,
    ) -> Result<Reply, CallError> {
        let now = Instant::now();
        if now >= until {
            return Err(CallError::TooLate);
        }
        let mut underway = match live.place(&command) {
            None => live.send(command, now, self.deadline),
            // Boxed because most connections have no bound: every call's future would have room for it.
            Some(place) => Box::pin(self.send_from(place, command, until)).await?,
        };
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

    /// Waits for a place until `until`. The store's deadline begins when there is one.
    async fn send_from(
        &self,
        place: Pending<Place>,
        command: Command,
        until: Instant,
    ) -> Result<SentCommand, CallError> {
        let place = timeout_at(until, place).await.map_err(|_| CallError::Expired)?.map_err(CallError::Fault)?;
        Ok(SentCommand::new(place(command), Instant::now(), self.deadline))
    }

    fn note_answer(&self, range: usize) {
        let micros = u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.answered[range].store(micros, Ordering::Relaxed);
    }

    /// Whether the server has answered a command that was still waited for at `instant` or later.
    fn has_answered_since(&self, range: usize, instant: Instant) -> bool {
        let answered = Duration::from_micros(self.answered[range].load(Ordering::Relaxed));
        self.began + answered > instant
    }

    /// Learns the outcome of a command whose caller no longer waits.
    fn watch(self: &Arc<Self>, underway: SentCommand, live: &Arc<LiveConnection>, (slot, name): (u16, &[u8])) {
        let (range, sent) = (self.range(slot), underway.sent());
        if underway.is_overdue() && !self.has_answered_since(range, sent) {
            return self.fail(slot, name, Failure::Late, NO_ANSWER);
        }
        let (link, live, name) = (Arc::clone(self), Arc::clone(live), name.to_owned());
        tokio::spawn(async move {
            match underway.verdict(|| link.has_answered_since(range, sent)).await {
                Verdict::Answered(Err(fault)) if !fault.is_a_sign_of_life() => {
                    link.learn(slot, &name, Some(&live), Err(&CallError::Fault(fault)));
                }
                Verdict::Answered(_) => link.learn(slot, &name, Some(&live), Ok(())),
                Verdict::Late => link.fail(slot, &name, Failure::Late, NO_ANSWER),
                Verdict::Undecided => {}
            }
        });
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
            self.counters.breaker_opened();
            self.counters.observed.breaker_changed();
            tracing::warn!(%why, "the rate-limit store fails; it is not asked until it gives a sign of life");
            self.reconnect();
        }
    }

    /// Drops a connection that is of no more use, unless it has been replaced.
    fn drop_connection(self: &Arc<Self>, live: &LiveConnection) {
        let current = self.current.load();
        if current.as_ref().is_some_and(|current| current.generation == live.generation) {
            let dropped = self.current.compare_and_swap(&current, None);
            if dropped.as_ref().is_some_and(|dropped| dropped.generation == live.generation) {
                self.reconnect();
            }
        }
    }
}

#[cfg(test)]
mod tests;

//! The calls of one key that wait for their turns.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use smallvec::SmallVec;
use throttle_core::Timestamp;
use throttle_core::backend::Receipt;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::demand::Demand;
use super::error::{Pause, QueueFull, ShapeError};
use super::pauses::Pauses;

/// A call that does not come when its turn is offered to it passes the turn on after this time.
const GRACE: Duration = Duration::from_millis(5);

/// The calls of one key that wait, in the order of their classes, and of each class in the order in
/// which they came.
///
/// Nothing is reserved for a call. When a turn is due, it is offered to the first call, whose
/// future is woken and takes it. If that future is not polled, the turn is offered to the next
/// ones, each time to twice as many: the future stands *aside* until it is polled again, and then
/// has its former position.
pub(super) struct CallQueue {
    calls: BTreeMap<u64, Box<HeldCall>>,
    /// The tickets of those that do not stand aside. A ticket begins with the index of its class.
    pub(super) ready: BTreeSet<u64>,
    tickets: u64,
    /// How long the turns of the ready calls of each class take, the highest class first.
    lengths: SmallVec<[Duration; 1]>,
    /// No turn begins before, as far as the backend has said.
    pub(super) due: Due,
    pub(super) pauses: Pauses,
    /// Whether it is counted among the paused keys.
    is_counted: bool,
    /// Whether calls were held for an answer since the last one left: the turn that was held back
    /// begins when it is taken.
    was_held: bool,
    /// No bound of a ready call ends before.
    bounds_end: Instant,
    pub(super) offer: Option<Offer>,
    /// Turns that a store has granted, and that no call has taken yet.
    pub(super) turns: VecDeque<PaceTurn>,
    /// Whether the backend decides without being waited for. Then a call that takes its turn asks
    /// for it itself.
    pub(super) decides_now: bool,
    /// Whether calls cost of other units as well: those that do not may leave earlier.
    is_by_units: bool,
    pub(super) driver: Option<Driver>,
    pub(super) aftermath: Aftermath,
}

/// How many bits of a ticket follow its class.
const CLASS_SHIFT: u32 = 48;

fn class_of(ticket: u64) -> usize {
    (ticket >> CLASS_SHIFT) as usize
}

/// A call that waits.
pub(super) struct HeldCall {
    pub(super) demand: Demand,
    /// How long its turn takes.
    pub(super) length: Duration,
    /// Those of a call that comes now, of which a class may have stricter ones.
    pub(super) bounds: Bounds,
    /// When it came, or the call that it passed: with that call's turn.
    pub(super) came: Instant,
    /// The latest instant at which its turn may begin.
    pub(super) latest: Instant,
    waker: Option<Waker>,
    refused: Option<Box<ShapeError>>,
}

/// By when the turn of a call has to begin.
#[derive(Clone, Copy)]
pub(super) struct Bounds {
    pub(super) latest: Instant,
    /// The refusal of a call that comes too late, but for the time after which to come back.
    pub(super) full: QueueFull,
}

/// An instant by tokio's clock, and by the backend's where that is known. The first cannot stand
/// for the second, because parts of a microsecond would add up.
#[derive(Clone, Copy)]
pub(super) struct Due {
    pub(super) at: Instant,
    pub(super) by_backend: Option<Timestamp>,
}

pub(super) struct Offer {
    expires: Instant,
    /// To how many calls, the first of which has a ticket from this one on.
    pub(super) calls: usize,
    pub(super) from: u64,
}

/// A turn that a store has granted.
pub(super) struct PaceTurn {
    pub(super) at: Instant,
    pub(super) cost: u64,
    /// Of other units.
    pub(super) units: Option<Box<[u64]>>,
    pub(super) receipt: Option<Box<Receipt>>,
}

/// What is to be done next for a key.
pub(super) enum NextStep {
    /// No call is ready.
    Nothing,
    /// Nothing before that instant.
    At(Instant),
    /// To ask the store for the turn of the first call.
    Ask,
}

/// A call that was polled.
pub(super) enum CallState {
    Left(Option<Box<Receipt>>),
    Refused(ShapeError),
    Waits {
        /// When its turn should have come.
        look_at: Instant,
        /// Whether its key needs a driver.
        needs_driver: bool,
    },
}

/// The task that offers the turns of a key.
pub(super) struct Driver {
    /// When it acts next, and how it is woken to act earlier.
    pub(super) next: Instant,
    pub(super) wakes: Arc<Notify>,
}

/// What a change of a queue has left to be done when nothing is locked.
#[derive(Default)]
pub(super) struct Aftermath {
    pub(super) wakers: SmallVec<[Waker; 4]>,
    pub(super) driver: Option<Arc<Notify>>,
    /// Wakers that were replaced, to be dropped: what they hold may be a call that waits.
    pub(super) replaced: SmallVec<[Waker; 1]>,
    /// Turns that no call takes.
    pub(super) unused: SmallVec<[Box<Receipt>; 1]>,
    /// Calls that are gone, to be dropped.
    pub(super) removed: SmallVec<[Box<HeldCall>; 1]>,
}

impl CallQueue {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            calls: BTreeMap::new(),
            ready: BTreeSet::new(),
            tickets: 0,
            lengths: SmallVec::new(),
            due: Due::at(now),
            pauses: Pauses::new(now),
            is_counted: false,
            was_held: false,
            bounds_end: now,
            offer: None,
            turns: VecDeque::new(),
            decides_now: false,
            is_by_units: false,
            driver: None,
            aftermath: Aftermath::default(),
        }
    }

    pub(super) fn has_ready_calls(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Whether nothing would be lost with it. To ask a store again when the next turn is due takes
    /// a round trip.
    pub(super) fn is_idle(&self, now: Instant) -> bool {
        let is_known = !self.decides_now && !self.is_by_units && self.due.at > now;
        self.calls.is_empty() && self.turns.is_empty() && !is_known && !self.pauses.is_needed(now)
    }

    /// When the next turn begins, as far as is known.
    pub(super) fn start(&self) -> Instant {
        self.due.at.max(self.pauses.end())
    }

    /// When the turn began that a call takes now.
    pub(super) fn turn_of(&self, call: &HeldCall, now: Instant) -> Instant {
        if self.was_held {
            now
        } else {
            self.start().max(call.came)
        }
    }

    /// When the turn of a call of the ticket's class begins that comes now, if no call of a higher
    /// class follows.
    pub(super) fn start_of_next(&self, ticket: u64, now: Instant) -> Instant {
        let lengths = self.lengths.iter().take(class_of(ticket) + 1);
        let before = lengths.fold(Duration::ZERO, |sum, length| sum.saturating_add(*length));
        self.start().max(now) + self.pauses.stretched(before, now)
    }

    /// The refusal of a call whose turn would begin then.
    pub(super) fn refusal(&self, bounds: &Bounds, start: Instant, now: Instant) -> QueueFull {
        let is_cause = |pause: &Pause| pause.until >= self.due.at;
        QueueFull {
            retry_after: Some(start.saturating_duration_since(bounds.latest)),
            pause: self.pauses.paused(now).filter(is_cause),
            ..bounds.full
        }
    }

    /// The ticket of a call that comes now.
    pub(super) fn next_ticket(&self, class: u16) -> u64 {
        (u64::from(class) << CLASS_SHIFT) | self.tickets
    }

    /// Joins the end of its class.
    pub(super) fn join(
        &mut self,
        ticket: u64,
        demand: Demand,
        length: Duration,
        bounds: Bounds,
        door: Bounds,
        now: Instant,
    ) {
        self.tickets += 1;
        self.is_by_units = demand.units.is_some();
        // Of a lower class.
        let passed = self.ready.range(ticket..).next();
        let came = passed
            .and_then(|passed| self.call(*passed))
            .map_or(now, |passed| passed.came);
        if self.is_by_units && passed.is_some() && passed == self.ready.first() {
            // What the former first call waits for may be a unit that this one does not need.
            self.due = Due::at(now);
        }
        let call = HeldCall {
            demand,
            length,
            bounds: Bounds {
                full: bounds.full,
                ..door
            },
            came,
            latest: bounds.latest,
            waker: None,
            refused: None,
        };
        self.calls.insert(ticket, Box::new(call));
        self.make_ready(ticket);
    }

    fn make_ready(&mut self, ticket: u64) {
        let Some(call) = self.calls.get(&ticket) else {
            return;
        };
        let (length, latest) = (call.length, call.latest);
        let passes_offer = self.in_offer().any(|offered| offered > ticket);
        if !self.ready.insert(ticket) {
            return;
        }
        if passes_offer && !self.turns.is_empty() {
            // Those that it passes keep the turns that are offered to them.
            self.offer.iter_mut().for_each(|offer| offer.calls += 1);
        }
        let class = class_of(ticket);
        if self.lengths.len() <= class {
            self.lengths.resize(class + 1, Duration::ZERO);
        }
        self.lengths[class] = self.lengths[class].saturating_add(length);
        if self.ready.len() == 1 {
            self.bounds_end = latest;
        }
        self.bounds_end = self.bounds_end.min(latest);
    }

    fn stand_aside(&mut self, ticket: u64) {
        if self.ready.remove(&ticket)
            && let Some(call) = self.calls.get(&ticket)
        {
            let length = &mut self.lengths[class_of(ticket)];
            *length = length.saturating_sub(call.length);
        }
    }

    /// Removes a call, which has its turn or gives up.
    pub(super) fn remove(&mut self, ticket: u64) {
        if self.in_offer().any(|offered| offered == ticket) {
            // The other calls to which it was offered are woken already.
            self.offer = self.offer.take().filter(|offer| offer.calls > 1);
            self.offer.iter_mut().for_each(|offer| offer.calls -= 1);
        }
        self.stand_aside(ticket);
        self.aftermath.removed.extend(self.calls.remove(&ticket));
    }

    /// As [`remove`](Self::remove), of a call that gives up. The next one may use other units, and
    /// be due earlier.
    pub(super) fn give_up(&mut self, ticket: u64, now: Instant) {
        if self.is_by_units && self.first_ticket() == Some(ticket) {
            self.is_due(Due::at(now));
        }
        self.remove(ticket);
    }

    /// The call's future is polled: it is ready again, and has its refusal if there is one.
    pub(super) fn poll(&mut self, ticket: u64, waker: &Waker) -> Option<ShapeError> {
        let call = self.calls.get_mut(&ticket)?;
        if let Some(refused) = call.refused.take() {
            return Some(*refused);
        }
        let is_known = |known: &Waker| known.will_wake(waker);
        if !call.waker.as_ref().is_some_and(is_known) {
            let replaced = call.waker.replace(waker.clone());
            self.aftermath.replaced.extend(replaced);
        }
        let is_by_units = call.demand.units.is_some();
        let came = call.came;
        let was_first = self.first_ticket();
        self.make_ready(ticket);
        if is_by_units && self.first_ticket() != was_first {
            // What the former first call waits for may be a unit that this one does not need.
            self.due = Due::at(came);
        }
        None
    }

    pub(super) fn first_ticket(&self) -> Option<u64> {
        self.ready.first().copied()
    }

    pub(super) fn call(&self, ticket: u64) -> Option<&HeldCall> {
        self.calls.get(&ticket).map(Box::as_ref)
    }

    /// The ready calls in their order, from one on.
    pub(super) fn ready_from(&self, ticket: u64) -> impl Iterator<Item = &HeldCall> {
        self.ready
            .range(ticket..)
            .filter_map(|ticket| self.call(*ticket))
    }

    /// Refuses the calls that would leave too late, offers a turn that is due, and passes on one
    /// that was not taken.
    pub(super) fn advance(&mut self, now: Instant) -> NextStep {
        loop {
            // A turn that a pause holds back counts from too early an instant.
            let is_held = self.ready.is_empty() || self.pauses.end() > now;
            let next = self.next_call(now);
            if !self.turns.is_empty() && (is_held || next.is_err()) {
                self.is_due(Due::at(now));
                self.aftermath
                    .unused
                    .extend(self.turns.drain(..).filter_map(|turn| turn.receipt));
            }
            if self.ready.is_empty() {
                self.offer = None;
                return NextStep::Nothing;
            }
            let start = match self.turns.front() {
                Some(turn) => turn.at,
                None => self.start(),
            };
            let ticket = match next {
                Err(until) => {
                    self.offer = None;
                    return NextStep::At(until.max(start));
                }
                Ok(ticket) => ticket,
            };
            let is_late = |call: &&HeldCall| self.turns.is_empty() && start > call.latest;
            if let Some(late) = self.call(ticket).filter(is_late) {
                let is_by_units = late.demand.units.is_some();
                let refusal = self.refusal(&late.bounds, start, now);
                self.fail(ticket, refusal);
                if is_by_units {
                    self.due = Due::at(now);
                }
                continue;
            }
            if start > now {
                self.offer = None;
                return NextStep::At(start);
            }
            if self.turns.is_empty() && !self.decides_now {
                return NextStep::Ask;
            }
            let is_passing = self.first_ticket() != Some(ticket);
            let calls = match &self.offer {
                None if is_passing => 1,
                None => self.calls_for_due_turns(now),
                Some(offer) if now >= offer.expires => {
                    let calls = offer.calls.saturating_mul(2);
                    let is_granted = |ticket: &u64| self.is_granted(*ticket, now);
                    let granted: SmallVec<[u64; 8]> = self.in_offer().filter(is_granted).collect();
                    // A call that was before those which granted turns fit was offered none, and
                    // has missed none.
                    let missed = if granted.is_empty() {
                        self.in_offer().collect()
                    } else {
                        granted
                    };
                    missed
                        .into_iter()
                        .for_each(|ticket| self.stand_aside(ticket));
                    if is_passing {
                        self.offer = None;
                        continue;
                    }
                    calls
                }
                Some(offer) => return NextStep::At(offer.expires),
            };
            self.offer = Some(Offer {
                expires: now + GRACE,
                calls,
                from: if is_passing { ticket } else { 0 },
            });
            let offered: SmallVec<[Waker; 4]> = self
                .in_offer()
                .filter_map(|ticket| self.call(ticket)?.waker.clone())
                .collect();
            self.aftermath.wakers.extend(offered);
        }
    }

    pub(super) fn fail(&mut self, ticket: u64, error: impl Into<ShapeError>) {
        self.offer = None;
        self.stand_aside(ticket);
        if let Some(call) = self.calls.get_mut(&ticket) {
            call.refused.get_or_insert(Box::new(error.into()));
            self.aftermath.wakers.extend(call.waker.take());
        }
    }

    /// Refuses a call for good.
    pub(super) fn refuse(&mut self, ticket: u64) {
        if let Some(call) = self.call(ticket) {
            let refusal = call.bounds.full;
            self.fail(ticket, refusal);
        }
    }

    /// The call whose turn is the next: the first one. While calls are held for an answer, it is
    /// the call whose bound ends next.
    ///
    /// # Errors
    ///
    /// The instant to look again, if no bound ends yet.
    pub(super) fn next_call(&mut self, now: Instant) -> Result<u64, Instant> {
        let Some(held_until) = self.pauses.held(now) else {
            return self.first_ticket().ok_or(now);
        };
        self.was_held = true;
        // One interval earlier, so that another such call can follow.
        let is_early = |bounds_end: Instant| bounds_end > now + self.pauses.interval;
        let mut ending = None;
        if !is_early(self.bounds_end) {
            let ready = self
                .ready
                .iter()
                .filter_map(|ticket| Some((self.call(*ticket)?, ticket)));
            ending = ready.map(|(call, ticket)| (call.latest, *ticket)).min();
        }
        match ending {
            Some((latest, ticket)) if !is_early(latest) => Ok(ticket),
            ending => {
                self.bounds_end = ending.map_or(self.bounds_end, |(latest, _)| latest);
                Err(held_until.min(self.bounds_end - self.pauses.interval))
            }
        }
    }

    /// The backend says when the next turn is due.
    pub(super) fn is_due(&mut self, due: Due) {
        (self.due, self.offer) = (due, None);
    }

    /// A call leaves with its turn.
    pub(super) fn left(&mut self, ticket: u64, now: Instant) {
        match &mut self.offer {
            Some(offer) if !self.turns.is_empty() => offer.expires = now + GRACE,
            offer => *offer = None,
        }
        self.was_held = false;
        if let Some(call) = self.calls.get(&ticket) {
            self.pauses.left(now, call.demand.cost, call.length);
        }
    }

    /// No call leaves before its end. Waiting calls whose turns begin too late then fail now.
    /// Returns whether the key was not paused.
    pub(super) fn pause(&mut self, pause: Pause, now: Instant) -> bool {
        let (before, begins) = (self.start(), self.pauses.pause(pause, now));
        if self.start() > before {
            self.fail_late(now);
        }
        begins
    }

    /// Keeps the number of paused keys.
    pub(super) fn count_pause(&mut self, paused: &mut usize, now: Instant) {
        *paused -= usize::from(self.is_counted);
        self.is_counted = self.pauses.paused(now).is_some();
        *paused += usize::from(self.is_counted);
    }

    fn fail_late(&mut self, now: Instant) {
        let (mut start, mut late) = (self.start().max(now), SmallVec::<[_; 4]>::new());
        for (ticket, call) in &self.calls {
            if start > call.latest {
                late.push((*ticket, self.refusal(&call.bounds, start, now)));
            } else if self.ready.contains(ticket) {
                start += self.pauses.stretched(call.length, now);
            }
        }
        for (ticket, refusal) in late {
            self.fail(ticket, refusal);
        }
    }

    pub(super) fn wake_all(&mut self) {
        self.aftermath
            .wakers
            .extend(self.calls.values().filter_map(|call| call.waker.clone()));
    }
}

impl HeldCall {
    /// The turn that it needs, at an instant.
    pub(super) fn turn(&self, at: Instant) -> PaceTurn {
        PaceTurn {
            at,
            cost: self.demand.cost,
            units: self.demand.units.clone(),
            receipt: None,
        }
    }

    pub(super) fn is_refused(&self) -> bool {
        self.refused.is_some()
    }
}

impl NextStep {
    /// When that is.
    pub(super) fn at(self, now: Instant) -> Instant {
        match self {
            Self::At(at) => at,
            Self::Nothing | Self::Ask => now,
        }
    }
}

impl Due {
    /// An instant of the backend's clock, whose present is known.
    pub(super) fn by_backend(due: Timestamp, present: Timestamp, now: Instant) -> Self {
        let micros = due.micros_since(present);
        let between = Duration::from_micros(micros.unsigned_abs());
        let at = match micros < 0 {
            true => now.checked_sub(between).unwrap_or(now),
            false => now + between,
        };
        Self {
            at,
            by_backend: Some(due),
        }
    }

    pub(super) const fn at(at: Instant) -> Self {
        Self {
            at,
            by_backend: None,
        }
    }
}

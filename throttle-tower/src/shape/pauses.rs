//! The rules by which a key obeys its upstream: a pure state, to which each instant is passed.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Duration;

use http::StatusCode;
use tokio::time::Instant;

use super::error::{Pause, PauseCause};
use super::fleet_pause::FleetPause;
use crate::headers::read_upstream::Allowance;

/// The first and the longest pause after a refusal that states no wait. The first is at least one
/// interval of the pace.
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);

/// What a key's resets are is remembered for so long after the last wait that they caused.
const REMEMBERED: Duration = Duration::from_secs(3_600);

/// A stated reset may be this much later than the real one, because whole seconds are rounded up.
const ROUNDED: Duration = Duration::from_secs(1);

/// Departures that are kept, so that a response counts those after its call.
const DEPARTURES: usize = 1_024;

/// What an upstream has said of one key.
pub(super) struct Pauses {
    /// The last one, which may be over.
    pause: Option<Pause>,
    resets: Resets,
    /// When nothing was left, and the reset that was stated then: an answer before it
    /// shows that the quota refills.
    guess: Option<(Instant, Instant)>,
    /// The last pause after a refusal that stated no wait, before chance lengthened it.
    length: Option<Duration>,
    probes: Option<Probes>,
    balance: Option<Balance>,
    /// The last round trip to the upstream, and the time for one request at the pace.
    trip: Duration,
    pub(super) interval: Duration,
    /// When calls of several requests each left. Kept from `counted_from` on, while probes or a
    /// balance need them.
    departures: VecDeque<(Instant, u64)>,
    counted_from: Instant,
    /// A part of the pace in thousandths of a minute, and the instant from which on it grows.
    part: Option<(u64, Instant)>,
    /// No call leaves before, because the part of the pace is spaced so.
    spaced_until: Instant,
    forgotten_at: Instant,
    pub(super) fleet: FleetPause,
}

/// What a stated reset is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resets {
    Unknown,
    /// The end of a window: nothing comes back before.
    Window,
    /// The instant at which all is back: the next request comes back much earlier.
    Refills,
}

/// After a refusal calls leave carefully: one at first, and one more under way for each answer.
struct Probes {
    size: u64,
    under_way: u64,
    /// Calls that left before say nothing.
    since: Instant,
}

/// How many requests may still leave until an answer says more.
struct Balance {
    more: u64,
    /// With none left, no call leaves before, unless its bound ends.
    held_until: Instant,
    /// The first call from then on leaves alone.
    reset: Option<Instant>,
}

/// A response to a call, as far as the rules need it.
pub(super) struct Reply {
    pub(super) left: Instant,
    pub(super) now: Instant,
    pub(super) status: StatusCode,
    pub(super) refuses: bool,
    /// The wait that the refusal states.
    pub(super) wait: Option<Duration>,
    /// What is left until a reset whose instant is known.
    pub(super) allowance: Option<Allowance>,
    /// Nothing is left of a quota whose period alone is known.
    pub(super) used_up: Option<Duration>,
}

/// How calls leave without an upstream's word, and how far it is obeyed.
#[derive(Clone, Copy)]
pub(super) struct Terms {
    /// The time for one request at the pace.
    pub(super) interval: Duration,
    /// The longest pause.
    pub(super) longest: Duration,
    /// Whether the pace halves after a refusal.
    pub(super) slows: bool,
}

/// The whole pace: a thousandth of a minute is a millisecond, so a part grows by one in each.
const WHOLE: u64 = 60_000;
const LEAST: u64 = WHOLE / 32;

impl Pauses {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            pause: None,
            resets: Resets::Unknown,
            guess: None,
            length: None,
            probes: None,
            balance: None,
            trip: Duration::ZERO,
            interval: Duration::ZERO,
            departures: VecDeque::new(),
            counted_from: now,
            part: None,
            spaced_until: now,
            forgotten_at: now,
            fleet: FleetPause::new(now),
        }
    }

    /// No call leaves before.
    pub(super) fn end(&self) -> Instant {
        let until = self.pause.map_or(self.spaced_until, |pause| pause.until);
        until.max(self.spaced_until)
    }

    pub(super) fn paused(&self, now: Instant) -> Option<Pause> {
        self.pause.filter(|pause| pause.until > now)
    }

    /// Whether calls that wait were held.
    pub(super) fn have_held(&self) -> bool {
        self.pause.is_some() || self.is_counting()
    }

    /// Whether a call that comes now leaves by these rules.
    pub(super) fn is_active(&self, now: Instant) -> bool {
        self.is_counting() || self.part(now) < WHOLE || self.end() > now
    }

    fn is_counting(&self) -> bool {
        self.probes.is_some() || self.balance.is_some()
    }

    pub(super) fn is_needed(&self, now: Instant) -> bool {
        self.forgotten_at.max(self.end()) > now || self.fleet.is_needed(now)
    }

    /// Whether a response is worth keeping a state for its key.
    pub(super) fn concern(reply: &Reply, interval: Duration) -> bool {
        let trips = reply.now.saturating_duration_since(reply.left);
        let near = |allowance: Allowance| allowance.remaining <= near_end(trips, interval);
        reply.refuses || reply.allowance.is_some_and(near)
    }

    /// Applies a response. Returns the pause that has to begin, and its cause.
    pub(super) fn hear(&mut self, reply: &Reply, terms: Terms) -> Option<(Duration, PauseCause)> {
        let Reply { left, now, .. } = *reply;
        (self.trip, self.interval) = (now.saturating_duration_since(left), terms.interval);
        let answers_probe = self.give_back(left);
        if !self.is_counting() {
            (self.counted_from, self.departures) = (now, VecDeque::new());
        }
        let pause = if reply.refuses {
            Some(self.refused(reply, terms))
        } else if reply.status.is_server_error() {
            None
        } else {
            self.answered(reply, terms, answers_probe)
        };
        let pause = pause.map(|(pause, by)| (pause.min(terms.longest), by));
        pause.filter(|(pause, _)| !pause.is_zero())
    }

    fn refused(&mut self, reply: &Reply, terms: Terms) -> (Duration, PauseCause) {
        let Reply { left, now, .. } = *reply;
        let is_fresh = self.is_after_pause(left);
        let nothing_left = reply.allowance.filter(|allowance| allowance.remaining == 0);
        let reset = nothing_left.map(|allowance| allowance.within);
        if let Some(reset) = reset {
            self.resets = match reply.wait {
                Some(wait) if wait < reset / 2 => Resets::Refills,
                _ => Resets::Window,
            };
        }
        let pause = match (reply.wait.or(reset), self.pause) {
            (Some(wait), _) => wait,
            (None, Some(pause)) if !is_fresh => pause.until.saturating_duration_since(now),
            (None, _) => {
                let first = FIRST.max(terms.interval);
                let length = self.length.map_or(first, |length| length.saturating_mul(2));
                let most = LONGEST.max(terms.interval);
                let most = reply.used_up.map_or(most, |period| period.min(most));
                *self.length.insert(length.min(most))
            }
        };
        let end = now + pause.min(terms.longest);
        if terms.slows && is_fresh && reset.is_none() && reply.used_up.is_none() {
            self.part = Some(((self.part(now) / 2).max(LEAST), end));
        }
        (self.guess, self.balance) = (None, None);
        if is_fresh || self.probes.is_none() {
            self.probes = Some(Probes {
                size: 1,
                under_way: 0,
                since: now,
            });
        }
        self.remember(end);
        (pause, PauseCause::Refusal(reply.status))
    }

    fn answered(
        &mut self,
        reply: &Reply,
        terms: Terms,
        answers_probe: bool,
    ) -> Option<(Duration, PauseCause)> {
        let Reply { left, now, .. } = *reply;
        if answers_probe || self.is_after_pause(left) {
            self.length = None;
        }
        if let Some(probes) = self.probes.as_mut().filter(|_| answers_probe) {
            probes.size += 1;
            if probes.size > in_trip(self.trip, self.interval) {
                self.probes = None;
            }
        }
        if self
            .guess
            .is_some_and(|(since, end)| left > since && now + ROUNDED < end)
        {
            self.resets = Resets::Refills;
        }
        let is_window = self.resets == Resets::Window;
        let allowance = reply.allowance.filter(|allowance| {
            self.resets != Resets::Refills
                && !allowance.within.is_zero()
                && allowance.remaining <= near_end(self.trip, self.interval)
        });
        let Some(Allowance { remaining, within }) = allowance else {
            self.balance = None;
            return None;
        };
        let within = within.min(terms.longest);
        let reset = now + within;
        self.remember(reset);
        let last = self
            .departures
            .back()
            .map_or(self.counted_from, |(at, _)| *at);
        self.balance = Some(match remaining {
            // After a pause until the reset one call leaves alone.
            0 => Balance {
                more: is_window.into(),
                held_until: now + within.min(FIRST),
                reset: None,
            },
            _ => Balance {
                more: remaining.saturating_sub(self.left_after(left)),
                held_until: last + 2 * self.trip,
                reset: Some(reset),
            },
        });
        if remaining > 0 {
            return None;
        }
        if self.guess.is_none_or(|(_, end)| end <= now) {
            self.guess = Some((now, reset));
        }
        is_window.then_some((within, PauseCause::NothingLeft))
    }

    /// A call left after the last pause. One that left before says nothing of the time after it.
    fn is_after_pause(&self, left: Instant) -> bool {
        self.pause.is_none_or(|pause| left >= pause.until)
    }

    /// Requests that left after an instant. Those that were not counted left at the pace, at most.
    fn left_after(&self, left: Instant) -> u64 {
        let later = self
            .departures
            .iter()
            .rev()
            .take_while(|(at, _)| *at > left);
        let uncounted = in_trip(
            self.counted_from.saturating_duration_since(left),
            self.interval,
        );
        later.fold(uncounted, |sum, (_, requests)| {
            sum.saturating_add(*requests)
        })
    }

    fn remember(&mut self, until: Instant) {
        let kept = if self.resets == Resets::Unknown {
            LONGEST
        } else {
            REMEMBERED
        };
        self.forgotten_at = self.forgotten_at.max(until + kept);
    }

    /// A call that left then is under way no more. Returns whether it was a probe.
    pub(super) fn give_back(&mut self, left: Instant) -> bool {
        let probes = self.probes.as_mut().filter(|probes| left > probes.since);
        probes.is_some_and(|probes| {
            probes.under_way = probes.under_way.saturating_sub(1);
            true
        })
    }

    /// No call leaves before its end. Returns whether the key was not paused.
    pub(super) fn pause(&mut self, pause: Pause, now: Instant) -> bool {
        let former = self.paused(now);
        if former.is_none_or(|former| pause.until > former.until) {
            self.pause = Some(pause);
        }
        former.is_none()
    }

    /// Until when calls are held for an answer. A hold is no part of a wait that is estimated.
    pub(super) fn held(&self, now: Instant) -> Option<Instant> {
        let probing = self
            .probes
            .as_ref()
            .filter(|probes| probes.under_way >= probes.size);
        let last = self.departures.back();
        let probed_until = probing.and(last).map(|(at, _)| *at + self.answer_time());
        let is_reset = |balance: &Balance| balance.reset.is_some_and(|reset| now >= reset);
        let spent = self
            .balance
            .as_ref()
            .filter(|balance| balance.more == 0 && !is_reset(balance));
        let held_until = probed_until.max(spent.map(|balance| balance.held_until));
        held_until.filter(|until| *until > now)
    }

    /// A probe is given up after this time.
    fn answer_time(&self) -> Duration {
        3 * self.trip + Duration::from_secs(2)
    }

    /// A call of so many requests leaves, whose turn has that length.
    pub(super) fn left(&mut self, now: Instant, requests: u64, length: Duration) {
        if self.part(now) < WHOLE {
            self.spaced_until = now + self.stretched(length, now);
        }
        let held_until = now + 2 * self.trip;
        let is_held = self.held(now).is_some();
        if let Some(probes) = &mut self.probes {
            if probes.under_way >= probes.size && !is_held {
                probes.under_way = 0;
            }
            probes.under_way += 1;
        }
        if let Some(balance) = &mut self.balance {
            let is_reset = balance.reset.take_if(|reset| now >= *reset).is_some();
            balance.more = if is_reset {
                0
            } else {
                balance.more.saturating_sub(requests)
            };
            balance.held_until = held_until;
        }
        if self.is_counting() {
            self.departures.push_back((now, requests));
            if self.departures.len() > DEPARTURES {
                self.departures.pop_front();
            }
        }
    }

    fn part(&self, now: Instant) -> u64 {
        self.part.map_or(WHOLE, |(part, grows_from)| {
            let grown = now.saturating_duration_since(grows_from).as_millis();
            u64::try_from(grown).map_or(WHOLE, |grown| part.saturating_add(grown).min(WHOLE))
        })
    }

    /// How long turns take at the part of the pace that is in force.
    pub(super) fn stretched(&self, length: Duration, now: Instant) -> Duration {
        let part = self.part(now);
        if part == WHOLE {
            return length;
        }
        let nanos = length.as_nanos() * u128::from(WHOLE) / u128::from(part);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)).min(crate::time::FAR)
    }

    pub(super) fn resets(&self) -> Resets {
        self.resets
    }
}

/// How many intervals begin in a round trip.
fn in_trip(trip: Duration, interval: Duration) -> u64 {
    let intervals = trip.as_nanos().div_ceil(interval.as_nanos().max(1));
    u64::try_from(intervals).unwrap_or(u64::MAX)
}

/// With no more left than this, calls under way could use it up.
fn near_end(trip: Duration, interval: Duration) -> u64 {
    in_trip(trip, interval).saturating_mul(2)
}

//! What is known about one key: until when its schedule is occupied, and which units were estimated wrongly.

use std::sync::Arc;
use std::time::Duration;

use smallvec::{SmallVec, smallvec};
use tokio::time::Instant;

use super::paces::Needs;
use super::turn::{Booking, Turn};

/// One key's units. Time on the schedule is counted in ns, signed where it is a difference.
///
/// Tokens that a call did not use are time on the schedule that it need not have taken. If its slot is the last one,
/// the slot is shortened: the next call leaves earlier. If calls are scheduled behind it, they have their times; the unused
/// time is kept as a balance, and a later call takes so much less. Time that has passed cannot be used any more, so a
/// balance is never more than the time for which the schedule is occupied. Tokens beyond the estimate are a negative
/// balance: the next call takes so much more.
pub(super) struct Account {
    /// Until then the schedule is occupied, as far as this process knows.
    ends: Instant,
    /// Since then it has been occupied without a break. What an earlier call did not use is lost.
    busy_since: Instant,
    /// When a call last used more than its estimate.
    owes_since: Instant,
    /// Of each unit: what was estimated too high, or, if negative, too low.
    balances: SmallVec<[i64; 2]>,
    /// The last slot of the schedule.
    last: Option<Arc<Turn>>,
    /// Whether other processes schedule calls as well. Then the last slot here is hardly the last one of all, and the
    /// store would shorten nothing.
    is_contended: bool,
}

/// What every account of a shaper has in common.
#[derive(Clone, Copy)]
pub(super) struct Rules {
    /// One request at its pace.
    pub(super) request: Duration,
    /// Whether nothing else uses the schedule, so that it is known when it is not occupied.
    pub(super) decides_alone: bool,
}

/// For how long a debt is remembered where it is not known whether idle time has paid it.
const REMEMBERED: Duration = Duration::from_secs(3_600);

/// The longest debt: an absurd number must not slow a key down for years.
const LONGEST_DEBT: i64 = 3_600_000_000_000;

impl Account {
    pub(super) fn new(units: usize, now: Instant) -> Self {
        Self {
            ends: now,
            busy_since: now,
            owes_since: now,
            balances: smallvec![0; units],
            last: None,
            is_contended: false,
        }
    }

    #[cfg(test)]
    pub(super) fn last(&self) -> Option<Arc<Turn>> {
        self.last.clone()
    }

    /// Whether it equals a new one.
    pub(super) fn is_idle(&self, now: Instant, rules: Rules) -> bool {
        let debt = self.balances.iter().copied().min().unwrap_or(0).min(0).unsigned_abs();
        let paid = match (debt, rules.decides_alone) {
            (0, _) => self.ends,
            (_, true) => self.ends + Duration::from_nanos(debt),
            (_, false) => self.ends.max(self.owes_since + REMEMBERED),
        };
        paid <= now
    }

    /// Time that has passed unoccupied pays debts, and cannot be used by calls any more.
    fn pass(&mut self, now: Instant, rules: Rules) {
        let left = nanos(self.ends.saturating_duration_since(now));
        let idle = match rules.decides_alone {
            true => nanos(now.saturating_duration_since(self.ends)),
            false if self.owes_since + REMEMBERED <= now => LONGEST_DEBT,
            false => 0,
        };
        for balance in &mut self.balances {
            *balance = if *balance > 0 { (*balance).min(left) } else { (*balance + idle).min(0) };
        }
        if self.ends <= now {
            (self.ends, self.busy_since, self.last) = (now, now, None);
        }
    }

    /// Takes what a call needs, from the balances as far as possible, and pays what is owed as far as the call then
    /// takes at most so many µs of the schedule. Returns how many of its µs only pay a debt, too.
    pub(super) fn book(&mut self, needs: &Needs, most: u64, now: Instant, rules: Rules) -> (Booking, u64) {
        self.pass(now, rules);
        let micros = |balance: fn(i64) -> i64| {
            let owed = needs.units.iter().zip(&self.balances).map(|(need, of)| need.cast_signed() - balance(*of));
            owed.fold(needs.requests.cast_signed(), i64::max).max(0).unsigned_abs().div_ceil(1_000).max(1)
        };
        let own = micros(|balance| balance.max(0));
        let micros = micros(|balance| balance).min(most).max(own);
        let occupied = (micros * 1_000).cast_signed();
        let (mut restores, mut slacks) = (SmallVec::new(), SmallVec::new());
        for (need, balance) in needs.units.iter().zip(&mut self.balances) {
            let rest = *balance + occupied - need.cast_signed();
            let after = rest.min((*balance).max(0));
            restores.push(*balance - after);
            slacks.push(rest - after);
            *balance = after;
        }
        (Booking { micros, requests: needs.requests, restores, ends: None, before: None, slacks }, micros - own)
    }

    /// A booked call has a slot that comes at an instant.
    pub(super) fn enter(&mut self, turn: &Arc<Turn>, departs: Instant, now: Instant, rules: Rules) {
        self.pass(now, rules);
        self.is_contended = departs >= self.ends + rules.request.max(Duration::from_micros(1));
        let booking = &mut turn.lock().booking;
        let ends = departs + Duration::from_micros(booking.micros);
        booking.ends = Some(ends);
        if ends > self.ends {
            self.ends = ends;
            booking.before = self.last.replace(Arc::clone(turn));
        }
    }

    /// A booked call was refused or dropped.
    pub(super) fn release(&mut self, turn: &Arc<Turn>) {
        let booking = &mut turn.lock().booking;
        for (balance, restored) in self.balances.iter_mut().zip(&mut booking.restores) {
            *balance += std::mem::take(restored);
        }
        let before = booking.before.take();
        if self.last.take_if(|last| Arc::ptr_eq(last, turn)).is_some() {
            self.ends -= Duration::from_micros(booking.micros);
            // Unless time passes unused between them.
            self.last = before.filter(|before| before.lock().booking.ends >= Some(self.ends));
        }
    }

    /// A call has used so much less of a unit than was estimated, or more. Returns the slot to shorten, if there is one,
    /// and by how many µs.
    pub(super) fn settle(
        &mut self,
        settled: &Turn,
        unit: usize,
        unused: i64,
        now: Instant,
        rules: Rules,
    ) -> Option<(Arc<Turn>, u64)> {
        self.pass(now, rules);
        let ends = settled.lock().booking.ends;
        if unused < 0 {
            self.owes_since = now;
        } else if ends <= Some(self.busy_since) {
            return None;
        }
        self.balances[unit] = self.balances[unit].saturating_add(unused).max(-LONGEST_DEBT);
        let turn = self.last.clone()?;
        let shortened = self.use_last(unit, &mut turn.lock().booking, now);
        (shortened > 0).then_some((turn, shortened))
    }

    /// Pays a debt from time that the last slot takes for another unit, or shortens that slot by what was unused.
    fn use_last(&mut self, unit: usize, booking: &mut Booking, now: Instant) -> u64 {
        let paid = booking.slacks[unit].min(-self.balances[unit]).max(0);
        self.balances[unit] += paid;
        booking.slacks[unit] -= paid;
        booking.restores[unit] -= paid;
        if self.is_contended {
            return 0;
        }
        let most = (booking.micros * 1_000).saturating_sub(booking.requests).cast_signed();
        let left = nanos(self.ends.saturating_duration_since(now));
        let spare = booking.slacks.iter().zip(&self.balances).map(|(slack, balance)| slack + balance.max(&0));
        // One µs stays in any case: there is no slot without a unit.
        let micros = spare.fold(most.min(left), i64::min).max(0).unsigned_abs() / 1_000;
        let micros = micros.min(booking.micros - 1);
        let shorter = (micros * 1_000).cast_signed();
        for (place, balance) in self.balances.iter_mut().enumerate() {
            let slack = booking.slacks[place].min(shorter);
            booking.slacks[place] -= slack;
            booking.restores[place] += shorter - slack;
            *balance -= shorter - slack;
        }
        booking.micros -= micros;
        self.ends -= Duration::from_micros(micros);
        booking.ends = Some(self.ends);
        micros
    }
}

fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).map_or(i64::MAX / 3, |nanos| nanos.min(i64::MAX / 3))
}

#[cfg(test)]
mod tests {
    use throttle_core::Key;

    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const RULES: Rules = Rules { request: Duration::from_millis(100), decides_alone: false };

    /// A call of one request and of tokens that take half a second.
    fn book(account: &mut Account, now: Instant) -> Arc<Turn> {
        let (requests, tokens) = (100_000_000, 500_000_000);
        let needs = Needs { requests, units: smallvec![tokens], longest: tokens, slowest: Some("tokens") };
        Turn::new(Key::CONSTANT, account.book(&needs, u64::MAX, now, RULES).0)
    }

    /// Whether that is so is seen by the time that they take of the schedule between two calls.
    #[tokio::test(start_paused = true)]
    async fn shape_slot_is_not_shortened_where_other_processes_call_as_well() {
        let now = Instant::now();
        for (taken_by_others, shortened_by, next_takes) in [(99, Some(400_000), 500_000), (100, None, 100_000)] {
            let mut account = Account::new(1, now);
            let turn = book(&mut account, now);
            account.enter(&turn, now + taken_by_others * MS, now, RULES);
            let settled = account.settle(&turn, 0, 400_000_000, now, RULES);
            assert_eq!(settled.map(|(_, micros)| micros), shortened_by);
            assert_eq!(book(&mut account, now).cost(), next_takes);
        }
    }

    /// Whichever unit owes. This process does not see whether time passes unused.
    #[tokio::test(start_paused = true)]
    async fn shape_debt_is_kept_for_an_hour_where_other_processes_call_as_well() {
        let now = Instant::now();
        for unit in [0, 1] {
            let mut account = Account::new(2, now);
            let needs = Needs { requests: 1_000, units: smallvec![1_000; 2], longest: 1_000, slowest: None };
            let turn = Turn::new(Key::CONSTANT, account.book(&needs, u64::MAX, now, RULES).0);
            assert!(account.settle(&turn, unit, -5_000_000, now, RULES).is_none());
            let end = now + REMEMBERED;
            for later in [now + MS, now + 2 * MS, end - MS] {
                assert!(!account.is_idle(later, RULES));
                account.pass(later, RULES);
                assert_eq!(account.balances[unit], -5_000_000);
            }
            assert!(account.is_idle(end, RULES));
            account.pass(end, RULES);
            assert_eq!(account.balances.as_slice(), [0, 0]);
        }
    }

    /// Each call is the last one, and takes up the schedule alone.
    #[tokio::test(start_paused = true)]
    async fn shape_idle_time_separates_a_call_from_those_before_it() {
        let (mut now, rules) = (Instant::now(), Rules { decides_alone: true, ..RULES });
        let mut account = Account::new(1, now);
        let mut call_at = |now| {
            let turn = book(&mut account, now);
            account.enter(&turn, now, now, rules);
            turn
        };
        let late = call_at(now);
        now += 20_000 * MS;
        let last = call_at(now);
        assert!(account.settle(&late, 0, 400_000_000, now, rules).is_none());
        assert_eq!(account.balances[0], 0, "the time of those tokens has passed");
        let shortened = account.settle(&last, 0, 400_000_000, now, rules);
        assert_eq!(shortened.map(|(_, micros)| micros), Some(400_000));
    }
}

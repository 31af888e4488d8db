use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use throttle_core::Key;
use tokio::time::Instant;

use super::super::slot_charge::SlotCharge;
use super::account::{Account, Rules};
use super::paces::Needs;
use super::turn::Turn;
use crate::lock::lock;

/// The units of every key that this process has used of late.
pub(in super::super) struct Accounts {
    units: usize,
    rules: Rules,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    by_key: HashMap<Key, Account>,
    /// The number of keys at which the next sweep removes idle ones.
    sweep_at: usize,
}

impl Accounts {
    pub(super) fn new(units: usize, request: Duration, decides_alone: bool) -> Self {
        Self { units, rules: Rules { request, decides_alone }, state: Mutex::default() }
    }

    /// Books a call that takes at most so many µs, or what it needs itself. Returns how many of its µs only pay a debt.
    pub(super) fn book(&self, key: Key, needs: &Needs, most: u64) -> (Arc<Turn>, u64) {
        let now = Instant::now();
        let (booking, spare) = self.change(&key, now, |account| account.book(needs, most, now, self.rules));
        (Turn::new(key, booking), spare)
    }

    /// The schedule has assigned a slot to a booked call.
    pub(in super::super) fn enter(&self, turn: &Arc<Turn>, charge: SlotCharge, departs: Instant) {
        let now = Instant::now();
        turn.lock().charge = Some(charge);
        self.change(turn.key(), now, |account| account.enter(turn, departs, now, self.rules));
    }

    /// Restores what a call was booked that was refused or dropped. Returns what the schedule has charged.
    pub(in super::super) fn release(&self, turn: &Arc<Turn>) -> Option<SlotCharge> {
        self.change(turn.key(), Instant::now(), |account| account.release(turn));
        turn.lock().charge.take()
    }

    /// Returns the slot to shorten, and by how many µs.
    pub(super) fn settle(&self, turn: &Turn, unit: usize, unused: i64) -> Option<(Arc<Turn>, u64)> {
        let now = Instant::now();
        self.change(turn.key(), now, |account| account.settle(turn, unit, unused, now, self.rules))
    }

    pub(in super::super) fn forget(&self, key: &Key) {
        lock(&self.state).by_key.remove(key);
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        lock(&self.state).by_key.len()
    }

    #[cfg(test)]
    pub(super) fn last(&self, key: &Key) -> Option<Arc<Turn>> {
        lock(&self.state).by_key.get(key)?.last()
    }

    fn change<R>(&self, key: &Key, now: Instant, change: impl FnOnce(&mut Account) -> R) -> R {
        let mut state = lock(&self.state);
        if let Some(account) = state.by_key.get_mut(key) {
            return change(account);
        }
        state.sweep(now, self.rules);
        change(state.by_key.entry(key.clone()).or_insert_with(|| Account::new(self.units, now)))
    }
}

impl State {
    /// A sweep only when the number of keys has doubled since the last one makes its cost constant per key.
    fn sweep(&mut self, now: Instant, rules: Rules) {
        if self.by_key.len() >= self.sweep_at {
            self.by_key.retain(|_, account| !account.is_idle(now, rules));
            self.sweep_at = (2 * self.by_key.len()).max(64);
        }
    }
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn shape_sweeps_remove_no_account_that_owes_and_become_rarer_with_their_number() {
        let accounts = Accounts::new(1, Duration::from_millis(100), true);
        let needs = Needs { requests: 0, units: smallvec![1_000], longest: 1_000, slowest: None };
        for number in 0..200_u64 {
            let (turn, _) = accounts.book(Key::from(number), &needs, 1);
            assert!(accounts.settle(&turn, 0, -1_000_000_000).is_none());
        }
        assert_eq!(accounts.len(), 200);
        assert_eq!(lock(&accounts.state).sweep_at, 256);
    }
}

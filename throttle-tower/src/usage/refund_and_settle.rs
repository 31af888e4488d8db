//! What one request was charged, until it is final: refunded or kept by the head of the response,
//! settled by the handler or when the body of the response, such as a stream, ends.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard};

use http::{HeaderMap, StatusCode};
use throttle_core::backend::Receipt;
use tokio::runtime::Handle;

use super::error::UsageError;
use super::standings::Standings;
use super::tally::{Step, Tally, joined};
use crate::limit::ChargeRules;
use crate::lock::lock;
use crate::throttle::{ErasedLayer, write_settled};

/// What one request was charged by limits whose charges may change.
///
/// The lock is held while a step is chosen, never while it is done.
pub(crate) struct Account {
    /// The user's closures in it may be of any kind; one that panics leaves nothing half done here.
    ledger: AssertUnwindSafe<Arc<dyn ErasedLayer>>,
    state: Mutex<ChargeState>,
    /// Where steps go on that have to be waited for, because the request may end outside of a
    /// runtime.
    runtime: Option<Handle>,
}

struct ChargeState {
    tallies: Vec<Tally>,
    /// Whether there was a response head.
    answered: bool,
}

impl ChargeState {
    fn tally(&mut self, index: usize) -> Option<&mut Tally> {
        self.tallies.iter_mut().find(|tally| tally.index == index)
    }
}

impl Account {
    pub(crate) fn new(
        ledger: Arc<dyn ErasedLayer>,
        tallies: Vec<Tally>,
        runtime: Option<Handle>,
    ) -> Arc<Self> {
        let ledger = AssertUnwindSafe(ledger);
        Arc::new(Self {
            ledger,
            state: Mutex::new(ChargeState {
                tallies,
                answered: false,
            }),
            runtime,
        })
    }

    pub(crate) const fn runtime(&self) -> Option<&Handle> {
        self.runtime.as_ref()
    }

    fn state(&self) -> MutexGuard<'_, ChargeState> {
        lock(&self.state)
    }

    fn run(self: &Arc<Self>, steps: Vec<Step>) {
        for step in joined(steps) {
            Arc::clone(&self.ledger).take_step(step, self);
        }
    }

    /// Changes the tallies, then does the steps that follow.
    fn change<T>(
        self: &Arc<Self>,
        change: impl FnOnce(&mut ChargeState, &(dyn ErasedLayer + 'static), &mut Vec<Step>) -> T,
    ) -> T {
        let mut steps = Vec::new();
        let result = change(&mut self.state(), &**self.ledger, &mut steps);
        self.run(steps);
        result
    }

    /// The names of the limits that a handler may settle.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        let policies = self.ledger.policies().iter().enumerate();
        policies
            .filter(|(index, _)| self.ledger.charge_rules(*index).settled_later)
            .map(|(_, policy)| policy.name())
    }

    fn index(&self, name: &str) -> Result<usize, UsageError> {
        let mut policies = self.ledger.policies().iter();
        let index = policies.position(|policy| policy.name() == name);
        index
            .filter(|index| self.ledger.charge_rules(*index).settled_later)
            .ok_or_else(|| UsageError::UnknownPolicy {
                name: name.to_owned(),
                known: self.names().map(str::to_owned).collect(),
            })
    }

    pub(super) fn read<T>(&self, name: &str, read: impl FnOnce(&Tally) -> T) -> Option<T> {
        let index = self.index(name).ok()?;
        self.state().tally(index).map(|tally| read(tally))
    }

    /// Whether a limit refuses nothing, even if it is used up.
    pub(super) fn is_audited(&self, name: &str) -> bool {
        self.index(name)
            .is_ok_and(|index| self.ledger.policies()[index].is_audited())
    }

    /// Updates one limit's tally, unless it is final.
    pub(super) fn update<T>(
        self: &Arc<Self>,
        name: &str,
        update: impl FnOnce(&mut Tally, &mut Vec<Step>) -> T,
    ) -> Result<T, UsageError> {
        let index = self.index(name)?;
        self.change(|state, _, steps| {
            let tally = state.tally(index).filter(|tally| tally.is_open());
            tally
                .map(|tally| update(tally, steps))
                .ok_or_else(|| UsageError::Settled {
                    name: name.to_owned(),
                })
        })
    }

    /// Settles every tally that a handler may settle and that is not final at `actual`; whether
    /// there was one.
    pub(super) fn settle_all(self: &Arc<Self>, actual: u64) -> bool {
        self.change(|state, ledger, steps| {
            let mut some = false;
            for tally in &mut state.tallies {
                if tally.is_open() && ledger.charge_rules(tally.index).settled_later {
                    some = true;
                    tally.close(Some(actual), steps);
                }
            }
            some
        })
    }

    /// Settles what the head of the response decides. Returns whether a tally is still open then,
    /// and where the keys stand whose charges have changed since admission.
    fn answered(
        self: &Arc<Self>,
        status: StatusCode,
        headers: &HeaderMap,
    ) -> (bool, Option<Standings>) {
        // The user's closures run outside the lock.
        let policies_that = |act: fn(&ChargeRules, StatusCode, &HeaderMap) -> bool| {
            let all = 0..self.ledger.policies().len();
            let acting = all.filter(|index| act(self.ledger.charge_rules(*index), status, headers));
            acting.collect::<Vec<usize>>()
        };
        let refunded = policies_that(ChargeRules::refunds);
        let striking = policies_that(ChargeRules::strikes);
        let (is_open, changes) = self.change(|state, ledger, steps| {
            state.answered = true;
            let (mut open, mut changes) = (false, Vec::new());
            for tally in &mut state.tallies {
                if striking.contains(&tally.index) {
                    tally.strike(steps);
                }
                if refunded.contains(&tally.index) {
                    tally.close(Some(0), steps);
                } else if !ledger.charge_rules(tally.index).settled_later {
                    tally.close(None, steps);
                }
                open |= tally.is_open();
                changes.extend(tally.change());
            }
            (open, changes)
        });
        // After the steps, which memory has done by now.
        let standings = (!changes.is_empty()).then(|| {
            let peek = self.ledger.peek(&changes);
            Standings {
                changes,
                peek,
                write: write_settled,
            }
        });
        (is_open, standings)
    }

    /// Makes all charges final: the body has ended, or there never was one.
    fn ended(self: &Arc<Self>) {
        self.change(|state, ledger, steps| {
            let answered = state.answered;
            for tally in &mut state.tallies {
                let refunded = !answered && ledger.charge_rules(tally.index).refund_aborted;
                tally.close(refunded.then_some(0), steps);
            }
        });
    }

    /// Adds what a running charge has taken.
    pub(crate) fn arrived(self: &Arc<Self>, index: usize, receipt: Option<Receipt>) {
        self.change(|state, _, steps| {
            if let Some(tally) = state.tally(index) {
                tally.arrived(receipt, steps);
            }
        });
    }
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Account")
            .field("tallies", &self.state().tallies)
            .finish_non_exhaustive()
    }
}

/// A request that is under way, held by its future and then by its body. Dropping it makes the
/// charges final.
///
/// It is part of every request's guard, so it points to what programs without such charges do not
/// contain.
#[derive(Debug)]
pub(crate) struct Open {
    account: Arc<Account>,
    answered: SettleHead,
    ended: fn(&Arc<Account>),
}

type SettleHead = fn(&Arc<Account>, StatusCode, &HeaderMap) -> (bool, Option<Standings>);

impl Open {
    pub(crate) const fn new(account: Arc<Account>) -> Self {
        Self {
            account,
            answered: Account::answered,
            ended: Account::ended,
        }
    }

    /// Settles what the head of the response decides. Returns `None` instead of it if
    /// nothing is left for the body, and where the keys of changed charges stand.
    pub(crate) fn answered(
        self,
        status: StatusCode,
        headers: &HeaderMap,
    ) -> (Option<Self>, Option<Standings>) {
        let (is_open, standings) = (self.answered)(&self.account, status, headers);
        (is_open.then_some(self), standings)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        (self.ended)(&self.account);
    }
}

//! What is charged and corrected after the decision.

use std::future::Future;
use std::sync::Arc;

use http::request::Parts;
use smallvec::{SmallVec, smallvec};
use throttle_core::backend::{Call, Receipt};
use throttle_core::{Backend, BackendError, BackendErrorKind, DecidedBy, Decision, Policy, Status};
use tokio::runtime::Handle;

use super::ask::Calls;
use super::decide::decision_at_once;
use super::strike;
use crate::event::{Activity, Observers};
use crate::limit::ChargeRules;
use crate::throttle::local_shares::Shares;
use crate::throttle::shared_layer::{ErasedLayer, SharedLayer};
use crate::usage::{Account, ChargeChange, Open, Step, Tally, Usage};

/// Opens the account of an admitted request whose charge may change, and gives the handler its
/// usage.
pub(super) fn open_account(
    shared: Arc<dyn ErasedLayer>,
    decision: &Decision,
    calls: &[Call],
    parts: &mut Parts,
) -> Open {
    let mut receipt = Receipt::of(decision, calls);
    let mut tallies = Vec::new();
    for (index, _) in shared
        .applied
        .iter()
        .enumerate()
        .filter(|(_, limit)| limit.charge_rules.may_change())
    {
        let (status, call) = (decision.statuses().get(index), calls.get(index));
        let admission = receipt.as_mut().and_then(|receipt| receipt.take(index));
        // A response may be a strike for a call that costs nothing. In an `any`, a policy that was
        // not charged is another member's to pay.
        let applies = status.is_some_and(|status| status.applies())
            && call.is_some_and(|call| call.cost() == 0);
        let call = call.filter(|_| admission.is_some() || applies).cloned();
        let decided_by = status.map_or(DecidedBy::Store, Status::decided_by);
        tallies.push(Tally::new(index, call, admission).decided_by(decided_by));
    }
    let runtime = if shared.can_fail() {
        Handle::try_current().ok()
    } else {
        None
    };
    let has_handlers = shared.uses.handlers;
    let account = Account::new(shared, tallies, runtime);
    if has_handlers {
        parts.extensions.insert(Usage::new(Arc::clone(&account)));
    }
    Open::new(account)
}

/// Charges a refused request to the limits for which attempts count, and counts a strike of each
/// key that a limit with a ban has refused, in the background.
#[inline]
pub(super) fn count_refused<B: Backend>(
    shared: &Arc<SharedLayer<B>>,
    decision: &Decision,
    calls: &[Call],
) {
    if let Some(steps) = shared.uses.counts_refusals {
        (steps.count_refused)(&shared.erased(), decision, calls);
    }
}

pub(super) fn count_each_refusal(
    shared: &Arc<dyn ErasedLayer>,
    decision: &Decision,
    calls: &[Call],
) {
    let statuses = decision.statuses().iter();
    for (index, ((limit, call), status)) in
        shared.applied.iter().zip(calls).zip(statuses).enumerate()
    {
        let strike = strike::of_refused(shared, index, call, status);
        // Where nothing is left the store need not be asked: the clients that are refused most cost
        // least. Of a limit that did not apply nothing is left.
        let cost = match limit.charge_rules.charge_refused {
            true => call.cost().min(status.remaining()),
            false => 0,
        };
        if cost > 0 {
            let (charging, call) = (Arc::clone(shared), call.clone().costing(cost));
            let decided_by = status.decided_by();
            let step = async move {
                let (_, charged) = take_what_is_left(&*charging, index, &call, decided_by).await;
                // A ban that the strike begins would refuse the charge.
                match strike {
                    Some(strike) => charged.and(strike.await),
                    None => charged,
                }
            };
            in_background(&**shared, step, None);
        } else if let Some(strike) = strike {
            in_background(&**shared, strike, None);
        }
    }
}

/// Runs a step that the request does not wait for.
pub(super) fn in_background(
    shared: &dyn ErasedLayer,
    step: impl Future<Output = Result<(), BackendError>> + Send + 'static,
    runtime: Option<&Handle>,
) {
    shared
        .options
        .background
        .send(Box::pin(step), runtime, shared.can_fail());
}

/// Corrects charges, in the background.
pub(super) fn settle_receipt(shared: &dyn ErasedLayer, receipt: Receipt, runtime: Option<&Handle>) {
    let changes = ChargeChanges::by(shared, &receipt);
    let share = shared.share().map(Shares::for_receipts);
    let background = &shared.options.background;
    let settle = |receipt| shared.settle(receipt);
    let told = || changes.tell();
    background.settle(settle, shared.can_fail(), share, receipt, runtime, told);
}

/// What a settlement changes, for the observers to be told once it is done.
pub(super) struct ChargeChanges {
    observers: Observers,
    changes: SmallVec<[Activity; 2]>,
}

impl ChargeChanges {
    pub(super) fn by(shared: &dyn ErasedLayer, receipt: &Receipt) -> Self {
        let observers = &shared.options.observers;
        if observers.is_empty() {
            return Self {
                observers: Observers::default(),
                changes: SmallVec::new(),
            };
        }
        let changes = receipt.items().iter().filter_map(|item| {
            let limit = shared.applied[item.policy()].limit_index;
            match item.taken().checked_sub(item.actual()) {
                Some(0) => None,
                Some(units) => Some(Activity::Refunded { limit, units }),
                None => Some(Activity::SettledShort {
                    limit,
                    units: item.actual() - item.taken(),
                }),
            }
        });
        Self {
            observers: observers.clone(),
            changes: changes.collect(),
        }
    }

    /// Tells what a decision has charged that no observer has seen.
    pub(super) fn tell_charged(shared: &dyn ErasedLayer, receipt: &Receipt) {
        for item in receipt.items() {
            tell_charged(shared, item.policy(), item.taken());
        }
    }

    pub(super) fn tell(self) {
        for change in self.changes {
            self.observers.happened(change);
        }
    }
}

/// Reports a charge that is made to the observers.
fn tell_charged(shared: &dyn ErasedLayer, index: usize, units: u64) {
    let limit = shared.applied[index].limit_index;
    shared
        .options
        .observers
        .happened(Activity::Charged { limit, units });
}

/// How often a charge of what is left is tried, when other requests take of it in between.
const TRIES: usize = 4;

/// Charges one policy the cost of `call`, or what is left of it. Where the store fails, what is
/// left of this process's share.
async fn take_what_is_left(
    shared: &dyn ErasedLayer,
    index: usize,
    call: &Call,
    decided_by: DecidedBy,
) -> (Option<Receipt>, Result<(), BackendError>) {
    let (receipt, result) = try_to_take(shared, index, call, decided_by).await;
    if let Some(receipt) = &receipt {
        tell_charged(shared, index, receipt.taken(index));
    }
    (receipt, result)
}

async fn try_to_take(
    shared: &dyn ErasedLayer,
    index: usize,
    call: &Call,
    decided_by: DecidedBy,
) -> (Option<Receipt>, Result<(), BackendError>) {
    let (mut cost, mut tries, mut result) = (call.cost(), 0..TRIES, Ok(()));
    let mut failed: Option<BackendErrorKind> = decided_by.error();
    while tries.next().is_some() {
        let calls = only(shared, index, call.clone().costing(cost));
        let decision = match failed {
            None => match shared.decide(&calls).await {
                Ok(decision) => decision,
                Err(error) => {
                    (failed, result, tries) = (Some(error.kind()), Err(error), 0..TRIES);
                    continue;
                }
            },
            Some(why) => match shared.share().and_then(|share| share.decide(&calls, why)) {
                Some(decision) => decision,
                None => break,
            },
        };
        let status = decision.statuses().get(index);
        // An audited limit admits the request, and is charged nothing that it does not have.
        if decision.is_admitted() && status.is_none_or(|status| !status.would_refuse()) {
            if let Some(share) = shared.share() {
                share.note(&decision, &calls);
            }
            return (Receipt::of(&decision, &calls), result);
        }
        match status.map_or(0, |status| status.remaining()) {
            0 => break,
            left => cost = left,
        }
    }
    (None, result)
}

/// A call of one policy; the others are skipped.
fn only(shared: &dyn ErasedLayer, index: usize, call: Call) -> Calls {
    let mut calls: Calls = smallvec![Call::SKIP; shared.applied.len()];
    if let Some(only) = calls.get_mut(index) {
        *only = call;
    }
    calls
}

/// Brings what a running charge has taken to its account, which waits for it, even if the charge is
/// dropped.
struct RunningCharge {
    account: Arc<Account>,
    index: usize,
    receipt: Option<Receipt>,
}

impl Drop for RunningCharge {
    fn drop(&mut self) {
        self.account.arrived(self.index, self.receipt.take());
    }
}

/// What an account asks of the layer that made its charges.
impl dyn ErasedLayer {
    pub(crate) fn policies(&self) -> &[Policy] {
        &self.announced.policies
    }

    pub(crate) fn charge_rules(&self, index: usize) -> &ChargeRules {
        &self.applied[index].charge_rules
    }

    /// Peeks at the keys of charges, if the backend can without waiting.
    pub(crate) fn peek(&self, changes: &[ChargeChange]) -> Option<Decision> {
        let mut calls: Calls = smallvec![Call::SKIP; self.applied.len()];
        for change in changes.iter().filter(|change| change.is_at_store) {
            calls[change.index] = change.peek.clone();
        }
        decision_at_once(self, &calls)
    }

    /// Does a step, or starts it in the background. The receipt of a running charge goes to
    /// `account`.
    pub(crate) fn take_step(self: Arc<Self>, step: Step, account: &Arc<Account>) {
        let runtime = account.runtime();
        match step {
            Step::Settle(receipt) => settle_receipt(&*self, receipt, runtime),
            Step::Strike {
                index,
                key,
                decided_by,
            } => strike::strike(&self, index, key, decided_by, runtime),
            Step::Ask { index, call } => {
                let mut running = RunningCharge {
                    account: Arc::clone(account),
                    index,
                    receipt: None,
                };
                let charging = Arc::clone(&self);
                let step = async move {
                    let (receipt, result) =
                        take_what_is_left(&*charging, index, &call, DecidedBy::Store).await;
                    running.receipt = receipt;
                    drop(running);
                    result
                };
                in_background(&*self, step, runtime);
            }
        }
    }
}

//! What is charged, given back and corrected after the decision.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};
use throttle_core::backend::{Call, Receipt};
use throttle_core::{Backend, BackendError, BackendErrorKind, DecidedBy, Decision, Policy};
use tokio::runtime::Handle;

use crate::limit::{Applied, ChargeRules};
use crate::throttle::LimitReport;
use crate::throttle::local_shares::Shares;
use crate::throttle::shared::{Calls, Shared};
use crate::usage::{Account, Background, Ledger, Step, Tally};

/// What the limits of a layer want after the decision. None of it costs a request anything whose limits want none.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wanted {
    /// Some charge may change.
    pub(in crate::throttle) account: bool,
    /// A handler may change it.
    pub(in crate::throttle) handle: bool,
    /// Attempts count.
    pub(in crate::throttle) attempts: bool,
    /// Requests that are dropped before they are answered cost nothing.
    pub(in crate::throttle) refunds_aborted: bool,
    /// Some keys depend on the route.
    pub(in crate::throttle) by_route: bool,
    /// Some refusals are worth waiting for.
    pub(in crate::throttle) waits: bool,
}

impl Wanted {
    pub(in crate::throttle) fn of(applied: &[Applied]) -> Self {
        let any = |wants: fn(&ChargeRules) -> bool| applied.iter().any(|how| wants(&how.charge_rules));
        Self {
            account: any(ChargeRules::may_change),
            handle: any(|outcomes| outcomes.settled_later),
            attempts: any(|outcomes| outcomes.charge_refused),
            refunds_aborted: any(|outcomes| outcomes.refund_aborted),
            by_route: applied.iter().any(|how| how.by_route),
            waits: applied.iter().any(|how| how.wait_up_to.is_some()),
        }
    }
}

/// How often a charge of what is left is tried, when others take of it in between.
const TRIES: usize = 4;

impl<B: Backend> Shared<B> {
    /// The account of an admitted request, if a limit wants one.
    #[inline]
    pub(in crate::throttle) fn open(self: &Arc<Self>, report: &LimitReport, calls: &[Call]) -> Option<Arc<Account>> {
        self.wanted.account.then(|| self.open_account(report.decision(), calls))
    }

    #[inline(never)]
    fn open_account(self: &Arc<Self>, decision: &Decision, calls: &[Call]) -> Arc<Account> {
        let mut receipt = Receipt::of(decision, calls);
        let mut lines = Vec::new();
        for (place, how) in self.applied.iter().enumerate().filter(|(_, how)| how.charge_rules.may_change()) {
            let (status, call) = (decision.statuses().get(place), calls.get(place));
            let admission = receipt.as_mut().and_then(|receipt| receipt.take(place));
            // A cost of 0 is charged afterwards. One that was not charged was another member's to pay.
            let applies = status.is_some_and(|status| status.applies()) && call.is_some_and(|call| call.cost() == 0);
            let concerned = admission.is_some() || (applies && how.charge_rules.settled_later);
            let call = call.filter(|call| concerned && call.key().is_some()).cloned();
            lines.push(Tally::new(place, call, admission));
        }
        let runtime = if self.backend.can_fail() { Handle::try_current().ok() } else { None };
        Account::new(Arc::clone(self) as Arc<dyn Ledger>, lines, runtime)
    }

    /// Charges a refused request to the limits for which attempts count, behind the refusal.
    #[inline(never)]
    pub(in crate::throttle) fn charge_attempt(self: &Arc<Self>, decision: &Decision, calls: &[Call]) {
        for (place, (how, call)) in self.applied.iter().zip(calls).enumerate() {
            let status =
                decision.statuses().get(place).filter(|status| how.charge_rules.charge_refused && status.applies());
            let (Some(_), Some(status)) = (call.key(), status) else { continue };
            // Where nothing is left the store need not be asked: those who are refused most cost least.
            let cost = call.cost().min(status.remaining());
            if cost > 0 {
                self.charge(place, call.clone().costing(cost), status.decided_by(), None);
            }
        }
    }

    fn charge(self: &Arc<Self>, place: usize, call: Call, decided_by: DecidedBy, runtime: Option<&Handle>) {
        let shared = Arc::clone(self);
        let step = async move {
            let (_, result) = shared.take_what_is_left(place, &call, decided_by).await;
            result
        };
        self.send(step, runtime);
    }

    /// Charges one policy `cost` units, or what is left of it. Where the store fails, what is left of this process's share.
    async fn take_what_is_left(
        &self,
        place: usize,
        call: &Call,
        decided_by: DecidedBy,
    ) -> (Option<Receipt>, Result<(), BackendError>) {
        if let DecidedBy::Local(why) = decided_by {
            return (self.take_of_share(place, call, why), Ok(()));
        }
        let mut cost = call.cost();
        for _ in 0..TRIES {
            let calls = self.only(place, call.clone().costing(cost));
            let decision = match self.backend.decide_at_once(&self.prepared, &calls) {
                Some(decision) => Ok(decision),
                None => self.backend.decide(&self.prepared, &calls).await,
            };
            match decision {
                Ok(decision) => match taken(place, &decision, &calls) {
                    Ok(receipt) => {
                        if let Some(share) = &self.answers.share {
                            share.note(&decision, &calls);
                        }
                        return (receipt, Ok(()));
                    }
                    Err(0) => break,
                    Err(left) => cost = left,
                },
                Err(error) => {
                    let rest = call.clone().costing(cost);
                    return (self.take_of_share(place, &rest, error.kind()), Err(error));
                }
            }
        }
        (None, Ok(()))
    }

    /// The same by this process's share, if the policy has one that decides then.
    fn take_of_share(&self, place: usize, call: &Call, why: BackendErrorKind) -> Option<Receipt> {
        let share = self.answers.share.as_ref()?;
        let mut cost = call.cost();
        for _ in 0..TRIES {
            let calls = self.only(place, call.clone().costing(cost));
            match taken(place, &share.decide(&calls, why)?, &calls) {
                Ok(receipt) => return receipt,
                Err(0) => break,
                Err(left) => cost = left,
            }
        }
        None
    }

    /// A call of one policy; the others are skipped.
    fn only(&self, place: usize, call: Call) -> Calls {
        let mut calls: SmallVec<[Call; 3]> = smallvec![Call::SKIP; self.applied.len()];
        if let Some(only) = calls.get_mut(place) {
            *only = call;
        }
        calls
    }

    /// Gives back all that a decision has charged, behind the request.
    pub(in crate::throttle) fn give_back(&self, decision: &Decision, calls: &[Call]) {
        if let Some(receipt) = Receipt::of(decision, calls) {
            self.settle(receipt.actual(0), None);
        }
    }

    /// Gives back what limits that refund aborted requests took of one that was dropped while the store decided.
    pub(in crate::throttle) async fn refund_aborted(
        &self,
        decided: Result<Decision, BackendError>,
        calls: &[Call],
    ) -> Result<(), BackendError> {
        let decision = match decided {
            Ok(decision) => decision,
            Err(error) if error.is_uncharged() => return Ok(()),
            Err(error) => return Err(error),
        };
        let Some(receipt) = Receipt::of(&decision, calls) else { return Ok(()) };
        let places = self.applied.iter().enumerate().filter(|(_, how)| how.charge_rules.refund_aborted);
        let mut receipt = Some(places.fold(receipt, |receipt, (place, _)| receipt.actual_of(place, 0)));
        if let Some(share) = &self.answers.share {
            share.note(&decision, calls);
            receipt = receipt.and_then(|receipt| share.for_receipts().settle(receipt));
        }
        match receipt {
            Some(receipt) => self.backend.settle(&self.prepared, receipt).await,
            None => Ok(()),
        }
    }

    /// Does a step behind the request.
    pub(in crate::throttle) fn send(
        &self,
        step: impl Future<Output = Result<(), BackendError>> + Send + 'static,
        runtime: Option<&Handle>,
    ) {
        self.background().send(Box::pin(step), runtime, self.backend.can_fail());
    }

    fn settle(&self, receipt: Receipt, runtime: Option<&Handle>) {
        let share = self.answers.share.as_ref().map(Shares::for_receipts);
        self.background().settle(&self.backend, &self.prepared, share, receipt, runtime);
    }

    fn background(&self) -> &Background {
        &self.answers.options.background
    }
}

/// The receipt of a decision about one policy, or what is left of it if it refuses.
fn taken(place: usize, decision: &Decision, calls: &[Call]) -> Result<Option<Receipt>, u64> {
    if decision.is_admitted() {
        return Ok(Receipt::of(decision, calls));
    }
    Err(decision.statuses().get(place).map_or(0, |status| status.remaining()))
}

/// Brings what a running charge has taken to its account, also if it never came to an end: that waits for it.
struct Bring {
    account: Arc<Account>,
    place: usize,
    receipt: Option<Receipt>,
}

impl Drop for Bring {
    fn drop(&mut self) {
        self.account.arrived(self.place, self.receipt.take());
    }
}

impl<B: Backend> Ledger for Shared<B> {
    fn policies(&self) -> &[Policy] {
        &self.answers.policies
    }

    fn charge_rules(&self, place: usize) -> &ChargeRules {
        &self.applied[place].charge_rules
    }

    fn run(self: Arc<Self>, step: Step, account: &Arc<Account>) {
        let runtime = account.runtime();
        match step {
            Step::Settle(receipt) => self.settle(receipt, runtime),
            Step::Charge { place, call } => self.charge(place, call, DecidedBy::Store, runtime),
            Step::Ask { place, call } => {
                let mut bring = Bring { account: Arc::clone(account), place, receipt: None };
                let shared = Arc::clone(&self);
                let step = async move {
                    let (receipt, result) = shared.take_what_is_left(place, &call, DecidedBy::Store).await;
                    bring.receipt = receipt;
                    drop(bring);
                    result
                };
                self.send(step, runtime);
            }
        }
    }
}

//! How the store decides a request: on a fast path, or in the locked shards of its keys.

use super::entry::Entry;
use super::policies::{CallParameters, Parameters};
use super::slot::Label;
use super::store::{MemorySet, Store};
use crate::algorithm::{Cell, Outcome};
use crate::backend::Call;
use crate::decision::Decision;
use crate::key::Key;
use crate::time::Timestamp;

impl Store {
    /// # Panics
    ///
    /// If the set [does not](crate::PolicySet::check_keys) decide such calls.
    // A decision is large to be moved out of an `Option`.
    #[inline(always)]
    pub(super) fn decide(&self, set: &MemorySet, calls: &[Call], now: Timestamp) -> Decision {
        match alone(set, calls) {
            Some((parameters, key, cost)) => self.decide_alone(parameters, key, cost, now),
            None => self
                .decide_set(set, calls, now)
                .expect("a request names each key of a policy once"),
        }
    }

    /// `None` if the set [does not](crate::PolicySet::check_keys) decide such calls.
    #[inline(always)]
    pub(super) fn try_decide(
        &self,
        set: &MemorySet,
        calls: &[Call],
        now: Timestamp,
    ) -> Option<Decision> {
        match alone(set, calls) {
            Some((parameters, key, cost)) => Some(self.decide_alone(parameters, key, cost, now)),
            None => self.decide_set(set, calls, now),
        }
    }

    /// Decides one policy on any key.
    #[cold]
    #[inline(never)]
    pub(super) fn decide_one(
        &self,
        parameters: &Parameters,
        key: &Key,
        cost: u64,
        now: Timestamp,
    ) -> Decision {
        let parameters = parameters.of_call();
        self.on_entry(parameters, key, (cost, now), |cell, overflow| {
            let wait = cell.wait(cost);
            let (delay, taken) = if wait == 0 && cost > 0 {
                cell.take(cost)
            } else {
                Default::default()
            };
            let outcome = Outcome { wait, delay, taken };
            let decision = Decision::of_one(outcome, cell.standing(), parameters.tier, overflow);
            (taken.cost, decision.excepted(cell.excepted()))
        })
    }

    /// Charges the key of a call about one policy, as far as units remain beyond the call's
    /// reserve.
    pub(super) fn charge_at_most(
        &self,
        set: &MemorySet,
        policy: usize,
        call: &Call,
        now: Timestamp,
    ) {
        let (
            Some(policy),
            Call {
                key: Some(key),
                cost,
                ..
            },
        ) = (set.policies.get(policy), call)
        else {
            return;
        };
        let parameters = policy.of_call(call.tier(), call.own.as_ref());
        self.on_entry(parameters, key, (*cost, now), |cell, _| {
            let units = (*cost).min(cell.standing().remaining.saturating_sub(call.reserve()));
            if units > 0 {
                cell.take(units);
            }
            (units, ())
        });
    }

    /// Runs a step on the cell of one key, which may share an overflow bucket. The step returns the
    /// units that it charged.
    #[inline]
    fn on_entry<R>(
        &self,
        parameters: CallParameters<'_>,
        key: &Key,
        (cost, now): (u64, Timestamp),
        step: impl FnOnce(&mut Cell<'_>, bool) -> (u64, R),
    ) -> R {
        let hash = self.key_hasher.hash(key);
        let label = Label::new(hash, parameters.policy);
        let mut shard = self.shard(hash).lock();
        let mut entry = Entry::locate(
            parameters,
            label,
            (cost, now),
            &mut shard,
            &[],
            &self.shared,
        );
        let overflow = entry.is_overflow();
        let (charged, result) = step(&mut entry.cell, overflow);
        entry.store(charged > 0, &mut shard, &self.shared);
        drop(shard);
        if overflow {
            self.sweep_elsewhere(now);
        }
        result
    }
}

/// What decides the calls if they are one usual call of a set of one policy.
#[inline(always)]
fn alone<'a>(set: &'a MemorySet, calls: &'a [Call]) -> Option<(&'a Parameters, &'a Key, u64)> {
    if let (Some(policy), [call]) = (&set.alone, calls)
        && let Some(key) = &call.key
        && call.is_usual()
    {
        return Some((policy.parameters(call.tier()), key, call.cost));
    }
    None
}

//! Decides sets whose keys are in different slots of a cluster. Each policy reserves where its key is; if the set
//! refuses, the reservations are given back exactly.
//!
//! This never admits too much: a refused request ends up charged nowhere, and until then it is charged too early rather
//! than too late. It may refuse early: two requests that each hold what the other needs both see less than there is.

use std::sync::Arc;

use smallvec::SmallVec;
use throttle_core::algorithm::State;
use throttle_core::backend::{Call, Receipt};
use throttle_core::{Decision, Timestamp};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use super::one_slot::ask_in_one_slot;
use super::set::RedisSet;
use super::settle;
use crate::link::call_error::CallError;
use crate::link::hash_slot;
use crate::script::reply::{answer, only_state};
use crate::script::request::Ask;
use crate::shared::Shared;

/// Whether the keys of a request are in several slots.
pub(crate) fn is_needed(shared: &Shared, ask: &Ask) -> bool {
    shared.link.is_cluster()
        && !shared.keyspace.is_single_slot()
        && ask.names.iter().any(|name| hash_slot::of(name) != ask.slot)
}

/// Runs in a task of its own, so that the reservations are given back even if the request drops its decision.
pub(crate) async fn decide(shared: &Arc<Shared>, set: &Arc<RedisSet>, ask: Ask) -> Result<Decision, CallError> {
    let task = tokio::spawn(reserve(Arc::clone(shared), Arc::clone(set), ask));
    task.await.unwrap_or(Err(CallError::Malformed("the task that reserved was stopped")))
}

/// One policy's part.
struct Reserved {
    policy: usize,
    calls: [Call; 1],
    now: Timestamp,
    state: State,
    decision: Decision,
}

async fn reserve(shared: Arc<Shared>, set: Arc<RedisSet>, ask: Ask) -> Result<Decision, CallError> {
    let until = Instant::now() + shared.link.deadline;
    let singles = set.singles(&shared);
    let mut asking = JoinSet::new();
    for (policy, call) in ask.calls.iter().enumerate().filter(|(_, call)| call.key().is_some()) {
        let (shared, single, calls) = (Arc::clone(&shared), Arc::clone(&singles[policy]), [call.clone()]);
        asking.spawn(async move { reserve_one(&shared, &single, policy, calls, until).await });
    }
    let (mut reserved, mut error) = (Vec::new(), None::<CallError>);
    while let Some(one) = asking.join_next().await {
        match one.unwrap_or(Err(CallError::Malformed("the task that reserved was stopped"))) {
            Ok(one) => reserved.push(one),
            // Report an error after which the request may be charged in preference to any other.
            Err(failed) if error.as_ref().is_none_or(CallError::is_uncharged) => error = Some(failed),
            Err(_) => {}
        }
    }
    if let Some(error) = error {
        let left = give_back(&shared, &set, reserved.iter(), until).await;
        // A reservation that could not be given back stays charged.
        return Err(if left { CallError::PartlyCharged(Box::new(error)) } else { error });
    }
    let decision = decide_all(&ask, &reserved);
    let in_vain = reserved.iter().filter(|one| decision.statuses()[one.policy].charged() == 0);
    give_back(&shared, &set, in_vain, until).await;
    Ok(decision)
}

async fn reserve_one(
    shared: &Arc<Shared>,
    single: &Arc<RedisSet>,
    policy: usize,
    calls: [Call; 1],
    until: Instant,
) -> Result<Reserved, CallError> {
    let ask = single.ask(shared, &calls);
    let (part, ask) = ask_in_one_slot(shared, single, ask, until).await?;
    let decision = answer(&ask, &part)?;
    let state = only_state(&ask, &part)?;
    Ok(Reserved { policy, calls, now: part.now, state, decision })
}

/// Decides by the set's rule from the parts, each at its own server's time.
fn decide_all(ask: &Ask, reserved: &[Reserved]) -> Decision {
    let set = &ask.prepared.set;
    let mut states: SmallVec<[State; 3]> = set.policies().iter().map(|policy| policy.algorithm().fresh()).collect();
    let mut times: SmallVec<[Timestamp; 3]> = SmallVec::from_elem(Timestamp::EPOCH, states.len());
    for one in reserved {
        states[one.policy].clone_from(&one.state);
        times[one.policy] = one.now;
    }
    set.decide_each(&mut states, &times, &ask.calls)
}

/// Returns whether a reservation could not be given back before `until`. Giving back continues after that, and no
/// request waits for it.
async fn give_back(
    shared: &Arc<Shared>,
    set: &Arc<RedisSet>,
    reserved: impl Iterator<Item = &Reserved>,
    until: Instant,
) -> bool {
    let mut giving = JoinSet::new();
    for one in reserved {
        if let Some(receipt) = Receipt::of(&one.decision, &one.calls) {
            let (shared, single) = (Arc::clone(shared), Arc::clone(&set.singles(shared)[one.policy]));
            giving.spawn(async move { settle::settle(&shared, &single, &receipt.actual(0)).await });
        }
    }
    let mut left = false;
    let all = async {
        while let Some(given) = giving.join_next().await {
            left |= !matches!(given, Ok(Ok(())));
        }
    };
    let late = timeout_at(until, all).await.is_err();
    giving.detach_all();
    left || late
}

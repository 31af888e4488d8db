//! One decision, from the question to the answer.

use std::sync::Arc;

use smallvec::SmallVec;
use throttle_core::Decision;
use throttle_core::algorithm::State;
use tokio::time::Instant;

use crate::ask::{Ask, Part};
use crate::line::Trouble;
use crate::set::RedisSet;
use crate::shared::Shared;
use crate::spread;

pub(crate) async fn decide(shared: &Arc<Shared>, set: &Arc<RedisSet>, ask: Ask) -> Result<Decision, Trouble> {
    if ask.names.is_empty() {
        return Ok(Decision::not_limited(ask.calls.len()));
    }
    if ask.as_of.is_none()
        && let Some(decision) = shared.at_once(&ask)
    {
        return Ok(decision);
    }
    let decided = if shared.is_spread(&ask) {
        // What is seldom is kept apart: the future of what is usual would be as large, and it is moved about.
        Box::pin(spread::decide(shared, set, ask)).await
    } else {
        decide_in_one_slot(shared, set, ask, Instant::now() + shared.line.deadline).await
    };
    let counters = &shared.line.counters;
    match &decided {
        Ok(_) => counters.decided(),
        Err(trouble) => {
            counters.failed();
            if !trouble.is_uncharged() {
                counters.left_unknown();
            }
        }
    }
    decided
}

/// A decision about keys that one script call can reach: one atomic step.
pub(crate) async fn decide_in_one_slot(
    shared: &Arc<Shared>,
    set: &RedisSet,
    ask: Ask,
    until: Instant,
) -> Result<Decision, Trouble> {
    let asked = shared.deny_cache.as_ref().map(|cache| cache.asking(&ask));
    let (part, ask) = ask_in_one_slot(shared, set, ask, until).await?;
    let decision = answer(&ask, &part)?;
    shared.note(&ask, &part, &decision, asked);
    Ok(decision)
}

/// The answer to such a question, as the script gives it, with the question given back.
pub(crate) async fn ask_in_one_slot(
    shared: &Arc<Shared>,
    set: &RedisSet,
    ask: Ask,
    until: Instant,
) -> Result<(Part, Ask), Trouble> {
    let _leave = shared.line.leave(ask.slot)?;
    // Decisions of one call are as of one instant.
    let (part, ask) = if shared.merges() && ask.as_of.is_none() {
        set.lane.ask(shared, ask, until).await?
    } else {
        let _place = set.waiting.try_acquire().map_err(|_| Trouble::Saturated)?;
        let room = set.room.take_by(shared.line.range(ask.slot), ask.work(), until).await;
        let _room = room.ok_or(Trouble::Expired)?;
        (shared.decide_one(&ask, until).await?, ask)
    };
    if part.flag() == Some(b'C') {
        // Other parameters wrote one of the values, and nothing was done.
        return Ok((Box::pin(shared.carry_over(&ask, until)).await?, ask));
    }
    Ok((part, ask))
}

const UNREADABLE: Trouble = Trouble::Nonsense("a state that the script told cannot be read");

/// The whole decision: what the library makes of the states that the script has seen.
pub(crate) fn answer(ask: &Ask, part: &Part) -> Result<Decision, Trouble> {
    let admitted = match part.flag() {
        Some(b'A') => true,
        Some(b'D') => false,
        Some(b'W') => return Err(Trouble::Nonsense("a key holds something that is no state of a limit")),
        _ => return Err(Trouble::Nonsense("the script's reply has no flag")),
    };
    let set = &ask.linked.set;
    let mut states = states(ask, part).ok_or(UNREADABLE)?;
    let decision = set.decide(&mut states, part.now, &ask.calls);
    if decision.is_admitted() == admitted {
        Ok(decision)
    } else {
        Err(Trouble::Nonsense("the script and the library disagree"))
    }
}

/// The state that a question about one policy was decided on.
pub(crate) fn only_state(ask: &Ask, part: &Part) -> Result<State, Trouble> {
    states(ask, part).and_then(|mut states| states.pop()).ok_or(UNREADABLE)
}

/// The states of all policies, those that do not apply as unused ones.
pub(crate) fn states(ask: &Ask, part: &Part) -> Option<SmallVec<[State; 3]>> {
    let mut values = part.values();
    let policies = ask.calls.iter().zip(ask.linked.set.policies());
    policies
        .map(|(call, policy)| {
            let algorithm = policy.algorithm();
            match call.key().map(|_| values.next()) {
                None | Some(Some([])) => Some(algorithm.fresh()),
                Some(None) => None,
                Some(Some(value)) if policy.is_tiered() => State::from_wire_of(policy, call.tier(), value),
                Some(Some(value)) => State::from_wire(algorithm, value),
            }
        })
        .collect()
}

//! Decides one request: by a shortcut, in one script call, or in one call for each hash slot.

pub(crate) mod batch;
pub(crate) mod call;
mod cross_slot;
pub(crate) mod one_slot;
pub(crate) mod set;
pub(crate) mod settle;

use std::sync::Arc;

use throttle_core::{Decision, Timestamp};
use tokio::time::Instant;

use crate::link::call_error::CallError;
use crate::script::request::Ask;
use crate::shared::Shared;
use one_slot::decide_in_one_slot;
use set::RedisSet;

pub(crate) async fn decide(shared: &Arc<Shared>, set: &Arc<RedisSet>, ask: &Arc<Ask>) -> Result<Decision, CallError> {
    if ask.names.is_empty() {
        return Ok(Decision::not_limited(ask.calls.len()));
    }
    if let Some(refusal) = shared.shortcut.at_once(ask, || shared.time()) {
        shared.link.counters.denied();
        return Ok(refusal);
    }
    let decided = if cross_slot::is_needed(shared, ask) {
        // Boxed because it is rare: unboxed, it would make every decision's future as large.
        Box::pin(cross_slot::decide(shared, set, Arc::clone(ask))).await
    } else {
        decide_in_one_slot(shared, set, ask, Instant::now() + shared.link.deadline).await
    };
    let counters = &shared.link.counters;
    match &decided {
        Ok(_) => counters.decided(),
        Err(error) => {
            counters.failed();
            if !error.is_uncharged() {
                counters.left_unknown();
            }
        }
    }
    decided
}

/// The present instant of the clock that decides about a request, if it is known.
pub(crate) fn now(shared: &Shared, ask: &Ask) -> Option<Timestamp> {
    // Servers have clocks of their own.
    if cross_slot::is_needed(shared, ask) { None } else { shared.now(ask.slot) }
}

#[cfg(test)]
mod tests {
    use throttle_core::backend::Call;
    use throttle_core::{Backend, Gcra, Key, Policy, PolicySet, Rate};

    use super::*;
    use crate::RedisBackend;

    /// It is allocated for each decision. Arguments by value and rare waits that are not boxed multiply its size.
    #[test]
    fn future_of_a_decision_is_small() {
        let backend = RedisBackend::new("redis://127.0.0.1:1").expect("a URL");
        let policy = Policy::new("p", Gcra::new(Rate::per_minute(5))).expect("a policy");
        let set = Arc::new(backend.prepare(PolicySet::new(policy).expect("a set")).expect("a set"));
        let ask = Arc::new(set.ask(&backend.shared, &[Call::from(Key::from("ada"))]));
        let size = size_of_val(&decide(&backend.shared, &set, &ask));
        assert!(size <= 2_048, "{size} bytes");
    }
}

//! Runs the steps of a request up to the point where it is passed on or refused.

use std::borrow::Cow;
use std::sync::Arc;

use http::request::Parts;
use smallvec::SmallVec;
use throttle_core::Backend;

use super::ask::{self, Asked, Lookup};
use super::decide::{self, Decided};
use super::judge::{Admitted, Judged, judge, judge_decision};
use super::look_up::look_up;
use super::own_numbers;
use super::refuse_early::{Early, refuse_early};
use super::wait_queue;
use crate::event::Outcome;
use crate::throttle::response_builder::Refused;
use crate::throttle::shared::Shared;

/// How far a request comes without waiting.
pub(in crate::throttle) enum Started {
    Judged(Judged),
    /// It has to wait for a key, the store or its turn, or has numbers of its own.
    Waits(Asked, Vec<Lookup>),
}

/// Judges a request, if nothing has to be waited for.
#[inline]
pub(in crate::throttle) fn start<B: Backend>(shared: &Arc<Shared<B>>, parts: &mut Parts) -> Started {
    if let Some(when) = &shared.options.when
        && !when.holds(parts)
    {
        return Started::Judged(Judged::Pass(Admitted::untouched()));
    }
    // A pair would be moved out of its initializer.
    let mut asked = Asked::default();
    let mut lookups = Vec::new();
    if let Err(refusal) = ask::ask(shared, parts, &mut asked, &mut lookups) {
        return Started::Judged(Judged::Refuse(*refusal));
    }
    // A request with numbers of its own is rare, and its limits may have to be made.
    if lookups.is_empty() && asked.own.is_none() && !wait_queue::is_behind_others(shared, &asked.calls) {
        if let Some(saturated) = decide::saturated(shared, &asked.needs) {
            return Started::Judged(judge(shared, saturated, &asked, parts));
        }
        if let Some(decision) = decide::at_once(shared, &asked.calls)
            && !wait_queue::may_wait(shared, &decision)
        {
            return Started::Judged(judge_decision(shared, decision, Outcome::Admitted, &asked, parts));
        }
    }
    Started::Waits(asked, lookups)
}

/// Judges a request that has to wait. Every wait is bounded: lookups and the store have a deadline each, and a queue
/// holds a request for as long as its limit says.
pub(in crate::throttle) async fn finish<B: Backend>(
    shared: Arc<Shared<B>>,
    mut asked: Asked,
    lookups: Vec<Lookup>,
    mut parts: Parts,
) -> (Judged, Parts) {
    let judged = match decided(&shared, &mut asked, lookups, &parts).await {
        Ok((shared, decided)) => judge(&shared, decided, &asked, &mut parts),
        Err(refusal) => Judged::Refuse(*refusal),
    };
    (judged, parts)
}

/// Returns what the request was decided by, too.
///
/// # Errors
///
/// The refusal, where a required key is missing or the backend does not enforce the request's own numbers.
async fn decided<'a, B: Backend>(
    layer: &'a Arc<Shared<B>>,
    asked: &mut Asked,
    lookups: Vec<Lookup>,
    parts: &Parts,
) -> Result<(Cow<'a, Arc<Shared<B>>>, Decided), Box<Refused>> {
    let mut shared = own_numbers::decided_by(layer, asked, parts)?;
    if !lookups.is_empty() {
        let unknown: SmallVec<[usize; 2]> = lookups.iter().map(|lookup| lookup.policy).collect();
        let early = refuse_early(&shared, asked, &unknown).await;
        if let Early::Refused(decided) = early {
            return Ok((shared, *decided));
        }
        look_up(layer, asked, lookups, parts).await?;
        shared = own_numbers::decided_by(layer, asked, parts)?;
        if let Early::Failed(error) = early {
            return Ok((shared, Decided::Failed(error)));
        }
    }
    let decided = match shared.uses.queues {
        true => wait_queue::decide(&shared, asked).await,
        false => decide::decide(&shared, asked).await,
    };
    Ok((shared, decided))
}

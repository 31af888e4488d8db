//! Runs the steps of a request up to the point where it is passed on or refused.

use std::sync::Arc;

use http::request::Parts;
use smallvec::SmallVec;
use throttle_core::Backend;

use super::ask::{Asked, Lookup, OfRequest, ask};
use super::decide::{self, Decided};
use super::judge::{Admitted, Judged, judge, judge_decided};
use super::look_up::look_up;
use super::narrow::narrow;
use super::refuse_early::{Early, Unknown, refuse_early};
use super::wait_queue;
use crate::event::Outcome;
use crate::limit::select;
use crate::throttle::response_builder::Refused;
use crate::throttle::shared::Shared;

/// How far a request comes without waiting.
pub(in crate::throttle) enum Started<B: Backend> {
    Judged(Judged),
    /// It has to wait for a key, the store or its turn.
    Waits(Arc<Shared<B>>, Asked, Vec<Lookup>),
}

/// Judges a request, if nothing has to be waited for.
#[inline]
pub(in crate::throttle) fn start<B: Backend>(
    whole: &Arc<Shared<B>>,
    parts: &mut Parts,
) -> Started<B> {
    if let Some(when) = &whole.options.settings.when
        && !when(parts)
    {
        return Started::Judged(Judged::Pass(Admitted::untouched()));
    }
    let selected = select(&whole.selections, parts);
    let shared = narrow(whole, &selected);
    // A pair would be moved out of its initializer.
    let mut asked = Asked::default();
    let mut lookups = Vec::new();
    let mut inquiry = OfRequest(&selected);
    if let Err(refusal) = ask(&mut inquiry, shared, parts, (&mut asked, &mut lookups)) {
        return Started::Judged(Judged::Refuse(*refusal));
    }
    if lookups.is_empty() && !wait_queue::is_behind_others(shared, &asked.calls) {
        if let Some(saturated) = decide::saturated(shared, &asked.needs) {
            return Started::Judged(judge(shared, saturated, &asked, parts));
        }
        if let Some(report) = decide::at_once(shared, &asked.calls)
            && !wait_queue::may_wait(shared, report.decided())
        {
            return Started::Judged(judge_decided(
                shared,
                report,
                Outcome::Admitted,
                &asked,
                parts,
            ));
        }
    }
    Started::Waits(Arc::clone(shared), asked, lookups)
}

/// Judges a request that has to wait. Every wait is bounded: lookups and the store have a deadline
/// each, and a queue holds a request for as long as its limit says.
pub(in crate::throttle) async fn finish<B: Backend>(
    shared: Arc<Shared<B>>,
    mut asked: Asked,
    lookups: Vec<Lookup>,
    mut parts: Parts,
) -> (Judged, Parts) {
    let judged = match decided(&shared, &mut asked, lookups, &parts).await {
        Ok(decided) => judge(&shared, decided, &asked, &mut parts),
        Err(refusal) => Judged::Refuse(*refusal),
    };
    (judged, parts)
}

/// # Errors
///
/// The refusal, where a required key is missing.
pub(super) async fn decided<B: Backend>(
    shared: &Arc<Shared<B>>,
    asked: &mut Asked,
    mut lookups: Vec<Lookup>,
    parts: &Parts,
) -> Result<Decided, Box<Refused>> {
    if !lookups.is_empty() {
        let unknown = lookups.iter_mut().map(|lookup| Unknown {
            policy: lookup.policy,
            last: lookup.last.take(),
        });
        let unknown: SmallVec<[Unknown; 1]> = unknown.collect();
        let early = refuse_early(shared, asked, &unknown, parts).await;
        if let Early::Refused(decided) = early {
            return Ok(*decided);
        }
        look_up(&mut OfRequest(&[]), shared, asked, lookups, parts).await?;
        if let Early::Failed(error) = early {
            return Ok(Decided::Failed(error));
        }
    }
    Ok(match shared.uses.queues {
        true => wait_queue::decide(shared, asked).await,
        false => decide::decide(shared, asked).await,
    })
}

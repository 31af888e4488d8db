//! Runs the steps of a request up to the point where it is passed on or refused.

use std::sync::Arc;

use bytes::Bytes;
use http::Response;
use http::request::Parts;
use throttle_core::Backend;

use super::ask::{self, Asked};
use super::decide::{self, Answer};
use super::judge::{Judged, judge};
use super::look_up::look_up;
use super::refuse_early::{Early, refuse_early};
use crate::throttle::shared::Shared;

/// How far a request comes without waiting.
pub(in crate::throttle) enum Started {
    Judged(Judged),
    /// It has to wait for a key, the store or its turn.
    Waits(Asked),
}

/// Judges a request, if nothing has to be waited for.
#[inline]
pub(in crate::throttle) fn start<B: Backend>(shared: &Arc<Shared<B>>, parts: &mut Parts) -> Started {
    let mut asked = Asked::default();
    if let Err(refusal) = ask::ask(shared, parts, &mut asked) {
        return Started::Judged(Judged::Refuse(*refusal));
    }
    if asked.lookups.is_empty()
        && !shared.stands_in_line(&asked.calls)
        && let Some(answer) = decide::at_once(shared, &asked)
        && !shared.is_worth_holding(&answer)
    {
        return Started::Judged(judge(shared, answer, &asked.calls, &asked.needs, parts));
    }
    Started::Waits(asked)
}

/// Judges a request that has to wait. Every wait is bounded: lookups and the store have a deadline each, and a queue holds
/// a request for as long as its limit says.
pub(in crate::throttle) async fn finish<B: Backend>(
    shared: Arc<Shared<B>>,
    mut asked: Asked,
    mut parts: Parts,
) -> (Judged, Parts) {
    let judged = match answer(&shared, &mut asked, &parts).await {
        Ok(answer) => judge(&shared, answer, &asked.calls, &asked.needs, &mut parts),
        Err(refusal) => Judged::Refuse(*refusal),
    };
    (judged, parts)
}

/// # Errors
///
/// The refusal, where a required key is missing.
async fn answer<B: Backend>(
    shared: &Arc<Shared<B>>,
    asked: &mut Asked,
    parts: &Parts,
) -> Result<Answer, Box<Response<Bytes>>> {
    if !asked.lookups.is_empty() {
        let early = refuse_early(shared, asked).await;
        match early {
            Early::Undecided => look_up(shared, asked, parts).await?,
            Early::Refused(answer, calls) => {
                asked.calls = calls;
                return Ok(answer);
            }
            Early::Failed(error) => {
                look_up(shared, asked, parts).await?;
                return Ok(Answer::Failed(error));
            }
        }
    }
    if shared.uses.queues {
        return Ok(shared.decide_patiently(&asked.calls, &asked.needs).await);
    }
    Ok(decide::decide(shared, &asked.calls, &asked.needs).await)
}

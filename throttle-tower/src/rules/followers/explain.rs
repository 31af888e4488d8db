//! What the limits of a layer would do with a request, without doing it.

use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use throttle_core::{Backend, BackendError, Key, PolicyName};

use crate::limit::explained::{ExplainedLimit, Explanation, KeyLeft, Verdict};
use crate::throttle::Shared;
use crate::{LimitState, LimitStatus};

/// # Errors
///
/// If the store has failed and a limit is closed then.
pub(crate) async fn explain<B: Backend>(
    shared: Arc<Shared<B>>,
    parts: &Parts,
) -> Result<Explanation, BackendError> {
    let Some(report) = shared.peek(parts).await? else {
        let why = mismatch(&shared, parts).unwrap_or_default();
        return Ok(skipped(&shared, why));
    };
    Ok(Explanation {
        is_admitted: report.is_admitted(),
        is_held: report.held_for().is_some(),
        retry_after: report.retry_after(),
        layer_skips: None,
        limits: report.limits().map(|limit| explained(&limit)).collect(),
    })
}

/// What one limit does.
fn explained(limit: &LimitStatus<'_>) -> ExplainedLimit {
    let (verdict, left) = match limit.state {
        LimitState::Units(units) => {
            let status = units.status;
            let retry_after = status.retry_after();
            let is_held = limit.info.wait_up_to.zip(retry_after);
            let verdict = match retry_after {
                Some(Duration::ZERO) => Verdict::Admits,
                _ if status.is_audited() => Verdict::WouldRefuse,
                _ if is_held.is_some_and(|(longest, wait)| wait <= longest) => Verdict::Holds,
                _ => Verdict::Refuses,
            };
            let left = KeyLeft {
                cost: units.cost,
                has_key: units.key != Some(&Key::missing()),
                tier: status.tier(),
                is_excepted: status.is_excepted(),
                reserve: units.reserve,
                units: status.remaining(),
                of: units.capacity,
                retry_after,
                resets_in: status.reset_after(),
            };
            (verdict, Some(left))
        }
        LimitState::Permits {
            needed,
            free,
            most,
            key,
        } => {
            let admits = needed <= free;
            let of = limit.info.permits.unwrap_or(most);
            let left = KeyLeft {
                cost: needed,
                has_key: *key != Key::missing(),
                tier: 0,
                is_excepted: false,
                reserve: of - most,
                units: free,
                of,
                retry_after: admits.then_some(Duration::ZERO),
                resets_in: Duration::ZERO,
            };
            let verdict = if admits {
                Verdict::Admits
            } else {
                Verdict::Refuses
            };
            (verdict, Some(left))
        }
        LimitState::NoKey(Some(status)) => (Verdict::RefusesWithoutKey(status), None),
        LimitState::NoKey(None) => {
            let why = "it has no key, and on-missing is \"skip\"";
            (Verdict::Skips(why.to_owned()), None)
        }
        LimitState::Open(why) => {
            let why = format!("it is open, because the store fails ({})", why.label());
            (Verdict::Skips(why), None)
        }
        LimitState::DoesNotApply => (Verdict::Skips(String::new()), None),
    };
    ExplainedLimit {
        class: limit.class().filter(|_| left.is_some()).map(str::to_owned),
        left,
        ..unasked(&limit.info.name, verdict)
    }
}

fn unasked(name: &PolicyName, verdict: Verdict) -> ExplainedLimit {
    ExplainedLimit {
        name: name.as_str().to_owned(),
        by: String::new(),
        class: None,
        verdict,
        left: None,
    }
}

/// Why the layer does not apply to a request; `None` if it does.
fn mismatch<B: Backend>(shared: &Shared<B>, parts: &Parts) -> Option<String> {
    let when = shared
        .options
        .settings
        .when
        .as_ref()
        .filter(|when| !when.holds(parts))?;
    Some(
        when.mismatch(parts)
            .unwrap_or_else(|| "the program's condition does not hold".to_owned()),
    )
}

/// What the layer does with a request to which it does not apply: nothing.
fn skipped<B: Backend>(shared: &Shared<B>, why: String) -> Explanation {
    let limits = shared.version.info().limits().iter();
    let limits = limits
        .map(|limit| unasked(&limit.name, Verdict::Skips(String::new())))
        .collect();
    let retry_after = Some(Duration::ZERO);
    Explanation {
        limits,
        is_admitted: true,
        is_held: false,
        retry_after,
        layer_skips: Some(why),
    }
}

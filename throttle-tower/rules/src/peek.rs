//! What the limits of a layer would do with a request, by what the layer's peek reports.

use std::time::Duration;

use http::request::Parts;
use throttle_core::{Backend, BackendError, Key, PolicyName};

use super::Rules;
use super::explanation::{ExplainedLimit, Explanation, KeyBalance, Verdict};
use throttle_tower::{LimitState, LimitStatus, ThrottleBuilder, ThrottleLayer};

/// # Errors
///
/// If the store has failed and a limit is closed then.
pub(super) async fn explain<B: Backend>(
    layer: &ThrottleLayer<B>,
    program: &ThrottleBuilder,
    rules: &Rules,
    parts: &Parts,
) -> Result<Explanation, BackendError> {
    if let Some(report) = layer.peek(parts).await? {
        let limits = report.limits();
        return Ok(Explanation {
            is_admitted: report.is_admitted(),
            is_held: report.held_for().is_some(),
            retry_after: report.retry_after(),
            layer_skips: None,
            limits: limits
                .map(|limit| explained(&limit, rules, parts))
                .collect(),
        });
    }
    let why = "the layer does not apply";
    let skipped = |name| unasked(name, rules, Verdict::Skips(why.to_owned()));
    let info = layer.info();
    let limits = info.limits().iter();
    Ok(Explanation {
        is_admitted: true,
        is_held: false,
        retry_after: Some(Duration::ZERO),
        layer_skips: Some(layer_mismatch(program, rules, parts).await?),
        limits: limits.map(|limit| skipped(&limit.name)).collect(),
    })
}

/// Why the layer does not apply to a request.
async fn layer_mismatch(
    program: &ThrottleBuilder,
    rules: &Rules,
    parts: &Parts,
) -> Result<String, BackendError> {
    // A condition of the program goes before that of the file. What the program sets, alone, is
    // a layer that applies unless there is one, and it does not hold.
    let of_program = ThrottleLayer::builder(()).or(program.clone()).build();
    let program_applies = match of_program {
        Ok(layer) => layer.peek(parts).await?.is_some(),
        Err(_) => false,
    };
    let of_file = rules.document.when.as_ref().filter(|_| program_applies);
    let mismatch = of_file.and_then(|when| when.mismatch(parts));
    Ok(mismatch.unwrap_or_else(|| "the program's condition does not hold".to_owned()))
}

/// What one limit does.
fn explained(limit: &LimitStatus<'_>, rules: &Rules, parts: &Parts) -> ExplainedLimit {
    let name = &limit.info.name;
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
            let left = KeyBalance {
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
            let left = KeyBalance {
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
        // It does not apply.
        _ => {
            let entry = rules.limit(name.as_str());
            let mismatch = entry.and_then(|entry| entry.matcher.mismatch(parts));
            let why = mismatch.unwrap_or_else(|| "it does not apply".to_owned());
            (Verdict::Skips(why), None)
        }
    };
    ExplainedLimit {
        class: limit.class().filter(|_| left.is_some()).map(str::to_owned),
        left,
        ..unasked(name, rules, verdict)
    }
}

fn unasked(name: &PolicyName, rules: &Rules, verdict: Verdict) -> ExplainedLimit {
    let entry = rules.limit(name.as_str());
    ExplainedLimit {
        name: name.as_str().to_owned(),
        by: entry.map(|entry| entry.by().to_owned()).unwrap_or_default(),
        class: None,
        verdict,
        left: None,
    }
}

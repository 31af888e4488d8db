//! What the limits of a layer would do with a request, without doing it.

use std::sync::Arc;

use http::request::Parts;
use throttle_core::backend::Call;
use throttle_core::{Algorithm, AnyCharge, Backend, BackendError, Decision, Key, Policy, PolicyNode, PolicySet};

use super::explained::{Asks, Explained, ExplainedLimit, Left};
use super::own_sets::OwnNumbers;
use super::shared::Shared;
use crate::limit::{Applied, Found, FoundTier, Keying, OnMissing};

/// Looks at what a request would be charged to, and charges nothing.
///
/// # Errors
///
/// If the backend fails.
pub(super) async fn explain<B: Backend>(shared: Arc<Shared<B>>, parts: &Parts) -> Result<Explained, BackendError> {
    if let Some(why) = mismatch(&shared, parts) {
        return Ok(skipped(&shared, why));
    }
    // Sets of rules keep their own parameters.
    let mut asks = Vec::with_capacity(B::set(&shared.prepared).policies().len());
    let mut own = OwnNumbers::new();
    let mut looks = Vec::with_capacity(asks.capacity());
    for (place, limit) in shared.applied.iter().enumerate() {
        let (asked, key, numbers) = ask(limit, parts).await;
        own.extend(numbers.map(|numbers| (place, numbers)));
        let tier = if let Asks::Units { tier, .. } = asked { tier } else { 0 };
        looks.push(key.map_or(Call::SKIP, |key| Call::peek(key).in_tier(tier)));
        asks.push(asked);
    }
    let shared = shared.with_own(&mut own, |place, unknown| {
        looks[place] = looks[place].clone().in_tier(unknown);
        if let Asks::Units { tier, .. } = &mut asks[place] {
            *tier = unknown;
        }
    });
    let set = B::set(&shared.prepared);
    let decision = match looks.iter().all(|call| call.key().is_none()) {
        true => Decision::not_limited(looks.len()),
        false => shared.backend.decide(&shared.prepared, &looks).await?,
    };
    let verdicts: Vec<Option<bool>> = asks
        .iter()
        .zip(decision.statuses())
        .map(|(asks, status)| match asks {
            Asks::Units { cost, .. } => Some(*cost <= status.remaining()),
            Asks::RefusedWithoutKey(_) => Some(false),
            Asks::Nothing | Asks::SkippedWithoutKey => None,
        })
        .collect();
    let rejects = asks.iter().any(|asks| matches!(asks, Asks::RefusedWithoutKey(_)));
    let mut limits = Vec::with_capacity(asks.len());
    for (place, (policy, asks)) in set.policies().iter().zip(asks).enumerate() {
        let status = &decision.statuses()[place];
        let tier = policy.tiers().nth(usize::from(status.tier())).map(|(_, tier)| tier.algorithm().capacity());
        let left = matches!(asks, Asks::Units { .. }).then(|| Left {
            units: status.remaining(),
            of: tier.unwrap_or_else(|| policy.algorithm().capacity()),
            resets_in: status.reset_after(),
        });
        limits.push(ExplainedLimit { name: policy.policy_name().clone(), asks, left });
    }
    let (permits, has_permits) = shared.permits.explain(parts);
    let is_admitted = !rejects && admits(set, 0, &verdicts) != Some(false) && has_permits;
    limits.extend(permits);
    Ok(Explained { limits, is_admitted, layer_skips: None })
}

/// Why the layer does not apply to a request; `None` if it does.
fn mismatch<B: Backend>(shared: &Shared<B>, parts: &Parts) -> Option<String> {
    let when = shared.options.when.as_ref().filter(|when| !when.holds(parts))?;
    Some(when.mismatch(parts).unwrap_or_else(|| "the program's condition does not hold".to_owned()))
}

/// What the layer does with a request to which it does not apply: nothing.
fn skipped<B: Backend>(shared: &Shared<B>, why: String) -> Explained {
    let policies = B::set(&shared.prepared).policies().iter().map(Policy::policy_name);
    let names = policies.chain(shared.permits.names()).cloned();
    let limits = names.map(|name| ExplainedLimit { name, asks: Asks::Nothing, left: None }).collect();
    Explained { limits, is_admitted: true, layer_skips: Some(why) }
}

/// Makes the key of a request unused in a limit of that name. `Ok(false)` if no limit on a rate has the name, or if
/// the limit or the whole layer does not apply to the request.
///
/// # Errors
///
/// If the backend fails.
pub(super) async fn reset<B: Backend>(shared: Arc<Shared<B>>, name: &str, parts: &Parts) -> Result<bool, BackendError> {
    let Some(place) = B::set(&shared.prepared).policies().iter().position(|policy| policy.name() == name) else {
        return Ok(false);
    };
    if mismatch(&shared, parts).is_some() {
        return Ok(false);
    }
    let (_, key, _) = ask(&shared.applied[place], parts).await;
    match key {
        Some(key) => shared.backend.reset(&shared.prepared, place, &key).await.map(|()| true),
        None => Ok(false),
    }
}

/// What a request asks of a limit, by which key, and under which numbers of its own.
async fn ask(limit: &Applied, parts: &Parts) -> (Asks, Option<Key>, Option<Arc<Algorithm>>) {
    if limit.when.as_ref().is_some_and(|applies| !applies(parts)) {
        return (Asks::Nothing, None, None);
    }
    let cost = limit.cost.as_ref().map_or(1, |cost| cost(parts));
    let found = match &limit.keying {
        Keying::Extracted(extractor) => Found::Now(extractor.extract(parts), 0),
        Keying::Tiered(lookup) => lookup.find(parts),
        Keying::Future(key) => Found::Later(key(parts, limit.key_deadline)),
    };
    let (key, tier) = match found {
        Found::Now(key, tier) => (key, FoundTier::Numbered(tier)),
        Found::Own(key, numbers) => (key, FoundTier::Own(numbers)),
        Found::Later(key) => key.await,
    };
    let (tier, numbers) = match tier {
        FoundTier::Numbered(tier) => (tier, None),
        FoundTier::Own(numbers) => (Policy::OWN, Some(numbers)),
    };
    let (asks, key) = match (key, limit.on_missing) {
        (Some(key), _) => (Asks::Units { cost, has_key: true, tier }, Some(key)),
        (None, OnMissing::Share) => (Asks::Units { cost, has_key: false, tier }, Some(Key::missing())),
        (None, OnMissing::Skip) => (Asks::SkippedWithoutKey, None),
        (None, OnMissing::Reject(status)) => (Asks::RefusedWithoutKey(status), None),
    };
    (asks, key, numbers)
}

/// Whether a node of the composition admits the request, by what its policies do; `None` where none of it applies.
fn admits(set: &PolicySet, node: usize, verdicts: &[Option<bool>]) -> Option<bool> {
    let members = || set.members(node).filter_map(|member| admits(set, member, verdicts));
    match set.node(node) {
        PolicyNode::Policy(place) => verdicts[place],
        PolicyNode::All => members().reduce(|all, one| all && one),
        PolicyNode::Any(AnyCharge::First | AnyCharge::EveryAdmitting) => members().reduce(|any, one| any || one),
    }
}

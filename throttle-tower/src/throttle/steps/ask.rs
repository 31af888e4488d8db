use http::request::Parts;
use smallvec::SmallVec;
use throttle_core::backend::Call;
use throttle_core::{Backend, Key};

use super::narrow::{self, Holding};
use super::{classes, first_keys, missing_key};
use crate::limit::{Applied, Found, Keying, LookedUp, PermitLimit};
use crate::throttle::permits::Needs;
use crate::throttle::response_builder::Refused;
use crate::throttle::shared::Shared;

/// One call per policy.
pub(crate) type Calls = SmallVec<[Call; 3]>;

/// What a request asks of the limits.
#[derive(Default)]
pub(in crate::throttle) struct Asked {
    pub(super) calls: Calls,
    /// Of the limits on requests in flight.
    pub(super) needs: Needs,
}

/// A key that has to be waited for. Its call is skipped until then.
pub(in crate::throttle) struct Lookup {
    pub(super) policy: usize,
    pub(super) cost: u64,
    pub(super) key: LookedUp,
    /// The call of the key in its last known tier, without a class.
    pub(super) last: Option<Call>,
}

/// Finds a request's key and cost for every limit, or the lookup of its key. It fills `asked` in
/// place, because calls are large.
///
/// # Errors
///
/// The refusal, where a required key is missing.
#[inline]
pub(super) fn ask<B: Backend>(
    shared: &Shared<B>,
    holding: &Holding,
    parts: &Parts,
    (asked, lookups): (&mut Asked, &mut Vec<Lookup>),
) -> Result<(), Box<Refused>> {
    asked.calls.reserve_exact(shared.applied.len());
    for (policy, limit) in shared.applied.iter().enumerate() {
        if limit.when.is_some() && !narrow::applies(shared, policy, holding, parts) {
            asked.calls.push(Call::SKIP);
            continue;
        }
        let cost = limit.cost.as_ref().map_or(1, |cost| cost(parts));
        let mut later = |key, last| {
            lookups.push(Lookup {
                policy,
                cost,
                key,
                last,
            });
            Call::SKIP
        };
        let call = match &limit.keying {
            Keying::Extracted(extractor) => {
                call(shared, limit, cost, extractor.extract(parts), parts)?
            }
            Keying::Tiered(lookup) => match lookup.find(parts) {
                Found::Now(key, tier) => tier.of(call(shared, limit, cost, key, parts)?),
                Found::Later { key, last } => {
                    let last = last.map(|(key, tier)| tier.of(Call::from(key).costing(cost)));
                    later(key, last)
                }
            },
            Keying::Future(key) => later(key(parts, limit.key_deadline), None),
        };
        asked.calls.push(call);
    }
    if shared.uses.permits_or_classes {
        for PermitLimit { applied: limit, .. } in shared.permits.limits() {
            let applies = limit.when.as_ref().is_none_or(|when| when.holds(parts));
            let need = match limit.keying.extractor().filter(|_| applies) {
                Some(extractor) => {
                    let cost = limit.cost.as_ref().map_or(1, |cost| cost(parts));
                    call(shared, limit, cost, extractor.extract(parts), parts)?
                }
                None => Call::SKIP,
            };
            asked.needs.push(limit.in_class(need, parts));
        }
        classes::reserve(shared, &mut asked.calls, parts);
    }
    Ok(())
}

/// The call of one limit, once it is known whether there is a key.
///
/// # Errors
///
/// The refusal, where a required key is missing.
#[inline(always)]
pub(super) fn call<B: Backend>(
    shared: &Shared<B>,
    limit: &Applied,
    cost: u64,
    key: Option<Key>,
    parts: &Parts,
) -> Result<Call, Box<Refused>> {
    match key {
        Some(key) => {
            if !limit.key_seen.is_settled() {
                first_keys::key_found(shared, limit, parts);
            }
            Ok(Call::from(key).costing(cost))
        }
        None => {
            let call = Call::from(Key::missing()).costing(cost);
            missing_key::call_without_key(shared, limit, call, parts)
        }
    }
}

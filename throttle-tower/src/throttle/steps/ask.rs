use std::mem;

use http::request::Parts;
use smallvec::SmallVec;
use throttle_core::backend::Call;
use throttle_core::{Backend, Key};

use super::missing_key;
use crate::limit::{FoundKey, KeySource, LimitSettings, LookedUp, PermitLimit};
use crate::throttle::permits::Needs;
use crate::throttle::response_builder::RefusalResponse;
use crate::throttle::shared_layer::SharedLayer;
use crate::throttle::warning::Warning;

/// One call per policy.
pub(crate) type Calls = SmallVec<[Call; 3]>;

/// What a request asks of the limits.
#[derive(Default)]
pub(in crate::throttle) struct RequestCalls {
    pub(in crate::throttle) calls: Calls,
    /// Of the limits on requests in flight.
    pub(in crate::throttle) needs: Needs,
}

/// A key that has to be waited for. Its call is skipped until then.
pub(in crate::throttle) struct Lookup {
    pub(super) index: usize,
    pub(super) cost: u64,
    pub(super) key: LookedUp,
    /// The call of the key in its last known tier, without a class.
    pub(super) last: Option<Call>,
}

/// What a request and a peek do differently where the limits are asked about them.
pub(in crate::throttle) trait Inquiry<B: Backend> {
    /// What ends it.
    type Refusal;

    /// Returns whether a limit applies.
    fn applies(&mut self, limit: &LimitSettings, parts: &Parts) -> bool;

    /// Returns the units that a limit is asked for.
    fn cost(&self, limit: &LimitSettings, parts: &Parts) -> u64 {
        limit.cost_of(parts)
    }

    /// Notes that a key was found.
    fn note_key(&self, _: &SharedLayer<B>, _: &LimitSettings, _: &Parts) {}

    /// Returns the call where there is no key; `shared_budget` is the one on the budget of all
    /// requests without a key.
    ///
    /// # Errors
    ///
    /// The refusal, where a key is required.
    fn without_key(
        &mut self,
        shared: &SharedLayer<B>,
        limit: &LimitSettings,
        shared_budget: Call,
        parts: &Parts,
    ) -> Result<Call, Self::Refusal>;
}

/// Asks about a request, for which these limits are selected.
pub(super) struct OfRequest<'a>(pub(super) &'a [usize]);

impl<B: Backend> Inquiry<B> for OfRequest<'_> {
    type Refusal = Box<RefusalResponse>;

    #[inline]
    fn applies(&mut self, limit: &LimitSettings, parts: &Parts) -> bool {
        !limit.is_conditional() || limit.applies(self.0, parts)
    }

    #[inline]
    fn note_key(&self, shared: &SharedLayer<B>, limit: &LimitSettings, parts: &Parts) {
        if !limit.key_history.is_settled() {
            missing_key::key_found(shared, limit, parts);
        }
    }

    fn without_key(
        &mut self,
        shared: &SharedLayer<B>,
        limit: &LimitSettings,
        shared_budget: Call,
        parts: &Parts,
    ) -> Result<Call, Box<RefusalResponse>> {
        missing_key::call_without_key(shared, limit, shared_budget, parts)
    }
}

/// Finds the key, the cost, the tier and the class for every limit, or the lookup of its key. It
/// fills `request` in place, because calls are large.
///
/// # Errors
///
/// The refusal, where a required key is missing.
#[inline]
pub(in crate::throttle) fn ask<B: Backend, I: Inquiry<B>>(
    inquiry: &mut I,
    shared: &SharedLayer<B>,
    parts: &Parts,
    (request, lookups): (&mut RequestCalls, &mut Vec<Lookup>),
) -> Result<(), I::Refusal> {
    request.calls.reserve_exact(shared.applied.len());
    for (index, limit) in shared.applied.iter().enumerate() {
        if !inquiry.applies(limit, parts) {
            request.calls.push(Call::SKIP);
            continue;
        }
        let cost = inquiry.cost(limit, parts);
        let mut later = |key, last| {
            lookups.push(Lookup {
                index,
                cost,
                key,
                last,
            });
            Call::SKIP
        };
        let call = match &limit.key_source {
            KeySource::Extracted(extractor) => {
                let key = extractor.extract(parts);
                call(inquiry, shared, (limit, cost), key, parts)?
            }
            KeySource::Tiered(lookup) => match lookup.find(parts) {
                FoundKey::Now(key, tier) => {
                    tier.of(call(inquiry, shared, (limit, cost), key, parts)?)
                }
                FoundKey::Later { key, last } => {
                    let last = last.map(|(key, tier)| tier.of(Call::from(key).costing(cost)));
                    later(key, last)
                }
            },
            KeySource::Future(key) => later(key(parts, limit.key_deadline), None),
        };
        request.calls.push(call);
    }
    if shared.uses.permits_or_classes {
        for PermitLimit { applied: limit, .. } in shared.permits.limits() {
            let applies = inquiry.applies(limit, parts);
            let need = match limit.key_source.extractor().filter(|_| applies) {
                Some(extractor) => {
                    let cost = inquiry.cost(limit, parts);
                    let key = extractor.extract(parts);
                    call(inquiry, shared, (limit, cost), key, parts)?
                }
                None => Call::SKIP,
            };
            request.needs.push(limit.in_class(need, parts));
        }
        set_reserves(shared, &mut request.calls, parts);
    }
    Ok(())
}

/// The call of one limit, once it is known whether there is a key.
///
/// # Errors
///
/// The refusal, where a required key is missing.
#[inline(always)]
pub(super) fn call<B: Backend, I: Inquiry<B>>(
    inquiry: &mut I,
    shared: &SharedLayer<B>,
    (limit, cost): (&LimitSettings, u64),
    key: Option<Key>,
    parts: &Parts,
) -> Result<Call, I::Refusal> {
    match key {
        Some(key) => {
            inquiry.note_key(shared, limit, parts);
            Ok(Call::from(key).costing(cost))
        }
        None => {
            let call = Call::from(Key::missing()).costing(cost);
            inquiry.without_key(shared, limit, call, parts)
        }
    }
}

/// Adds their reserves to the calls whose keys are known. A call that is looked up gets its own
/// then.
fn set_reserves<B: Backend>(shared: &SharedLayer<B>, calls: &mut [Call], parts: &Parts) {
    for (limit, call) in shared.applied.iter().zip(calls) {
        *call = limit.in_class(mem::replace(call, Call::SKIP), parts);
    }
    let permits = shared.permits.limits().iter().map(|limit| &limit.applied);
    for limit in shared.applied.iter().chain(permits) {
        if let Some(lowest) = limit.priority.as_ref().and_then(|own| own.unwarned()) {
            let warning = Warning::UnknownClass {
                policy: shared.name_of(limit).clone(),
                class: lowest.to_owned(),
            };
            shared.announced.options.watch.warn(&warning);
        }
    }
}

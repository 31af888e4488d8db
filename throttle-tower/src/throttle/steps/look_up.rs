use std::future::poll_fn;
use std::task::Poll;

use http::request::Parts;
use throttle_core::Backend;

use super::ask::{Inquiry, Lookup, RequestCalls, call};
use crate::throttle::shared_layer::SharedLayer;

/// Waits for all keys of a request that need a lookup, all at the same time, and adds their calls.
///
/// # Errors
///
/// The refusal, where a required key is missing. The other lookups are dropped then.
pub(in crate::throttle) async fn look_up<B: Backend, I: Inquiry<B>>(
    inquiry: &mut I,
    shared: &SharedLayer<B>,
    request: &mut RequestCalls,
    mut lookups: Vec<Lookup>,
    parts: &Parts,
) -> Result<(), I::Refusal> {
    poll_fn(|cx| {
        let mut next = 0;
        while let Some(lookup) = lookups.get_mut(next) {
            let Lookup {
                index, cost, key, ..
            } = lookup;
            let Poll::Ready((key, tier)) = key.as_mut().poll(cx) else {
                next += 1;
                continue;
            };
            let limit = &shared.applied[*index];
            match call(inquiry, shared, (limit, *cost), key, parts) {
                Ok(call) => request.calls[*index] = limit.in_class(tier.of(call), parts),
                Err(refusal) => return Poll::Ready(Err(refusal)),
            }
            // In order: of several keys that are missing at once, the first one's rule decides.
            drop(lookups.remove(next));
        }
        if lookups.is_empty() {
            Poll::Ready(Ok(()))
        } else {
            Poll::Pending
        }
    })
    .await
}

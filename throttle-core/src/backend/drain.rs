use std::sync::Arc;

use super::contract::Backend;
use super::key_step::KeyStep;
use super::receipt::Receipt;
use crate::backend_error::{BackendError, BackendErrorKind};
use crate::call::Call;

/// Uses up what the key of a call has left of a policy, named by its index in the set. From this
/// instant on the key recovers as after any other charge, by the parameters that the call carries.
/// The call's cost and reserve do not matter, nor whether it is a peek.
///
/// An exception of the key is lifted first, so that it does not stand over the state. A request
/// that is decided between the steps takes from what is left, as it would have before.
///
/// ```
/// use std::sync::Arc;
/// use throttle_core::backend::{Call, drain};
/// use throttle_core::{Backend, FixedWindow, Key, MemoryBackend, Policy, PolicySet, Rate};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let backend = MemoryBackend::new();
/// let set = PolicySet::new(Policy::new("per-user", FixedWindow::new(Rate::per_day(9)))?)?;
/// let prepared = Arc::new(backend.prepare(set)?);
/// let ada = Call::from(Key::from("ada"));
/// drain(&backend, &prepared, 0, &ada).await?;
/// assert!(!backend.decide(&prepared, &[ada]).await?.is_admitted());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
///
/// # Errors
///
/// If the set has [no policy](crate::PolicySet::policy) of that index, if the store fails, if the
/// key is banned, if an exception is set for it meanwhile, or if it shares the overflow bucket of a
/// full store. Some of the units may be used up then.
///
/// # Cancel safety
///
/// If the future is dropped before it is ready, the key has what it had left, less, or nothing.
pub async fn drain<B: Backend>(
    backend: &B,
    prepared: &Arc<B::Prepared>,
    policy: usize,
    call: &Call,
) -> Result<(), BackendError> {
    let set = B::set(prepared);
    let limit = set.policy(policy)?;
    let Some(key) = call.key() else {
        return Ok(());
    };
    let mut calls = vec![Call::SKIP; set.policies().len()];
    calls[policy] = call.clone().charging().costing(1).reserving(0);
    let mut decision = backend.decide(prepared, &calls).await?;
    if decision.statuses()[policy].is_excepted() && !decision.statuses()[policy].is_banned() {
        let lift = KeyStep::Except(key.clone(), None);
        backend.run(prepared, policy, lift).await?;
        decision = backend.decide(prepared, &calls).await?;
    }
    let status = &decision.statuses()[policy];
    let why_not = if status.is_banned() {
        "the key is banned: lift the ban first, which pardons it"
    } else if status.is_excepted() {
        "an exception was set for the key meanwhile: drain it again"
    } else if status.is_overflow() {
        // Its budget is that of other keys, too.
        "the store is full of live keys: raise max_keys"
    } else {
        ""
    };
    if !why_not.is_empty() {
        return Err(BackendError::new(BackendErrorKind::Protocol).with_source(why_not));
    }
    match Receipt::of(&decision, &calls) {
        // A debit takes no more than is left.
        Some(receipt) => {
            backend
                .settle(prepared, receipt.actual(call.parameters(limit).capacity()))
                .await
        }
        None => Ok(()),
    }
}

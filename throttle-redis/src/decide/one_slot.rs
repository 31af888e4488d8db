//! Decisions about keys that one script call can reach: one atomic step.

use std::sync::Arc;

use throttle_core::Decision;
use tokio::time::Instant;

use super::call;
use super::set::RedisSet;
use crate::link::Link;
use crate::link::call_error::CallError;
use crate::script::reply::{Part, answer};
use crate::script::request::{Ask, Tiers};
use crate::shared_backend::SharedBackend;

pub(crate) async fn decide_in_one_slot(
    shared: &Arc<SharedBackend>,
    set: &RedisSet,
    ask: &Arc<Ask>,
    until: Instant,
) -> Result<Decision, CallError> {
    let asked = shared.shortcut.asking(ask);
    let part = ask_in_one_slot(shared, set, ask, until).await?;
    let decision = answer(ask, &part)?;
    shared.shortcut.note(ask, &part, &decision, asked);
    Ok(decision)
}

/// Asks the store.
pub(crate) async fn ask_in_one_slot(
    shared: &Arc<SharedBackend>,
    set: &RedisSet,
    ask: &Arc<Ask>,
    until: Instant,
) -> Result<Part, CallError> {
    let link = shared.links.of(ask.slot);
    let _permission = link.permission()?;
    // All decisions in one call are made as of one instant, and by the same parameters.
    let may_share = ask.as_of.is_none() && shared.options.max_batch > 1;
    match ask.tiers().filter(|_| may_share) {
        Some(tiers) if shared.one_slot.is_some() => {
            let answer = match tiers.iter().all(|tier| *tier == 0) {
                true => set.batcher.ask(shared, ask, until).await,
                // Boxed, as below: unboxed, it would make every decision's future as large.
                false => Box::pin(set.batchers.ask(shared, ask, tiers, until)).await,
            };
            match answer {
                Err(CallError::Divided) => Box::pin(call::decide_one(shared, ask, until)).await,
                answer => answer,
            }
        }
        tiers => Box::pin(ask_with_a_share(shared, set, ask, (&link, tiers), until)).await,
    }
}

/// Asks in a call of its own, or with other decisions about its slot, in the share that a set may
/// take of the room at the server.
async fn ask_with_a_share(
    shared: &Arc<SharedBackend>,
    set: &RedisSet,
    ask: &Arc<Ask>,
    (link, tiers): (&Arc<Link>, Option<Tiers>),
    until: Instant,
) -> Result<Part, CallError> {
    let share = set.shares.of(link, shared.options.queue);
    let permit = share.waiting.try_acquire();
    let _permit = permit.map_err(|_| CallError::Saturated)?;
    let _room = link.room_for_one(&share.room, ask.work(), until).await?;
    // The keys of a slot that moves may be at two servers.
    if let Some(tiers) = tiers
        && !shared.links.moving.contains(ask.slot)
    {
        match set.batchers.ask(shared, ask, tiers, until).await {
            Err(CallError::Divided) => {}
            answered => return answered,
        }
    }
    call::decide_one(shared, ask, until).await
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use throttle_core::backend::{Call, correction};
    use throttle_core::{
        Backend, BackendErrorKind, FixedWindow, Key, Policy, PolicySet, Rate, Timestamp,
    };

    use super::*;
    use crate::RedisBackend;
    use crate::link::connection::{FaultKind, Reply};
    use crate::link::tests::by_hand::{ByHand, fault, turns};

    async fn fixture() -> (ByHand, RedisBackend, Arc<RedisSet>) {
        let store = ByHand::default();
        let builder = RedisBackend::builder(store.clone())
            .breaker_threshold(1)
            .deadline(Duration::from_secs(1));
        let backend = builder.build().expect("valid options");
        store.connect(Ok(())).await;
        let policy = Policy::new("p", FixedWindow::new(Rate::per_day(9))).expect("a policy");
        let set = Arc::new(
            backend
                .prepare(PolicySet::new(policy).expect("a set"))
                .expect("a set"),
        );
        (store, backend, set)
    }

    fn call() -> [Call; 1] {
        [Call::from(Key::from("ada"))]
    }

    #[tokio::test(start_paused = true)]
    async fn one_decision_at_a_time_tries_a_store_that_gave_a_sign_of_life() {
        let (store, backend, set) = fixture().await;
        backend.shared.links.of(0).learn(
            b"",
            None,
            Err(&CallError::Fault(fault(FaultKind::Other))),
        );
        store.later().await.answer(Ok(Reply::Nil)).await;
        let on_trial = tokio::spawn(backend.decide(&set, &call()));
        let sent = store.next().await;
        for _ in 0..3 {
            let error = backend
                .decide(&set, &call())
                .await
                .expect_err("another one is on trial");
            assert_eq!(error.kind(), BackendErrorKind::Suspended);
        }
        sent.admit().await;
        assert!(on_trial.await.expect("no panic").is_ok());
        let next = tokio::spawn(backend.decide(&set, &call()));
        store.next().await.admit().await;
        assert!(
            next.await.expect("no panic").is_ok(),
            "the trial has closed the breaker"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn late_answer_is_waited_for_by_corrections_alone() {
        for waits in [true, false] {
            let (store, backend, set) = fixture().await;
            let decide = || backend.decide(&set, &call());
            let mut deciding = Vec::new();
            for _ in 0..8 {
                let decide = decide();
                deciding.push(tokio::spawn(async move {
                    match waits {
                        true => correction(decide).await,
                        false => decide.await,
                    }
                }));
            }
            turns().await;
            let deadline = backend.shared.links.deadlines.decision;
            tokio::time::sleep(deadline + Duration::from_millis(7)).await;
            let waiting = deciding.iter().filter(|one| !one.is_finished()).count();
            assert_eq!(waiting > 0, waits, "{waiting}");
            while !store.is_idle().await {
                store.next().await.admit().await;
            }
            let mut decided = 0;
            for one in deciding {
                decided += u32::from(one.await.expect("no panic").is_ok());
            }
            assert_eq!(decided > 0, waits, "{decided}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn decisions_as_of_an_instant_share_no_call() {
        let (store, backend, set) = fixture().await;
        let as_of = |at: i64| backend.decide_as_of(&set, &call(), Timestamp::from_micros(at));
        let _deciding: Vec<_> = (0..20).map(|at| tokio::spawn(as_of(at))).collect();
        for at in 0..20 {
            let sent = store.next().await;
            assert_eq!(
                (sent.keys().len(), sent.words()[4].as_str()),
                (1, format!("@{at}").as_str())
            );
        }
    }

    /// All decisions in one call have one list of headers.
    #[tokio::test(start_paused = true)]
    async fn decisions_under_own_parameters_travel_alone_within_the_queue() {
        let store = ByHand::default();
        let builder = RedisBackend::builder(store.clone())
            .queue(2)
            .deadline(Duration::from_secs(1));
        let backend = builder.build().expect("valid options");
        store.connect(Ok(())).await;
        let policy = Policy::new("p", FixedWindow::new(Rate::per_day(9))).expect("a policy");
        let own = policy
            .own(FixedWindow::new(Rate::per_day(12)))
            .expect("parameters");
        let set = Arc::new(
            backend
                .prepare(PolicySet::new(policy).expect("a set"))
                .expect("a set"),
        );
        let [call] = call();
        let calls = [call.under(Arc::clone(&own))];
        let deciding = [(); 2].map(|()| tokio::spawn(backend.decide(&set, &calls)));
        let sent = [store.next().await, store.next().await];
        let error = backend
            .decide(&set, &calls)
            .await
            .expect_err("both places are taken");
        assert_eq!(error.kind(), BackendErrorKind::Saturated);
        for (sent, deciding) in sent.into_iter().zip(deciding) {
            assert_eq!(sent.command.args().nth(6), Some(own.tag().as_slice()));
            sent.admit().await;
            assert!(deciding.await.expect("no panic").is_ok());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_decision_that_finds_no_room_in_time_is_saturated() {
        let (_store, backend, set) = fixture().await;
        let is_saturated = |decided: Result<Decision, throttle_core::BackendError>| {
            let error = decided.expect_err("there is no room");
            assert_eq!(
                (error.kind(), error.is_uncharged()),
                (BackendErrorKind::Saturated, true)
            );
        };
        let share = set.shares.of(&backend.shared.links.of(0), 9);
        let room = share.room.take_now(u32::MAX).expect("nothing is under way");
        is_saturated(backend.decide_as_of(&set, &call(), Timestamp::EPOCH).await);
        drop(room);
        let link = backend.shared.links.of(0);
        let _room = link.room.take_now(u32::MAX).expect("nothing is under way");
        is_saturated(backend.decide_as_of(&set, &call(), Timestamp::EPOCH).await);
        is_saturated(backend.decide(&set, &call()).await);
        assert_eq!(backend.stats().calls, 0);
    }
}

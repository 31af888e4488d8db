use std::time::Duration;

use throttle_core::backend::Call;
use throttle_core::{
    Backend, BackendError, BackendErrorKind, Decision, Gcra, Key, Policy, PolicySet, Rate,
};
use tokio::task::JoinHandle;
use tokio::time::advance;

use super::*;
use crate::RedisBackend;
use crate::decide::set::RedisSet;
use crate::link::connection::FaultKind;
use crate::link::tests::by_hand::{self, ByHand, Sent, fault};

/// Decisions of a slot that start calls of their own before further ones wait.
const ALONE: usize = 6;

struct Fixture {
    store: ByHand,
    backend: RedisBackend,
    set: Arc<RedisSet>,
}

type Begun = JoinHandle<Result<Decision, BackendError>>;

impl Fixture {
    async fn connected() -> Self {
        Self::with_queue(1_024).await
    }

    async fn with_queue(queue: usize) -> Self {
        let store = ByHand::cluster();
        let builder = RedisBackend::builder(store.clone())
            .per_key_slot()
            .readable_keys()
            .queue(queue);
        let backend = builder
            .deadline(Duration::from_secs(5))
            .breaker_threshold(1)
            .build()
            .expect("valid options");
        store.connect(Ok(())).await;
        let policy = Policy::new("p", Gcra::new(Rate::per_minute(9))).expect("a policy");
        let set = Arc::new(
            backend
                .prepare(PolicySet::new(policy).expect("a set"))
                .expect("a set"),
        );
        Self {
            store,
            backend,
            set,
        }
    }

    fn begin(&self, key: &str, count: usize) -> Vec<Begun> {
        let calls = [Call::from(Key::from(key))];
        (0..count)
            .map(|_| tokio::spawn(self.backend.decide(&self.set, &calls)))
            .collect()
    }

    async fn sent(&self, count: usize) -> Vec<Sent> {
        let mut sent = Vec::new();
        for _ in 0..count {
            sent.push(self.store.next().await);
        }
        assert!(self.store.is_idle().await);
        sent
    }

    /// Decisions about a key, of which the last `together` travel in the call that is returned.
    async fn one_call(&self, key: &str, together: usize) -> (Vec<Begun>, Sent) {
        let begun = self.begin(key, ALONE + together);
        for sent in self.sent(ALONE).await {
            assert_eq!(sent.keys().len(), 1);
            sent.admit().await;
        }
        let sent = self.store.next().await;
        assert_eq!(sent.keys(), vec![name(key); together]);
        (begun, sent)
    }
}

fn name(key: &str) -> String {
    format!("throttle{{t{key}}}p:")
}

async fn all_are_admitted(begun: Vec<Begun>) {
    for begun in begun {
        assert!(
            begun
                .await
                .expect("no panic")
                .expect("a decision")
                .is_admitted()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_carries_decisions_of_one_slot() {
    let fixture = Fixture::connected().await;
    let keys = ["ada", "bob"];
    let begun: Vec<Begun> = (0..20)
        .flat_map(|_| keys.map(|key| fixture.begin(key, 1)))
        .flatten()
        .collect();
    let mut calls = 0;
    while !fixture.store.is_idle().await {
        let sent = fixture.store.next().await;
        let key = keys
            .into_iter()
            .find(|key| sent.keys().contains(&name(key)))
            .expect("a key that was asked about");
        assert_eq!(sent.keys(), vec![name(key); sent.keys().len()]);
        calls += 1;
        sent.admit().await;
    }
    assert!(calls < begun.len(), "{calls} calls");
    all_are_admitted(begun).await;
}

#[tokio::test(start_paused = true)]
async fn decisions_wait_for_no_call_about_another_slot() {
    let fixture = Fixture::connected().await;
    let keys: Vec<String> = (0..40).map(|key| format!("key-{key}")).collect();
    let begun: Vec<Begun> = keys.iter().flat_map(|key| fixture.begin(key, 1)).collect();
    for (sent, key) in fixture.sent(keys.len()).await.into_iter().zip(&keys) {
        assert_eq!(sent.keys(), [name(key)]);
        sent.admit().await;
    }
    all_are_admitted(begun).await;
}

#[tokio::test(start_paused = true)]
async fn decisions_of_a_call_that_did_not_run_are_asked_about_one_by_one() {
    let address = Some(("b".to_owned(), 1));
    for kind in [
        FaultKind::SlotNotNow,
        FaultKind::Ask(address),
        FaultKind::Ask(None),
    ] {
        let fixture = Fixture::connected().await;
        let (begun, together) = fixture.one_call("ada", 4).await;
        together.answer(Err(fault(kind.clone()))).await;
        for sent in fixture.sent(4).await {
            assert_eq!(
                (sent.keys(), sent.host.as_str()),
                (vec![name("ada")], by_hand::HOME),
                "{kind:?}"
            );
            sent.admit().await;
        }
        all_are_admitted(begun).await;
        let stats = fixture.backend.stats();
        assert_eq!(
            (stats.decisions, stats.failures, stats.breaker_openings),
            (10, 0, 0),
            "{kind:?}"
        );
        assert_eq!((stats.calls, stats.repeated), (11, 1), "{kind:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn decisions_of_a_call_that_may_have_run_are_not_asked_about_again() {
    let fixture = Fixture::connected().await;
    let (begun, together) = fixture.one_call("ada", 4).await;
    together.answer(Err(fault(FaultKind::Lost))).await;
    assert!(fixture.store.is_idle().await);
    let mut failed = 0;
    for begun in begun {
        if let Err(error) = begun.await.expect("no panic") {
            assert_eq!(
                (error.kind(), error.is_uncharged()),
                (BackendErrorKind::Unavailable, false)
            );
            failed += 1;
        }
    }
    assert_eq!(failed, 4);
}

#[tokio::test(start_paused = true)]
async fn a_decision_that_was_given_up_is_not_asked_about_by_itself() {
    let fixture = Fixture::connected().await;
    let (mut begun, together) = fixture.one_call("ada", 4).await;
    begun.remove(ALONE).abort();
    together.answer(Err(fault(FaultKind::SlotNotNow))).await;
    for sent in fixture.sent(3).await {
        sent.admit().await;
    }
    all_are_admitted(begun).await;
}

#[tokio::test(start_paused = true)]
async fn a_decision_asked_about_by_itself_has_the_rest_of_its_own_time() {
    let fixture = Fixture::connected().await;
    let (begun, together) = fixture.one_call("ada", 2).await;
    let time = fixture.backend.shared.links.deadlines.decision;
    advance(time / 2).await;
    together.answer(Err(fault(FaultKind::SlotNotNow))).await;
    let unanswered = fixture.sent(2).await;
    advance(time / 2 - Duration::from_millis(1)).await;
    assert!(begun[ALONE..].iter().all(|begun| !begun.is_finished()));
    advance(Duration::from_millis(2)).await;
    for begun in begun.into_iter().skip(ALONE) {
        let error = begun.await.expect("no panic").expect_err("no answer");
        assert_eq!(
            (error.kind(), error.is_uncharged()),
            (BackendErrorKind::Timeout, false)
        );
    }
    drop(unanswered);
}

/// An answer to one decision says so too.
#[tokio::test(start_paused = true)]
async fn a_decision_that_is_redirected_by_ask_keeps_others_from_trying_together() {
    let fixture = Fixture::connected().await;
    let first = fixture.begin("ada", 1);
    let sent = fixture.store.next().await;
    sent.answer(Err(fault(FaultKind::Ask(Some(("b".to_owned(), 1))))))
        .await;
    fixture.store.next().await.admit().await;
    all_are_admitted(first).await;
    let begun = fixture.begin("ada", 2 * ALONE);
    for sent in fixture.sent(2 * ALONE).await {
        sent.admit().await;
    }
    all_are_admitted(begun).await;
}

/// The bounds are those of a set whose decisions are not batched: they hold for all slots together.
#[tokio::test(start_paused = true)]
async fn a_decision_beyond_the_bounds_of_its_set_is_saturated() {
    let fixture = Fixture::with_queue(3).await;
    let begun: Vec<Begun> = ["ada", "ada", "bob"]
        .into_iter()
        .flat_map(|key| fixture.begin(key, 1))
        .collect();
    let sent = fixture.sent(3).await;
    let refused = fixture
        .begin("eve", 1)
        .remove(0)
        .await
        .expect("no panic")
        .expect_err("there is no place");
    assert_eq!(
        (refused.kind(), refused.is_uncharged()),
        (BackendErrorKind::Saturated, true)
    );
    for sent in sent {
        sent.admit().await;
    }
    all_are_admitted(begun).await;
    let slot = fixture
        .set
        .ask(&fixture.backend.shared, &[Call::from(Key::from("ada"))])
        .slot;
    let link = fixture.backend.shared.links.of(slot);
    let share = fixture.set.shares.of(&link, 3);
    let _room = share.room.take_now(u32::MAX).expect("nothing is under way");
    let refused = fixture
        .begin("ada", 1)
        .remove(0)
        .await
        .expect("no panic")
        .expect_err("there is no room");
    assert_eq!(
        (refused.kind(), refused.is_uncharged()),
        (BackendErrorKind::Saturated, true)
    );
}

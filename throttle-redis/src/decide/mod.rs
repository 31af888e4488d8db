//! Decides one request: by a shortcut, in one script call, or in one call for each hash slot.

mod batch;
mod batchers;
pub(crate) mod call;
mod cross_slot;
pub(crate) mod one_slot;
pub(crate) mod set;
pub(crate) mod settle;
mod shares;

use std::sync::Arc;

use throttle_core::{Decision, Timestamp};
use tokio::time::Instant;

use crate::link::call_error::CallError;
use crate::script::request::Ask;
use crate::shared_backend::SharedBackend;
use crate::stats::Count;
use one_slot::decide_in_one_slot;
use set::RedisSet;

pub(crate) async fn decide(
    shared: &Arc<SharedBackend>,
    set: &Arc<RedisSet>,
    ask: &Arc<Ask>,
) -> Result<Decision, CallError> {
    if ask.names.is_empty() {
        return Ok(Decision::not_limited(ask.calls.len()));
    }
    if let Some(refusal) = shared.shortcut.at_once(ask, || shared.time()) {
        shared.links.counters.count(Count::Denied);
        return Ok(refusal);
    }
    let decided = if cross_slot::is_needed(shared, ask) {
        // Boxed because it is rare: unboxed, it would make every decision's future as large.
        Box::pin(cross_slot::decide(shared, set, Arc::clone(ask))).await
    } else {
        decide_in_one_slot(
            shared,
            set,
            ask,
            Instant::now() + shared.links.deadlines.decision,
        )
        .await
    };
    let counters = &shared.links.counters;
    match &decided {
        Ok(_) => counters.count(Count::Decided),
        Err(error) => {
            counters.failed(error.kind());
            if !error.is_uncharged() {
                counters.count(Count::LeftUnknown);
            }
            if error.is_an_answer() {
                warn(set, ask, error);
            }
        }
    }
    decided
}

/// Such a failure may never end, and the breaker learns nothing from it while other keys are
/// decided.
fn warn(set: &RedisSet, ask: &Ask, error: &CallError) {
    if let Some(kept_back) = set.undecided.pass() {
        let applying = set
            .set()
            .policies()
            .iter()
            .zip(&ask.calls)
            .filter(|(_, call)| call.key().is_some());
        let policies: Vec<&str> = applying.map(|(policy, _)| policy.name()).collect();
        tracing::warn!(
            ?policies,
            why = %error,
            kept_back,
            "the rate-limit store answered, but not with a decision; requests with such keys are \
                decided by on_error"
        );
    }
}

/// The present instant of the clock that decides about a request, if it is known.
pub(crate) fn now(shared: &SharedBackend, ask: &Ask) -> Option<Timestamp> {
    // Servers have clocks of their own.
    if cross_slot::is_needed(shared, ask) {
        None
    } else {
        shared.now(ask.slot)
    }
}

#[cfg(test)]
mod tests {
    use throttle_core::backend::Call;
    use throttle_core::{Backend, Gcra, Key, Policy, PolicySet, PolicyTree, Rate};

    use super::*;
    use crate::RedisBackend;
    use crate::link::connection::{FaultKind, Reply};
    use crate::link::tests::by_hand::{ByHand, fault};

    const NOW: Timestamp = Timestamp::from_micros(1_790_000_000_000_000);

    /// It is allocated for each decision, and allocators are quick up to this size. Arguments by
    /// value and rare waits that are not boxed multiply its size.
    #[test]
    fn future_of_a_decision_is_small() {
        let backend = RedisBackend::new("redis://127.0.0.1:1").expect("a URL");
        let policy = Policy::new("p", Gcra::new(Rate::per_minute(5))).expect("a policy");
        let set = Arc::new(
            backend
                .prepare(PolicySet::new(policy).expect("a set"))
                .expect("a set"),
        );
        let ask = set.ask(&backend.shared, &[Call::from(Key::from("ada"))]);
        let size = size_of_val(&decide(&backend.shared, &set, &ask));
        assert!(size <= 1_024, "{size} bytes");
    }

    fn calls(keys: [&str; 2]) -> [Call; 2] {
        keys.map(|key| Call::from(Key::from(key)))
    }

    fn set<const N: usize>(backend: &RedisBackend, names: [&str; N]) -> Arc<RedisSet> {
        let policy = |name| {
            Policy::new(name, Gcra::new(Rate::per_minute(1)))
                .expect("a policy")
                .into()
        };
        let set = PolicySet::new(PolicyTree::All(names.map(policy).to_vec())).expect("a set");
        Arc::new(backend.prepare(set).expect("a set"))
    }

    #[tokio::test(start_paused = true)]
    async fn each_outcome_of_a_decision_is_counted_once() {
        let store = ByHand::default();
        let builder = RedisBackend::builder(store.clone())
            .deny_cache(10)
            .breaker_threshold(1_000);
        let backend = builder.build().expect("valid options");
        store.connect(Ok(())).await;
        let set = set(&backend, ["p"]);
        let counted = || {
            let stats = backend.stats();
            [
                stats.decisions,
                stats.failures,
                stats.unknown,
                stats.cached_refusals,
                stats.calls,
            ]
        };
        let decide = || tokio::spawn(backend.decide(&set, &calls(["ada", "ada"])[..1]));
        let deciding = decide();
        store.next().await.admit().await;
        assert!(
            deciding
                .await
                .expect("no panic")
                .expect("a decision")
                .is_admitted()
        );
        assert_eq!(counted(), [1, 0, 0, 0, 1]);
        for (kind, unknown) in [(FaultKind::Refused, 0), (FaultKind::Other, 1)] {
            let deciding = decide();
            store.next().await.answer(Err(fault(kind))).await;
            assert!(deciding.await.expect("no panic").is_err());
            assert_eq!(counted(), [1, 1 + unknown, unknown, 0, 2 + unknown]);
        }
        let algorithm = set.set().policies()[0].algorithm();
        let used = algorithm
            .decide(algorithm.fresh(), NOW, 1)
            .0
            .to_wire(algorithm)
            .expect("a value");
        let length = u32::try_from(used.len()).expect("short").to_le_bytes();
        let reply = [
            &(NOW.as_micros() as f64).to_le_bytes()[..],
            b"D",
            &length,
            &used,
        ]
        .concat();
        let deciding = decide();
        store.next().await.answer(Ok(Reply::Bytes(reply))).await;
        assert!(
            !deciding
                .await
                .expect("no panic")
                .expect("a decision")
                .is_admitted()
        );
        assert_eq!(counted(), [2, 2, 1, 0, 4]);
        assert!(
            !decide()
                .await
                .expect("no panic")
                .expect("a decision")
                .is_admitted()
        );
        assert_eq!(counted(), [2, 2, 1, 1, 4], "the cache answers");
    }

    #[tokio::test(start_paused = true)]
    async fn keys_with_the_same_first_part_are_decided_in_one_call() {
        let store = ByHand::cluster();
        let builder = RedisBackend::builder(store.clone())
            .slot_by_first_part()
            .readable_keys();
        let backend = builder.build().expect("valid options");
        store.connect(Ok(())).await;
        let set = set(&backend, ["a", "b", "c"]);
        let key = |customer, more: Key| Key::builder().text(customer).key(&more).finish();
        for (third, calls) in [
            (
                "acme",
                vec![vec![
                    "throttle{tacme}a:",
                    "throttle{tacme}b:tacme,tada",
                    "throttle{tacme}c:tacme,n7",
                ]],
            ),
            (
                "umbra",
                vec![
                    vec!["throttle{tacme}a:"],
                    vec!["throttle{tacme}b:tacme,tada"],
                    vec!["throttle{tumbra}c:tumbra,n7"],
                ],
            ),
        ] {
            let keys = [
                Key::from("acme"),
                key("acme", Key::from("ada")),
                key(third, Key::from(7)),
            ];
            let deciding = tokio::spawn(backend.decide(&set, &keys.map(Call::from)));
            for names in calls {
                let sent = store.next().await;
                assert_eq!(sent.keys(), names);
                let mut reply = [&(NOW.as_micros() as f64).to_le_bytes()[..], b"A"].concat();
                reply.extend(vec![0; 4 * names.len()]);
                sent.answer(Ok(Reply::Bytes(reply))).await;
            }
            let decided = deciding.await.expect("no panic").expect("a decision");
            assert!(decided.is_admitted() && store.is_idle().await);
        }
    }

    /// Policies with the same key are decided in one atomic step, also where each key has a slot of
    /// its own.
    #[tokio::test(start_paused = true)]
    async fn keys_in_one_slot_of_a_cluster_are_decided_in_one_call_by_one_clock() {
        let store = ByHand::cluster();
        let builder = RedisBackend::builder(store.clone())
            .per_key_slot()
            .readable_keys();
        let backend = builder.build().expect("valid options");
        store.connect(Ok(())).await;
        let set = set(&backend, ["a", "b"]);
        for (keys, sent_keys, knows_time) in [
            (["ada", "ada"], vec![2], true),
            (["ada", "bob"], vec![1, 1], false),
        ] {
            let deciding = tokio::spawn(backend.decide(&set, &calls(keys)));
            for count in sent_keys {
                let sent = store.next().await;
                assert_eq!(sent.keys().len(), count, "{keys:?}");
                let mut reply = [&(NOW.as_micros() as f64).to_le_bytes()[..], b"A"].concat();
                reply.extend(vec![0; 4 * count]);
                sent.answer(Ok(Reply::Bytes(reply))).await;
            }
            assert!(
                deciding
                    .await
                    .expect("no panic")
                    .expect("a decision")
                    .is_admitted()
            );
            assert_eq!(
                backend.now(&set, &calls(keys)).is_some(),
                knows_time,
                "{keys:?}"
            );
        }
    }
}

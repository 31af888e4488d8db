//! Resets keys.

use std::sync::Arc;

use throttle_core::Key;
use throttle_core::backend::ExceptedKey;
use tokio::time::Instant;

use crate::decide::set::RedisSet;
use crate::link::call_error::CallError;
use crate::link::connection::Command;
use crate::pages::{Pages, STEP, on_keys};
use crate::shared_backend::SharedBackend;

/// Forgets one key. Returns no exceptions.
pub(crate) async fn reset(
    shared: &Arc<SharedBackend>,
    set: &RedisSet,
    policy: usize,
    key: &Key,
) -> Result<Vec<ExceptedKey>, CallError> {
    let name = shared.keyspace.name(&set.names[policy], key);
    let until = Instant::now() + shared.links.deadlines.decision;
    // What was refused until then may be admitted afterwards.
    let _forgetting = shared.shortcut.forgetting(|| vec![&name]);
    delete(shared, std::slice::from_ref(&name), until).await?;
    Ok(Vec::new())
}

/// Forgets every key of every policy whose name starts with `prefix`, going through each primary's
/// keys step by step.
pub(crate) async fn reset_all(shared: &Arc<SharedBackend>, prefix: &str) -> Result<(), CallError> {
    let _forgetting = shared.shortcut.forgetting_all();
    let mut pages = Pages::of(shared, shared.keyspace.pattern(prefix, "")).await?;
    while let Some(names) = pages.next().await? {
        delete(shared, &names, Instant::now() + STEP).await?;
    }
    Ok(())
}

async fn delete(
    shared: &SharedBackend,
    names: &[Vec<u8>],
    until: Instant,
) -> Result<(), CallError> {
    let delete = |names: &[Vec<u8>]| names.iter().fold(Command::new("DEL"), Command::arg);
    on_keys(shared, names, until, delete).await.map(drop)
}

#[cfg(test)]
mod tests {
    use throttle_core::backend::KeyStep;
    use throttle_core::{Backend, FixedWindow, Policy, PolicySet, PolicyTree, Rate};
    use tokio::task::JoinHandle;

    use super::*;
    use std::time::Duration;

    use crate::RedisBackend;
    use crate::link::connection::{Fault, FaultKind, Reply};
    use crate::link::tests::by_hand::{ByHand, HOME, fault};
    use crate::pages::COUNT;

    const HALVES: [(u16, u16, &str); 2] = [(0, 8_191, "one"), (8_192, 16_383, "two")];

    async fn fixture(store: &ByHand) -> RedisBackend {
        let builder = RedisBackend::builder(store.clone())
            .per_key_slot()
            .readable_keys();
        let backend = builder
            .deadline(Duration::from_secs(1))
            .build()
            .expect("valid options");
        store.connect(Ok(())).await;
        backend
    }

    fn reset_key(
        backend: &RedisBackend,
        policy: usize,
    ) -> JoinHandle<Result<(), throttle_core::BackendError>> {
        let backend = backend.clone();
        let of = |name| {
            Policy::new(name, FixedWindow::new(Rate::per_day(9)))
                .expect("a policy")
                .into()
        };
        let set = PolicySet::new(PolicyTree::All(vec![of("a"), of("b")])).expect("a set");
        let set = Arc::new(backend.prepare(set).expect("a set"));
        tokio::spawn(async move { forget(&backend, &set, policy).await })
    }

    async fn forget(
        backend: &RedisBackend,
        set: &Arc<RedisSet>,
        policy: usize,
    ) -> Result<(), throttle_core::BackendError> {
        let reset = KeyStep::Reset(Key::from("ada"));
        backend.run(set, policy, reset).await.map(drop)
    }

    fn moved(host: &str) -> Result<Reply, Fault> {
        Err(fault(FaultKind::Moved(Some((host.to_owned(), 1)))))
    }

    #[tokio::test(start_paused = true)]
    async fn a_reset_forgets_the_key_of_its_policy_and_follows_four_redirections() {
        for redirections in [4, 5] {
            let store = ByHand::cluster();
            let backend = fixture(&store).await;
            let resetting = reset_key(&backend, 1);
            for host in ["a", "b", "c", "d", "e"].into_iter().take(redirections) {
                let sent = store.next().await;
                assert_eq!(sent.words(), ["DEL", "throttle{tada}b:"]);
                sent.answer(moved(host)).await;
            }
            if redirections == 4 {
                let sent = store.next().await;
                assert_eq!(sent.host, "d");
                sent.answer(Ok(Reply::Int(1))).await;
            }
            assert!(store.is_idle().await);
            assert_eq!(
                resetting.await.expect("no panic").is_ok(),
                redirections == 4
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_index_without_a_policy_is_an_error_and_sends_nothing() {
        let store = ByHand::default();
        let backend = fixture(&store).await;
        let error = reset_key(&backend, 2)
            .await
            .expect("no panic")
            .expect_err("no policy");
        let why = std::error::Error::source(&error)
            .expect("a reason")
            .to_string();
        assert_eq!(
            why,
            "policy is 2: an index must be below 2, the number of policies in the set"
        );
        assert!(error.is_uncharged() && store.is_idle().await);
    }

    fn page(next: &str, names: &[&str]) -> Result<Reply, Fault> {
        let bytes = |text: &str| Reply::Bytes(text.into());
        Ok(Reply::Array(vec![
            bytes(next),
            Reply::Array(names.iter().map(|name| bytes(name)).collect()),
        ]))
    }

    /// Each server lists its keys in pages, and each key is in a slot of its own.
    #[tokio::test(start_paused = true)]
    async fn a_reset_of_all_keys_goes_through_every_page_of_every_primary() {
        let store = ByHand::cluster();
        let backend = fixture(&store).await;
        // The list may have changed since.
        store.divide(HALVES);
        let resetting = tokio::spawn(backend.reset_all("p"));
        for (host, cursor, next, names) in [
            ("one", "0", "17", vec!["a", "b"]),
            ("one", "17", "4", vec![]),
            ("one", "4", "0", vec!["c"]),
            ("two", "0", "0", vec!["d"]),
        ] {
            let sent = store.next().await;
            assert_eq!(
                sent.words(),
                ["SCAN", cursor, "MATCH", "throttle{*}p*", "COUNT", COUNT]
            );
            assert_eq!(sent.host, host);
            sent.answer(page(next, &names)).await;
            for name in names {
                let sent = store.next().await;
                assert_eq!(sent.words(), ["DEL", name]);
                let slot = crate::links::hash_slot::of(name.as_bytes());
                assert_eq!(sent.host, if slot < 8_192 { "one" } else { "two" });
                sent.answer(Ok(Reply::Int(1))).await;
            }
        }
        assert!(resetting.await.expect("no panic").is_ok());
    }

    /// The client chooses the server of a command that names no slot, and only one of them has the
    /// keys.
    #[tokio::test(start_paused = true)]
    async fn keys_of_one_slot_of_a_cluster_are_looked_for_on_every_primary() {
        let store = ByHand::cluster();
        store.divide(HALVES);
        let backend = RedisBackend::builder(store.clone())
            .single_slot("one")
            .build()
            .expect("valid options");
        store.connect(Ok(())).await;
        let resetting = tokio::spawn(backend.reset_all("p"));
        for host in ["one", "two"] {
            let sent = store.next().await;
            assert_eq!(sent.words()[..4], ["SCAN", "0", "MATCH", "throttle{one}p*"]);
            assert_eq!(sent.host, host);
            sent.answer(page(
                "0",
                if host == "two" {
                    &["throttle{one}pa:", "throttle{one}pb:"]
                } else {
                    &[]
                },
            ))
            .await;
        }
        let sent = store.next().await;
        assert_eq!(
            sent.words(),
            ["DEL", "throttle{one}pa:", "throttle{one}pb:"],
            "they share a slot"
        );
        sent.answer(Ok(Reply::Int(2))).await;
        assert!(resetting.await.expect("no panic").is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn keys_of_one_server_are_forgotten_five_hundred_at_a_time() {
        let store = ByHand::default();
        let backend = fixture(&store).await;
        let resetting = tokio::spawn(backend.reset_all(""));
        let names: Vec<String> = (0..1_001).map(|name| name.to_string()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        store.next().await.answer(page("0", &names)).await;
        for names in names.chunks(500) {
            let sent = store.next().await;
            assert_eq!(sent.words()[1..], *names);
            sent.answer(Ok(Reply::Int(1))).await;
        }
        assert!(resetting.await.expect("no panic").is_ok());
    }

    /// A backend that keeps refusals, and a set that admits one request a day.
    async fn with_deny_cache() -> (ByHand, RedisBackend, Arc<RedisSet>) {
        let store = ByHand::default();
        let backend = RedisBackend::builder(store.clone())
            .readable_keys()
            .deny_cache(10)
            .build();
        let backend = backend.expect("valid options");
        store.connect(Ok(())).await;
        let policy = Policy::new("p", FixedWindow::new(Rate::per_day(1))).expect("a policy");
        let set = Arc::new(
            backend
                .prepare(PolicySet::new(policy).expect("a set"))
                .expect("a set"),
        );
        (store, backend, set)
    }

    /// Decides about ada's key, and lets the store refuse it.
    async fn refuse(store: &ByHand, backend: &RedisBackend, set: &Arc<RedisSet>) {
        let algorithm = *RedisBackend::set(set).policies()[0].algorithm();
        let refused = tokio::spawn(
            backend.decide(set, &[throttle_core::backend::Call::from(Key::from("ada"))]),
        );
        let now = throttle_core::Timestamp::from_micros(1_790_000_000_000_000);
        let used = algorithm
            .decide(algorithm.fresh(), now, 1)
            .0
            .to_wire(&algorithm)
            .expect("a value");
        let length = u32::try_from(used.len()).expect("short").to_le_bytes();
        let reply = [
            &(now.as_micros() as f64).to_le_bytes()[..],
            b"D",
            &length,
            &used,
        ]
        .concat();
        store.next().await.answer(Ok(Reply::Bytes(reply))).await;
        assert!(
            !refused
                .await
                .expect("no panic")
                .expect("a decision")
                .is_admitted()
        );
    }

    /// The key may be gone all the same.
    #[tokio::test(start_paused = true)]
    async fn a_refusal_is_forgotten_by_a_reset_that_is_not_known_to_have_worked() {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        enum Ending {
            Fails,
            IsLate,
            IsDropped,
        }
        for (ending, all) in [
            (Ending::Fails, false),
            (Ending::Fails, true),
            (Ending::IsLate, false),
            (Ending::IsLate, true),
            (Ending::IsDropped, false),
            (Ending::IsDropped, true),
        ] {
            let (store, backend, set) = with_deny_cache().await;
            refuse(&store, &backend, &set).await;
            let (of, prepared) = (backend.clone(), Arc::clone(&set));
            let one = async move { forget(&of, &prepared, 0).await };
            let resetting = if all {
                tokio::spawn(backend.reset_all(""))
            } else {
                tokio::spawn(one)
            };
            let sent = store.next().await;
            let unanswered = match ending {
                Ending::Fails => {
                    sent.answer(Err(fault(FaultKind::Refused))).await;
                    None
                }
                Ending::IsLate => Some(sent),
                Ending::IsDropped => {
                    resetting.abort();
                    Some(sent)
                }
            };
            assert!(!matches!(resetting.await, Ok(Ok(()))), "{ending:?}");
            let _asked = tokio::spawn(backend.decide(
                &set,
                &[throttle_core::backend::Call::from(Key::from("ada"))],
            ));
            assert_eq!(
                store.next().await.keys(),
                ["throttle{all}p:tada"],
                "{ending:?}, all: {all}"
            );
            drop(unanswered);
        }
    }

    /// The store refuses a request before the key is forgotten there, and the reply arrives before
    /// the reset ends.
    #[tokio::test(start_paused = true)]
    async fn refusal_cached_during_a_reset_is_forgotten_when_the_reset_ends() {
        for all in [false, true] {
            let (store, backend, set) = with_deny_cache().await;
            let resetting = if all {
                tokio::spawn(backend.reset_all(""))
            } else {
                let (of, prepared) = (backend.clone(), Arc::clone(&set));
                tokio::spawn(async move { forget(&of, &prepared, 0).await })
            };
            let sent = store.next().await;
            let decide = || {
                tokio::spawn(backend.decide(
                    &set,
                    &[throttle_core::backend::Call::from(Key::from("ada"))],
                ))
            };
            refuse(&store, &backend, &set).await;
            assert!(
                !decide()
                    .await
                    .expect("no panic")
                    .expect("a decision")
                    .is_admitted()
            );
            assert_eq!(backend.stats().cached_refusals, 1, "it is kept");
            sent.answer(if all {
                page("0", &[])
            } else {
                Ok(Reply::Int(1))
            })
            .await;
            assert!(resetting.await.expect("no panic").is_ok());
            let admitted = decide();
            store.next().await.admit().await;
            assert!(
                admitted
                    .await
                    .expect("no panic")
                    .expect("a decision")
                    .is_admitted(),
                "all: {all}"
            );
        }
    }

    /// A slot of many keys has moved since the client looked.
    #[tokio::test(start_paused = true)]
    async fn each_key_of_a_page_is_followed_for_itself() {
        let store = ByHand::cluster();
        let backend = fixture(&store).await;
        let resetting = tokio::spawn(backend.reset_all("p"));
        let names = ["a", "b", "c", "d", "e", "f"];
        store.next().await.answer(page("0", &names)).await;
        for name in names {
            for (host, answer) in [(HOME, moved("two")), ("two", Ok(Reply::Int(1)))] {
                let sent = store.next().await;
                assert_eq!(
                    (sent.words(), sent.host.as_str()),
                    (vec!["DEL".to_owned(), name.to_owned()], host)
                );
                sent.answer(answer).await;
            }
        }
        assert!(resetting.await.expect("no panic").is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_lists_something_else_fails_a_reset() {
        let bytes = |text: &str| Reply::Bytes(text.into());
        for (store, reply, why) in [
            (
                ByHand::default(),
                Reply::Nil,
                "SCAN answered something else",
            ),
            (
                ByHand::default(),
                Reply::Array(vec![bytes("0")]),
                "SCAN answered something else",
            ),
            (
                ByHand::default(),
                Reply::Array(vec![bytes("0"), bytes("a")]),
                "SCAN answered something else",
            ),
            (
                ByHand::default(),
                Reply::Array(vec![bytes("0"), Reply::Array(vec![bytes("a"), Reply::Nil])]),
                "SCAN answered something else",
            ),
        ] {
            let backend = fixture(&store).await;
            let resetting = tokio::spawn(backend.reset_all("p"));
            store.next().await.answer(Ok(reply.clone())).await;
            let error = resetting.await.expect("no panic").expect_err("no list");
            assert_eq!(error.kind(), throttle_core::BackendErrorKind::Protocol);
            assert_eq!(
                std::error::Error::source(&error)
                    .expect("a reason")
                    .to_string(),
                why,
                "{reply:?}"
            );
            assert!(store.is_idle().await, "nothing is deleted");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_reset_that_a_server_refuses_fails_as_the_server_says() {
        let nowhere = || Err(fault(FaultKind::Moved(None)));
        for (answer, kind) in [
            (
                Err(fault(FaultKind::Refused)),
                throttle_core::BackendErrorKind::Protocol,
            ),
            (
                Err(fault(FaultKind::Lost)),
                throttle_core::BackendErrorKind::Unavailable,
            ),
            (nowhere(), throttle_core::BackendErrorKind::Unavailable),
        ] {
            let store = ByHand::cluster();
            let backend = fixture(&store).await;
            let resetting = reset_key(&backend, 0);
            store.next().await.answer(answer.clone()).await;
            assert!(store.is_idle().await, "it is not sent again");
            assert_eq!(
                resetting
                    .await
                    .expect("no panic")
                    .expect_err("refused")
                    .kind(),
                kind,
                "{answer:?}"
            );
        }
    }

    /// A key is forgotten within the deadline of a decision, and a step through all keys may take a
    /// second.
    #[tokio::test(start_paused = true)]
    async fn step_through_all_keys_has_a_second_and_one_reset_a_deadline() {
        for all in [false, true] {
            let store = ByHand::default();
            let backend = RedisBackend::builder(store.clone())
                .build()
                .expect("valid options");
            store.connect(Ok(())).await;
            let began = Instant::now();
            let resetting = if all {
                tokio::spawn(backend.reset_all(""))
            } else {
                reset_key(&backend, 0)
            };
            let _unanswered = store.next().await;
            let error = resetting.await.expect("no panic").expect_err("no answer");
            assert_eq!(error.kind(), throttle_core::BackendErrorKind::Timeout);
            let waited = if all { STEP } else { Duration::from_millis(25) };
            assert!(
                (waited..waited + Duration::from_millis(2)).contains(&began.elapsed()),
                "{:?}",
                began.elapsed()
            );
        }
    }
}

//! Decides sets whose keys are in different slots of a cluster. Each policy reserves where its key
//! is; if the set refuses, the reservations are given back exactly.
//!
//! A reservation is a charge, so what is left of the key's use then counts under the parameters of
//! the request, also where the set refuses.
//!
//! This never admits too much: a refused request ends up charged nowhere, and until then it is
//! charged too early rather than too late. It may refuse early: two requests that each hold what
//! the other needs both see less than there is.

use std::sync::Arc;

use smallvec::SmallVec;
use throttle_core::algorithm::State;
use throttle_core::backend::{Call, Exception, Receipt, Treatment};
use throttle_core::{Algorithm, Decision, Timestamp};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use super::one_slot::ask_in_one_slot;
use super::set::RedisSet;
use super::settle;
use crate::link::call_error::CallError;
use crate::script::reply::{Part, answer, only_state};
use crate::script::request::Ask;
use crate::shared_backend::SharedBackend;

/// Whether the keys of a request are in several slots.
pub(crate) fn is_needed(shared: &SharedBackend, ask: &Ask) -> bool {
    let mut names = ask.names.iter();
    shared.one_slot.is_none() && names.any(|name| shared.slot(name) != ask.slot)
}

/// Runs in a task of its own, so that the reservations are given back even if the request drops its
/// decision.
pub(crate) async fn decide(
    shared: &Arc<SharedBackend>,
    set: &Arc<RedisSet>,
    ask: Arc<Ask>,
) -> Result<Decision, CallError> {
    let task = tokio::spawn(reserve(Arc::clone(shared), Arc::clone(set), ask));
    task.await.unwrap_or(Err(CallError::Malformed(
        "the task that reserved was stopped",
    )))
}

/// One policy's part.
struct PolicyReservation {
    policy: usize,
    now: Timestamp,
    state: State,
    /// What was charged.
    receipt: Option<Receipt>,
}

async fn reserve(
    shared: Arc<SharedBackend>,
    set: Arc<RedisSet>,
    ask: Arc<Ask>,
) -> Result<Decision, CallError> {
    let until = Instant::now() + shared.links.deadlines.decision;
    let singles = set.singles(&shared);
    let mut asking = JoinSet::new();
    for (policy, call) in ask
        .calls
        .iter()
        .enumerate()
        .filter(|(_, call)| call.key().is_some())
    {
        let (shared, single, calls) = (
            Arc::clone(&shared),
            Arc::clone(&singles[policy]),
            [call.clone()],
        );
        asking.spawn(async move { reserve_one(&shared, &single, policy, calls, until).await });
    }
    let (mut reserved, mut error) = (Vec::new(), None::<CallError>);
    while let Some(one) = asking.join_next().await {
        match one.unwrap_or(Err(CallError::Malformed(
            "the task that reserved was stopped",
        ))) {
            Ok(one) => reserved.push(one),
            // Report an error after which the request may be charged in preference to any other.
            Err(failed) if error.as_ref().is_none_or(CallError::is_uncharged) => {
                error = Some(failed);
            }
            Err(_) => {}
        }
    }
    if let Some(error) = error {
        let left = give_back(&shared, &set, reserved, until).await;
        // A reservation that could not be given back stays charged.
        return Err(if left {
            CallError::PartlyCharged(Box::new(error))
        } else {
            error
        });
    }
    let decision = decide_all(&ask, &reserved);
    reserved.retain(|one| decision.statuses()[one.policy].charged() == 0);
    give_back(&shared, &set, reserved, until).await;
    Ok(decision)
}

async fn reserve_one(
    shared: &Arc<SharedBackend>,
    single: &Arc<RedisSet>,
    policy: usize,
    calls: [Call; 1],
    until: Instant,
) -> Result<PolicyReservation, CallError> {
    let ask = single.ask(shared, &calls);
    let part = ask_in_one_slot(shared, single, &ask, until).await?;
    let decision = answer(&ask, &part)?;
    if decision.is_admitted() {
        // Kept refusals of this key may be untrue now.
        shared
            .shortcut
            .note(&ask, &part, &decision, shared.shortcut.asking(&ask));
    }
    let state = only_state(&ask, &part)?;
    let receipt = match limit_of_exception(&part) {
        Some(limit) => receipt_under(&limit, single, &state, part.now, &calls),
        None => Receipt::of(&decision, &calls),
    };
    Ok(PolicyReservation {
        policy,
        now: part.now,
        state,
        receipt,
    })
}

/// The parameters that have decided in place of the call's.
fn limit_of_exception(part: &Part) -> Option<Arc<Algorithm>> {
    let (exception, _) = Exception::from_wire(part.values().next()?)?;
    match exception.treatment {
        Treatment::Limit(limit) if part.now < exception.until => Some(limit),
        _ => None,
    }
}

/// What an exception's limit has charged. A receipt of a decision does not have it, because later
/// the limit may be another one. Here it is given back immediately, as a charge of the key's own
/// parameters.
fn receipt_under(
    limit: &Arc<Algorithm>,
    single: &RedisSet,
    state: &State,
    now: Timestamp,
    calls: &[Call; 1],
) -> Option<Receipt> {
    let calls = calls.clone().map(|call| call.under(Arc::clone(limit)));
    let mut states = [state.clone().excepted(None)];
    Receipt::of(&single.set().decide(&mut states, now, &calls), &calls)
}

/// Decides by the set's rule from the parts, each at its own server's time.
fn decide_all(ask: &Ask, reserved: &[PolicyReservation]) -> Decision {
    let set = &ask.prepared.set;
    let mut states: SmallVec<[State; 3]> = set
        .policies()
        .iter()
        .map(|policy| policy.algorithm().fresh())
        .collect();
    let mut times: SmallVec<[Timestamp; 3]> = SmallVec::from_elem(Timestamp::EPOCH, states.len());
    for one in reserved {
        states[one.policy].clone_from(&one.state);
        times[one.policy] = one.now;
    }
    set.decide_each(&mut states, &times, &ask.calls)
}

/// Returns whether a reservation could not be given back before `until`. Giving back continues
/// after that, and no request waits for it.
async fn give_back(
    shared: &Arc<SharedBackend>,
    set: &Arc<RedisSet>,
    reserved: Vec<PolicyReservation>,
    until: Instant,
) -> bool {
    let mut giving = JoinSet::new();
    for one in reserved {
        if let Some(receipt) = one.receipt {
            let (shared, single) = (
                Arc::clone(shared),
                Arc::clone(&set.singles(shared)[one.policy]),
            );
            giving.spawn(async move { settle::settle(&shared, &single, &receipt.actual(0)).await });
        }
    }
    let mut left = false;
    let all = async {
        while let Some(given) = giving.join_next().await {
            left |= !matches!(given, Ok(Ok(())));
        }
    };
    let late = timeout_at(until, all).await.is_err();
    giving.detach_all();
    left || late
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use throttle_core::{
        Backend, BackendError, FixedWindow, Key, Policy, PolicySet, PolicyTree, Rate,
    };
    use tokio::task::JoinHandle;

    use super::*;
    use crate::RedisBackend;
    use crate::link::connection::{FaultKind, Reply};
    use crate::link::tests::by_hand::{ByHand, Sent, fault, turns};

    struct Fixture {
        store: ByHand,
        backend: RedisBackend,
        deciding: JoinHandle<Result<Decision, BackendError>>,
        first: Sent,
        second: Sent,
    }

    /// A connected cluster, and a set of policies that must all admit.
    async fn fixture<const N: usize>(names: [&str; N]) -> (ByHand, RedisBackend, Arc<RedisSet>) {
        let store = ByHand::cluster();
        store.part(["tada", "tbob"]);
        let builder = RedisBackend::builder(store.clone())
            .per_key_slot()
            .readable_keys();
        let backend = builder
            .deadline(Duration::from_secs(1))
            .build()
            .expect("valid options");
        store.connect(Ok(())).await;
        let policy = |name| {
            Policy::new(name, FixedWindow::new(Rate::per_day(9)))
                .expect("a policy")
                .into()
        };
        let set = PolicySet::new(PolicyTree::All(names.map(policy).to_vec())).expect("a set");
        let prepared = Arc::new(backend.prepare(set).expect("a set"));
        (store, backend, prepared)
    }

    /// A decision that has sent its reservations for two keys at two servers.
    async fn reserving() -> Fixture {
        let (store, backend, prepared) = fixture(["a", "b"]).await;
        let calls = ["ada", "bob"].map(|key| Call::from(Key::from(key)));
        let deciding = tokio::spawn(backend.decide(&prepared, &calls));
        let (first, second) = (store.next().await, store.next().await);
        Fixture {
            store,
            backend,
            deciding,
            first,
            second,
        }
    }

    fn refused() -> Result<Reply, crate::link::connection::Fault> {
        Err(fault(FaultKind::Refused))
    }

    #[tokio::test(start_paused = true)]
    async fn a_reservation_that_is_not_given_back_in_time_may_stay_charged() {
        for (answer, uncharged) in [
            (Some(Ok(Reply::Bytes(b"A".to_vec()))), true),
            (Some(refused()), false),
            (None, false),
        ] {
            let Fixture {
                store,
                deciding,
                first,
                second,
                ..
            } = reserving().await;
            let names = first.keys();
            first.admit().await;
            second.answer(refused()).await;
            let giving_back = store.next().await;
            assert_eq!(giving_back.keys(), names);
            let _unanswered = match answer.clone() {
                Some(answer) => {
                    giving_back.answer(answer).await;
                    None
                }
                None => Some(giving_back),
            };
            let error = deciding
                .await
                .expect("no panic")
                .expect_err("one policy was not decided");
            assert_eq!(error.is_uncharged(), uncharged, "{answer:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn giving_back_goes_on_after_the_deadline() {
        let Fixture {
            store,
            backend,
            deciding,
            first,
            second,
        } = reserving().await;
        let names = first.keys();
        assert_ne!(first.host, second.host);
        first.admit().await;
        let slot = backend.shared.slot(names[0].as_bytes());
        let link = backend.shared.links.of(slot);
        let room = link
            .room
            .take_now(u32::MAX)
            .expect("nothing is under way at that server");
        second.answer(refused()).await;
        assert!(
            !deciding
                .await
                .expect("no panic")
                .expect_err("one policy was not decided")
                .is_uncharged()
        );
        assert!(store.is_idle().await, "there is no room to give back");
        drop(room);
        assert_eq!(store.next().await.keys(), names);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_drops_its_decision_gives_back_what_it_reserved() {
        let Fixture {
            store,
            deciding,
            first,
            second,
            ..
        } = reserving().await;
        deciding.abort();
        turns().await;
        let names = first.keys();
        first.admit().await;
        second.answer(refused()).await;
        assert_eq!(store.next().await.keys(), names);
    }

    /// The error after which units may stay charged is reported, in whichever order the answers
    /// come.
    #[tokio::test(start_paused = true)]
    async fn an_error_after_which_units_may_be_charged_is_reported_before_any_other() {
        for [first, second] in [
            [FaultKind::Refused, FaultKind::Lost],
            [FaultKind::Lost, FaultKind::Refused],
        ] {
            let fixture = reserving().await;
            fixture.first.answer(Err(fault(first))).await;
            fixture.second.answer(Err(fault(second))).await;
            let error = fixture
                .deciding
                .await
                .expect("no panic")
                .expect_err("nothing was decided");
            assert_eq!(
                (error.kind(), error.is_uncharged()),
                (throttle_core::BackendErrorKind::Unavailable, false)
            );
        }
    }

    /// Each policy is decided by the clock of the server that holds its key.
    #[tokio::test(start_paused = true)]
    async fn each_policy_is_decided_at_the_time_of_its_own_server() {
        let Fixture {
            deciding,
            first,
            second,
            ..
        } = reserving().await;
        let day = 86_400_000_000_u64;
        for (sent, into_the_day) in [(first, 1_000_000), (second, 3_000_000)] {
            let now = (20_000 * day + into_the_day) as f64;
            sent.answer(Ok(Reply::Bytes(
                [&now.to_le_bytes()[..], b"A\0\0\0\0"].concat(),
            )))
            .await;
        }
        let decision = deciding.await.expect("no panic").expect("a decision");
        let resets = decision
            .statuses()
            .iter()
            .map(|status| u64::try_from(status.reset_after().as_micros()));
        assert_eq!(
            resets.collect::<Vec<_>>(),
            [Ok(day - 1_000_000), Ok(day - 3_000_000)]
        );
    }

    /// The policy in the middle has no key in this request.
    #[tokio::test(start_paused = true)]
    async fn a_policy_that_does_not_apply_reserves_nothing() {
        let (store, backend, set) = fixture(["a", "b", "c"]).await;
        let [ada, bob] = ["ada", "bob"].map(|key| Call::from(Key::from(key)));
        let deciding = tokio::spawn(backend.decide(&set, &[ada, Call::SKIP, bob]));
        for name in ["throttle{tada}a:", "throttle{tbob}c:"] {
            let sent = store.next().await;
            assert_eq!(sent.keys(), [name]);
            sent.admit().await;
        }
        let decision = deciding.await.expect("no panic").expect("a decision");
        let told = decision
            .statuses()
            .iter()
            .map(|status| (status.applies(), status.charged()));
        assert_eq!(told.collect::<Vec<_>>(), [(true, 1), (false, 0), (true, 1)]);
        assert!(store.is_idle().await, "nothing is given back");
    }

    /// What one policy reserved is given back when the other one refuses, and only that.
    #[tokio::test(start_paused = true)]
    async fn of_a_refused_request_each_reservation_is_given_back_once() {
        let Fixture {
            store,
            backend,
            deciding,
            first,
            second,
        } = reserving().await;
        let names = first.keys();
        first.admit().await;
        let window = FixedWindow::new(Rate::per_day(9)).build().expect("a limit");
        let now = Timestamp::from_micros(1_790_000_000_000_000);
        let used = window
            .decide(window.fresh(), now, 9)
            .0
            .to_wire(&window)
            .expect("a value");
        let length = u32::try_from(used.len()).expect("short").to_le_bytes();
        let refusal = [
            &(now.as_micros() as f64).to_le_bytes()[..],
            b"D",
            &length,
            &used,
        ]
        .concat();
        second.answer(Ok(Reply::Bytes(refusal))).await;
        let giving_back = store.next().await;
        assert_eq!(giving_back.keys(), names);
        assert_eq!(
            giving_back.words().last().map(String::as_str),
            Some("0"),
            "nothing was used"
        );
        giving_back.answer(Ok(Reply::Bytes(b"A".to_vec()))).await;
        let decision = deciding.await.expect("no panic").expect("a decision");
        assert_eq!(
            (decision.is_admitted(), decision.binding()),
            (false, Some(1))
        );
        assert!(
            decision
                .statuses()
                .iter()
                .all(|status| status.charged() == 0)
        );
        assert!(store.is_idle().await && backend.stats().failures == 0);
    }
}

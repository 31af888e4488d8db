use std::future::poll_fn;
use std::task::Poll;

use super::*;

/// Notes something of a key, beside its states.
fn note(naive: &Naive, what: &str, key: &Key) {
    let algorithm = throttle_core::Gcra::new(throttle_core::Rate::per_day(1))
        .build()
        .unwrap();
    naive.states.lock().unwrap().insert(
        (what.to_owned(), key.clone()),
        algorithm.fresh().written_under(&algorithm),
    );
}

/// Whether the keys of a request have such a note, which is removed.
fn take_note(naive: &Naive, what: &str, calls: &[Call]) -> bool {
    let mut states = naive.states.lock().unwrap();
    calls
        .iter()
        .filter_map(Call::key)
        .any(|key| states.remove(&(what.to_owned(), key.clone())).is_some())
}

fn is_charging(calls: &[Call]) -> bool {
    calls.iter().any(|call| call.cost() > 0)
}

catches! {
    /// Once a key with nothing left was refused, it is refused until a microsecond after its
    /// announced wait.
    RefusesAMicrosecondLonger {
        fn decide(naive: &Naive, set: &PolicySet, calls: &[Call]) -> Decision {
            let was_refused = take_note(naive, "refused", calls);
            let just_before = Timestamp::from_micros(naive.clock.now().as_micros() - 1);
            let late = copy_of(naive).decide_at(set, calls, just_before);
            let decision = match late.retry_after() {
                Some(wait) if was_refused && wait == Duration::from_micros(1) => late,
                _ => honest(naive, set, calls),
            };
            if !decision.is_admitted() && decision.remaining() == 0 {
                calls.iter().filter_map(Call::key).for_each(|key| note(naive, "refused", key));
            }
            decision
        }
    }
    law_08_traces_equal_the_reference: "law 10, a charge is used once", "`is_admitted`";
}

catches! {
    /// A request for all that remains is charged and refused.
    TakesTheLastUnitsAndRefuses {
        fn decide(naive: &Naive, set: &PolicySet, calls: &[Call]) -> Decision {
            let decision = honest(naive, set, calls);
            let is_last = decision.is_admitted() && is_charging(calls) && decision.remaining() == 0;
            if is_last { honest(naive, set, &at_cost(calls, 1)) } else { decision }
        }
    }
    law_11_keys_are_injective: "law 11, keys are injective", "`is_admitted`";
    law_11_policies_are_isolated: "law 11, policies are isolated", "units";
}

catches! {
    /// A refusal of several units stays charged to the members that have as many.
    ChargesPartlyWhereMuchIsAsked {
        fn decide(naive: &Naive, set: &PolicySet, calls: &[Call]) -> Decision {
            let decision = honest(naive, set, calls);
            if !decision.is_admitted() && calls.iter().any(|call| call.cost() > 1) {
                one_by_one(naive, set, calls);
            }
            decision
        }
    }
    law_08_compositions_equal_the_reference: "law 1, refusals and peeks change nothing", "`remaining`";
}

catches! {
    /// What is given back to an unused key may be taken beyond its capacity, and no peek shows it.
    CreditsUnusedKeys {
        fn decide(naive: &Naive, set: &PolicySet, calls: &[Call]) -> Decision {
            let decision = honest(naive, set, calls);
            if decision.is_admitted() || !take_note(naive, "credit", calls) {
                return decision;
            }
            for (policy, call) in set.policies().iter().zip(calls) {
                call.key().into_iter().for_each(|key| naive.forget(policy, key));
            }
            honest(naive, set, calls)
        }

        fn settle(naive: &Naive, set: &PolicySet, charge: &Receipt) {
            honest_settle(naive, set, charge);
            for item in charge.items().iter().filter(|item| item.actual() < item.taken()) {
                let address = address(&set.policies()[item.policy()], item.key());
                let state = naive.states.lock().unwrap()[&address].clone();
                if fresh_at(&state) <= naive.clock.now() {
                    note(naive, "credit", item.key());
                }
            }
        }
    }
    law_08_traces_equal_the_reference: "law 10, a charge is used once", "`is_admitted`";
}

catches! {
    /// Units that were used beyond a charge are taken, even if the store did not make the charge.
    DebitsLocalCharges {
        fn settle(naive: &Naive, set: &PolicySet, charge: &Receipt) {
            let mut more = vec![Call::SKIP; set.policies().len()];
            for item in charge.items().iter().filter(|item| item.actual() > item.taken()) {
                more[item.policy()] = Call::new(item.key().clone(), Cost::at_least_one(item.actual() - item.taken()));
            }
            if is_charging(&more) {
                let _ = honest(naive, set, &more);
            } else {
                honest_settle(naive, set, charge);
            }
        }
    }
    law_10_local_charges_are_left_alone: "law 10, a charge of a share", "`remaining`";
    law_08_traces_equal_the_reference: "law 10, a charge is used once", "`is_admitted`";
}

catches! {
    /// A request takes the connection of a settlement that was dropped, and fails.
    FailsAfterADroppedSettlement {
        fn decide_later(naive: &Naive, set: &PolicySet, calls: &[Call]) -> Boxed<Decision> {
            if is_charging(calls) && SETTLEMENT_DROPPED.swap(false, Ordering::SeqCst) {
                return Box::pin(ready(Err(BackendError::new(BackendErrorKind::Unavailable))));
            }
            Box::pin(ready(Ok(honest(naive, set, calls))))
        }

        fn settle_later(naive: &Naive, set: &PolicySet, charge: Receipt) -> Boxed<()> {
            let (naive, set) = (naive.clone(), set.clone());
            let (mut unanswered, mut was_asked) = (Unanswered(Some(&SETTLEMENT_DROPPED)), false);
            Box::pin(poll_fn(move |context| {
                if !std::mem::replace(&mut was_asked, true) {
                    context.waker().wake_by_ref();
                    return Poll::Pending;
                }
                honest_settle(&naive, &set, &charge);
                unanswered.mark_answered();
                Poll::Ready(Ok(()))
            }))
        }
    }
    law_08_traces_equal_the_reference: "", "the backend failed";
}

/// For one case only: the flag is the process's, not the harness's.
static SETTLEMENT_DROPPED: AtomicBool = AtomicBool::new(false);

catches! {
    /// Of several policies with one key, the first is charged.
    ChargesASharedKeyOnce {
        fn decide(naive: &Naive, set: &PolicySet, calls: &[Call]) -> Decision {
            let is_shared = |key: &Key| calls.iter().all(|call| call.key() == Some(key));
            let once = |(address, call): (usize, &Call)| match call.key() {
                Some(key) if address > 0 && is_shared(key) => Call::peek(key.clone()),
                _ => call.clone(),
            };
            honest(naive, set, &calls.iter().enumerate().map(once).collect::<Vec<_>>())
        }
    }
    law_08_compositions_equal_the_reference: "law 5, a composition charges all or nothing", "`reset_after`";
}

/// The same calls; those without a key peek at one.
fn peeking(calls: &[Call]) -> Vec<Call> {
    calls
        .iter()
        .map(|call| {
            if call.key().is_some() {
                call.clone()
            } else {
                Call::peek(Key::CONSTANT)
            }
        })
        .collect()
}

catches! {
    /// Beside a policy that applies, those without a key peek at one.
    PeeksAtSkippedPolicies {
        fn decide(naive: &Naive, set: &PolicySet, calls: &[Call]) -> Decision {
            let applies = calls.iter().any(|call| call.key().is_some());
            honest(naive, set, &if applies { peeking(calls) } else { calls.to_vec() })
        }
    }
    law_08_compositions_equal_the_reference: "law 5, a composition charges all or nothing", "`remaining`";
}

catches! {
    /// A request to which no policy applies is a peek.
    PeeksWhereNothingApplies {
        fn decide(naive: &Naive, set: &PolicySet, calls: &[Call]) -> Decision {
            let applies = calls.iter().any(|call| call.key().is_some());
            honest(naive, set, &if applies { calls.to_vec() } else { peeking(calls) })
        }
    }
    law_08_traces_equal_the_reference: "law 3, exact units", "`remaining`";
}

catches! {
    /// The texts of a key are joined by a colon, and their number is kept.
    JoinsCountedTexts {
        fn decide(naive: &Naive, set: &PolicySet, calls: &[Call]) -> Decision {
            let join = |key: &Key| match texts(key) {
                Some(texts) => Key::builder().number(texts.len() as u64).text(&texts.join(":")).finish(),
                None => key.clone(),
            };
            honest(naive, set, &of_keys(calls, |key| key.map(join)))
        }
    }
    law_11_keys_are_injective: "law 11, keys are injective", "`is_admitted`";
}

/// The bytes of a key that has nothing else and is no text.
fn no_text(key: &Key) -> Option<&[u8]> {
    let parts: Vec<KeyPart<'_>> = key.expose_parts().collect();
    match parts[..] {
        [KeyPart::Bytes(bytes)] => std::str::from_utf8(bytes).is_err().then_some(bytes),
        _ => None,
    }
}

catches! {
    /// Bytes that are no text count as none.
    EmptiesBytes {
        fn decide(naive: &Naive, set: &PolicySet, calls: &[Call]) -> Decision {
            let none = |key: &Key| no_text(key).map_or(key.clone(), |_| Key::builder().bytes(b"").finish());
            honest(naive, set, &of_keys(calls, |key| key.map(none)))
        }
    }
    law_11_keys_are_injective: "law 11, keys are injective", "`is_admitted`";
    law_08_traces_equal_the_reference: "law 3, exact units", "`remaining`";
}

catches! {
    /// A policy goes by the part of its name in braces, as a slot of a cluster does.
    NamesByTag {
        fn decide(naive: &Naive, set: &PolicySet, calls: &[Call]) -> Decision {
            let [policy] = set.policies() else { return honest(naive, set, calls) };
            let tag = policy.name().split_once('{').and_then(|(_, rest)| rest.split_once('}'));
            let name = tag.map_or(policy.name(), |(tag, _)| tag);
            honest(naive, &PolicySet::new(Policy::new(name, *policy.algorithm()).unwrap()).unwrap(), calls)
        }
    }
    law_11_policies_are_isolated: "law 11, policies are isolated", "units";
    law_08_parameters_equal_the_reference: "law 3, exact units", "`remaining`";
}

catches! {
    /// A set of several policies has budgets of its own.
    CountsSetsApart {
        fn decide(naive: &Naive, set: &PolicySet, calls: &[Call]) -> Decision {
            let [_, _, ..] = set.policies() else { return honest(naive, set, calls) };
            let own = |policy: &Policy| Policy::new(&format!("{} here", policy.name()), *policy.algorithm()).unwrap();
            let apart = PolicyTree::All(set.policies().iter().map(|policy| own(policy).into()).collect());
            honest(naive, &PolicySet::new(apart).unwrap(), calls)
        }
    }
    law_08_compositions_equal_the_reference: "law 5, a composition charges all or nothing", "`remaining`";
}

catches! {
    /// A request that names one key of a policy twice is decided.
    DecidesAKeyTwice {
        fn decide_later(naive: &Naive, set: &PolicySet, calls: &[Call]) -> Boxed<Decision> {
            Box::pin(ready(Ok(honest(naive, set, calls))))
        }
    }
    law_08_several_keys_of_a_policy_equal_the_reference: "contract, keys of a policy", "an error about a key in two calls";
}

catches! {
    /// Of the keys of one policy, only the first is charged.
    ChargesOneKeyOfAPolicy {
        fn decide_later(naive: &Naive, set: &PolicySet, calls: &[Call]) -> Boxed<Decision> {
            let mut once = calls.to_vec();
            for (index, policy) in set.policies().iter().enumerate() {
                let mut before = set.policies()[..index].iter().zip(calls);
                if before.any(|(other, call)| other == policy && call.key().is_some()) {
                    once[index] = once[index].clone().peeking();
                }
            }
            let checked = set.check_keys(calls);
            Box::pin(ready(checked.map(|()| honest(naive, set, &once))))
        }
    }
    law_08_several_keys_of_a_policy_equal_the_reference: "law 5, a composition charges all or nothing", "`charged`";
}

use std::sync::Arc;

use throttle_core::algorithm::State;
use throttle_core::{Algorithm, Gcra, Rate};

use super::*;

/// The parameters of each call to a policy that applies, and the address of its key's state.
fn asked<'a>(
    set: &'a PolicySet,
    calls: &'a [Call],
) -> impl Iterator<Item = (&'a Algorithm, (String, Key))> {
    let each = set.policies().iter().zip(calls);
    each.filter_map(|(policy, call)| Some((call.parameters(policy), address(policy, call.key()?))))
}

/// Whether these parameters wrote the state.
fn is_by(state: &State, by: &Algorithm) -> bool {
    state
        .to_wire(by)
        .is_some_and(|bytes| bytes.starts_with(&by.tag()))
}

/// What a key has used, as a call under these parameters counts it.
fn used(state: &State, by: &Algorithm, now: Timestamp) -> u64 {
    let set = PolicySet::new(Policy::new("policy", Gcra::new(Rate::per_day(1))).unwrap()).unwrap();
    let peek = Call::peek(Key::CONSTANT).under(Arc::new(*by));
    by.capacity() - set.decide(&mut [state.clone()], now, &[peek]).remaining()
}

/// The state as these parameters would have written it.
fn rewritten(state: &State, by: &Algorithm, now: Timestamp) -> State {
    by.decide(by.fresh(), now, used(state, by, now))
        .0
        .written_under(by)
}

catches! {
    /// A refusal or a look under other parameters rewrites the state, and what does not fit is
    /// lost.
    RewritesWithoutACharge {
        fn decide(naive: &Naive, set: &PolicySet, calls: &[Call]) -> Decision {
            let now = naive.clock.now();
            for (by, address) in asked(set, calls) {
                if let Some(state) = naive.states.lock().unwrap().get_mut(&address) {
                    *state = rewritten(state, by, now);
                }
            }
            honest(naive, set, calls)
        }
    }
    law_07_two_clocks_buy_nothing_twice: "law 7, two clocks", "units on the late one";
    law_08_traces_equal_the_reference: "law 4, exact resets", "`reset_after`";
}

catches! {
    /// A refusal under other parameters writes the state.
    WritesOnRefusal {
        fn decide(naive: &Naive, set: &PolicySet, calls: &[Call]) -> Decision {
            let decision = honest(naive, set, calls);
            for (by, address) in asked(set, calls).filter(|_| !decision.is_admitted()) {
                if let Some(state) = naive.states.lock().unwrap().get_mut(&address) {
                    *state = rewritten(state, by, naive.clock.now());
                }
            }
            decision
        }
    }
    law_07_two_clocks_buy_nothing_twice: "law 7, two clocks", "units on the late one";
    law_08_traces_equal_the_reference: "law 1, refusals and peeks change nothing", "`reset_after`";
}

catches! {
    /// New parameters are a new budget: a state that others wrote is forgotten.
    ForgetsOtherWriters {
        fn decide(naive: &Naive, set: &PolicySet, calls: &[Call]) -> Decision {
            for (by, address) in asked(set, calls) {
                naive.states.lock().unwrap().retain(|other, state| *other != address || is_by(state, by));
            }
            honest(naive, set, calls)
        }
    }
    law_08_traces_equal_the_reference: "law 7, a changed limit", "`remaining`";
    law_08_parameters_equal_the_reference: "law 9, forgetting is invisible", "`remaining`";
}

catches! {
    /// A look under other parameters makes them the state's writer, and its use drains at their
    /// pace.
    NamesTheReaderAsWriter {
        fn decide(naive: &Naive, set: &PolicySet, calls: &[Call]) -> Decision {
            let decision = honest(naive, set, calls);
            let is_look = decision.is_admitted() && calls.iter().all(|call| call.cost() == 0);
            for (by, address) in asked(set, calls).filter(|_| is_look) {
                if let Some(state) = naive.states.lock().unwrap().get_mut(&address) {
                    *state = rewritten(state, by, naive.clock.now());
                }
            }
            decision
        }
    }
    law_08_traces_equal_the_reference: "law 1, refusals and peeks change nothing", "`retry_after`";
}

catches! {
    /// Each tier, and each of a key's own parameters, has a budget of its own.
    CountsParametersApart {
        fn decide(naive: &Naive, set: &PolicySet, calls: &[Call]) -> Decision {
            let apart = |(policy, call): (&Policy, &Call)| {
                let by = call.parameters(policy);
                let name: u64 = by.tag().iter().fold(7, |sum, byte| sum * 31 % (1 << 50) + u64::from(*byte));
                Policy::new(&format!("{} {name}", policy.name()), *by).unwrap().into()
            };
            let members = set.policies().iter().zip(calls).map(apart).collect();
            let plain: Vec<Call> = calls.iter().map(|call| call.clone().in_tier(0)).collect();
            honest(naive, &PolicySet::new(PolicyTree::All(members)).unwrap(), &plain)
        }
    }
    law_09_keys_keep_what_they_used_under_gone_parameters: "law 9, gone parameters", "round 1";
    law_08_traces_equal_the_reference: "contract, `now`, `decide_at_once` and `decide_as_of`", "`remaining`";
}

catches! {
    /// A key's own parameters are ignored, and its tier decides.
    IgnoresOwnParameters {
        fn decide(naive: &Naive, set: &PolicySet, calls: &[Call]) -> Decision {
            let tiered = |call: &Call| if call.own().is_some() { call.clone().in_tier(0) } else { call.clone() };
            honest(naive, set, &calls.iter().map(tiered).collect::<Vec<_>>())
        }
    }
    law_09_keys_keep_what_they_used_under_gone_parameters: "law 9, gone parameters", "round 0";
    law_08_parameters_equal_the_reference: "law 3, exact units", "`remaining`";
}

catches! {
    /// A store in which more than 256 parameters have written starts over.
    CountsParametersInAByte {
        fn decide(naive: &Naive, set: &PolicySet, calls: &[Call]) -> Decision {
            let mut states = naive.states.lock().unwrap();
            for (by, _) in asked(set, calls) {
                let note = ("parameters".to_owned(), Key::builder().bytes(&by.tag()).finish());
                states.insert(note, by.fresh().written_under(by));
            }
            if states.keys().filter(|(policy, _)| policy == "parameters").count() > 256 {
                states.clear();
            }
            drop(states);
            honest(naive, set, calls)
        }
    }
    law_09_keys_keep_what_they_used_under_gone_parameters: "law 9, gone parameters", "round 4";
}

catches! {
    /// A charge is settled as if no other parameters had charged the key since.
    SettlesByItsOwnParameters {
        fn settle(naive: &Naive, set: &PolicySet, charge: &Receipt) {
            let now = naive.clock.now();
            for item in charge.items() {
                let policy = &set.policies()[item.policy()];
                if let Some(state) = naive.states.lock().unwrap().get_mut(&address(policy, item.key())) {
                    *state = rewritten(state, item.parameters(policy), now);
                }
            }
            honest_settle(naive, set, charge);
        }
    }
    law_08_traces_equal_the_reference: "law 10, a charge is used once", "`retry_after`";
}

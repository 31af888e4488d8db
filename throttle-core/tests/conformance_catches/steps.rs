//! Faults in the steps beside decisions and settlements.

use super::*;

catches! {
    /// An exception is set, and decides nothing.
    IgnoresExceptions {
        fn except(_: &Naive, _: &Policy, _: &Key, _: Option<Exception>) {}
    }
    law_08_traces_equal_the_reference: "contract, exceptions and bans", "`is_admitted`";
}

catches! {
    /// An exception that is lifted stays.
    LiftsNothing {
        fn except(naive: &Naive, policy: &Policy, key: &Key, exception: Option<Exception>) {
            if exception.is_some() {
                naive.except_at(policy, key, exception);
            }
        }
    }
    law_08_traces_equal_the_reference: "contract, exceptions and bans", "the backend failed";
}

catches! {
    /// An exception that is set or lifted forgets what the key has used.
    ExceptsAnUnusedKey {
        fn except(naive: &Naive, policy: &Policy, key: &Key, exception: Option<Exception>) {
            naive.forget(policy, key);
            naive.except_at(policy, key, exception);
        }
    }
    law_08_traces_equal_the_reference: "contract, exceptions and bans", "`reset_after`";
}

catches! {
    /// Strikes are not counted.
    IgnoresStrikes {
        fn strike(_: &Naive, _: &Policy, _: &Key, _: &Ban) -> Option<Exception> {
            None
        }
    }
    contract_one_of_racing_strikes_begins_the_ban: "contract, exceptions and bans", "bans begun by 8 strikes that race";
}

catches! {
    /// A strike reads and writes in two steps.
    StrikesInTwoSteps {
        fn strike(naive: &Naive, policy: &Policy, key: &Key, ban: &Ban) -> Option<Exception> {
            let apart = copy_of(naive);
            let begun = apart.strike_at(policy, key, ban, naive.clock.now());
            std::thread::sleep(Duration::from_micros(200));
            *naive.states.lock().unwrap() = apart.states.lock().unwrap().clone();
            begun
        }
    }
    contract_one_of_racing_strikes_begins_the_ban: "contract, exceptions and bans", "bans begun by 8 strikes that race";
}

catches! {
    /// No exception is listed.
    ListsNothing {
        fn exceptions(_: &Naive, _: &Policy, _: usize) -> Vec<ExceptedKey> {
            Vec::new()
        }
    }
    law_08_traces_equal_the_reference: "contract, exceptions and bans", "the number";
}

catches! {
    /// All exceptions are listed, however few may be.
    ListsTooMany {
        fn exceptions(naive: &Naive, policy: &Policy, _: usize) -> Vec<ExceptedKey> {
            naive.list(policy, usize::MAX)
        }
    }
    law_08_compositions_equal_the_reference: "contract, exceptions and bans", "the number";
}

catches! {
    /// The exceptions of every policy are listed as those of one.
    ListsOneKeyTwice {
        fn exceptions(naive: &Naive, policy: &Policy, most: usize) -> Vec<ExceptedKey> {
            let listed = naive.list(policy, most);
            listed.iter().chain(&listed).take(most.min(listed.len())).map(|_| listed[0].clone()).collect()
        }
    }
    law_08_traces_equal_the_reference: "contract, exceptions and bans", "the number";
}

catches! {
    /// A request as of an instant is decided now.
    IgnoresInstants {
        fn decide_as_of(naive: &Naive, set: &PolicySet, calls: &[Call], _: Timestamp) -> Decision {
            honest(naive, set, calls)
        }
    }
    law_08_traces_equal_the_reference: "contract, `now`, `decide_at_once` and `decide_as_of`", "`reset_after`";
}

catches! {
    /// A request as of an instant that is not yet is decided then.
    DecidesInTheFuture {
        fn decide_as_of(naive: &Naive, set: &PolicySet, calls: &[Call], at: Timestamp) -> Decision {
            naive.decide_at(set, calls, at)
        }
    }
    law_08_traces_equal_the_reference: "contract, `now`, `decide_at_once` and `decide_as_of`", "`reset_after`";
}

catches! {
    /// The clock shows another time than the one that decides.
    ReadsAnotherClock {
        fn now(naive: &Naive) -> Option<Timestamp> {
            Some(naive.clock.now() + Duration::from_secs(1))
        }
    }
    law_08_traces_equal_the_reference: "contract, `now`, `decide_at_once` and `decide_as_of`", "`now`";
}

catches! {
    /// The clock stands still.
    ReadsAStoppedClock {
        fn now(_: &Naive) -> Option<Timestamp> {
            Some(Timestamp::MIN)
        }
    }
    law_08_traces_equal_the_reference: "contract, `now`, `decide_at_once` and `decide_as_of`", "`now`";
}

catches! {
    /// What is decided without waiting is charged twice.
    ChargesTwiceAtOnce {
        fn decide_at_once(naive: &Naive, set: &PolicySet, calls: &[Call]) -> Option<Decision> {
            let _ = honest(naive, set, calls);
            Some(honest(naive, set, calls))
        }
    }
    law_08_traces_equal_the_reference: "contract, `now`, `decide_at_once` and `decide_as_of`", "`remaining`";
}

catches! {
    /// A decision that has to wait is charged before it does.
    ChargesBeforeItWaits {
        fn decide_at_once(naive: &Naive, set: &PolicySet, calls: &[Call]) -> Option<Decision> {
            let _ = honest(naive, set, calls);
            None
        }
    }
    law_08_traces_equal_the_reference: "contract, `now`, `decide_at_once` and `decide_as_of`", "`remaining`";
}

catches! {
    /// A whole capacity is never debited, so that nothing drains a key.
    DrainsNothing {
        fn settle(naive: &Naive, set: &PolicySet, charge: &Receipt) {
            let is_drain = charge.items().iter().any(|item| {
                item.actual() == item.parameters(&set.policies()[item.policy()]).capacity()
            });
            if !is_drain {
                honest_settle(naive, set, charge);
            }
        }
    }
    law_08_traces_equal_the_reference: "law 10, a charge is used once", "`is_admitted`";
}

/// Whether SQL's `LIKE` finds the pattern at the beginning of a name.
fn is_like(name: &str, pattern: &str) -> bool {
    let mut rest = pattern.chars();
    match rest.next() {
        None => true,
        Some('%') => (0..=name.len()).any(|from| {
            name.get(from..)
                .is_some_and(|name| is_like(name, rest.as_str()))
        }),
        Some(letter) => {
            name.chars()
                .next()
                .is_some_and(|first| letter == '_' || letter == first)
                && is_like(
                    &name[name.chars().next().map_or(0, char::len_utf8)..],
                    rest.as_str(),
                )
        }
    }
}

catches! {
    /// A prefix is a pattern of SQL.
    ResetsLike {
        fn reset_all(naive: &Naive, prefix: &str) {
            naive.states.lock().unwrap().retain(|(policy, _), _| !is_like(policy, prefix));
        }
    }
    law_11_reset_all_by_prefix: "law 11, resets", "`remaining`";
}

catches! {
    /// A reset leaves an exception.
    ResetKeepsExceptions {
        fn reset(naive: &Naive, set: &PolicySet, policy: usize, key: &Key) {
            let policy = &set.policies()[policy];
            let kept = naive.exception(policy, key);
            naive.forget(policy, key);
            if kept.is_some() {
                naive.except_at(policy, key, kept);
            }
        }
    }
    law_08_traces_equal_the_reference: "contract, exceptions and bans", "the number";
}

catches! {
    /// Rows are forgotten a second before they are as new ones.
    ForgetsTooEarly {
        fn forget(naive: &Naive, at: Timestamp) {
            naive.expire(at + Duration::from_secs(1));
        }
    }
    law_08_traces_equal_the_reference: "law 9, forgetting is invisible", "`remaining`";
    law_08_compositions_equal_the_reference: "law 9, forgetting is invisible", "`remaining`";
}

catches! {
    /// Rows are forgotten when their window ends, with the exceptions over them.
    ForgetsExceptions {
        fn forget(naive: &Naive, at: Timestamp) {
            let mut states = naive.states.lock().unwrap();
            states.retain(|_, state| at < fresh_at(&state.clone().excepted(None)));
        }
    }
    law_08_traces_equal_the_reference: "contract, exceptions and bans", "`is_admitted`";
}

catches! {
    /// An index without a policy counts as the first.
    TakesAnyIndex {
        fn policy(set: &PolicySet, _: usize) -> Result<&Policy, BackendError> {
            set.policy(0)
        }
    }
    law_08_traces_equal_the_reference: "contract, indices", "a step on an index without a policy";
}

//! Law 1: a call that peeks is decided with its cost and charged nothing.

use super::fixture::{Fixture, START, call, micros, policy, start};
use super::{Harness, Sample};
use crate::algorithm::{FixedWindow, IntoAlgorithm};
use crate::backend::Receipt;
use crate::decision::Decision;
use crate::key::Key;
use crate::rate::Rate;
use crate::set::{AnyCharge, PolicyTree};

/// A peek leaves every state as it was. Its verdict, its wait and its delay are those that the
/// charged call gets, and what is left is what a peek without a cost finds.
pub fn law_01_peek_answers_as_a_charge_and_charges_nothing<H: Harness>(sample: &Sample) {
    let harness = start::<H>();
    let fixture = Fixture::<H>::of(&harness, sample.algorithm());
    let capacity = sample.capacity();
    let mut now = START;
    for (round, (used, reserve)) in [(0, 0), (1, 0), (capacity - 1, 0), (capacity, 0), (1, 1)]
        .into_iter()
        .enumerate()
    {
        for (number, cost) in [1, 2, capacity, capacity + 1, u64::MAX]
            .into_iter()
            .enumerate()
        {
            harness.set_time(now);
            let key = Key::builder()
                .number(round as u64)
                .number(number as u64)
                .finish();
            if used > 0 {
                assert!(fixture.take(&key, used).is_admitted());
            }
            let asked = || call(&key, cost).reserving(reserve);
            let context = format!("{cost} units after {used} used, leaving {reserve}");
            // Once at the instant of the charge, and once when a part of it is back.
            let later = micros(fixture.peek(&key).reset_after()) / 2;
            for instant in [now, now.after_micros(later)] {
                harness.set_time(instant);
                let without_cost = fixture.decide(&[call(&key, 0).reserving(reserve)]);
                let peek = fixture.decide(&[asked().peeking()]);
                assert_eq!(
                    fixture.decide(&[asked().peeking()]),
                    peek,
                    "a second peek at {context}"
                );
                assert_eq!(left(&peek), left(&without_cost), "{context}");
                assert_eq!(peek.statuses()[0].charged(), 0, "{context}");
                assert_eq!(Receipt::of(&peek, &[asked()]), None, "{context}");
                assert_eq!(
                    fixture.decide(&[call(&key, 0).reserving(reserve)]),
                    without_cost,
                    "after a peek at {context}"
                );
                if instant != now || later == 0 {
                    let charged = fixture.decide(&[asked()]);
                    assert_eq!(verdict(&peek), verdict(&charged), "{context}");
                }
            }
            now = now.after_micros(later);
        }
    }
}

/// What a caller does about a request.
fn verdict(decision: &Decision) -> impl PartialEq + std::fmt::Debug {
    let statuses = decision.statuses().iter();
    let each: Vec<_> = statuses
        .map(|status| (status.refuses(), status.retry_after(), status.is_overflow()))
        .collect();
    (
        decision.is_admitted(),
        decision.retry_after(),
        decision.delay(),
        each,
    )
}

/// What is left of each policy.
fn left(decision: &Decision) -> impl PartialEq + std::fmt::Debug {
    let statuses = decision.statuses().iter();
    statuses
        .map(|status| (status.remaining(), status.reset_after()))
        .collect::<Vec<_>>()
}

/// In a set, a peek stands for the charged call: one that is refused refuses the request, and of an
/// `any` it takes the charge of the members after it. What is not a peek is charged as always.
pub fn law_01_peeks_in_a_set_stand_for_charged_calls<H: Harness>() {
    let quota = |name: &str, limit| {
        let window = FixedWindow::new(Rate::per_day(limit)).into_algorithm();
        PolicyTree::from(policy(name, &window.expect("a valid quota")))
    };
    let members = |names: [&str; 2]| vec![quota(names[0], 2), quota(names[1], 5)];
    let harness = start::<H>();
    let all = Fixture::<H>::new(&harness, PolicyTree::All(members(["day", "hour"])));
    let first = PolicyTree::Any(members(["own", "pool"]), AnyCharge::First);
    let first = Fixture::<H>::new(&harness, first);
    let every = PolicyTree::Any(members(["small", "large"]), AnyCharge::EveryAdmitting);
    let every = Fixture::<H>::new(&harness, every);

    let charge = |cost| (cost, false);
    let peek = |cost| (cost, true);
    // The costs of both members, whether the request is admitted, the policy that binds, and what
    // is left.
    for (fixture, costs, admitted, binding, left) in [
        (&all, [peek(2), charge(1)], true, 0, [2, 4]),
        (&all, [peek(3), charge(1)], false, 0, [2, 5]),
        (&all, [charge(1), peek(5)], true, 0, [1, 5]),
        (&all, [charge(1), peek(6)], false, 1, [2, 5]),
        (&all, [peek(2), peek(5)], true, 0, [2, 5]),
        (&first, [peek(2), charge(1)], true, 0, [2, 5]),
        (&first, [peek(3), charge(1)], true, 1, [2, 4]),
        (&first, [charge(3), peek(5)], true, 1, [2, 5]),
        (&first, [charge(3), peek(6)], false, 0, [2, 5]),
        (&first, [charge(1), peek(1)], true, 0, [1, 5]),
        (&every, [peek(2), charge(1)], true, 0, [2, 4]),
        (&every, [peek(3), charge(1)], true, 1, [2, 4]),
        (&every, [peek(3), peek(6)], false, 0, [2, 5]),
    ] {
        let context = format!("{costs:?} of {:?}", fixture.limiter.set());
        let key = Key::from(context.as_str());
        let calls = costs.map(|(cost, is_peek)| match is_peek {
            true => call(&key, cost).peeking(),
            false => call(&key, cost),
        });
        let peeks = costs.map(|(cost, _)| call(&key, cost).peeking());
        let before = fixture.decide(&peeks);
        let decision = fixture.decide(&calls);
        assert_eq!(
            (decision.is_admitted(), decision.binding()),
            (admitted, Some(binding)),
            "{context}"
        );
        assert_eq!(verdict(&decision), verdict(&before), "{context}");
        assert_eq!(fixture.left(&key), left, "{context}");
    }
}

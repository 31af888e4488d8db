//! What decisions, charges, errors and clocks say: every number and name that a program reads from
//! them.

use std::time::Duration;

use throttle_core::backend::{Call, Receipt};
use throttle_core::{
    AnyCharge, Backend, Clock, FixedWindow, Key, LeakyBucket, Limiter, ManualClock, MemoryBackend,
    Policy, PolicySet, PolicyTree, Rate, Timestamp,
};

const T0: Timestamp = Timestamp::from_micros(1_790_000_000_000_000);

fn per_day(name: &str, count: u64) -> Policy {
    Policy::new(name, FixedWindow::new(Rate::per_day(count))).unwrap()
}

fn queue(name: &str, per_minute: u64) -> Policy {
    Policy::new(
        name,
        LeakyBucket::new(Rate::per_minute(per_minute)).max_wait(Duration::from_secs(600)),
    )
    .unwrap()
}

fn all(members: impl IntoIterator<Item = Policy>) -> PolicySet {
    PolicySet::new(PolicyTree::All(
        members.into_iter().map(PolicyTree::from).collect(),
    ))
    .unwrap()
}

fn memory() -> MemoryBackend<ManualClock> {
    MemoryBackend::builder().clock(ManualClock::new(T0)).build()
}

/// Backends name the same policy: the first of those with equal waits, and the first with the least
/// remaining.
#[test]
fn law_08_the_first_of_equal_policies_binds_in_each_kind_of_tree() {
    let equal = || {
        ["a", "b", "c"]
            .map(|name| PolicyTree::from(per_day(name, 2)))
            .to_vec()
    };
    for tree in [
        PolicyTree::All(equal()),
        PolicyTree::Any(vec![PolicyTree::All(equal())], AnyCharge::First),
    ] {
        let limiter = Limiter::new(memory(), PolicySet::new(tree).unwrap()).unwrap();
        for admitted in [true, true, false] {
            let decision = limiter.check("ada", 1);
            assert_eq!(
                (decision.is_admitted(), decision.binding()),
                (admitted, Some(0))
            );
        }
    }
}

/// Two queues in one set, in either order: the request waits for the slower one, and not for both
/// in turn.
#[test]
fn a_request_waits_for_the_longest_of_its_delays() {
    let seconds = Duration::from_secs;
    for (counts, any) in [
        ([60, 6], false),
        ([6, 60], false),
        ([60, 6], true),
        ([6, 60], true),
    ] {
        let members = [
            queue("a", counts[0]),
            queue("b", counts[1]),
            per_day("c", 9),
        ]
        .map(PolicyTree::from)
        .to_vec();
        let every = AnyCharge::EveryAdmitting;
        let tree = if any {
            PolicyTree::Any(members, every)
        } else {
            PolicyTree::All(members)
        };
        let limiter = Limiter::new(memory(), PolicySet::new(tree).unwrap()).unwrap();
        let delays = [0, 10, 20].map(seconds);
        for delay in delays {
            let decision = limiter.check("ada", 1);
            assert_eq!(
                (decision.is_admitted(), decision.delay()),
                (true, delay),
                "{counts:?}"
            );
        }
        assert_eq!(
            limiter.peek("ada").delay(),
            Duration::ZERO,
            "a look does not wait"
        );
        assert_eq!(
            limiter.peek("ada").reset_after(),
            Duration::from_secs(86_400).min(limiter.peek("ada").reset_after())
        );
    }
}

#[test]
fn a_charge_names_what_each_policy_took_and_is_settled_in_all_of_them() {
    let limiter = Limiter::new(memory(), all([per_day("a", 9), per_day("b", 5)])).unwrap();
    let left = || {
        limiter
            .peek("ada")
            .statuses()
            .iter()
            .map(|status| status.remaining())
            .collect::<Vec<_>>()
    };
    let charge = limiter.charge("ada", 3).1.unwrap();
    assert_eq!(["a", "b", "c"].map(|name| charge.taken(name)), [3, 3, 0]);
    assert_eq!(left(), [6, 2]);
    charge.settle_now(2);
    assert_eq!(left(), [7, 3]);
    limiter.charge("ada", 2).1.unwrap().refund_now();
    assert_eq!(left(), [7, 3]);
    // A set in which the policies were charged unlike, through the futures.
    let calls = [
        Call::from(Key::from("ada")).costing(1),
        Call::from(Key::from("ada")).costing(2),
    ];
    let decided = std::pin::pin!(limiter.reserve(&calls));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let std::task::Poll::Ready(Ok((decision, Some(charge)))) = decided.poll(&mut context) else {
        panic!("it is charged")
    };
    assert!(decision.is_admitted());
    assert_eq!(["a", "b"].map(|name| charge.taken(name)), [1, 2]);
    assert_eq!(left(), [6, 1]);
    charge.refund().into_inner().unwrap();
    assert_eq!(left(), [7, 3]);
    let ada = Key::from("ada");
    assert!(
        std::pin::pin!(limiter.reset(1, &ada))
            .poll(&mut context)
            .is_ready()
    );
    assert_eq!(left(), [7, 5], "of one policy");
    assert!(limiter.charge("ada", 6).1.is_none(), "refused");
}

#[test]
fn a_receipt_gives_up_the_charge_of_the_policy_that_is_named() {
    let set = all([per_day("a", 9), per_day("b", 9), per_day("c", 9)]);
    let backend = memory();
    let prepared = backend.prepare(set).unwrap();
    let calls = [1, 2, 3].map(|cost| Call::from(Key::from("ada")).costing(cost));
    let mut receipt = Receipt::of(&backend.decide_now(&prepared, &calls), &calls).unwrap();
    let taken = |receipt: &Receipt| [0, 1, 2].map(|policy| receipt.taken(policy));
    let second = receipt.take(1).unwrap();
    assert_eq!((taken(&receipt), taken(&second)), ([1, 0, 3], [0, 2, 0]));
    assert!(receipt.take(1).is_none() && receipt.take(7).is_none());
    let receipt = receipt.actual_of(2, 5);
    assert_eq!(
        receipt
            .items()
            .iter()
            .map(|item| item.actual())
            .collect::<Vec<_>>(),
        [1, 5]
    );
    let none = receipt.actual(0);
    assert_eq!(
        none.items()
            .iter()
            .map(|item| item.actual())
            .collect::<Vec<_>>(),
        [0, 0]
    );
    backend.settle_now(&prepared, none);
    let peeks = [(); 3].map(|()| Call::peek(Key::from("ada")));
    let left = backend.decide_now(&prepared, &peeks);
    assert_eq!(
        left.statuses()
            .iter()
            .map(|status| status.remaining())
            .collect::<Vec<_>>(),
        [9, 7, 9]
    );
}

/// States on two servers, whose clocks differ: each policy is decided by its own.
#[test]
fn a_set_on_several_servers_is_decided_by_the_clock_of_each() {
    let set = all([per_day("a", 5), per_day("b", 5)]);
    let mut states: Vec<_> = set
        .policies()
        .iter()
        .map(|policy| policy.algorithm().fresh())
        .collect();
    let noon = Timestamp::from_micros(1_790_078_400_000_000);
    let times = [noon, noon.after_micros(3_600_000_000)];
    let calls = vec![Call::from(Key::from("ada")).costing(5); 2];
    let decision = set.decide_each(&mut states, &times, &calls);
    let resets: Vec<_> = decision
        .statuses()
        .iter()
        .map(|status| status.reset_after().as_secs() / 3_600)
        .collect();
    assert_eq!(resets, [12, 11]);
    let tomorrow = [noon.after_micros(12 * 3_600_000_000), noon];
    let refused = set.decide_each(&mut states.clone(), &tomorrow, &calls);
    assert_eq!((refused.is_admitted(), refused.binding()), (false, Some(1)));
    let short =
        std::panic::AssertUnwindSafe(|| set.decide_each(&mut states.clone(), &times[..1], &calls));
    assert!(
        std::panic::catch_unwind(short).is_err(),
        "an instant is missing"
    );
}

#[test]
fn instants_are_added_and_written_to_the_microsecond() {
    let nanos = Duration::from_nanos;
    assert_eq!(Timestamp::EPOCH + nanos(1), Timestamp::from_micros(1));
    assert_eq!(Timestamp::EPOCH + nanos(1_000), Timestamp::from_micros(1));
    assert_eq!(Timestamp::EPOCH + nanos(1_001), Timestamp::from_micros(2));
    assert_eq!(Timestamp::MIN + Duration::MAX, Timestamp::MAX);
    assert_eq!(Timestamp::EPOCH.after_micros(u64::MAX), Timestamp::MAX);
    assert_eq!(
        Timestamp::from_micros(3).micros_since(Timestamp::from_micros(5)),
        -2
    );
    for (micros, text) in [
        (0, "0.000000"),
        (1, "0.000001"),
        (-1, "-0.000001"),
        (-1_500_000, "-1.500000"),
    ] {
        assert_eq!(Timestamp::from_micros(micros).to_string(), text);
    }
    let clock = ManualClock::new(T0);
    clock.advance(nanos(1));
    assert_eq!(clock.now(), T0.after_micros(1));
    clock.set(Timestamp::EPOCH);
    assert_eq!(
        clock.clone().now(),
        Timestamp::EPOCH,
        "clones share the time, which may step back"
    );
}

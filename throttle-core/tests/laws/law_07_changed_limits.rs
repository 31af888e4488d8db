//! Law 7, changed limits: used units stay used, a lowered limit refuses no key for longer than its own window, and a
//! raised limit takes effect with the first charge.

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use throttle_core::backend::Call;
use throttle_core::{Backend, Cost, Gcra, Key, ManualClock, MemoryBackend, Policy, PolicySet, Rate, Timestamp};

use crate::support::spec::{Kind, Spec, TODAY};
use crate::support::strategies::{any_spec, run};

/// The longest time that an unused key of this limit can be locked out by its own use: the wait for the full capacity
/// after the full capacity was used.
fn own_window(spec: &Spec, t: i64) -> u64 {
    let algorithm = spec.algorithm();
    let now = Timestamp::from_micros(t);
    let (state, _) = algorithm.decide(algorithm.fresh(), now, algorithm.capacity());
    algorithm.peek(&state, now).reset_after_micros()
}

fn changes() -> impl Strategy<Value = (Spec, Spec, u32, i64)> {
    let kinds = prop::sample::select(Kind::ALL.to_vec());
    let spec = kinds.prop_flat_map(any_spec);
    (spec.clone(), spec, any::<u32>(), TODAY..TODAY + (1 << 40))
}

fn carried((old, new, part, t): &(Spec, Spec, u32, i64)) -> TestCaseResult {
    let (before, after, now) = (old.algorithm(), new.algorithm(), Timestamp::from_micros(*t));
    let used = ((u128::from(before.capacity()) * u128::from(*part)) >> 32) as u64;
    let (state, _) = before.decide(before.fresh(), now, used);
    let carried = after.carry_over(&before, &state, now);
    let standing = after.peek(&carried, now);

    let left = after.capacity() - used.min(after.capacity());
    // Without delays all or nothing remains.
    let all_or_nothing = |spec: &Spec| matches!(spec, Spec::Undelayed { .. });
    if all_or_nothing(old) || all_or_nothing(new) {
        prop_assert_eq!(standing.remaining() < after.capacity(), used > 0);
        return Ok(());
    }
    prop_assert_eq!(standing.remaining(), left, "{} used of {:?}, then {:?}", used, old, new);
    prop_assert!(standing.reset_after_micros() <= own_window(new, *t), "locked out past the new window");

    // The memory backend decides the same under one policy name.
    let clock = ManualClock::new(now);
    let backend = MemoryBackend::builder().clock(clock.clone()).build();
    let set = |spec: &Spec| PolicySet::new(Policy::new("plan", spec.algorithm()).unwrap().replace_existing()).unwrap();
    let first = backend.prepare(set(old)).unwrap();
    let peek = [Call::peek(Key::from("key"))];
    if used > 0 {
        prop_assert!(
            backend.decide_now(&first, &[Call::new(Key::from("key"), Cost::new(used).unwrap())]).is_admitted()
        );
    }
    let second = backend.prepare(set(new)).unwrap();
    let decision = backend.decide_now(&second, &peek);
    prop_assert_eq!(decision.remaining(), left);

    // The wait of a refused request holds, no matter what the old parameters would have reported then.
    let call = [Call::from(Key::from("key"))];
    let first_try = backend.decide_now(&second, &call);
    if let Some(wait) = first_try.retry_after().filter(|wait| !wait.is_zero()) {
        prop_assert!(wait.as_micros() <= u128::from(own_window(new, *t)), "locked out past the new window");
        clock.set(now + wait);
        prop_assert!(backend.decide_now(&second, &call).is_admitted(), "denied after the wait");
    }
    Ok(())
}

#[test]
fn law_07_a_changed_limit_keeps_what_was_used_and_locks_no_key_out() {
    run("changes", &changes(), carried);
}

fn several() -> impl Strategy<Value = (Vec<Spec>, u64, i64)> {
    let spec = prop::sample::select(Kind::ALL.to_vec()).prop_flat_map(any_spec);
    (prop::collection::vec(spec, 2..5), any::<u64>(), TODAY..TODAY + (1 << 40))
}

/// Changes between some limits of one name on a clock that stands still: no more is admitted than the largest one
/// admits.
fn to_and_fro((specs, dice, t): &(Vec<Spec>, u64, i64)) -> TestCaseResult {
    let clock = ManualClock::new(Timestamp::from_micros(*t));
    let backend = MemoryBackend::builder().clock(clock).build();
    let set = |spec: &Spec| PolicySet::new(Policy::new("plan", spec.algorithm()).unwrap().replace_existing()).unwrap();
    let largest = specs.iter().map(|spec| spec.algorithm().capacity()).max().unwrap_or(0);
    let mut admitted = 0_u128;
    for step in 0..40 {
        let spec = &specs[dice.rotate_left(7 * step) as usize % specs.len()];
        let now = &backend.prepare(set(spec)).unwrap();
        // Take all that is left, then one unit more, which may not be there.
        let left = backend.decide_now(now, &[Call::peek(Key::from("key"))]).remaining();
        for cost in [left, 1.max(spec.algorithm().capacity() / 2)] {
            let call =
                Cost::new(cost).map_or_else(|_| Call::peek(Key::from("key")), |cost| Call::new(Key::from("key"), cost));
            if backend.decide_now(now, &[call]).is_admitted() {
                admitted += u128::from(cost);
            }
        }
    }
    prop_assert!(admitted <= u128::from(largest), "{} admitted of {}", admitted, largest);
    Ok(())
}

#[test]
fn law_07_going_to_and_fro_between_limits_buys_nothing() {
    run("to and fro", &several(), to_and_fro);
}

/// A limit that is raised in steps, while the key has not recovered, is no fresh budget at any step.
#[test]
fn law_07_a_limit_that_was_lowered_and_is_raised_in_steps_is_no_fresh_budget() {
    for steps in [&[100, 10, 100][..], &[100, 10, 50, 100], &[100, 10, 20, 50, 100], &[100, 50, 10, 60, 30, 100]] {
        let backend = MemoryBackend::builder().clock(ManualClock::default()).build();
        let gcra = |count| Gcra::new(Rate::per_day(count));
        let mut states = [gcra(100).build().unwrap().fresh()];
        let (mut in_memory, mut in_hand) = (0, 0);
        for count in steps {
            let policy = Policy::new("plan", gcra(*count)).unwrap().replace_existing();
            let set = PolicySet::new(policy).unwrap();
            let prepared = backend.prepare(set.clone()).unwrap();
            let call = [Call::from(Key::from("key"))];
            in_memory += (0..=*count).filter(|_| backend.decide_now(&prepared, &call).is_admitted()).count();
            let admitted = |_: &u64| set.decide(&mut states, Timestamp::EPOCH, &call).is_admitted();
            in_hand += (0..=*count).filter(admitted).count();
        }
        assert_eq!((in_memory, in_hand), (100, 100), "{steps:?}");
    }
}

/// The smallest case: bursts of one and of two, in turn, on a clock that stands still.
#[test]
fn law_07_a_limit_that_was_lowered_and_raised_again_is_no_fresh_budget() {
    let backend = MemoryBackend::builder().clock(ManualClock::default()).build();
    let set =
        |burst| PolicySet::new(Policy::new("plan", Gcra::new(Rate::per_second(1)).burst(burst)).unwrap()).unwrap();
    let prepare = |burst| backend.prepare(set(burst)).unwrap();
    let (peek, call) = ([Call::peek(Key::from("key"))], [Call::from(Key::from("key"))]);
    assert!((0..2).all(|_| backend.decide_now(&prepare(2), &call).is_admitted()));
    for _ in 0..10 {
        assert_eq!(backend.decide_now(&prepare(1), &peek).remaining(), 0);
        assert!(!backend.decide_now(&prepare(2), &call).is_admitted());
    }
}

/// A limit is replaced while the former one is in use. The last one is in force for both, so neither forgives what the
/// other has counted, however the clock moves.
#[test]
fn law_07_of_two_limits_of_one_name_the_last_is_in_force() {
    let clock = ManualClock::default();
    let backend = MemoryBackend::builder().clock(clock.clone()).build();
    let set =
        |rate| PolicySet::new(Policy::new("plan", Gcra::new(rate).burst(10)).unwrap().replace_existing()).unwrap();
    let fast = backend.prepare(set(Rate::per_second(100))).unwrap();
    let slow = backend.prepare(set(Rate::per_hour(10))).unwrap();
    let call = [Call::from(Key::from("key"))];
    let mut admitted = 0;
    for _ in 0..600 {
        admitted += u32::from(backend.decide_now(&fast, &call).is_admitted());
        admitted += u32::from(backend.decide_now(&slow, &call).is_admitted());
        clock.advance(std::time::Duration::from_millis(100));
    }
    assert_eq!(admitted, 10, "in a minute of ten an hour");
    // Denied requests under two alternating limits do not keep a key from recovering.
    let backend = MemoryBackend::builder().clock(clock.clone()).build();
    let policy = |burst| Policy::new("plan", Gcra::new(Rate::per_second(10)).burst(burst)).unwrap();
    let burst = |burst| PolicySet::new(policy(burst).replace_existing()).unwrap();
    let sets = [backend.prepare(burst(10)).unwrap(), backend.prepare(burst(11)).unwrap()];
    let mut admitted = 0;
    for step in 0..3_000 {
        admitted += u32::from(backend.decide_now(&sets[step % 2], &call).is_admitted());
        clock.advance(std::time::Duration::from_millis(20));
    }
    assert!((600..=611).contains(&admitted), "{admitted} in a minute of ten a second");
}

/// The same, while a full store has made the key share a bucket in between.
#[test]
fn law_07_what_a_lowered_limit_cut_off_is_remembered_through_a_full_store() {
    let backend = MemoryBackend::builder().max_keys(1).clock(ManualClock::default()).build();
    let set = |count| PolicySet::new(Policy::new("plan", Gcra::new(Rate::per_hour(count))).unwrap()).unwrap();
    let take = |count, name: &str, cost| {
        let call = Call::new(Key::from(name), Cost::new(cost).unwrap());
        backend.decide_now(&backend.prepare(set(count)).unwrap(), &[call]).is_admitted()
    };
    assert!(take(100, "first key", 1));
    assert!(take(100, "key", 100), "all of the shared bucket");
    assert!(!take(10, "key", 1), "lowered");
    let set = std::sync::Arc::new(backend.prepare(set(10)).unwrap());
    drop(backend.reset(&set, 0, &Key::from("the first key")));
    drop(set);
    assert!(!take(10, "key", 1), "with a place of its own again");
    assert!(!take(100, "key", 1), "and raised again");
}

/// Ten used of ten in ten hours; then a thousand a second with a burst of a hundred.
#[test]
fn trap_v11_a_raised_limit_is_felt_with_the_first_charge() {
    let clock = ManualClock::new(Timestamp::from_micros(1_700_000_000_000_000));
    let backend = MemoryBackend::builder().clock(clock.clone()).build();
    let set = |gcra: Gcra| {
        backend.prepare(PolicySet::new(Policy::new("plan", gcra).unwrap().replace_existing()).unwrap()).unwrap()
    };
    let ten_hours = std::time::Duration::from_secs(36_000);
    let slow = set(Gcra::new(Rate::new(10, ten_hours)).burst(10));
    let call = [Call::from(Key::from("key"))];
    assert!((0..10).all(|_| backend.decide_now(&slow, &call).is_admitted()));
    assert!(!backend.decide_now(&slow, &call).is_admitted());
    let fast = set(Gcra::new(Rate::per_second(1_000)).burst(100));
    // Used units stay used, and drain at the new rate from the first charge on: eleven of a hundred are used now.
    assert_eq!(backend.decide_now(&fast, &[Call::peek(Key::from("key"))]).remaining(), 90);
    assert_eq!(backend.decide_now(&fast, &call).remaining(), 89);
    clock.advance(std::time::Duration::from_millis(11));
    assert_eq!(backend.decide_now(&fast, &[Call::peek(Key::from("key"))]).remaining(), 100);
}

//! Law 8, one answer: the algorithms decide as the exact model does, in every field of every decision
//! of every trace, and so does a store that equals the algorithms.

use proptest::prelude::*;
use throttle_core::Timestamp;
use throttle_core::conformance::TraceOptions;

use crate::support::exact;
use crate::support::machines::{Machine, Pure};
use crate::support::plans::{Plan, alone, composed, mixed, tiered};
use crate::support::reference::{Reference, reported};
use crate::support::spec::{Kind, Spec, TODAY, Tree};
use crate::support::strategies::{any_spec, composite, run_times};
use crate::support::trace::starts;

/// When a trace begins: at any instant, and often at one at which the windows of all small limits
/// begin, also those of different lengths, so that windows cannot be distinguished by their
/// beginning.
fn begins() -> impl Strategy<Value = i64> {
    // Their lengths divide it: 60, 100, 333, 97, 7, 37 and 33 µs.
    const TOGETHER: i64 = 248_717_700;
    prop_oneof![2 => starts(), 1 => Just(TODAY / TOGETHER * TOGETHER)]
}

fn traces(what: &str, times: u32, limits: BoxedStrategy<Tree<Plan>>, steps_back: bool) {
    let cases = (limits, begins(), any::<u64>());
    run_times(times, what, &cases, |(limits, start, seed)| {
        let options = TraceOptions {
            start: Timestamp::from_micros(*start),
            // What a settlement gives back on a clock that steps back depends on what an algorithm
            // does not store, such as the time of the last request.
            steps_back,
            settles: !steps_back,
            ..TraceOptions::new(*seed)
        };
        exact::check(limits, &options);
        Ok(())
    });
}

/// Traces of each kind of algorithm, and of several kinds.
const OF_A_KIND: u32 = 400;
const OF_SEVERAL: u32 = 1_200;

fn all_traces(kinds: &[Kind], steps_back: bool) {
    for kind in kinds {
        let plain = any_spec(*kind).prop_map(|spec| Tree::Leaf(Plan::plain(spec)));
        let name = format!("{kind:?}");
        traces(&name, OF_A_KIND, plain.boxed(), steps_back);
        traces(&name, OF_A_KIND, alone(tiered(*kind)), steps_back);
    }
    let several = alone(mixed(kinds));
    traces("several kinds", OF_SEVERAL, several, steps_back);
    let compositions = composed(kinds);
    traces("compositions", OF_SEVERAL, compositions, steps_back);
}

#[test]
fn law_08_traces_equal_the_exact_model_on_hostile_clocks() {
    all_traces(&Kind::ALL, true);
    let plain = composite().prop_map(|tree| tree.map(&mut |spec| Plan::plain(*spec)));
    traces("plain compositions", OF_SEVERAL, plain.boxed(), true);
}

/// All but the shaper that refuses what it would delay: what it gives back depends on whether the
/// schedule was free in between, which a store that has forgotten the key does not know.
#[test]
fn law_08_traces_with_settlements_equal_the_exact_model() {
    let kinds = Kind::ALL.into_iter();
    let kinds: Vec<Kind> = kinds.filter(|kind| *kind != Kind::Undelayed).collect();
    all_traces(&kinds, false);
}

/// The clock of a shaper never steps back, and a debit of which nothing is left to take moves it
/// like any other. A slot that is given back after that is free from the debit on.
#[test]
fn law_08_a_debit_with_nothing_left_moves_the_clock_of_a_shaper() {
    const SECOND: i64 = 1_000_000;
    let tree = Tree::Leaf(Spec::shaper(1, 60 * SECOND as u64, 60 * SECOND as u64));
    let mut reference = Reference::new(&tree);
    let mut take = |t, cost| reference.decide(t, &[Some(cost)]).1.remove(0).1;
    let (earlier, later) = (take(TODAY - 60 * SECOND, 1), take(TODAY, 2));
    reference.settle(TODAY + 10 * SECOND, 0, earlier, 5);
    reference.settle(TODAY, 0, later, 0);
    let expected = reference.decide(TODAY, &[Some(1)]).0;
    let mut machine = Pure::new(&tree);
    let earlier = machine.take(TODAY - 60 * SECOND, 1).1.expect("admitted");
    let later = machine.take(TODAY, 2).1.expect("admitted");
    machine.settle(TODAY + 10 * SECOND, earlier.actual(5));
    machine.settle(TODAY, later.actual(0));
    let next = machine.take(TODAY, 1).0;
    assert_eq!((next.is_admitted(), next.delay().as_secs()), (true, 10));
    assert_eq!(reported(&next), expected);
}

/// On a clock that stepped back, a pace can be further ahead than any wait that the shaper admits.
/// A debit of which nothing is left to take leaves it there.
#[test]
fn law_08_a_debit_with_nothing_left_brings_no_pace_nearer() {
    const SECOND: i64 = 1_000_000;
    let tree = Tree::Leaf(Spec::shaper(1, 60 * SECOND as u64, 60 * SECOND as u64));
    let mut reference = Reference::new(&tree);
    let mut take = || reference.decide(TODAY, &[Some(1)]).1.remove(0).1;
    let (first, second) = (take(), take());
    reference.settle(TODAY + 1_000 * SECOND, 0, second, 0);
    reference.settle(TODAY, 0, first, 2);
    let expected = reference.decide(TODAY, &[Some(0)]).0;
    let mut machine = Pure::new(&tree);
    let first = machine.take(TODAY, 1).1.expect("admitted");
    let second = machine.take(TODAY, 1).1.expect("admitted");
    machine.settle(TODAY + 1_000 * SECOND, second.actual(0));
    machine.settle(TODAY, first.actual(2));
    let next = machine.take(TODAY, 0).0;
    assert_eq!(next.reset_after().as_secs(), 1_000);
    assert_eq!(reported(&next), expected);
}

//! Random traces: at least a thousand for each algorithm, and for compositions of them. As many
//! more run the same scripts in an embedded Lua; these show that a real server does with them what
//! that one does.
//!
//! Clocks step back and take turns, costs exceed capacities, members are skipped, charges are given
//! back and debited, and idle keys are forgotten in between.

use std::cell::Cell;
use std::collections::HashSet;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseResult, TestRunner};
use throttle_core::Key;
use throttle_core::backend::Receipt;

use crate::remote::{Bench, Remote, is_taken};
use crate::support::audited::{enforced_part, of_enforced};
use crate::support::machines::{InMemory, Machine, Pure, calls};
use crate::support::reference::{Paid, Reference, reported};
use crate::support::spec::{Kind, Spec, Tree};
use crate::support::strategies::{any_spec, composite, some_audited};
use crate::support::trace::{Case, Raw, clamp, raws};

const TRACES: u32 = 1_000;

/// A charge, as each of the implementations records it.
struct Open {
    remote: Receipt,
    pure: Receipt,
    memory: Receipt,
    reference: Vec<(usize, Paid)>,
}

struct Walk<'a> {
    remote: Bench<'a>,
    key: Key,
    pure: Pure,
    memory: InMemory,
    reference: Reference,
    open: Vec<Open>,
    charged: HashSet<usize>,
    /// After this, memory is more careful with clocks that step back than the bare algorithms are.
    has_forgotten: bool,
}

impl Walk<'_> {
    fn decide(&mut self, t: i64, raw: &Raw) -> TestCaseResult {
        let costs = raw.costs(&self.pure.capacities());
        let mut asked = costs
            .iter()
            .enumerate()
            .filter(|(_, cost)| cost.is_some_and(|cost| cost > 0));
        self.has_forgotten |=
            !self.charged.is_empty() && asked.any(|(leaf, _)| !self.charged.contains(&leaf));
        let calls = calls(&self.key, &costs);
        let remote = self.remote.decide(t, &calls);
        let (pure, pure_charge) = self.pure.decide(t, &costs);
        let (memory, memory_charge) = self.memory.decide(t, &costs);
        let (expected, reference) = self.reference.decide(t, &costs);
        prop_assert_eq!(
            &reported(&remote),
            &expected,
            "the server at {} on costs {:?}",
            t,
            costs
        );
        prop_assert_eq!(
            &remote,
            &pure,
            "the server and the algorithms at {} on costs {:?}",
            t,
            costs
        );
        prop_assert_eq!(
            &remote,
            &memory,
            "the server and memory at {} on costs {:?}",
            t,
            costs
        );
        if let (Some(remote), Some(pure), Some(memory)) =
            (Receipt::of(&remote, &calls), pure_charge, memory_charge)
        {
            self.charged.extend(reference.iter().map(|(leaf, _)| *leaf));
            self.open.push(Open {
                remote,
                pure,
                memory,
                reference,
            });
        }
        Ok(())
    }

    fn settle(&mut self, t: i64, raw: &Raw) -> TestCaseResult {
        if self.open.is_empty() {
            return Ok(());
        }
        let place = usize::from(raw.pick) % self.open.len();
        let Open {
            mut remote,
            mut pure,
            mut memory,
            reference,
        } = self.open.swap_remove(place);
        for (leaf, receipt) in reference {
            let taken = receipt.cost as u64;
            let actual = [
                0,
                0,
                taken,
                taken / 2,
                taken + 1,
                raw.cost(taken).min(1 << 50),
            ][raw.members as usize % 6];
            remote = remote.actual_of(leaf, actual);
            (pure, memory) = (pure.actual_of(leaf, actual), memory.actual_of(leaf, actual));
            self.reference.settle(t, leaf, receipt, actual);
        }
        self.remote.settle(t, remote);
        self.pure.settle(t, pure);
        self.memory.settle(t, memory);
        self.decide(
            t,
            &Raw {
                cost: (5, 0),
                members: u32::MAX,
                ..*raw
            },
        )
    }

    /// Forgets idle keys, which changes no decision as long as the clock does not step back.
    fn forget(&self, t: i64) {
        let costs = vec![Some(0); self.pure.capacities().len()];
        let peeked = self.remote.decide(t, &calls(&self.key, &costs));
        for (policy, status) in peeked.statuses().iter().enumerate() {
            if status.reset_after().is_zero() {
                self.remote.forget(policy, &self.key);
            }
        }
    }
}

/// The style of a trace.
#[derive(Clone, Copy, PartialEq)]
enum Style {
    /// The clock steps back, and nothing is settled.
    Hostile,
    /// Charges are settled and keys forgotten, on a clock that only moves forward.
    Settling,
    /// Charges are settled on a clock that steps back.
    Both,
}

fn walk(remote: &Remote, number: u64, case: &Case, style: Style) -> TestCaseResult {
    let mut walk = Walk {
        remote: remote.bench(case.tree.set()),
        key: Key::from(number),
        pure: Pure::new(&case.tree),
        memory: InMemory::new(&case.tree),
        reference: Reference::new(&case.tree),
        open: Vec::new(),
        charged: HashSet::new(),
        has_forgotten: false,
    };
    let (step, mut t) = (case.tree.step(), case.start);
    for raw in &case.raws {
        let back = style != Style::Settling && !walk.has_forgotten;
        t = clamp(t.saturating_add(raw.micros(step, back))).clamp(-FAR, FAR);
        match raw.what {
            5 if style == Style::Settling => walk.forget(t),
            6.. if style != Style::Hostile => walk.settle(t, raw)?,
            _ => walk.decide(t, raw)?,
        }
    }
    Ok(())
}

/// Up to here, instants and what is added to them are exact in a double.
const FAR: i64 = 1 << 52;

pub(crate) fn starts() -> impl Strategy<Value = i64> {
    let today = crate::support::spec::TODAY;
    prop_oneof![4 => today..today + (1 << 42), 1 => -1_000_i64..1_000, 1 => -FAR..FAR]
}

/// Two algorithms record less than the model when charges are settled on a clock that steps back;
/// see this law's other tests.
fn style(tree: &Tree, die: u8) -> Style {
    let remembers = !tree
        .leaves()
        .iter()
        .any(|spec| matches!(spec, Spec::Interval { .. } | Spec::Log { .. }));
    match die % 3 {
        0 => Style::Hostile,
        1 if remembers => Style::Both,
        _ => Style::Settling,
    }
}

fn traces(trees: BoxedStrategy<Tree>) {
    run(trees, |remote, number, case, die| {
        walk(remote, number, case, style(&case.tree, die))
    });
}

fn run(trees: BoxedStrategy<Tree>, check: impl Fn(&Remote, u64, &Case, u8) -> TestCaseResult) {
    let remote = Remote::new();
    let trees = trees.prop_filter("too large for Redis", |tree| {
        tree.leaves().into_iter().all(is_taken)
    });
    let (number, cases) = (Cell::new(0), Config::default().cases.max(TRACES));
    let traces = (trees, starts(), raws(28), any::<u8>());
    let config = Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    };
    let ran = TestRunner::new(config).run(&traces, |(tree, start, raws, die)| {
        number.set(number.get() + 1);
        check(&remote, number.get(), &Case { tree, start, raws }, die)
    });
    if let Err(failure) = ran {
        panic!("{failure}");
    }
    assert!(number.get() >= u64::from(TRACES));
}

macro_rules! of_each_algorithm {
    ($($name:ident $kind:ident;)*) => {$(
        #[test]
        fn $name() {
            traces(any_spec(Kind::$kind).prop_map(Tree::Leaf).boxed());
        }
    )*};
}

of_each_algorithm! {
    law_08_traces_of_gcra Gcra;
    law_08_traces_of_token_bucket TokenBucket;
    law_08_traces_of_leaky_meter LeakyMeter;
    law_08_traces_of_interval_bucket Interval;
    law_08_traces_of_fixed_window Fixed;
    law_08_traces_of_sliding_log Log;
    law_08_traces_of_sliding_window Buckets;
    law_08_traces_of_calendar_quota Calendar;
    law_08_traces_of_leaky_bucket Shaper;
}

#[test]
fn law_08_traces_of_compositions() {
    traces(composite());
}

/// Limits with audited ones on one key, and without them on another, receive one trace.
fn audited_changes_nothing(remote: &Remote, number: u64, case: &Case) -> TestCaseResult {
    let (audited, live) = (case.tree.audited(), case.tree.without_audited());
    let (with, without) = (remote.bench(case.tree.set()), remote.bench(live.set()));
    let keys = ["with", "without"].map(|one| Key::builder().text(one).number(number).finish());
    let capacities: Vec<u64> = with
        .set()
        .policies()
        .iter()
        .map(|policy| policy.algorithm().capacity())
        .collect();
    let (step, mut t) = (case.tree.step(), case.start);
    for raw in &case.raws {
        t = clamp(t.saturating_add(raw.micros(step, true))).clamp(-FAR, FAR);
        let costs = raw.costs(&capacities);
        let decision = with.decide(t, &calls(&keys[0], &costs));
        let live = without.decide(t, &calls(&keys[1], &of_enforced(&audited, &costs)));
        prop_assert_eq!(
            enforced_part(&audited, &decision),
            (reported(&live), live.statuses().to_vec())
        );
    }
    Ok(())
}

#[test]
fn law_14_an_audited_limit_changes_no_decision_of_a_server() {
    run(some_audited(), |remote, number, case, _| {
        audited_changes_nothing(remote, number, case)
    });
}

//! The life of one key whose tier and own parameters change: requests of several classes,
//! settlements, forgetting and time in any order, on several machines at once, each compared with
//! the reference in every field of every decision.

use std::collections::HashSet;
use std::fmt;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use throttle_core::backend::{Call, Receipt};
use throttle_core::{Decision, Key};

use super::machines::Machine;
use super::plans::Plan;
use super::reference::{Paid, Reference, reported};
use super::spec::{Leaf, TODAY, Tree};
use super::trace::clamp;

/// One operation, relative to the limits, so that it shrinks. A list with fewer entries than
/// policies is repeated.
#[derive(Clone)]
pub(crate) enum Op {
    Decide([Ask; 3]),
    /// One of the open receipts, what each policy turns out to have cost, and the numbers of the
    /// parameters to peek under afterwards.
    Settle(u8, [Cost; 3], [u8; 3]),
    Pass(Time),
    Forget,
}

impl fmt::Debug for Op {
    /// On one line, so that a failing life can be read.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&match self {
            Self::Decide(asks) => {
                format!(
                    "Decide({:?})",
                    asks.map(
                        |Ask {
                             number,
                             units,
                             reserve,
                         }| (number, units, reserve)
                    )
                )
            }
            Self::Settle(pick, costs, numbers) => format!("Settle({pick}, {costs:?}, {numbers:?})"),
            Self::Pass(time) => format!("Pass({time:?})"),
            Self::Forget => "Forget".to_owned(),
        })
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask {
    /// Of the parameters.
    number: u8,
    units: Units,
    /// What the request leaves free; nothing for [`Units::Skip`].
    reserve: Units,
}

#[derive(Clone, Copy, Debug)]
enum Units {
    Skip,
    None,
    Few(u64),
    /// A part of the capacity, in 2^32nds.
    Part(u32),
    All,
    TooMany,
}

/// The actual cost of a charge.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cost {
    Nothing,
    Half,
    AsTaken,
    More(u64),
    /// A part of what a charge took, in 2^32nds, and that much again.
    Other(u32),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Time {
    Tick,
    /// The wait that was reported last.
    Wait,
    AlmostWait,
    /// The reset that was reported last.
    Reset,
    AlmostReset,
    /// A part of twice the largest step, in 2^32nds.
    Step(u32),
    Far(u32),
    Back(u32),
    FarBack(u32),
}

fn part(whole: u64, part: u32) -> u64 {
    ((u128::from(whole) * u128::from(part)) >> 32) as u64
}

impl Units {
    fn cost(self, capacity: u64) -> Option<u64> {
        Some(match self {
            Self::Skip => return None,
            Self::None => 0,
            Self::Few(units) => units,
            Self::Part(of) => part(capacity, of),
            Self::All => capacity,
            Self::TooMany => capacity + 1,
        })
    }
}

impl Cost {
    fn actual(self, taken: u64) -> u64 {
        match self {
            Self::Nothing => 0,
            Self::Half => taken / 2,
            Self::AsTaken => taken,
            Self::More(units) => taken + units,
            Self::Other(of) => part(taken * 2, of),
        }
    }
}

fn ask() -> impl Strategy<Value = Ask> {
    let units = prop_oneof![
        1 => Just(Units::Skip),
        2 => Just(Units::None),
        8 => (1..4_u64).prop_map(Units::Few),
        2 => any::<u32>().prop_map(Units::Part),
        2 => Just(Units::All),
        1 => Just(Units::TooMany),
    ];
    // A number without parameters stands for the first tier.
    (0..8_u8, units).prop_map(|(number, units)| Ask {
        number,
        units,
        reserve: Units::Skip,
    })
}

/// What a request asks of each policy. Half of the requests leave nothing free.
fn asks() -> impl Strategy<Value = [Ask; 3]> {
    let reserve = || {
        prop_oneof![
            2 => Just(Units::Skip),
            4 => (1..4_u64).prop_map(Units::Few),
            3 => any::<u32>().prop_map(Units::Part),
            1 => Just(Units::All),
            1 => Just(Units::TooMany),
        ]
    };
    let reserves = prop_oneof![Just([Units::Skip; 3]), [reserve(), reserve(), reserve()]];
    ([ask(), ask(), ask()], reserves).prop_map(|(asks, reserves)| {
        let mut reserves = reserves.into_iter();
        asks.map(|ask| Ask {
            reserve: reserves.next().unwrap_or(Units::Skip),
            ..ask
        })
    })
}

fn cost() -> impl Strategy<Value = Cost> {
    prop_oneof![
        3 => Just(Cost::Nothing),
        1 => Just(Cost::Half),
        1 => Just(Cost::AsTaken),
        2 => (1..4_u64).prop_map(Cost::More),
        1 => any::<u32>().prop_map(Cost::Other),
    ]
}

fn ahead() -> impl Strategy<Value = Time> {
    prop_oneof![
        2 => Just(Time::Tick),
        3 => Just(Time::Wait),
        2 => Just(Time::AlmostWait),
        1 => Just(Time::Reset),
        1 => Just(Time::AlmostReset),
        3 => any::<u32>().prop_map(Time::Step),
        1 => any::<u32>().prop_map(Time::Far),
    ]
}

/// On a clock that only moves forward: charges are settled, and idle keys are forgotten.
pub(crate) fn settling(length: usize) -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        8 => asks().prop_map(Op::Decide),
        4 => (any::<u8>(), [cost(), cost(), cost()], [0..7_u8, 0..7_u8, 0..7_u8])
            .prop_map(|(pick, costs, numbers)| Op::Settle(pick, costs, numbers)),
        4 => ahead().prop_map(Op::Pass),
        1 => Just(Op::Forget),
    ];
    vec(op, 1..length)
}

/// On a clock that also steps back. Nothing is settled or forgotten: whether that is allowed
/// depends on the order of events, which such a clock does not show.
pub(crate) fn hostile(length: usize) -> impl Strategy<Value = Vec<Op>> {
    let back = prop_oneof![2 => any::<u32>().prop_map(Time::Back), 1 => any::<u32>().prop_map(Time::FarBack)];
    let op = prop_oneof![
        8 => asks().prop_map(Op::Decide),
        3 => ahead().prop_map(Op::Pass),
        2 => back.prop_map(Op::Pass),
    ];
    vec(op, 1..length)
}

/// When a life begins: at any instant, and often at one at which the windows of all small limits
/// begin, also those of different lengths, so that windows cannot be distinguished by their
/// beginning.
pub(crate) fn begins(starts: impl Strategy<Value = i64> + 'static) -> impl Strategy<Value = i64> {
    // Their lengths divide it: 60, 100, 333, 97, 7, 37 and 33 µs.
    const TOGETHER: i64 = 248_717_700;
    prop_oneof![2 => starts, 1 => Just(TODAY / TOGETHER * TOGETHER)]
}

/// A charge, as each machine and the reference record it.
struct Open {
    receipts: Vec<Receipt>,
    paid: Vec<(usize, Paid)>,
}

struct Life<'a> {
    tree: &'a Tree<Plan>,
    key: Key,
    machines: Vec<Box<dyn Machine + 'a>>,
    reference: Reference,
    open: Vec<Open>,
    charged: HashSet<usize>,
    /// After this, memory is more careful with clocks that step back than the bare algorithms are.
    has_forgotten: bool,
    now: i64,
    far: i64,
    wait: i64,
    reset: i64,
}

/// A life from an instant on. The machines hold no state of the key yet.
pub(crate) fn live<'a>(
    tree: &'a Tree<Plan>,
    key: Key,
    machines: Vec<Box<dyn Machine + 'a>>,
    start: i64,
    ops: &[Op],
) -> TestCaseResult {
    let (open, charged) = (Vec::new(), HashSet::new());
    let (reference, has_forgotten) = (Reference::new(tree), false);
    // A life that begins beyond the exact range of a double continues there.
    let far = if start.abs() > FAR { i64::MAX } else { FAR };
    let (now, wait, reset) = (start, 0, 0);
    let mut life = Life {
        tree,
        key,
        machines,
        reference,
        open,
        charged,
        has_forgotten,
        now,
        far,
        wait,
        reset,
    };
    for op in ops {
        match op {
            Op::Decide(asks) => life.ask(asks)?,
            Op::Settle(pick, costs, numbers) => life.settle(*pick, costs, numbers)?,
            Op::Pass(time) => life.pass(*time),
            Op::Forget => life.forget(),
        }
    }
    Ok(())
}

impl Life<'_> {
    fn ask(&mut self, asks: &[Ask; 3]) -> TestCaseResult {
        let each = self.tree.leaves().into_iter().zip(asks.iter().cycle());
        let capacity = |plan: &Plan, number| plan.parameters(number).algorithm().capacity();
        let (mut costs, mut numbers, mut reserves) = (Vec::new(), Vec::new(), Vec::new());
        for (plan, ask) in each {
            let most = capacity(plan, ask.number);
            costs.push(ask.units.cost(most));
            numbers.push(ask.number);
            reserves.push(ask.reserve.cost(most).unwrap_or(0));
        }
        self.decide(&costs, &numbers, &reserves)
    }

    fn decide(
        &mut self,
        costs: &[Option<u64>],
        numbers: &[u8],
        reserves: &[u64],
    ) -> TestCaseResult {
        let mut asked = costs
            .iter()
            .enumerate()
            .filter(|(_, cost)| cost.is_some_and(|cost| cost > 0));
        self.has_forgotten |=
            !self.charged.is_empty() && asked.any(|(leaf, _)| !self.charged.contains(&leaf));
        let calls: Vec<Call> = self
            .calls(costs, numbers)
            .zip(reserves)
            .map(|(call, reserve)| call.reserving(*reserve))
            .collect();
        let (expected, paid) = self.reference.decide_in(self.now, costs, numbers, reserves);
        let now = self.now;
        let decisions: Vec<Decision> = self
            .machines
            .iter_mut()
            .map(|machine| machine.decide_calls(now, &calls))
            .collect();
        for (place, decision) in decisions.iter().enumerate() {
            let reported = reported(decision);
            prop_assert_eq!(
                &reported,
                &expected,
                "machine {} at {}, {:?}",
                place,
                now,
                calls
            );
            prop_assert_eq!(
                decision,
                &decisions[0],
                "machine {} and the first at {}",
                place,
                now
            );
        }
        self.wait = expected.retry.map_or(0, |micros| micros as i64);
        self.reset = expected.reset as i64;
        let receipts: Vec<Receipt> = decisions
            .iter()
            .filter_map(|decision| Receipt::of(decision, &calls))
            .collect();
        if !receipts.is_empty() {
            self.charged.extend(paid.iter().map(|(leaf, _)| *leaf));
            self.open.push(Open { receipts, paid });
        }
        Ok(())
    }

    /// Settles a charge, and compares the result.
    fn settle(&mut self, pick: u8, costs: &[Cost; 3], numbers: &[u8; 3]) -> TestCaseResult {
        if self.open.is_empty() {
            return Ok(());
        }
        let Open { mut receipts, paid } =
            self.open.swap_remove(usize::from(pick) % self.open.len());
        for (leaf, paid) in paid {
            let actual = costs[leaf % costs.len()].actual(paid.cost as u64);
            receipts = receipts
                .into_iter()
                .map(|receipt| receipt.actual_of(leaf, actual))
                .collect();
            self.reference.settle(self.now, leaf, paid, actual);
        }
        for (machine, receipt) in self.machines.iter_mut().zip(receipts) {
            machine.settle(self.now, receipt);
        }
        let policies = self.tree.leaves().len();
        let numbers: Vec<u8> = numbers.iter().copied().cycle().take(policies).collect();
        self.decide(&vec![Some(0); policies], &numbers, &vec![0; policies])
    }

    fn pass(&mut self, time: Time) {
        let step = self.tree.step();
        let of = |whole: i64, of: u32| part(whole as u64, of) as i64;
        let micros = match time {
            Time::Tick => 1,
            Time::Wait => self.wait,
            Time::AlmostWait => (self.wait - 1).max(0),
            Time::Reset => self.reset,
            Time::AlmostReset => (self.reset - 1).max(0),
            Time::Step(parts) => of(2 * step, parts),
            Time::Far(parts) => of(step.saturating_mul(40), parts),
            Time::Back(_) | Time::FarBack(_) if self.has_forgotten => 0,
            Time::Back(parts) => -of(2 * step, parts),
            Time::FarBack(parts) => -of(step.saturating_mul(40), parts),
        };
        self.now = clamp(self.now.saturating_add(micros)).clamp(-self.far, self.far);
    }

    /// Forgets a key that counts nothing.
    fn forget(&mut self) {
        let policies = self.tree.leaves().len();
        for policy in 0..policies {
            let mut costs = vec![None; policies];
            costs[policy] = Some(0);
            let (numbers, reserves) = (vec![0; policies], vec![0; policies]);
            let looked = self
                .reference
                .decide_in(self.now, &costs, &numbers, &reserves)
                .0;
            let unused = looked.members[policy]
                .as_ref()
                .is_some_and(|member| member.reset == 0);
            for machine in self.machines.iter_mut().filter(|_| unused) {
                machine.forget(self.now, policy, &self.key);
            }
        }
    }

    fn calls(&self, costs: &[Option<u64>], numbers: &[u8]) -> impl Iterator<Item = Call> {
        let each = self
            .tree
            .leaves()
            .into_iter()
            .zip(costs.iter().zip(numbers));
        each.map(|(plan, (cost, number))| plan.call(&self.key, *cost, *number))
    }
}

/// Up to here, instants and what is added to them are exact in a double.
const FAR: i64 = 1 << 52;

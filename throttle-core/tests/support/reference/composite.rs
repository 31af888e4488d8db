//! `all` and `any` over models, by their definition.

use throttle_core::Policy;
use throttle_core::backend::Call;

use super::{Answer, MemberAnswer, Model, Modelled, Paid};
use crate::support::spec::{Spec, Tree};

/// A tree of limits with one model at each leaf.
#[derive(Debug)]
pub(crate) struct Reference {
    tree: Tree<usize>,
    pub(crate) models: Vec<Box<dyn Model>>,
    /// Whether the current request only peeks at each leaf.
    peeks: Vec<bool>,
    /// What the current request leaves free at each leaf.
    reserves: Vec<i128>,
}

/// When a cost would be admitted; later instants compare greater.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Wait {
    Now,
    After(i128),
    Never,
}

/// The state of a subtree after the decision.
struct Summary {
    remaining: i128,
    reset: i128,
    binding: Option<usize>,
}

impl Reference {
    pub(crate) fn new<L: Modelled>(tree: &Tree<L>) -> Self {
        let mut models = Vec::new();
        let tree = tree.map(&mut |leaf: &L| {
            models.push(leaf.model());
            models.len() - 1
        });
        Self {
            tree,
            peeks: vec![false; models.len()],
            reserves: vec![0; models.len()],
            models,
        }
    }

    /// Decides calls about one key, a call per leaf.
    pub(crate) fn decide_calls(&mut self, t: i64, calls: &[Call]) -> (Answer, Vec<(usize, Paid)>) {
        for (model, call) in self.models.iter_mut().zip(calls) {
            let number = match call.own() {
                Some(own) => model.number_of_own(Spec::of(own)),
                None => model.number_of_tier(call.tier().into()),
            };
            model.ask_in(number);
        }
        self.reserves = calls.iter().map(|call| call.reserve().into()).collect();
        self.peeks = calls.iter().map(Call::is_peek).collect();
        let costs: Vec<_> = calls
            .iter()
            .map(|call| call.key().map(|_| call.cost()))
            .collect();
        let answer = self.decide(t, &costs);
        self.reserves.fill(0);
        self.peeks.fill(false);
        answer
    }

    /// One cost per leaf; `None` skips it, 0 peeks. Returns the receipts of those charged, by leaf.
    pub(crate) fn decide(&mut self, t: i64, costs: &[Option<u64>]) -> (Answer, Vec<(usize, Paid)>) {
        let t = i128::from(t);
        let of_leaf = |(leaf, cost): (usize, &Option<u64>)| {
            let cost = i128::from((*cost)?);
            // What a look asks for is always there.
            let asked = if cost > 0 {
                cost + self.reserves[leaf]
            } else {
                0
            };
            Some(wait(&*self.models[leaf], t, asked))
        };
        let waits: Vec<Option<Wait>> = costs.iter().enumerate().map(of_leaf).collect();
        let wait = answer(&self.tree, &waits).map_or(Wait::Now, |(wait, _)| wait);
        let mut payers = Vec::new();
        if wait == Wait::Now {
            charged(&self.tree, &waits, &mut payers);
            payers.retain(|leaf| costs[*leaf] != Some(0));
        }
        let (mut receipts, mut delay, audited) = (Vec::new(), 0, self.tree.audited());
        for &leaf in &payers {
            let cost = i128::from(costs[leaf].unwrap_or(0));
            delay = delay.max(if audited[leaf] {
                0
            } else {
                self.models[leaf].delay(t)
            });
            if self.peeks[leaf] {
                continue;
            }
            let tier = self.models[leaf].number();
            receipts.push((
                leaf,
                Paid {
                    cost,
                    at: t,
                    place: self.models[leaf].take(t, cost),
                    tier,
                },
            ));
        }
        let summary = self.summary(&self.tree, t, &waits, &payers);
        payers.retain(|leaf| !self.peeks[*leaf]);
        let binding = if wait == Wait::Now {
            summary.as_ref().and_then(|summary| summary.binding)
        } else {
            answer(&self.tree, &waits).map(|(_, leaf)| leaf)
        };
        let mut violated = Vec::new();
        blamed(&self.tree, &waits, &mut violated);
        let member = |leaf: usize| {
            waits[leaf].map(|wait| MemberAnswer {
                remaining: self.remaining(leaf, t) as u64,
                retry: micros(wait),
                reset: self.models[leaf].reset(t) as u64,
                charged: if payers.contains(&leaf) {
                    costs[leaf].unwrap_or(0)
                } else {
                    0
                },
                violated: violated.contains(&leaf),
                audited: audited[leaf],
                tier: if self.models[leaf].is_under_own() {
                    Policy::OWN.into()
                } else {
                    self.models[leaf].number()
                },
            })
        };
        let answer = Answer {
            allowed: wait == Wait::Now,
            remaining: summary
                .as_ref()
                .map_or(u64::MAX, |summary| summary.remaining as u64),
            retry: micros(wait),
            reset: summary.as_ref().map_or(0, |summary| summary.reset as u64),
            delay: delay as u64,
            binding,
            members: (0..costs.len()).map(member).collect(),
        };
        (answer, receipts)
    }

    pub(crate) fn settle(&mut self, t: i64, leaf: usize, receipt: Paid, actual: u64) {
        let actual = i128::from(actual);
        if actual <= receipt.cost {
            self.models[leaf].give_back(t.into(), receipt, receipt.cost - actual);
        } else {
            self.models[leaf].debit(t.into(), receipt, actual - receipt.cost);
        }
    }

    /// What is left for the current request.
    fn remaining(&self, leaf: usize, t: i128) -> i128 {
        (self.models[leaf].remaining(t) - self.reserves[leaf]).max(0)
    }

    fn summary(
        &self,
        tree: &Tree<usize>,
        t: i128,
        waits: &[Option<Wait>],
        payers: &[usize],
    ) -> Option<Summary> {
        let below = |members: &[Tree<usize>]| -> Vec<Summary> {
            members
                .iter()
                .filter_map(|member| self.summary(member, t, waits, payers))
                .collect()
        };
        match tree {
            Tree::Leaf(leaf) => waits[*leaf].map(|_| Summary {
                remaining: self.remaining(*leaf, t),
                reset: self.models[*leaf].reset(t),
                binding: Some(*leaf),
            }),
            Tree::Audited(_) => None,
            Tree::All(members) => {
                let below = below(members);
                let reset = below.iter().map(|summary| summary.reset).max()?;
                let least = below.into_iter().min_by_key(|summary| summary.remaining)?;
                Some(Summary { reset, ..least })
            }
            Tree::Any(members, _) => {
                // The first member that was charged binds, or would be if it were no peek.
                let binding = members
                    .iter()
                    .filter(|member| {
                        answer(member, waits).is_some_and(|(wait, _)| wait == Wait::Now)
                    })
                    .find_map(|member| {
                        self.summary(member, t, waits, payers)?
                            .binding
                            .filter(|leaf| payers.contains(leaf))
                    });
                let below = below(members);
                let reset = below.iter().map(|summary| summary.reset).max()?;
                let remaining = below.iter().map(|summary| summary.remaining).max()?;
                Some(Summary {
                    remaining,
                    reset,
                    binding,
                })
            }
        }
    }
}

fn wait(model: &dyn Model, t: i128, cost: i128) -> Wait {
    if cost == 0 {
        Wait::Now
    } else if cost > model.capacity() {
        Wait::Never
    } else if model.can(t, cost) {
        Wait::Now
    } else {
        Wait::After(model.retry(t, cost))
    }
}

fn micros(wait: Wait) -> Option<u64> {
    match wait {
        Wait::Now => Some(0),
        Wait::After(micros) => Some(u64::try_from(micros).expect("a wait is positive")),
        Wait::Never => None,
    }
}

/// When a subtree admits, and the leaf that determines it; `None` if all of the subtree is skipped
/// or audited.
fn answer(tree: &Tree<usize>, waits: &[Option<Wait>]) -> Option<(Wait, usize)> {
    let first_of = |members: &[Tree<usize>], wanted: Option<Wait>| {
        members
            .iter()
            .filter_map(|member| answer(member, waits))
            .find(|(wait, _)| Some(*wait) == wanted)
    };
    let each = |members: &[Tree<usize>]| -> Vec<Wait> {
        members
            .iter()
            .filter_map(|member| Some(answer(member, waits)?.0))
            .collect()
    };
    match tree {
        Tree::Leaf(leaf) => waits[*leaf].map(|wait| (wait, *leaf)),
        Tree::Audited(_) => None,
        Tree::All(members) => first_of(members, each(members).into_iter().max()),
        Tree::Any(members, _) => first_of(members, each(members).into_iter().min()),
    }
}

/// The violated leaves of a refusal: those that refuse, below nodes that all refuse.
fn blamed(tree: &Tree<usize>, waits: &[Option<Wait>], leaves: &mut Vec<usize>) {
    if answer(tree, waits).is_none_or(|(wait, _)| wait == Wait::Now) {
        return;
    }
    match tree {
        Tree::Leaf(leaf) => leaves.push(*leaf),
        Tree::Audited(_) => {}
        Tree::All(members) | Tree::Any(members, _) => {
            members
                .iter()
                .for_each(|member| blamed(member, waits, leaves));
        }
    }
}

/// The leaves that an admitted request charges.
fn charged(tree: &Tree<usize>, waits: &[Option<Wait>], payers: &mut Vec<usize>) {
    match tree {
        Tree::Leaf(leaf) => payers.extend(waits[*leaf].map(|_| *leaf)),
        Tree::Audited(leaf) => payers.extend((waits[*leaf] == Some(Wait::Now)).then_some(*leaf)),
        Tree::All(members) => members
            .iter()
            .for_each(|member| charged(member, waits, payers)),
        Tree::Any(members, every) => {
            let admits = |member: &&Tree<usize>| {
                answer(member, waits).is_some_and(|(wait, _)| wait == Wait::Now)
            };
            let most = if *every { members.len() } else { 1 };
            members
                .iter()
                .filter(admits)
                .take(most)
                .for_each(|member| charged(member, waits, payers));
        }
    }
}

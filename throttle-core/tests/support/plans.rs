//! Limits that may have tiers, as plain numbers, and random ones.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use throttle_core::{ConfigError, Policy};

use super::spec::{Kind, Leaf, Spec, Tree};
use super::strategies::{realistic, small};

/// A limit in each tier, of which the only one is a limit without tiers.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Plan {
    pub(crate) tiers: Vec<Spec>,
}

impl Plan {
    pub(crate) fn plain(spec: Spec) -> Self {
        Self::of(vec![spec])
    }

    pub(crate) fn of(tiers: Vec<Spec>) -> Self {
        Self { tiers }
    }

    fn build(&self, name: &str) -> Result<Policy, ConfigError> {
        if let [only] = &*self.tiers {
            return Policy::new(name, only.algorithm());
        }
        let tiers = self
            .tiers
            .iter()
            .enumerate()
            .map(|(place, tier)| (format!("t{place}"), tier.algorithm()));
        Policy::tiered(name, tiers)
    }
}

impl Leaf for Plan {
    fn policy(&self, name: &str) -> Policy {
        self.build(name).expect("a valid policy")
    }

    fn step(&self) -> i64 {
        self.tiers.iter().map(Spec::step).max().unwrap_or(1)
    }
}

/// Two to four tiers: those of several random limits that recover within times of one order.
fn plans(specs: impl Strategy<Value = Spec> + Clone + 'static) -> BoxedStrategy<Plan> {
    let plan = |tiers: Vec<Spec>| {
        let mut plan = Plan::of(Vec::new());
        for spec in tiers {
            plan.tiers.push(spec);
            if plan.tiers.len() > 4 || plan.build("plan").is_err() {
                plan.tiers.pop();
            }
        }
        (plan.tiers.len() > 1).then_some(plan)
    };
    vec(specs, 1..7)
        .prop_filter_map("has one tier", plan)
        .boxed()
}

/// Tiers of one kind.
pub(crate) fn tiered(kind: Kind) -> BoxedStrategy<Plan> {
    prop_oneof![3 => plans(small(kind)), 1 => plans(realistic(kind))].boxed()
}

/// Tiers of any of these kinds.
pub(crate) fn mixed(kinds: &[Kind]) -> BoxedStrategy<Plan> {
    let kind = || select(kinds.to_vec());
    prop_oneof![3 => plans(kind().prop_flat_map(small)), 1 => plans(kind().prop_flat_map(realistic))].boxed()
}

pub(crate) fn alone(plans: BoxedStrategy<Plan>) -> BoxedStrategy<Tree<Plan>> {
    plans.prop_map(Tree::Leaf).boxed()
}

/// Two limits with tiers and a plain one, in `all` or in one of the kinds of `any`.
pub(crate) fn composed(kinds: &[Kind]) -> BoxedStrategy<Tree<Plan>> {
    let kind = || select(kinds.to_vec());
    let plan = || prop_oneof![kind().prop_flat_map(tiered), mixed(kinds)].prop_map(Tree::Leaf);
    let plain = kind().prop_flat_map(small).prop_map(Plan::plain);
    (plan(), plain, plan(), 0..6_u8, any::<bool>())
        .prop_map(|(one, plain, two, how, every)| match how {
            0 | 1 => Tree::All(vec![one, Tree::Leaf(plain), two]),
            2 => Tree::All(vec![one, Tree::Audited(plain), two]),
            3 => Tree::All(vec![one, Tree::Any(vec![Tree::Leaf(plain), two], every)]),
            4 => Tree::Any(vec![one, Tree::All(vec![two, Tree::Leaf(plain)])], every),
            _ => Tree::Any(vec![one, Tree::Leaf(plain), two], every),
        })
        .boxed()
}

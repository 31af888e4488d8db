//! Limits that may have tiers, and parameters of a key's own, as plain numbers, and random ones.

use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use throttle_core::backend::Call;
use throttle_core::{ConfigError, Key, Policy};

use super::machines::call;
use super::spec::{Kind, Leaf, Spec, Tree};
use super::strategies::{realistic, small};

/// A limit in each tier, of which the only one is a limit without tiers, and parameters of a key's
/// own.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Plan {
    pub(crate) tiers: Vec<Spec>,
    pub(crate) own: Vec<Spec>,
}

impl Plan {
    pub(crate) fn plain(spec: Spec) -> Self {
        Self::of(vec![spec])
    }

    pub(crate) fn of(tiers: Vec<Spec>) -> Self {
        Self {
            tiers,
            own: Vec::new(),
        }
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

    /// The parameters of that number: the tiers, then the key's own. Another number stands for the
    /// first tier.
    pub(crate) fn parameters(&self, number: u8) -> &Spec {
        self.tiers
            .iter()
            .chain(&self.own)
            .nth(number.into())
            .unwrap_or(&self.tiers[0])
    }

    /// A call under the parameters of that number.
    pub(crate) fn call(&self, key: &Key, cost: Option<u64>, number: u8) -> Call {
        let call = call(key, cost);
        match self
            .own
            .get(usize::from(number).wrapping_sub(self.tiers.len()))
        {
            Some(own) => call.under(Arc::new(own.algorithm())),
            None => call.in_tier(number),
        }
    }
}

impl Leaf for Plan {
    fn policy(&self, name: &str) -> Policy {
        self.build(name).expect("a valid policy")
    }

    fn step(&self) -> i64 {
        self.tiers
            .iter()
            .chain(&self.own)
            .map(Spec::step)
            .max()
            .unwrap_or(1)
    }
}

/// One to four tiers and up to three of a key's own parameters: those of several random limits that
/// recover within times of one order.
fn plans(specs: impl Strategy<Value = Spec> + Clone + 'static) -> BoxedStrategy<Plan> {
    let plan = |(tiers, own): (Vec<Spec>, Vec<Spec>)| {
        let mut plan = Plan::of(Vec::new());
        for spec in tiers {
            plan.tiers.push(spec);
            if plan.tiers.len() > 4 || plan.build("plan").is_err() {
                plan.tiers.pop();
            }
        }
        let policy = plan.policy("plan");
        plan.own = own
            .into_iter()
            .filter(|own| policy.own(own.algorithm()).is_ok())
            .take(3)
            .collect();
        (plan.tiers.len() + plan.own.len() > 1).then_some(plan)
    };
    (vec(specs.clone(), 1..7), vec(specs, 0..6))
        .prop_filter_map("has only one set of parameters", plan)
        .boxed()
}

/// Tiers and own parameters of one kind.
pub(crate) fn tiered(kind: Kind) -> BoxedStrategy<Plan> {
    prop_oneof![3 => plans(small(kind)), 1 => plans(realistic(kind))].boxed()
}

/// Tiers and own parameters of any of these kinds.
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

//! Limits that may have tiers, as plain numbers, and random ones.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use throttle_core::{Carry, ConfigError, Policy};

use super::spec::{Kind, Leaf, Spec, Tree};
use super::strategies::{realistic, small};

/// Tiers and the rule by which use is carried over between them; without a rule, one limit without tiers.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Plan {
    pub(crate) tiers: Vec<Spec>,
    pub(crate) carry: Option<Carry>,
}

impl Plan {
    pub(crate) fn plain(spec: Spec) -> Self {
        Self { tiers: vec![spec], carry: None }
    }

    fn build(&self, name: &str) -> Result<Policy, ConfigError> {
        match self.carry {
            Some(carry) => {
                let tiers = self.tiers.iter().enumerate().map(|(place, tier)| (format!("t{place}"), tier.algorithm()));
                Policy::tiered(name, tiers, carry)
            }
            None => Policy::new(name, self.tiers[0].algorithm()),
        }
    }

    /// The tier of that number, or else the first tier.
    pub(crate) fn tier(&self, tier: u8) -> &Spec {
        self.tiers.get(usize::from(tier)).unwrap_or(&self.tiers[0])
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

/// The kinds that random tiers have: a shaper's slots are not units that could be carried over.
pub(crate) const KINDS: [Kind; 8] = [
    Kind::Gcra,
    Kind::TokenBucket,
    Kind::LeakyMeter,
    Kind::Interval,
    Kind::Fixed,
    Kind::Log,
    Kind::Buckets,
    Kind::Calendar,
];

fn rule() -> impl Strategy<Value = Carry> {
    select(vec![Carry::Keep, Carry::Proportional, Carry::Reset])
}

/// Two to four tiers of one kind: those of several random limits that can be carried over into each other.
pub(crate) fn tiered(kind: Kind) -> BoxedStrategy<Plan> {
    let several = |specs: BoxedStrategy<Spec>| vec(specs, 2..9);
    let specs = prop_oneof![3 => several(small(kind)), 1 => several(realistic(kind))];
    let plan = |(specs, carry): (Vec<Spec>, Carry)| {
        let mut plan = Plan { tiers: Vec::new(), carry: Some(carry) };
        for spec in specs {
            plan.tiers.push(spec);
            if plan.tiers.len() > 4 || plan.build("plan").is_err() {
                plan.tiers.pop();
            }
        }
        (plan.tiers.len() > 1).then_some(plan)
    };
    (specs, rule()).prop_filter_map("has one tier only", plan).boxed()
}

pub(crate) fn alone(kind: Kind) -> BoxedStrategy<Tree<Plan>> {
    tiered(kind).prop_map(Tree::Leaf).boxed()
}

/// Limits with tiers beside each other and a plain one, in `all` or in one of the kinds of `any`.
pub(crate) fn beside() -> BoxedStrategy<Tree<Plan>> {
    let kind = || select(KINDS.to_vec());
    let plan = || kind().prop_flat_map(tiered).prop_map(Tree::Leaf);
    let plain = kind().prop_flat_map(small).prop_map(|spec| Tree::Leaf(Plan::plain(spec)));
    (plan(), plain, plan(), 0..6_u8, any::<bool>())
        .prop_map(|(one, plain, two, how, every)| match how {
            0..=2 => Tree::All(vec![one, plain, two]),
            3 => Tree::All(vec![one, Tree::Any(vec![plain, two], every)]),
            4 => Tree::Any(vec![one, Tree::All(vec![two, plain])], every),
            _ => Tree::Any(vec![one, plain, two], every),
        })
        .boxed()
}

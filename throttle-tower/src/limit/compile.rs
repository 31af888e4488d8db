//! A composition of limits in the two halves that a layer runs: limits on rates, which the backend
//! decides, and limits on requests in flight, which this process decides.

use std::sync::Arc;

use throttle_core::{AnyCharge, ConfigError, Policy, PolicyName, PolicySet, PolicyTree};

use super::compose::{LimitTree, Tree};
use super::kind::ResolvedKind;
use super::select::{Select, Selection};
use super::settings::LimitSettings;
use crate::throttle::PermitSteps;

pub(crate) struct CompiledLimits {
    pub(crate) set: PolicySet,
    /// How each policy of the set is applied.
    pub(crate) applied: Arc<[LimitSettings]>,
    pub(crate) permits: PermitSet,
    /// What finds the limits that apply, of compositions with a `select`.
    pub(crate) selections: Arc<[Arc<Selection>]>,
}

/// The limits on requests in flight, and their composition.
#[derive(Default)]
pub(crate) struct PermitSet {
    pub(crate) limits: Vec<PermitLimit>,
    pub(crate) tree: Option<PermitTree>,
}

/// A limit on requests in flight.
pub(crate) struct PermitLimit {
    pub(crate) name: PolicyName,
    /// The permits of a key.
    pub(crate) most: u64,
    pub(crate) steps: &'static PermitSteps,
    pub(crate) applied: LimitSettings,
}

/// A composition of limits on requests in flight, each by its index among them.
#[derive(Clone, Debug)]
pub(crate) enum PermitTree {
    Limit(usize),
    All(Vec<PermitTree>),
    Any(Vec<PermitTree>, AnyCharge),
}

impl LimitTree {
    /// Returns the policies of the limits on rates, in the order in which they are composed.
    ///
    /// ```
    /// use throttle_tower::limit::IntoLimitTree;
    /// use throttle_tower::{Constant, Gcra, InFlight, Rate, all, limit};
    ///
    /// let api = limit("api", Gcra::new(Rate::per_second(10)).burst(20)).by(Constant);
    /// let in_flight = limit("in-flight", InFlight::new(200)).by(Constant);
    /// let policies = all((api, in_flight)).policies()?;
    /// assert_eq!(policies.len(), 1);
    /// assert_eq!((policies[0].name(), policies[0].algorithm().capacity()), ("api", 20));
    ///
    /// let none = limit("none", Gcra::new(Rate::per_second(0))).by(Constant);
    /// assert_eq!(none.into_limit_tree().policies().unwrap_err().policy(), Some("none"));
    /// # Ok::<(), throttle_tower::ConfigError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the settings of a limit are wrong, two limits have one name, or an [`any`](crate::any())
    /// mixes both kinds of limits: as a layer that is built with them, whatever its backend.
    pub fn policies(&self) -> Result<Vec<Policy>, ConfigError> {
        let compiled = self.clone().compile()?;
        Ok(compiled.set.policies().to_vec())
    }

    /// # Errors
    ///
    /// If the settings of a limit are wrong, two limits have one name, or an `any` mixes both kinds
    /// of limits.
    pub(crate) fn compile(self) -> Result<CompiledLimits, ConfigError> {
        let mut limits = Limits::default();
        let (policies, tree) = limits.split(self, false)?;
        let set = policies.map_or_else(|| Ok(PolicySet::none()), PolicySet::new)?;
        let Limits {
            applied,
            permits,
            selections,
        } = limits;
        let names = permits.iter().map(|limit| limit.name.as_str());
        let names: Vec<&str> = set
            .policies()
            .iter()
            .map(|policy| policy.name())
            .chain(names)
            .collect();
        if let Some((_, twice)) = names
            .iter()
            .enumerate()
            .find(|(index, name)| names[..*index].contains(name))
        {
            let rule = "each name may stand once in a layer, because it tells the limits apart; \
                rename one of them";
            return Err(ConfigError::new(
                "name",
                format_args!("{twice:?} twice"),
                rule,
            ));
        }
        Ok(CompiledLimits {
            set,
            applied: applied.into(),
            permits: PermitSet {
                limits: permits,
                tree,
            },
            selections: selections.into(),
        })
    }
}

/// The limits of both halves, in the order given.
#[derive(Default)]
struct Limits {
    applied: Vec<LimitSettings>,
    permits: Vec<PermitLimit>,
    selections: Vec<Arc<Selection>>,
}

impl Limits {
    /// Splits a composition in its halves: an `all` is an `all` of two halves, an `any` must be of
    /// one kind.
    fn split(
        &mut self,
        tree: LimitTree,
        in_any: bool,
    ) -> Result<(Option<PolicyTree>, Option<PermitTree>), ConfigError> {
        let first = self.permits.len();
        Ok(match tree.0 {
            Tree::Limit(limit) => {
                let kind = limit.resolve()?;
                let mut applied = limit.applied;
                applied.limit_index = self.applied.len() + first;
                match kind {
                    ResolvedKind::Units(policy) => {
                        if in_any && applied.charge_rules.ban.is_some() {
                            return Err(ban_in_any().in_policy(policy.name()));
                        }
                        self.applied.push(applied.with_least_estimate());
                        (Some(policy.into()), None)
                    }
                    ResolvedKind::Permits(name, most, steps) => {
                        self.permits.push(PermitLimit {
                            name,
                            most,
                            steps,
                            applied,
                        });
                        (None, Some(PermitTree::Limit(first)))
                    }
                }
            }
            Tree::Nothing => (None, None),
            Tree::All(members) => match self.split_members(members, in_any)? {
                // The set reports one that is empty.
                (policies, permits) if permits.is_empty() => {
                    (Some(PolicyTree::All(policies)), None)
                }
                (policies, permits) => (
                    (!policies.is_empty()).then_some(PolicyTree::All(policies)),
                    Some(PermitTree::All(permits)),
                ),
            },
            Tree::Any(members, charge) => match self.split_members(members, true)? {
                (policies, permits) if permits.is_empty() => {
                    (Some(PolicyTree::Any(policies, charge)), None)
                }
                (policies, permits) if policies.is_empty() => {
                    (None, Some(PermitTree::Any(permits, charge)))
                }
                _ => return Err(mixed_any(&self.permits[first].name)),
            },
            Tree::Selected(tree, select) => {
                let rates = self.applied.len();
                let halves = self.split(*tree, in_any)?;
                self.select(select, rates, first)?;
                halves
            }
        })
    }

    /// Lets `select` find the limits from these on.
    fn select(
        &mut self,
        select: Arc<dyn Select>,
        rates: usize,
        permits: usize,
    ) -> Result<(), ConfigError> {
        let limits = rates + permits..self.applied.len() + self.permits.len();
        let selection = Arc::new(Selection { select, limits });
        let permits = self.permits[permits..].iter_mut();
        let rates = self.applied[rates..].iter_mut();
        for limit in rates.chain(permits.map(|limit| &mut limit.applied)) {
            if limit.selection.replace(Arc::clone(&selection)).is_some() {
                return Err(nested_select());
            }
        }
        self.selections.push(selection);
        Ok(())
    }

    fn split_members(
        &mut self,
        members: Vec<LimitTree>,
        in_any: bool,
    ) -> Result<(Vec<PolicyTree>, Vec<PermitTree>), ConfigError> {
        let (mut policies, mut permits) = (Vec::new(), Vec::new());
        for member in members {
            let (policy, permit) = self.split(member, in_any)?;
            policies.extend(policy);
            permits.extend(permit);
        }
        Ok((policies, permits))
    }
}

fn nested_select() -> ConfigError {
    let rule = "a select finds all limits of its composition, also those of the compositions \
        within it; let the outer select find them, or compose the two next to each other, as in \
        all((first, second))";
    ConfigError::new("select", "within another select", rule)
}

fn ban_in_any() -> ConfigError {
    let rule = "another member may admit a request of the banned key; put the limit with the ban \
        beside the any, as in \
                all((login, any(…)))";
    ConfigError::new("ban", "in an any", rule)
}

fn mixed_any(permits: &PolicyName) -> ConfigError {
    let rule = "permits are counted in this process and rates by the store, so one decision \
        cannot choose between them; put the limit on requests in flight next to the any, as in \
        all((in_flight, any(…)))";
    ConfigError::new("any", "a mix of InFlight and rates", rule).in_policy(permits.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{IntoLimitTree, all, any, limit};
    use crate::{Constant, Gcra, InFlight, Limit, Rate, ThrottleLayer};

    fn rate(name: &str) -> Limit {
        limit(name, Gcra::new(Rate::per_minute(9))).by(Constant)
    }

    fn permits(name: &str) -> Limit<InFlight> {
        limit(name, InFlight::new(9)).by(Constant)
    }

    /// The names of both halves, and the tree of the permits.
    fn halves(limits: impl IntoLimitTree) -> (Vec<String>, Vec<String>, String) {
        let compiled = limits.into_limit_tree().compile().expect("it is right");
        let policies = compiled.set.policies();
        assert_eq!(compiled.applied.len(), policies.len());
        let permits = compiled
            .permits
            .limits
            .iter()
            .map(|limit| limit.name.as_str().to_owned());
        let policies = policies.iter().map(|policy| policy.name().to_owned());
        (
            policies.collect(),
            permits.collect(),
            format!("{:?}", compiled.permits.tree),
        )
    }

    #[test]
    fn composition_is_split_into_rates_and_permits_in_the_order_given() {
        let limits = all((
            permits("a"),
            rate("b"),
            any([permits("c"), permits("d")]).charge_every_admitting(),
            any([rate("e"), rate("f")]),
            all((permits("g"), rate("h"))),
        ));
        let tree =
            "Some(All([Limit(0), Any([Limit(1), Limit(2)], EveryAdmitting), All([Limit(3)])]))";
        let expected = (
            ["b", "e", "f", "h"].map(str::to_owned).into(),
            ["a", "c", "d", "g"].map(str::to_owned).into(),
        );
        assert_eq!(halves(limits), (expected.0, expected.1, tree.to_owned()));
    }

    #[test]
    fn half_without_limits_is_empty() {
        let one = |name: &str| vec![name.to_owned()];
        assert_eq!(
            halves(all([rate("a")])),
            (one("a"), vec![], "None".to_owned())
        );
        assert_eq!(
            halves(any([rate("a")])),
            (one("a"), vec![], "None".to_owned())
        );
        assert_eq!(
            halves(permits("a")),
            (vec![], one("a"), "Some(Limit(0))".to_owned())
        );
        assert_eq!(
            halves(all([permits("a")])),
            (vec![], one("a"), "Some(All([Limit(0)]))".to_owned())
        );
        assert_eq!(
            halves(any([permits("a")])),
            (vec![], one("a"), "Some(Any([Limit(0)], First))".to_owned())
        );
    }

    #[test]
    fn error_of_a_composition_says_what_to_write() {
        let error = |limits: LimitTree| {
            ThrottleLayer::new(limits)
                .map(drop)
                .unwrap_err()
                .to_string()
        };
        assert_eq!(
            error(all([permits("a"), permits("a")])),
            "name is \"a\" twice: each name may stand once in a layer, because it tells the \
                limits apart; rename one \
             of them"
        );
        assert_eq!(
            error(all((
                permits("first"),
                any((rate("own"), permits("mixed")))
            ))),
            "policy \"mixed\": any is a mix of InFlight and rates: permits are counted in this \
             process and rates by the store, so one decision cannot choose between them; put the \
             limit on requests in flight next to the any, as in all((in_flight, any(…)))"
        );
        let nothing = || Vec::<Limit>::new();
        for empty in [
            all(nothing()),
            any(nothing()),
            all((permits("a"), all(nothing()))),
            any([any(nothing())]),
        ] {
            assert!(
                error(empty.clone()).starts_with("all or any is "),
                "{empty:?}"
            );
        }
    }
}

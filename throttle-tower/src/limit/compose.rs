use std::sync::Arc;

use throttle_core::{AnyCharge, ConfigError, PolicyName, PolicySet, PolicyTree};

use super::{Applied, Concurrency, Limit};
use crate::throttle::{GateRule, Gates};

/// LimitTree, composed.
#[derive(Clone, Debug)]
#[must_use = "limits do nothing until a layer is built with them"]
pub struct LimitTree(Tree);

#[derive(Clone, Debug)]
enum Tree {
    Limit(Box<Limit>),
    InFlight(Box<Concurrency>),
    All(Vec<LimitTree>),
    Any(Vec<LimitTree>, AnyCharge),
}

/// Admits a request when every member does. Then every member is charged, else none.
///
/// Members are limits in an array or `Vec`, or, where limits and compositions mix, a tuple.
pub fn all(members: impl IntoMembers) -> LimitTree {
    LimitTree(Tree::All(members.into_members()))
}

/// Admits a request when some member does, and charges the first that does, in the order given: one's own budget, then
/// the shared pool.
///
/// Members are either all limits on rates, or all [`Concurrency`] limits: permits are counted in this process and rates by
/// the store, so one decision cannot choose between them. A layer refuses to build with a mix. Put the `Concurrency` beside
/// the `any` instead: `all((Concurrency::new(20), any(…)))`.
///
/// ```
/// use throttle_tower::{CalendarQuota, ClientIp, Constant, Gcra, Header, Rate, all, any, limit};
///
/// let limits = all((
///     limit("burst", Gcra::new(Rate::per_second(10))).by(ClientIp::peer()),
///     any([
///         limit("own", CalendarQuota::daily(1_000)).by(Header::new("x-api-key")),
///         limit("pool", CalendarQuota::daily(50_000)).by(Constant),
///     ]),
/// ));
/// ```
pub fn any(members: impl IntoMembers) -> LimitTree {
    LimitTree(Tree::Any(members.into_members(), AnyCharge::First))
}

impl LimitTree {
    /// Makes an [`any`] charge every member that admits, not only the first. Other limits stay as they are.
    pub fn charge_every_admitting(mut self) -> Self {
        if let Tree::Any(_, charge) = &mut self.0 {
            *charge = AnyCharge::EveryAdmitting;
        }
        self
    }

    /// What a layer runs.
    pub(crate) fn compile(self) -> Result<Compiled, ConfigError> {
        let mut parts = Parts::default();
        let Apart { rule, gate_rule } = parts.take_apart(self)?;
        let set = match rule {
            Some(rule) => PolicySet::new(rule)?,
            None => PolicySet::none(),
        };
        let names = parts.gates.iter().map(|(name, _)| name.as_str());
        let all: Vec<&str> = set.policies().iter().map(|policy| policy.name()).chain(names).collect();
        if let Some((_, twice)) = all.iter().enumerate().find(|(place, name)| all[..*place].contains(name)) {
            let rule = "each name may stand once in a layer, because it tells the limits apart; rename one of them";
            return Err(ConfigError::new("name", format_args!("{twice:?} twice"), rule));
        }
        let gates = Arc::new(Gates::new(parts.gates, gate_rule));
        Ok(Compiled { set, applied: parts.applied.into(), gates })
    }
}

/// LimitTree as a layer runs them.
pub(crate) struct Compiled {
    /// What the backend decides.
    pub(crate) set: PolicySet,
    /// How each of its policies is applied.
    pub(crate) applied: Arc<[Applied]>,
    /// What is decided in this process, beside the backend.
    pub(crate) gates: Arc<Gates>,
}

/// LimitTree on rates, which the backend decides, and limits on requests in flight, which this process decides. An `all` of
/// both is an `all` of its two halves; an `any` of both has no such halves, so it is an error.
#[derive(Default)]
struct Parts {
    applied: Vec<Applied>,
    gates: Vec<(PolicyName, Concurrency)>,
}

/// A composition in its two halves.
struct Apart {
    rule: Option<PolicyTree>,
    gate_rule: Option<GateRule>,
}

impl Parts {
    fn take_apart(&mut self, limits: LimitTree) -> Result<Apart, ConfigError> {
        let gates_before = self.gates.len();
        let (rule, gate_rule) = match limits.0 {
            Tree::Limit(limit) => {
                let policy = limit.policy()?;
                self.applied.push(limit.how);
                (Some(policy.into()), None)
            }
            Tree::InFlight(concurrency) => {
                self.gates.push((concurrency.check()?, *concurrency));
                (None, Some(GateRule::One(self.gates.len() - 1)))
            }
            Tree::All(members) => {
                let is_empty = members.is_empty();
                let (rules, gates) = self.members(members)?;
                // An empty one is the backend's to refuse.
                let rule = (is_empty || !rules.is_empty()).then_some(PolicyTree::All(rules));
                (rule, (!gates.is_empty()).then_some(GateRule::All(gates)))
            }
            Tree::Any(members, charge) => {
                let (rules, gates) = self.members(members)?;
                match (rules.is_empty(), gates.is_empty()) {
                    (_, true) => (Some(PolicyTree::Any(rules, charge)), None),
                    (true, false) => (None, Some(GateRule::Any(gates, charge))),
                    (false, false) => return Err(mixed_any(&self.gates[gates_before].0)),
                }
            }
        };
        Ok(Apart { rule, gate_rule })
    }

    fn members(&mut self, members: Vec<LimitTree>) -> Result<(Vec<PolicyTree>, Vec<GateRule>), ConfigError> {
        let (mut rules, mut gates) = (Vec::new(), Vec::new());
        for member in members {
            let Apart { rule, gate_rule } = self.take_apart(member)?;
            rules.extend(rule);
            gates.extend(gate_rule);
        }
        Ok((rules, gates))
    }
}

fn mixed_any(concurrency: &PolicyName) -> ConfigError {
    let rule = "permits are counted in this process and rates by the store, so one decision cannot choose between them; \
                put the Concurrency beside the any, as in all((Concurrency::new(20), any(…)))";
    ConfigError::new("any", "a mix of Concurrency and rates", rule).in_policy(concurrency.as_str())
}

impl From<Limit> for LimitTree {
    fn from(limit: Limit) -> Self {
        Self(Tree::Limit(Box::new(limit)))
    }
}

impl From<Concurrency> for LimitTree {
    fn from(concurrency: Concurrency) -> Self {
        Self(Tree::InFlight(Box::new(concurrency)))
    }
}

/// Something that is limits: a [`Limit`], a [`Concurrency`], or what [`all`] and [`any`] make of several.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be enforced as it is",
    label = "expected a limit that says whose budget it is, or a composition of such",
    note = "finish the limit with `.by(…)`, as in `limit(\"per-ip\", Gcra::new(Rate::per_second(10))).by(ClientIp::peer())`",
    note = "compose several with `all([…])` or `any([…])`"
)]
pub trait IntoLimitTree {
    /// As limits.
    fn into_limit_tree(self) -> LimitTree;
}

impl IntoLimitTree for LimitTree {
    fn into_limit_tree(self) -> LimitTree {
        self
    }
}

impl IntoLimitTree for Limit {
    fn into_limit_tree(self) -> LimitTree {
        self.into()
    }
}

impl IntoLimitTree for Concurrency {
    fn into_limit_tree(self) -> LimitTree {
        self.into()
    }
}

/// The members of an [`all`] or [`any`]: an array, a `Vec`, or a tuple of up to eight.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a list of limits",
    label = "expected an array, a `Vec` or a tuple of limits",
    note = "write `all([a, b])`, or `all((a, any([b, c])))` where limits and compositions mix",
    note = "every limit must say whose budget it is: `limit(…).by(…)`"
)]
pub trait IntoMembers {
    /// As a list.
    fn into_members(self) -> Vec<LimitTree>;
}

impl<T: IntoLimitTree, const N: usize> IntoMembers for [T; N] {
    fn into_members(self) -> Vec<LimitTree> {
        self.into_iter().map(IntoLimitTree::into_limit_tree).collect()
    }
}

impl<T: IntoLimitTree> IntoMembers for Vec<T> {
    fn into_members(self) -> Vec<LimitTree> {
        self.into_iter().map(IntoLimitTree::into_limit_tree).collect()
    }
}

macro_rules! members {
    ($($member:ident $index:tt),+) => {
        impl<$($member: IntoLimitTree),+> IntoMembers for ($($member,)+) {
            fn into_members(self) -> Vec<LimitTree> {
                vec![$(self.$index.into_limit_tree()),+]
            }
        }
    };
}

members!(A 0);
members!(A 0, B 1);
members!(A 0, B 1, C 2);
members!(A 0, B 1, C 2, D 3);
members!(A 0, B 1, C 2, D 3, E 4);
members!(A 0, B 1, C 2, D 3, E 4, F 5);
members!(A 0, B 1, C 2, D 3, E 4, F 5, G 6);
members!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7);

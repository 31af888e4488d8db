use std::sync::Arc;

use throttle_core::{AnyCharge, ConfigError, LimitSet, PolicyName, Rule};

use super::ways::{Leaves, Ways};
use super::{Applied, Concurrency, Limit};
use crate::throttle::{GateRule, Gates};

/// Limits, composed.
#[derive(Clone, Debug)]
#[must_use = "limits do nothing until a layer is built with them"]
pub struct Limits(Tree);

#[derive(Clone, Debug)]
enum Tree {
    Limit(Box<Limit>),
    InFlight(Box<Concurrency>),
    All(Vec<Limits>),
    Any(Vec<Limits>, AnyCharge),
}

/// Admits a request when every member does. Then every member is charged, else none.
///
/// Members are limits in an array or `Vec`, or, where limits and compositions mix, a tuple.
pub fn all(members: impl IntoMembers) -> Limits {
    Limits(Tree::All(members.into_members()))
}

/// Admits a request when some member does, and charges the first that does, in the order given: one's own budget, then
/// the shared pool.
///
/// Where a [`Concurrency`] stands beside limits on rates, its permits are charged like any other budget: they are held if
/// it is the first that admits. Such members are tried one after the other, over a store with a question for each. When the
/// store fails, a closed limit, and one whose share is used up, leave it to the next.
///
/// ```
/// use throttle_tower::client_ip::ClientIp;
/// use throttle_tower::{CalendarQuota, Constant, Gcra, Header, Rate, all, any, limit};
///
/// let limits = all((
///     limit("burst", Gcra::new(Rate::per_second(10))).by(ClientIp::peer()),
///     any([
///         limit("own", CalendarQuota::daily(1_000)).by(Header::new("x-api-key")),
///         limit("pool", CalendarQuota::daily(50_000)).by(Constant),
///     ]),
/// ));
/// ```
pub fn any(members: impl IntoMembers) -> Limits {
    Limits(Tree::Any(members.into_members(), AnyCharge::First))
}

impl Limits {
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
        let Apart { rule, gate_rule, ways } = parts.take_apart(self)?;
        let set = match rule {
            Some(rule) => LimitSet::new(rule)?,
            None => LimitSet::none(),
        };
        let names = parts.gates.iter().map(|(name, _)| name.as_str());
        let all: Vec<&str> = set.policies().iter().map(|policy| policy.name()).chain(names).collect();
        if let Some((_, twice)) = all.iter().enumerate().find(|(place, name)| all[..*place].contains(name)) {
            let rule = "each name may stand once in a layer, because it tells the limits apart; rename one of them";
            return Err(ConfigError::new("name", format_args!("{twice:?} twice"), rule));
        }
        let gates = Arc::new(Gates::new(parts.gates, gate_rule, ways.check()?));
        Ok(Compiled { set, applied: parts.applied.into(), gates })
    }
}

/// Limits as a layer runs them.
pub(crate) struct Compiled {
    /// What the backend decides.
    pub(crate) set: LimitSet,
    /// How each of its policies is applied.
    pub(crate) applied: Arc<[Applied]>,
    /// What is decided in this process, beside the backend.
    pub(crate) gates: Arc<Gates>,
}

/// Limits on rates, which the backend decides, and those on requests in flight, which it does not. An `all` of both is an
/// `all` of its two halves; of an `any` of both one half is asked, and then the other.
#[derive(Default)]
struct Parts {
    applied: Vec<Applied>,
    gates: Vec<(PolicyName, Concurrency)>,
}

/// A composition in its two halves.
struct Apart {
    rule: Option<Rule>,
    gate_rule: Option<GateRule>,
    ways: Ways,
}

/// The halves of several.
#[derive(Default)]
struct Members {
    rules: Vec<Rule>,
    gates: Vec<GateRule>,
    ways: Vec<Ways>,
}

impl Parts {
    fn take_apart(&mut self, limits: Limits) -> Result<Apart, ConfigError> {
        let before = (self.applied.len(), self.gates.len());
        let (rule, gate_rule, several) = match limits.0 {
            Tree::Limit(limit) => {
                let policy = limit.policy()?;
                self.applied.push(limit.how);
                (Some(policy.into()), None, None)
            }
            Tree::InFlight(concurrency) => {
                self.gates.push((concurrency.check()?, *concurrency));
                (None, Some(GateRule::One(self.gates.len() - 1)), None)
            }
            Tree::All(members) => {
                let is_empty = members.is_empty();
                let Members { rules, gates, ways } = self.members(members)?;
                // An empty one is the backend's to refuse.
                let rule = (is_empty || !rules.is_empty()).then_some(Rule::All(rules));
                (rule, (!gates.is_empty()).then_some(GateRule::All(gates)), Ways::all(ways))
            }
            Tree::Any(members, charge) => {
                let Members { rules, gates, ways } = self.members(members)?;
                match (rules.is_empty(), gates.is_empty()) {
                    (_, true) => (Some(Rule::Any(rules, charge)), None, None),
                    (true, false) => (None, Some(GateRule::Any(gates, charge)), None),
                    (false, false) => {
                        let ways = Ways::any(ways, charge)?;
                        (Some(Rule::Any(rules, charge)), Some(GateRule::Any(gates, charge)), Some(ways))
                    }
                }
            }
        };
        let leaves = Leaves { policies: before.0..self.applied.len(), gates: before.1..self.gates.len() };
        Ok(Apart { rule, gate_rule, ways: several.unwrap_or(Ways::One(leaves)) })
    }

    fn members(&mut self, members: Vec<Limits>) -> Result<Members, ConfigError> {
        let mut apart = Members::default();
        for member in members {
            let Apart { rule, gate_rule, ways } = self.take_apart(member)?;
            apart.rules.extend(rule);
            apart.gates.extend(gate_rule);
            apart.ways.push(ways);
        }
        Ok(apart)
    }
}

impl From<Limit> for Limits {
    fn from(limit: Limit) -> Self {
        Self(Tree::Limit(Box::new(limit)))
    }
}

impl From<Concurrency> for Limits {
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
pub trait IntoLimits {
    /// As limits.
    fn into_limits(self) -> Limits;
}

impl IntoLimits for Limits {
    fn into_limits(self) -> Limits {
        self
    }
}

impl IntoLimits for Limit {
    fn into_limits(self) -> Limits {
        self.into()
    }
}

impl IntoLimits for Concurrency {
    fn into_limits(self) -> Limits {
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
    fn into_members(self) -> Vec<Limits>;
}

impl<T: IntoLimits, const N: usize> IntoMembers for [T; N] {
    fn into_members(self) -> Vec<Limits> {
        self.into_iter().map(IntoLimits::into_limits).collect()
    }
}

impl<T: IntoLimits> IntoMembers for Vec<T> {
    fn into_members(self) -> Vec<Limits> {
        self.into_iter().map(IntoLimits::into_limits).collect()
    }
}

macro_rules! members {
    ($($member:ident $index:tt),+) => {
        impl<$($member: IntoLimits),+> IntoMembers for ($($member,)+) {
            fn into_members(self) -> Vec<Limits> {
                vec![$(self.$index.into_limits()),+]
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

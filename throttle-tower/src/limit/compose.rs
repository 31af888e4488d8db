use throttle_core::{AnyCharge, ConfigError, LimitSet, Rule};

use super::{Applied, Limit};

/// Limits, composed.
#[derive(Clone, Debug)]
#[must_use = "limits do nothing until a layer is built with them"]
pub struct Limits(Tree);

#[derive(Clone, Debug)]
enum Tree {
    Limit(Box<Limit>),
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

    /// The validated set, and how each of its policies is applied.
    pub(crate) fn compile(self) -> Result<(LimitSet, Vec<Applied>), ConfigError> {
        let mut applied = Vec::new();
        let set = LimitSet::new(self.rule(&mut applied)?)?;
        Ok((set, applied))
    }

    fn rule(self, applied: &mut Vec<Applied>) -> Result<Rule, ConfigError> {
        let mut rules = |members: Vec<Self>| members.into_iter().map(|m| m.rule(applied)).collect::<Result<_, _>>();
        Ok(match self.0 {
            Tree::All(members) => Rule::All(rules(members)?),
            Tree::Any(members, charge) => Rule::Any(rules(members)?, charge),
            Tree::Limit(limit) => {
                let policy = limit.policy()?;
                applied.push(limit.how);
                policy.into()
            }
        })
    }
}

impl From<Limit> for Limits {
    fn from(limit: Limit) -> Self {
        Self(Tree::Limit(Box::new(limit)))
    }
}

/// Something that is limits: a [`Limit`], or what [`all`] and [`any`] make of several.
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

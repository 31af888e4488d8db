use std::sync::Arc;

use throttle_core::AnyCharge;

use super::select::Select;
use super::single::Limit;

/// A composition of limits: what [`all`] and [`any`] return, and what a single limit converts into.
///
/// ```
/// use throttle_tower::{Constant, Gcra, LimitTree, Rate, ThrottleLayer, any, limit};
///
/// let pool = |name, count| limit(name, Gcra::new(Rate::per_second(count))).by(Constant);
/// let pools: LimitTree = any([pool("first", 10), pool("second", 100)]).charge_every_admitting();
/// assert!(ThrottleLayer::new(pools).is_ok());
/// assert!(ThrottleLayer::new(any(Vec::<LimitTree>::new())).is_err(), "an empty composition");
/// ```
#[derive(Clone, Debug)]
#[must_use = "limits do nothing until a layer is built with them"]
pub struct LimitTree(pub(super) Tree);

#[derive(Clone, Debug)]
pub(super) enum Tree {
    Limit(Box<Limit<()>>),
    All(Vec<LimitTree>),
    Any(Vec<LimitTree>, AnyCharge),
    Selected(Box<LimitTree>, Arc<dyn Select>),
    Nothing,
}

/// Admits a request if every member admits it. Then every member is charged; otherwise none is.
///
/// Members of one type are written as a list, and members of several types (a limit on a rate or
/// plans, a limit on requests in flight, another composition) as a tuple: `all([a, b])`, but
/// `all((a, any([b, c])))`.
///
/// ```
/// use throttle_tower::{ClientIp, Constant, Gcra, Rate, ThrottleLayer, all, limit};
///
/// let limits = all([
///     limit("per-ip", Gcra::new(Rate::per_second(10))).by(ClientIp::peer()),
///     limit("all", Gcra::new(Rate::per_second(1_000))).by(Constant),
/// ]);
/// assert!(ThrottleLayer::new(limits).is_ok());
/// ```
pub fn all(members: impl IntoMembers) -> LimitTree {
    LimitTree(Tree::All(members.into_members()))
}

/// Admits a request if some member admits it, and charges the first such member in the order given,
/// for example the client's own budget before a shared pool. A request to which no member applies
/// is admitted. Members are written as those of [`all`] are.
///
/// They are either all limits on rates, or all limits on [requests in flight](crate::InFlight):
/// permits are counted in this process and rates by the store, so one decision cannot choose
/// between them. A layer refuses to build with a mix. Put the limit on requests in flight next to
/// the `any` instead: `all((in_flight, any(…)))`.
///
/// ```
/// use throttle_tower::{
///     CalendarQuota, ClientIp, Constant, Gcra, Header, InFlight, OnMissing, Rate, ThrottleLayer,
///     all, any, limit,
/// };
///
/// let burst = limit("burst", Gcra::new(Rate::per_second(10))).by(ClientIp::peer());
/// # fn is_issued(key: &[u8]) -> bool { key == b"ada" }
/// // An invented key must not come with a budget of its own: it uses the pool.
/// let own = limit("own", CalendarQuota::daily(1_000))
///     .by(Header::new("x-api-key").accept(is_issued))
///     .on_missing(OnMissing::Skip);
/// let pool = limit("pool", CalendarQuota::daily(50_000)).by(Constant);
/// assert!(ThrottleLayer::new(all((burst, any([own.clone(), pool])))).is_ok());
/// let exports = limit("exports", InFlight::new(20)).by(Constant);
/// assert!(ThrottleLayer::new(any((own, exports))).is_err(), "a mix of both kinds");
/// ```
pub fn any(members: impl IntoMembers) -> LimitTree {
    LimitTree(Tree::Any(members.into_members(), AnyCharge::First))
}

impl LimitTree {
    /// Makes an [`any`] charge every member that admits, not only the first. A composition that is
    /// not an [`any`] does not change.
    pub fn charge_every_admitting(mut self) -> Self {
        if let Tree::Any(_, charge) = &mut self.0 {
            *charge = AnyCharge::EveryAdmitting;
        }
        self
    }

    /// Lets `select` find the limits of this composition that apply to a request. A limit that it
    /// does not find does not apply; one that it finds applies if its
    /// [condition](crate::Limit::when) holds, too. Defaults to all limits.
    ///
    /// It is for hundreds of limits that apply to few requests each: a request costs what the
    /// limits that it meets cost, however many others there are. For a few limits, conditions are
    /// simpler. The composition may be a member of another one, where its indices stay the same. If
    /// it is within another composition with a `select`, building the layer fails.
    pub fn select(self, select: impl Select) -> Self {
        Self(Tree::Selected(Box::new(self), Arc::new(select)))
    }
}

impl<F> From<Limit<F>> for LimitTree {
    fn from(limit: Limit<F>) -> Self {
        Self(Tree::Limit(Box::new(limit.of_any_kind())))
    }
}

/// What a layer can enforce: a [`Limit`], [plans](crate::plans()), or a composition of several.
///
/// ```
/// use throttle_tower::limit::IntoLimitTree;
/// use throttle_tower::{ConfigError, Constant, InFlight, ThrottleLayer, limit};
///
/// fn layer(limits: impl IntoLimitTree) -> Result<ThrottleLayer, ConfigError> {
///     ThrottleLayer::new(limits)
/// }
/// assert!(layer(limit("exports", InFlight::new(20)).by(Constant)).is_ok());
/// ```
///
/// # Contract
///
/// The conversion checks nothing and never panics. A wrong setting is an error when the layer is
/// built.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be enforced as it is",
    label = "expected a limit that says whose budget it is, or a composition of such",
    note = "finish the limit with `.by(…)`, as in `limit(\"per-ip\", \
            Gcra::new(Rate::per_second(10))).by(ClientIp::peer())`",
    note = "compose several with `all([…])` or `any([…])`"
)]
pub trait IntoLimitTree {
    /// Converts it into a composition.
    fn into_limit_tree(self) -> LimitTree;
}

impl IntoLimitTree for LimitTree {
    fn into_limit_tree(self) -> LimitTree {
        self
    }
}

/// No limit: every request is admitted.
impl IntoLimitTree for () {
    fn into_limit_tree(self) -> LimitTree {
        LimitTree(Tree::Nothing)
    }
}

impl<F> IntoLimitTree for Limit<F> {
    fn into_limit_tree(self) -> LimitTree {
        self.into()
    }
}

/// The members of an [`all`] or [`any`]: an array, a `Vec`, or a tuple of up to eight.
///
/// ```
/// use throttle_tower::limit::IntoMembers;
/// use throttle_tower::{Constant, Gcra, InFlight, Rate, limit};
///
/// let per_second = limit("all", Gcra::new(Rate::per_second(10))).by(Constant);
/// let exports = limit("exports", InFlight::new(20)).by(Constant);
/// assert_eq!((per_second, exports).into_members().len(), 2);
/// ```
///
/// # Contract
///
/// The members keep their order: it is the order in which an `any` tries them, and that of the
/// headers. An empty list is an error when the layer is built.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a list of limits",
    label = "expected an array, a `Vec` or a tuple of limits",
    note = "write `all([a, b])`, or `all((a, any([b, c])))` where limits and compositions mix",
    note = "every limit must say whose budget it is: `limit(…).by(…)`"
)]
pub trait IntoMembers {
    /// Converts it into a list.
    fn into_members(self) -> Vec<LimitTree>;
}

impl<T: IntoLimitTree, const N: usize> IntoMembers for [T; N] {
    fn into_members(self) -> Vec<LimitTree> {
        self.into_iter()
            .map(IntoLimitTree::into_limit_tree)
            .collect()
    }
}

impl<T: IntoLimitTree> IntoMembers for Vec<T> {
    fn into_members(self) -> Vec<LimitTree> {
        self.into_iter()
            .map(IntoLimitTree::into_limit_tree)
            .collect()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Constant, Gcra, InFlight, Rate, limit};

    fn in_flight(name: &str) -> Limit<InFlight> {
        limit(name, InFlight::new(1)).by(Constant)
    }

    fn names(members: impl IntoMembers) -> String {
        let name = |member: LimitTree| match member.0 {
            Tree::Limit(limit) => {
                let kind = limit.resolve().expect("it is right");
                kind.name().as_str().to_owned()
            }
            other => panic!("{other:?}"),
        };
        members.into_members().into_iter().map(name).collect()
    }

    #[test]
    fn members_keep_their_order_in_each_form() {
        let rate = |name: &str| limit(name, Gcra::new(Rate::per_minute(9))).by(Constant);
        let [a, b, c, d] = ["a", "b", "c", "d"].map(rate);
        let [e, f, g, h] = ["e", "f", "g", "h"].map(in_flight);
        assert_eq!(names([c.clone(), a.clone(), b.clone()]), "cab");
        assert_eq!(names(vec![b.clone(), a.clone()]), "ba");
        let (a, b, c, d) = (|| a.clone(), || b.clone(), || c.clone(), || d.clone());
        let (e, f, g, h) = (|| e.clone(), || f.clone(), || g.clone(), || h.clone());
        assert_eq!(names((a(),)), "a");
        assert_eq!(names((a(), e())), "ae");
        assert_eq!(names((a(), b(), e())), "abe");
        assert_eq!(names((a(), b(), c(), e())), "abce");
        assert_eq!(names((a(), b(), c(), d(), e())), "abcde");
        assert_eq!(names((a(), b(), c(), d(), e(), f())), "abcdef");
        assert_eq!(names((a(), b(), c(), d(), e(), f(), g())), "abcdefg");
        assert_eq!(names((a(), b(), c(), d(), e(), f(), g(), h())), "abcdefgh");
    }

    #[test]
    fn only_an_any_is_made_to_charge_every_member_that_admits() {
        let members = || [in_flight("a"), in_flight("b")];
        let charge = |tree: LimitTree| match tree.0 {
            Tree::Any(_, charge) => Some(charge),
            _ => None,
        };
        assert_eq!(charge(any(members())), Some(AnyCharge::First));
        assert_eq!(
            charge(any(members()).charge_every_admitting()),
            Some(AnyCharge::EveryAdmitting)
        );
        let nested = all([any(members())]).charge_every_admitting();
        let Tree::All(members) = nested.0 else {
            panic!("it is still an all")
        };
        assert_eq!(
            members.into_iter().map(charge).collect::<Vec<_>>(),
            [Some(AnyCharge::First)]
        );
    }
}

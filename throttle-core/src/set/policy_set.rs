use std::collections::HashSet;

use crate::backend_error::{BackendError, BackendErrorKind};
use crate::call::Call;
use crate::error::ConfigError;
use crate::policy::Policy;

/// Policies composed with `all` and `any`. [`PolicySet`] compiles it.
///
/// ```
/// use throttle_core::{Gcra, Policy, PolicySet, PolicyTree, Rate};
///
/// let second = Policy::new("second", Gcra::new(Rate::per_second(5)))?;
/// let day = Policy::new("day", Gcra::new(Rate::per_day(1_000)))?;
/// let both = PolicyTree::All(vec![second.into(), day.into()]);
/// assert_eq!(PolicySet::new(both)?.policies().len(), 2);
/// # Ok::<(), throttle_core::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PolicyTree {
    /// One policy.
    Policy(Policy),
    /// Admits if every member admits, and charges every member.
    All(Vec<PolicyTree>),
    /// Admits when some member does.
    Any(Vec<PolicyTree>, AnyCharge),
}

/// Which members an `any` charges.
///
/// ```
/// use throttle_core::{AnyCharge, Gcra, Limiter, Policy, PolicyTree, Rate};
///
/// let left = |charge| {
///     let own = Policy::new("own", Gcra::new(Rate::per_day(5)))?;
///     let pool = Policy::new("pool", Gcra::new(Rate::per_day(100)))?;
///     let decision = Limiter::in_memory(PolicyTree::Any(vec![own.into(), pool.into()], charge))?
///         .check("ada", 1);
///     Ok::<_, throttle_core::ConfigError>(
///         [0, 1].map(|policy| decision.statuses()[policy].remaining()),
///     )
/// };
/// assert_eq!(left(AnyCharge::First)?, [4, 100]);
/// assert_eq!(left(AnyCharge::EveryAdmitting)?, [4, 99]);
/// # Ok::<(), throttle_core::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AnyCharge {
    /// The first member that admits, in the order given: a client's own budget, then the shared
    /// pool.
    #[default]
    First,
    /// Every member that admits.
    EveryAdmitting,
}

impl From<Policy> for PolicyTree {
    fn from(policy: Policy) -> Self {
        Self::Policy(policy)
    }
}

/// A compiled composition: the policies in the order given, and the tree over them.
///
/// ```
/// use throttle_core::{Gcra, PolicySet, Policy, Rate, PolicyTree};
///
/// let own = Policy::new("own", Gcra::new(Rate::per_second(5)))?;
/// let pool = Policy::new("pool", Gcra::new(Rate::per_second(100)))?;
/// let day = Policy::new("day", Gcra::new(Rate::per_day(1_000)))?;
/// let any = PolicyTree::Any(vec![own.into(), pool.into()], Default::default());
/// let set = PolicySet::new(PolicyTree::All(vec![day.into(), any]))?;
/// assert_eq!(set.policies()[2].name(), "pool");
/// # Ok::<(), throttle_core::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicySet {
    policies: Vec<Policy>,
    nodes: Vec<Node>,
    shape: Shape,
    /// Whether some policy is there for several keys.
    pub(crate) repeats: bool,
    /// For each policy, the end of those that an `any` does not charge once it admits; 0 if there
    /// are none.
    spared: Vec<usize>,
}

/// What the policies decide like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Shape {
    /// One `all`.
    Plain,
    /// A tree with an `any`, or with a policy that repeats.
    Any,
    /// A tree with audited policies.
    Audited,
}

/// The tree in pre-order; `end` is where the node's subtree ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Node {
    kind: PolicyNode,
    end: usize,
}

/// A node of a [composition](PolicySet::tree).
///
/// ```
/// use throttle_core::{AnyCharge, Gcra, Policy, PolicyNode, PolicySet, PolicyTree, Rate};
///
/// let own = Policy::new("own", Gcra::new(Rate::per_day(5)))?;
/// let pool = Policy::new("pool", Gcra::new(Rate::per_day(100)))?;
/// let set = PolicySet::new(PolicyTree::Any(
///     vec![own.into(), pool.into()],
///     AnyCharge::First,
/// ))?;
/// assert_eq!(set.node(0), PolicyNode::Any(AnyCharge::First));
/// assert!(
///     set.members(0)
///         .map(|member| set.node(member))
///         .eq([PolicyNode::Policy(0), PolicyNode::Policy(1)])
/// );
/// # Ok::<(), throttle_core::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyNode {
    /// The policy at this index in the set. An [audited](Policy::audit) one admits every request.
    Policy(usize),
    /// Admits when every member does.
    All,
    /// Admits when some member does.
    Any(AnyCharge),
}

impl PolicySet {
    /// Most policies in a set.
    pub const MAX_POLICIES: usize = 1023;
    /// Deepest nesting of `all` and `any`.
    pub const MAX_DEPTH: usize = 128;

    /// Compiles a composition.
    ///
    /// # Errors
    ///
    /// If two policies share a name, an `all` or `any` is empty, an `any` has an
    /// [audited](Policy::audit) policy, or the set has more than 1,023 policies or is nested more
    /// than 128 deep.
    pub fn new(tree: impl Into<PolicyTree>) -> Result<Self, ConfigError> {
        Self::compile(tree.into(), false)
    }

    /// Compiles a composition that may hold one policy several times, for several keys of a
    /// request: the sender and the receiver of a transfer, or the tenants of a batch. They are one
    /// decision, and each key has the budget that it has in any other set.
    ///
    /// The calls of such a policy name different keys, or a [decision](crate::Backend::decide)
    /// [is an error](Self::check_keys). To charge a key for two parts of a request, add up their
    /// costs. In a full [`MemoryBackend`](crate::MemoryBackend), new keys may
    /// [share a bucket](crate::Status::is_overflow): a request is then refused if their costs exceed
    /// what the bucket has left together, and for ever if they exceed its capacity.
    ///
    /// ```
    /// use throttle_core::backend::Call;
    /// use throttle_core::{FixedWindow, Key, Limiter, MemoryBackend, Policy, PolicySet, PolicyTree};
    /// use throttle_core::Rate;
    ///
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// let account = Policy::new("account", FixedWindow::new(Rate::per_day(10)))?;
    /// let both = PolicyTree::All(vec![account.clone().into(), account.into()]);
    /// let transfers = Limiter::new(MemoryBackend::new(), PolicySet::repeating(both)?)?;
    /// let transfer = |from, to, units| {
    ///     let calls = [from, to].map(|name| Call::from(Key::from(name)).costing(units));
    ///     transfers.decide(&calls)
    /// };
    ///
    /// assert!(transfer("ada", "bob", 6).await?.is_admitted());
    /// assert!(!transfer("eve", "ada", 6).await?.is_admitted(), "ada has four units left");
    /// assert!(transfer("bob", "eve", 4).await?.is_admitted(), "eve was charged nothing");
    /// assert!(transfer("eve", "eve", 1).await.is_err());
    /// assert_eq!(transfers.peek("eve").remaining(), 6);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new), if policies that share a name are not equal.
    pub fn repeating(tree: impl Into<PolicyTree>) -> Result<Self, ConfigError> {
        Self::compile(tree.into(), true)
    }

    fn compile(tree: PolicyTree, may_repeat: bool) -> Result<Self, ConfigError> {
        let mut set = Self {
            policies: Vec::new(),
            nodes: Vec::new(),
            shape: Shape::Plain,
            repeats: false,
            spared: Vec::new(),
        };
        set.add(tree, 0, false)?;
        let mut by_name: Vec<_> = set.policies.iter().collect();
        by_name.sort_unstable_by_key(|policy| policy.name());
        for pair in by_name
            .windows(2)
            .filter(|pair| pair[0].name() == pair[1].name())
        {
            if !may_repeat || pair[0] != pair[1] {
                let rule = "each name may stand once in a set, because it tells the budgets \
                    apart; rename one of them";
                return Err(ConfigError::new(
                    "policy name",
                    format_args!("{:?} twice", pair[0].name()),
                    rule,
                ));
            }
            set.repeats = true;
            set.shape = set.shape.max(Shape::Any);
        }
        if set.policies.len() > Self::MAX_POLICIES {
            let rule = "a set holds at most 1023";
            return Err(ConfigError::new(
                "number of policies",
                set.policies.len(),
                rule,
            ));
        }
        Ok(set)
    }

    /// A set without policies, which admits every request: for a layer with limits on requests in
    /// flight only.
    #[must_use]
    pub fn none() -> Self {
        let nodes = vec![Node {
            kind: PolicyNode::All,
            end: 1,
        }];
        Self {
            policies: Vec::new(),
            nodes,
            shape: Shape::Plain,
            repeats: false,
            spared: Vec::new(),
        }
    }

    /// The policies, in the order given.
    #[must_use]
    pub fn policies(&self) -> &[Policy] {
        &self.policies
    }

    /// Returns the policy of an index, as [`Backend::run`](crate::Backend::run) names it.
    ///
    /// ```
    /// use throttle_core::{Gcra, Policy, PolicySet, Rate};
    ///
    /// let set = PolicySet::new(Policy::new("per-user", Gcra::new(Rate::per_day(9)))?)?;
    /// assert_eq!(set.policy(0).unwrap().name(), "per-user");
    /// let error = set.policy(7).unwrap_err();
    /// assert_eq!(
    ///     std::error::Error::source(&error).unwrap().to_string(),
    ///     "policy is 7: an index must be below 1, the number of policies in the set"
    /// );
    /// # Ok::<(), throttle_core::ConfigError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If there is none. The error's source is a [`ConfigError`].
    pub fn policy(&self, index: usize) -> Result<&Policy, BackendError> {
        self.policies.get(index).ok_or_else(|| {
            let policies = self.policies.len();
            let rule =
                format!("an index must be below {policies}, the number of policies in the set");
            BackendError::new(BackendErrorKind::Protocol)
                .uncharged()
                .with_source(ConfigError::new("policy", index, rule))
        })
    }

    /// Checks that no two calls of a policy have the same key: a set with a policy
    /// [for several keys](Self::repeating) does not decide such a request. A backend checks this
    /// before it decides. Sets in which each policy is once have nothing to check.
    ///
    /// ```
    /// use throttle_core::backend::Call;
    /// use throttle_core::{Gcra, Key, Policy, PolicySet, PolicyTree, Rate};
    ///
    /// let policy = Policy::new("account", Gcra::new(Rate::per_day(9)))?;
    /// let set = PolicySet::repeating(PolicyTree::All(vec![policy.into(); 2]))?;
    /// let calls = |keys: [&str; 2]| keys.map(|key| Call::from(Key::from(key)));
    /// assert!(set.check_keys(&calls(["ada", "bob"])).is_ok());
    /// let error = set.check_keys(&calls(["ada", "ada"])).unwrap_err();
    /// assert!(error.is_uncharged());
    /// assert_eq!(
    ///     std::error::Error::source(&error).unwrap().to_string(),
    ///     "policy \"account\": key is in two calls: a request names each key of a policy once; \
    ///      add up the costs"
    /// );
    /// # Ok::<(), throttle_core::ConfigError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If two do. The error's source is a [`ConfigError`] that names the policy.
    pub fn check_keys(&self, calls: &[Call]) -> Result<(), BackendError> {
        if !self.repeats {
            return Ok(());
        }
        let mut known = HashSet::new();
        for (policy, call) in self.policies.iter().zip(calls) {
            if let Some(key) = call.key()
                && !known.insert((policy.name(), key))
            {
                let rule = "a request names each key of a policy once; add up the costs";
                return Err(BackendError::new(BackendErrorKind::Protocol)
                    .uncharged()
                    .with_source(
                        ConfigError::new("key", "in two calls", rule).in_policy(policy.name()),
                    ));
            }
        }
        Ok(())
    }

    /// Whether some policy has tiers.
    #[must_use]
    pub fn is_tiered(&self) -> bool {
        self.policies.iter().any(Policy::is_tiered)
    }

    pub(crate) fn policies_mut(&mut self) -> impl Iterator<Item = &mut Policy> {
        self.policies.iter_mut()
    }

    /// Whether the set decides like one `all` of its policies: there is no `any`, and no policy is
    /// audited or repeats.
    pub(crate) fn is_plain(&self) -> bool {
        self.shape == Shape::Plain
    }

    /// Whether some policy is [audited](Policy::audit).
    #[must_use]
    pub fn has_audited(&self) -> bool {
        self.shape == Shape::Audited
    }

    /// The nodes in pre-order, each with the index after its last descendant. A set of one policy
    /// is a single node. For backends that evaluate the tree elsewhere.
    pub fn tree(&self) -> impl Iterator<Item = (PolicyNode, usize)> + '_ {
        self.nodes.iter().map(|node| (node.kind, node.end))
    }

    /// The node at an index in the [tree](Self::tree).
    #[must_use]
    pub fn node(&self, index: usize) -> PolicyNode {
        self.nodes[index].kind
    }

    /// The indices of a node's members in the [tree](Self::tree), in the order given.
    pub fn members(&self, parent: usize) -> impl Iterator<Item = usize> + '_ {
        let (nodes, mut next) = (&self.nodes, parent + 1);
        std::iter::from_fn(move || {
            let here = next;
            (here < nodes[parent].end).then(|| {
                next = nodes[here].end;
                here
            })
        })
    }

    /// The index before which no policy behind this one is charged once this one admits: the rest
    /// of an `any` that charges the first.
    #[inline]
    pub(crate) fn spared_by(&self, policy: usize) -> usize {
        self.spared[policy]
    }

    /// The policies in a subtree.
    pub(super) fn policies_below(&self, node: usize) -> impl Iterator<Item = usize> + '_ {
        self.nodes[node..self.nodes[node].end]
            .iter()
            .filter_map(|node| match node.kind {
                PolicyNode::Policy(policy) => Some(policy),
                PolicyNode::All | PolicyNode::Any(_) => None,
            })
    }

    fn add(&mut self, tree: PolicyTree, depth: usize, is_in_any: bool) -> Result<(), ConfigError> {
        if depth > Self::MAX_DEPTH {
            return Err(ConfigError::new(
                "nesting of limits",
                depth,
                "all and any can be nested at most 128 deep",
            ));
        }
        let index = self.nodes.len();
        let (kind, members) = match tree {
            PolicyTree::Policy(policy) if policy.is_audited() && is_in_any => {
                let rule = "an audited limit refuses nothing, so that no other member would be \
                    asked; audit it beside the \
                            any, or enforce it";
                return Err(
                    ConfigError::new("audit", "inside an any", rule).in_policy(policy.name())
                );
            }
            PolicyTree::Policy(policy) => {
                self.shape = self.shape.max(if policy.is_audited() {
                    Shape::Audited
                } else {
                    Shape::Plain
                });
                self.policies.push(policy);
                self.spared.push(0);
                (PolicyNode::Policy(self.policies.len() - 1), Vec::new())
            }
            PolicyTree::All(members) => (PolicyNode::All, members),
            PolicyTree::Any(members, charge) => (PolicyNode::Any(charge), members),
        };
        if members.is_empty() && !matches!(kind, PolicyNode::Policy(_)) {
            return Err(ConfigError::new(
                "all or any",
                "empty",
                "it must have at least one member",
            ));
        }
        self.nodes.push(Node { kind, end: 0 });
        let is_in_any = is_in_any || matches!(kind, PolicyNode::Any(_));
        self.shape = self
            .shape
            .max(if is_in_any { Shape::Any } else { Shape::Plain });
        for member in members {
            self.add(member, depth + 1, is_in_any)?;
        }
        self.nodes[index].end = self.nodes.len();
        if kind == PolicyNode::Any(AnyCharge::First) {
            let of_members = |set: &Self, member| {
                if let PolicyNode::Policy(policy) = set.node(member) {
                    Some(policy)
                } else {
                    None
                }
            };
            let policies: Vec<_> = self
                .members(index)
                .filter_map(|member| of_members(self, member))
                .collect();
            policies
                .into_iter()
                .for_each(|policy| self.spared[policy] = self.policies.len());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::Gcra;
    use crate::rate::Rate;

    fn policy(name: &str) -> PolicyTree {
        Policy::new(name, Gcra::new(Rate::per_minute(5)))
            .expect("a policy")
            .into()
    }

    fn error(tree: PolicyTree) -> String {
        PolicySet::new(tree).expect_err("no set").to_string()
    }

    #[test]
    fn errors_of_compositions_say_what_is_wrong_and_what_to_do() {
        let empty = "all or any is empty: it must have at least one member";
        assert_eq!(error(PolicyTree::All(Vec::new())), empty);
        assert_eq!(error(PolicyTree::Any(Vec::new(), AnyCharge::First)), empty);
        assert_eq!(
            error(PolicyTree::All(vec![
                policy("a"),
                PolicyTree::All(Vec::new())
            ])),
            empty,
            "inside another"
        );
        assert_eq!(
            error(PolicyTree::All(vec![policy("b"), policy("a"), policy("b")])),
            "policy name is \"b\" twice: each name may stand once in a set, because it tells the \
                budgets apart; rename \
             one of them"
        );
        let nested = |depth| (0..depth).fold(policy("a"), |tree, _| PolicyTree::All(vec![tree]));
        assert!(PolicySet::new(nested(128)).is_ok());
        assert_eq!(
            error(nested(129)),
            "nesting of limits is 129: all and any can be nested at most 128 deep"
        );
        let of = |count| PolicyTree::All((0..count).map(|n: u32| policy(&n.to_string())).collect());
        assert!(PolicySet::new(of(1_023)).is_ok());
        assert_eq!(
            error(of(1_024)),
            "number of policies is 1024: a set holds at most 1023"
        );
    }

    #[test]
    fn audited_policy_makes_its_set_audited_and_no_any() {
        let audited = || {
            PolicyTree::from(
                Policy::new("p", Gcra::new(Rate::per_minute(5)))
                    .expect("a policy")
                    .audit(),
            )
        };
        let any = |members| PolicyTree::Any(members, AnyCharge::First);
        let of = |members| {
            PolicySet::new(PolicyTree::All(members))
                .expect("a set")
                .has_audited()
        };
        assert!(of(vec![any(vec![policy("a")]), audited()]) && !of(vec![any(vec![policy("a")])]));
        let error = error(any(vec![policy("a"), PolicyTree::All(vec![audited()])]));
        assert!(error.contains("audit is inside an any"), "{error}");
    }
}

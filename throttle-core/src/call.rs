use std::fmt;
use std::sync::Arc;

use crate::algorithm::Algorithm;
use crate::cost::Cost;
use crate::key::Key;
use crate::policy::Policy;

/// In a call's terms: it is charged nothing.
const PEEK: u64 = 1 << 63;

/// The most that fits between a tier and the sign of a peek, and more than any capacity.
const MOST_RESERVED: u64 = (PEEK - 1) >> 8;

/// One policy's part of a request: a key, a cost and the parameters to decide by.
///
/// A call is charged its cost, or it is a [peek](Self::peeking): decided with its cost and charged
/// nothing.
///
/// ```
/// use throttle_core::Key;
/// use throttle_core::backend::Call;
///
/// let call = Call::from(Key::from("ada")).costing(3).in_tier(1);
/// assert_eq!((call.cost(), call.tier()), (3, 1));
/// assert_eq!(Call::peek(Key::from("ada")).cost(), 0);
/// assert!(Call::SKIP.key().is_none());
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Call {
    pub(crate) key: Option<Key>,
    pub(crate) cost: u64,
    /// The tier in the lowest byte, the reserve above it, and in the highest bit whether the call
    /// is a peek: one comparison [tells a usual call](Self::is_usual).
    terms: u64,
    pub(crate) own: Option<Arc<Algorithm>>,
}

impl Call {
    /// A policy that does not apply to the request.
    pub const SKIP: Self = Self {
        key: None,
        cost: 0,
        terms: 0,
        own: None,
    };

    /// `cost` units for `key`.
    #[must_use]
    pub const fn new(key: Key, cost: Cost) -> Self {
        Self {
            key: Some(key),
            cost: cost.get(),
            terms: 0,
            own: None,
        }
    }

    /// A [peek](Self::peeking) at `key`. Its cost is 0, and it is always admitted, unless a cost is
    /// [set](Self::costing).
    #[must_use]
    pub const fn peek(key: Key) -> Self {
        Self {
            key: Some(key),
            cost: 0,
            terms: PEEK,
            own: None,
        }
    }

    /// Makes the call a peek: it is decided with its cost and charged nothing.
    ///
    /// A peek is admitted or refused, and waits, as the charged call would. It leaves the state as
    /// it was, so that what [remains](crate::Decision::remaining) is what is left without the
    /// charge. In a set, a peek stands for the charged call: one that is refused refuses the
    /// request, so that nothing else is charged either, and a peek that an `any` would charge takes
    /// the charge of the members after it. A cost of 0 is a peek that every state admits.
    ///
    /// ```
    /// use throttle_core::backend::Call;
    /// use throttle_core::{Backend, FixedWindow, Key, MemoryBackend, Policy, PolicySet, Rate};
    ///
    /// let backend = MemoryBackend::new();
    /// let window = FixedWindow::new(Rate::per_day(10));
    /// let set = backend.prepare(PolicySet::new(Policy::new("api", window)?)?)?;
    /// let call = |units| Call::from(Key::from("ada")).costing(units);
    ///
    /// let peek = backend.decide_now(&set, &[call(11).peeking()]);
    /// assert!(!peek.is_admitted(), "no day has so many units");
    /// let peek = backend.decide_now(&set, &[call(10).peeking()]);
    /// assert_eq!((peek.is_admitted(), peek.remaining()), (true, 10));
    /// assert!(backend.decide_now(&set, &[call(10)]).is_admitted());
    /// # Ok::<(), throttle_core::ConfigError>(())
    /// ```
    #[must_use]
    pub const fn peeking(mut self) -> Self {
        self.terms |= PEEK;
        self
    }

    /// The same call, charged its cost.
    pub(crate) const fn charging(mut self) -> Self {
        self.terms &= !PEEK;
        self
    }

    /// Sets the tier of the policy, by its [number](crate::Policy::tier_named). Defaults to 0, the
    /// first. An unknown number stands for the first tier.
    #[must_use]
    pub fn in_tier(mut self, tier: u8) -> Self {
        self.terms = self.terms >> 8 << 8 | u64::from(tier);
        self.own = None;
        self
    }

    /// Sets parameters of the key's own in place of a tier: the numbers in a customer's row of a
    /// database, checked by [`Policy::own`]. The key has one budget, whatever its parameters.
    ///
    /// ```
    /// use throttle_core::backend::Call;
    /// use throttle_core::{Backend, Gcra, Key, MemoryBackend, Policy, PolicySet, Rate};
    ///
    /// let tiers = [
    ///     ("free", Gcra::new(Rate::per_day(60))),
    ///     ("pro", Gcra::new(Rate::per_day(600))),
    /// ];
    /// let plan = Policy::tiered("per-user", tiers)?;
    /// let own = plan.own(Gcra::new(Rate::per_day(250)))?;
    /// let backend = MemoryBackend::new();
    /// let set = backend.prepare(PolicySet::new(plan)?)?;
    ///
    /// let call = Call::from(Key::from("ada")).costing(30);
    /// assert_eq!(backend.decide_now(&set, &[call.clone()]).remaining(), 30);
    /// assert_eq!(
    ///     backend.decide_now(&set, &[call.under(own)]).remaining(),
    ///     190
    /// );
    /// # Ok::<(), throttle_core::ConfigError>(())
    /// ```
    #[must_use]
    pub fn under(mut self, parameters: Arc<Algorithm>) -> Self {
        (self.terms, self.own) = (self.terms | u64::from(Policy::OWN), Some(parameters));
        self
    }

    /// Sets the units that the call must leave free: the reserve for the requests of more important
    /// classes, which have the same key and a smaller reserve. Defaults to 0.
    ///
    /// The call is admitted if its cost and the reserve are available, and is charged the cost
    /// alone. Its [`remaining`](crate::Decision::remaining) and
    /// [`retry_after`](crate::Decision::retry_after) are those of its class, and exact. A call
    /// whose cost and reserve together exceed the capacity is never admitted. A peek reports what
    /// is left for the class. A reserve beyond 2^55 − 1 counts as that many.
    ///
    /// A charge that is [settled](crate::Charge::settle) for more than it took may debit units of
    /// the reserve, because the work is done by then.
    ///
    /// ```
    /// use throttle_core::backend::Call;
    /// use throttle_core::{Backend, FixedWindow, Key, MemoryBackend, Policy, PolicySet, Rate};
    ///
    /// let backend = MemoryBackend::new();
    /// let set = backend.prepare(PolicySet::new(Policy::new(
    ///     "api",
    ///     FixedWindow::new(Rate::per_day(10)),
    /// )?)?)?;
    /// let batch = Call::from(Key::from("ada")).costing(5).reserving(4);
    ///
    /// assert_eq!(backend.decide_now(&set, &[batch.clone()]).remaining(), 1);
    /// assert!(!backend.decide_now(&set, &[batch]).is_admitted());
    /// // The five units that are left are for more important requests.
    /// let critical = Call::from(Key::from("ada")).costing(5);
    /// assert!(backend.decide_now(&set, &[critical]).is_admitted());
    /// # Ok::<(), throttle_core::ConfigError>(())
    /// ```
    #[must_use]
    pub const fn reserving(mut self, units: u64) -> Self {
        let units = if units > MOST_RESERVED {
            MOST_RESERVED
        } else {
            units
        };
        self.terms = self.terms & PEEK | units << 8 | self.tier() as u64;
        self
    }

    /// Sets the units that the call asks for. 0 is a [peek](Self::peeking), and a peek stays one.
    #[must_use]
    pub const fn costing(mut self, units: u64) -> Self {
        self.cost = units;
        self
    }

    /// The number of the tier; [`Policy::OWN`] for [parameters of the key's own](Self::under).
    #[must_use]
    pub const fn tier(&self) -> u8 {
        self.terms as u8
    }

    /// The units that the call must [leave free](Self::reserving).
    #[must_use]
    pub const fn reserve(&self) -> u64 {
        (self.terms & !PEEK) >> 8
    }

    /// Whether the call is charged nothing: it is a [peek](Self::peeking), or its cost is 0.
    #[must_use]
    pub const fn is_peek(&self) -> bool {
        self.terms & PEEK > 0 || self.cost == 0
    }

    /// Whether the call has a tier's parameters and no reserve, and is charged its cost, or costs
    /// 0. One that names an unknown tier may count as unusual.
    #[inline(always)]
    pub(crate) const fn is_usual(&self) -> bool {
        self.terms < Policy::OWN as u64
            || (self.cost == 0 && self.terms ^ PEEK < Policy::OWN as u64)
    }

    /// The key's [own parameters](Self::under), if it has some.
    #[must_use]
    pub const fn own(&self) -> Option<&Arc<Algorithm>> {
        self.own.as_ref()
    }

    /// The parameters of `policy`, the call's, that decide: the key's own, or those of the tier.
    #[inline]
    #[must_use]
    pub fn parameters<'a>(&'a self, policy: &'a Policy) -> &'a Algorithm {
        policy.parameters(self.tier(), self.own.as_ref())
    }

    /// The key, unless the policy is skipped.
    #[must_use]
    pub const fn key(&self) -> Option<&Key> {
        self.key.as_ref()
    }

    /// The units that the call asks for, and is charged unless it is a [peek](Self::peeking).
    #[must_use]
    pub const fn cost(&self) -> u64 {
        self.cost
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call")
            .field("key", &self.key)
            .field("cost", &self.cost)
            .field("is_peek", &self.is_peek())
            .field("tier", &self.tier())
            .field("reserve", &self.reserve())
            .field("own", &self.own)
            .finish()
    }
}

impl From<Key> for Call {
    /// One unit for `key`.
    fn from(key: Key) -> Self {
        Self::new(key, Cost::ONE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::Gcra;
    use crate::rate::Rate;

    #[test]
    fn a_call_costs_one_unit_in_the_first_tier_unless_it_says_otherwise() {
        let ada = || Key::from("ada");
        let three = Cost::new(3).expect("no peek");
        for (call, key, cost, tier) in [
            (Call::from(ada()), Some(ada()), 1, 0),
            (Call::new(ada(), three), Some(ada()), 3, 0),
            (Call::peek(ada()), Some(ada()), 0, 0),
            (Call::SKIP, None, 0, 0),
            (Call::from(ada()).costing(7), Some(ada()), 7, 0),
            (Call::from(ada()).costing(0), Some(ada()), 0, 0),
            (Call::from(ada()).in_tier(2), Some(ada()), 1, 2),
            (
                Call::new(ada(), three).in_tier(255).costing(u64::MAX),
                Some(ada()),
                u64::MAX,
                255,
            ),
        ] {
            assert_eq!(
                (call.key(), call.cost(), call.tier()),
                (key.as_ref(), cost, tier),
                "{call:?}"
            );
            assert_eq!(call.reserve(), 0, "{call:?}");
        }
        let differ = [
            Call::from(Key::from("eve")),
            Call::from(ada()).costing(2),
            Call::from(ada()).in_tier(1),
            Call::from(ada()).reserving(1),
            Call::from(ada()).peeking(),
        ];
        assert!(
            differ.iter().all(|other| *other != Call::from(ada())),
            "each part counts"
        );
    }

    #[test]
    fn tier_and_reserve_are_set_in_any_order() {
        let own = Arc::new(Gcra::new(Rate::per_day(9)).build().expect("parameters"));
        let call = || Call::from(Key::from("ada"));
        let cases = [0, 1, 1 << 53, MOST_RESERVED, u64::MAX];
        for (reserve, peeks) in cases
            .iter()
            .flat_map(|reserve| [(*reserve, false), (*reserve, true)])
        {
            let kept = reserve.min(MOST_RESERVED);
            let call = || if peeks { call().peeking() } else { call() };
            for (call, tier) in [
                (call().reserving(reserve), 0),
                (call().reserving(reserve).in_tier(3), 3),
                (call().in_tier(3).reserving(7).reserving(reserve), 3),
                (call().under(own.clone()).reserving(reserve).in_tier(2), 2),
                (
                    call().in_tier(3).reserving(reserve).under(own.clone()),
                    Policy::OWN,
                ),
                (call().under(own.clone()).reserving(reserve), Policy::OWN),
            ] {
                assert_eq!((call.tier(), call.reserve()), (tier, kept), "{call:?}");
                assert_eq!(call.own().is_some(), tier == Policy::OWN, "{call:?}");
                let has_usual_terms = tier != Policy::OWN && reserve == 0;
                assert_eq!(call.is_usual(), has_usual_terms && !peeks, "{call:?}");
                assert_eq!(call.costing(0).is_usual(), has_usual_terms);
            }
        }
    }

    #[test]
    fn a_peek_stays_one_whatever_else_is_set() {
        let own = Arc::new(Gcra::new(Rate::per_day(9)).build().expect("parameters"));
        let peek = Call::peek(Key::from("ada"));
        let changed = peek
            .costing(5)
            .reserving(2)
            .in_tier(1)
            .under(own)
            .in_tier(3);
        assert!(changed.is_peek());
        assert_eq!(
            (changed.cost(), changed.reserve(), changed.tier()),
            (5, 2, 3)
        );
        assert!(!Call::from(Key::from("ada")).is_peek());
        assert!(Call::from(Key::from("ada")).costing(0).is_peek());
    }

    #[test]
    fn a_call_shows_its_tier_and_its_reserve_and_no_key() {
        let call = Call::from(Key::from("ada")).in_tier(2).reserving(3);
        let shown = "Call { key: Some(Key(text)), cost: 1, is_peek: false, tier: 2, reserve: 3, own: None }";
        assert_eq!(format!("{call:?}"), shown);
    }

    #[test]
    fn a_call_is_no_larger_for_its_reserve() {
        assert_eq!(
            size_of::<Call>(),
            size_of::<(Option<Key>, u64, u8, Option<Arc<Algorithm>>)>()
        );
    }
}

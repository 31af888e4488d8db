use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use crate::algorithm::{Algorithm, Cell, State, StateCharge};
use crate::call::Call;
use crate::decided_by::DecidedBy;
use crate::decision::Decision;
use crate::key::Key;
use crate::policy::Policy;
use crate::time::Timestamp;

/// What an admitted request took from each key, for a backend to settle once.
///
/// Settling consumes the receipt, so it is not `Clone`. A [`Charge`](crate::Charge) is a receipt
/// with its limiter.
///
/// ```
/// use std::sync::Arc;
/// use throttle_core::backend::{Call, Receipt};
/// use throttle_core::{Backend, Gcra, Key, MemoryBackend, Policy, PolicySet, Rate};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let backend = MemoryBackend::new();
/// let set = PolicySet::new(Policy::new("tokens", Gcra::new(Rate::per_day(1_000)))?)?;
/// let prepared = Arc::new(backend.prepare(set)?);
/// let calls = [Call::from(Key::from("ada")).costing(400)]; // an estimate
/// let decision = backend.decide(&prepared, &calls).await?;
///
/// let receipt = Receipt::of(&decision, &calls).expect("it was charged");
/// assert_eq!(receipt.taken(0), 400);
/// backend.settle(&prepared, receipt.actual(150)).await?; // what it took in the end
///
/// let decision = backend.decide(&prepared, &[Call::peek(Key::from("ada"))]).await?;
/// assert!(decision.remaining() >= 850);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Debug, PartialEq, Eq)]
#[must_use = "dropping a receipt keeps what was taken"]
pub struct Receipt {
    pub(crate) items: SmallVec<[ReceiptItem; 3]>,
}

/// What one policy took, and the units that it is settled with.
///
/// ```
/// use throttle_core::backend::{Call, Receipt};
/// use throttle_core::{Gcra, Key, Limiter, Policy, Rate};
///
/// let limiter = Limiter::in_memory(Policy::new("tokens", Gcra::new(Rate::per_day(1_000)))?)?;
/// let decision = limiter.check("ada", 400);
/// let receipt = Receipt::of(&decision, &[Call::from(Key::from("ada")).costing(400)])
///     .expect("it was charged");
/// let item = &receipt.items()[0];
/// assert_eq!(
///     (item.policy(), item.key(), item.taken()),
///     (0, &Key::from("ada"), 400)
/// );
/// # Ok::<(), throttle_core::ConfigError>(())
/// ```
#[derive(Debug, PartialEq, Eq)]
pub struct ReceiptItem {
    pub(crate) policy: usize,
    pub(crate) key: Key,
    pub(crate) overflow: bool,
    pub(crate) decided_by: DecidedBy,
    pub(crate) tier: u8,
    pub(crate) own: Option<Arc<Algorithm>>,
    pub(crate) taken: StateCharge,
    pub(crate) actual: u64,
}

impl ReceiptItem {
    /// The policy's place in the set.
    #[must_use]
    pub const fn policy(&self) -> usize {
        self.policy
    }

    /// The key that was charged.
    #[must_use]
    pub const fn key(&self) -> &Key {
        &self.key
    }

    /// Units taken.
    #[must_use]
    pub const fn taken(&self) -> u64 {
        self.taken.cost
    }

    /// Units that the charge is settled with.
    #[must_use]
    pub const fn actual(&self) -> u64 {
        self.actual
    }

    /// Divides the item: returns a receipt that gives back `units` of those taken, at most all of
    /// them, for the backend to settle now. The item keeps the others, to be settled at another
    /// time.
    ///
    /// ```
    /// use throttle_core::backend::{Call, Receipt};
    /// use throttle_core::{Gcra, Key, Limiter, Policy, Rate};
    ///
    /// let limiter = Limiter::in_memory(Policy::new("tokens", Gcra::new(Rate::per_day(1_000)))?)?;
    /// let decision = limiter.check("ada", 400);
    /// let receipt = Receipt::of(&decision, &[Call::from(Key::from("ada")).costing(400)])
    ///     .expect("it was charged");
    /// let mut item = receipt.into_items().next().expect("of one policy");
    /// let unused = item.give_back(250);
    /// assert_eq!(
    ///     (
    ///         unused.items()[0].taken(),
    ///         unused.items()[0].actual(),
    ///         item.taken()
    ///     ),
    ///     (400, 150, 150)
    /// );
    /// # Ok::<(), throttle_core::ConfigError>(())
    /// ```
    pub fn give_back(&mut self, units: u64) -> Receipt {
        let (taken, kept) = (self.taken, self.taken.cost.saturating_sub(units));
        (self.taken.cost, self.actual) = (kept, kept);
        let (key, own) = (self.key.clone(), self.own.clone());
        Receipt::from(Self {
            key,
            own,
            taken,
            actual: kept,
            ..*self
        })
    }

    /// Two numbers by which the algorithm finds the charge when it is settled. Only the algorithm
    /// reads them. For backends that settle in another process.
    #[must_use]
    pub const fn mark(&self) -> (i64, u64) {
        (self.taken.mark.at, self.taken.mark.frac)
    }

    /// The tier of the policy that was charged; 0 for a policy without tiers, and [`Policy::OWN`]
    /// for parameters of the key's own.
    #[must_use]
    pub const fn tier(&self) -> u8 {
        self.tier
    }

    /// The parameters of `policy`, the item's, that the key was charged under.
    #[must_use]
    pub fn parameters<'a>(&'a self, policy: &'a Policy) -> &'a Algorithm {
        policy.parameters(self.tier, self.own.as_ref())
    }

    /// What made the charge. Only charges of the [store](DecidedBy::Store) can be settled there.
    #[must_use]
    pub const fn decided_by(&self) -> DecidedBy {
        self.decided_by
    }

    /// Settles this item of a policy on the key's state, for backends that keep [`State`]s. The
    /// state then names the parameters that wrote it. An item that was not charged at the store
    /// changes nothing.
    pub fn apply_to(&self, policy: &Policy, state: &mut State, now: Timestamp) {
        if self.decided_by == DecidedBy::Store {
            let by = self.parameters(policy);
            let mut cell = Cell::new(by, state.writer(), state.take(), now);
            cell.settle(self.taken, self.actual);
            state.put(cell, by, true);
        }
    }
}

impl Receipt {
    /// The receipt of a decision about `calls`; `None` if nothing was charged.
    ///
    /// Call it once per decision: two receipts of one decision would refund it twice.
    #[must_use]
    pub fn of(decision: &Decision, calls: &[Call]) -> Option<Self> {
        let statuses = decision.statuses().iter().enumerate();
        let items: SmallVec<[ReceiptItem; 3]> = statuses
            .filter_map(|(policy, status)| {
                let taken = status.taken;
                // What an exception's limit has charged stays charged: the policy cannot tell
                // whether it still counts.
                let call = calls
                    .get(policy)
                    .filter(|_| taken.cost > 0 && !status.is_excepted())?;
                let (key, own) = (call.key.clone()?, call.own.clone());
                let (overflow, decided_by, tier) =
                    (status.overflow, status.decided_by, status.tier);
                Some(ReceiptItem {
                    policy,
                    key,
                    overflow,
                    decided_by,
                    tier,
                    own,
                    taken,
                    actual: taken.cost,
                })
            })
            .collect();
        if items.is_empty() {
            None
        } else {
            Some(Self { items })
        }
    }

    /// The receipt of a call that was charged its cost at an instant, for programs that settle
    /// without the decision: units come back with another request, in another process, or from a
    /// job that ran elsewhere. `index` is that of `policy` in the set. `None` if the call has no
    /// key.
    ///
    /// It is settled as any receipt is. Nothing comes back to a window that has ended, nor more
    /// than the key has used. A sliding log knows a charge by its exact instant, and a sliding
    /// window by the part of the window that the instant is in. The receipt of a call of cost 0
    /// debits what it is [settled with](Self::actual), as far as units remain; a sliding window or
    /// log debits only what has been charged at that instant. A leaky bucket gives back only what
    /// was charged last. A key that was exempt at the instant gets units back that it did not pay.
    /// An index that the set does not have settles nothing.
    ///
    /// ```
    /// use throttle_core::backend::{Call, Receipt};
    /// use throttle_core::{Clock, FixedWindow, Key, Limiter, Policy, Rate, SystemClock};
    ///
    /// let policy = Policy::new("tokens", FixedWindow::new(Rate::per_day(1_000)))?;
    /// let limiter = Limiter::in_memory(policy.clone())?;
    /// assert_eq!(limiter.check("ada", 400).remaining(), 600);
    ///
    /// // A later request says that 150 of them were not needed.
    /// let (now, unused) = (
    ///     SystemClock::new().now(),
    ///     Call::from(Key::from("ada")).costing(150),
    /// );
    /// let receipt = Receipt::taken_at(now, 0, &policy, &unused).expect("it has a key");
    /// drop(limiter.settle(receipt.actual(0)));
    /// assert_eq!(limiter.peek("ada").remaining(), 750);
    /// # Ok::<(), throttle_core::ConfigError>(())
    /// ```
    #[must_use]
    pub fn taken_at(at: Timestamp, index: usize, policy: &Policy, call: &Call) -> Option<Self> {
        let key = call.key.clone()?;
        let (_, taken) = Cell::fresh(call.parameters(policy), at).take(1);
        Some(Self::from(ReceiptItem {
            policy: index,
            key,
            overflow: false,
            decided_by: DecidedBy::Store,
            tier: call.tier(),
            own: call.own.clone(),
            taken: StateCharge {
                cost: call.cost,
                ..taken
            },
            actual: call.cost,
        }))
    }

    /// What was charged, one item per policy.
    #[must_use]
    pub fn items(&self) -> &[ReceiptItem] {
        &self.items
    }

    /// The items, for callers that keep many receipts for long. [`From`] turns an item into a
    /// receipt again.
    pub fn into_items(self) -> impl Iterator<Item = ReceiptItem> {
        self.items.into_iter()
    }

    /// Units taken from a policy, named by its index in the set.
    #[must_use]
    pub fn taken(&self, policy: usize) -> u64 {
        self.items
            .iter()
            .filter(|item| item.policy == policy)
            .map(|item| item.taken.cost)
            .sum()
    }

    /// Sets the actually used units for every charged policy. 0 refunds everything.
    pub fn actual(mut self, units: u64) -> Self {
        self.items.iter_mut().for_each(|item| item.actual = units);
        self
    }

    /// Sets the units that the request actually used of a policy, named by its index in the set.
    /// Other policies are not changed.
    pub fn actual_of(mut self, policy: usize, units: u64) -> Self {
        self.items
            .iter_mut()
            .filter(|item| item.policy == policy)
            .for_each(|item| item.actual = units);
        self
    }

    /// Removes the charge of the policy at a place in the set and returns it as a receipt of its
    /// own, to be settled at another time. `None` if the receipt has no such charge.
    ///
    /// ```
    /// use throttle_core::backend::{Call, Receipt};
    /// use throttle_core::{
    ///     Gcra, Key, Limiter, MemoryBackend, Policy, PolicySet, PolicyTree, Rate,
    /// };
    ///
    /// let policy = |name| Policy::new(name, Gcra::new(Rate::per_day(10)));
    /// let set = PolicySet::new(PolicyTree::All(vec![
    ///     policy("minute")?.into(),
    ///     policy("month")?.into(),
    /// ]))?;
    /// let (memory, calls) = (
    ///     MemoryBackend::new(),
    ///     [Call::from(Key::from("ada")), Call::from(Key::from("ada"))],
    /// );
    /// let limiter = Limiter::new(memory.clone(), set.clone())?;
    ///
    /// let decision = memory.decide_now(&throttle_core::Backend::prepare(&memory, set)?, &calls);
    /// let mut receipt = Receipt::of(&decision, &calls).expect("both were charged");
    /// let mut month = receipt.take(1).expect("it is there");
    /// assert!(receipt.take(1).is_none(), "and only once");
    /// assert_eq!(
    ///     (receipt.taken(0), receipt.taken(1), month.taken(1)),
    ///     (1, 0, 1)
    /// );
    /// receipt.take_over(&mut month); // after all
    /// assert_eq!((receipt.items().len(), month.items().len()), (2, 0));
    /// drop(limiter.settle(receipt.actual(0)));
    /// assert_eq!(limiter.peek("ada").remaining(), 10);
    /// # Ok::<(), throttle_core::ConfigError>(())
    /// ```
    pub fn take(&mut self, policy: usize) -> Option<Self> {
        let at = self.items.iter().position(|item| item.policy == policy)?;
        Some(Self {
            items: smallvec![self.items.remove(at)],
        })
    }

    /// Moves the items of another receipt of the same set into this one, to be settled in one step.
    /// If this receipt has an item of a policy already, the other receipt keeps its item of that
    /// policy, because one step settles one charge of each policy.
    pub fn take_over(&mut self, other: &mut Self) {
        let items = std::mem::take(&mut other.items).into_iter();
        let (staying, coming): (SmallVec<[ReceiptItem; 3]>, SmallVec<[ReceiptItem; 3]>) =
            items.partition(|item| self.items.iter().any(|own| own.policy == item.policy));
        self.items.extend(coming);
        other.items = staying;
    }

    /// Removes the charges of a local share, and returns them as a receipt for the share's memory.
    pub(crate) fn take_local(&mut self) -> Self {
        let items = std::mem::take(&mut self.items).into_iter();
        let (mut local, store): (SmallVec<[ReceiptItem; 3]>, SmallVec<[ReceiptItem; 3]>) =
            items.partition(|item| matches!(item.decided_by, DecidedBy::Local(_)));
        local
            .iter_mut()
            .for_each(|item| item.decided_by = DecidedBy::Store);
        self.items = store;
        Self { items: local }
    }

    /// The charges of this receipt that a share has noted, where `capacity` is what the share holds
    /// of each policy.
    pub(crate) fn noted(&self, capacity: impl Fn(&ReceiptItem) -> Option<u64>) -> Self {
        let noted = self
            .items
            .iter()
            .filter(|item| item.decided_by == DecidedBy::Store)
            .filter_map(|item| {
                let most = capacity(item)?;
                let taken = StateCharge {
                    cost: item.taken.cost.min(most),
                    ..item.taken
                };
                // Units beyond the share were never noted. Units that the request owes beyond its
                // charge are owed here too.
                let owed = item.actual.saturating_sub(item.taken.cost);
                let actual = item.actual.min(taken.cost).saturating_add(owed);
                let (key, own) = (item.key.clone(), item.own.clone());
                Some(ReceiptItem {
                    key,
                    own,
                    overflow: false,
                    taken,
                    actual,
                    ..*item
                })
            });
        Self {
            items: noted.collect(),
        }
    }
}

impl From<ReceiptItem> for Receipt {
    /// A receipt of what one policy took.
    fn from(item: ReceiptItem) -> Self {
        Self {
            items: SmallVec::from_iter([item]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receipt(policy: usize, cost: u64) -> Receipt {
        let (key, decided_by, taken) = (
            Key::from("ada"),
            DecidedBy::Store,
            StateCharge {
                cost,
                ..StateCharge::default()
            },
        );
        ReceiptItem {
            policy,
            key,
            overflow: false,
            decided_by,
            tier: 0,
            own: None,
            taken,
            actual: cost,
        }
        .into()
    }

    /// An unknown number stands for the first tier, and a key's own parameters are no tier.
    #[test]
    fn an_item_has_the_parameters_that_decided() {
        use crate::{Backend, Gcra, MemoryBackend, PolicySet, Rate};

        let gcra = |count| Gcra::new(Rate::per_day(count));
        let policy = Policy::tiered("p", [("low", gcra(5)), ("high", gcra(50))]).expect("tiers");
        let own = policy.own(gcra(9)).expect("parameters");
        let ada = || Call::from(Key::from("ada"));
        for (call, tier, capacity) in [
            (ada().in_tier(1), 1, 50),
            (ada().in_tier(9), 0, 5),
            (ada().under(own), Policy::OWN, 9),
        ] {
            let (memory, calls) = (MemoryBackend::new(), [call]);
            let set = memory
                .prepare(PolicySet::new(policy.clone()).expect("a set"))
                .expect("a set");
            let receipt = Receipt::of(&memory.decide_now(&set, &calls), &calls).expect("a charge");
            let item = &receipt.items()[0];
            assert_eq!(
                (item.tier(), item.parameters(&policy).capacity()),
                (tier, capacity)
            );
        }
    }

    /// Every algorithm but the sliding log, which knows charges by their instants.
    fn algorithms() -> Vec<Algorithm> {
        use crate::algorithm::builders::*;
        use crate::rate::Rate;

        let rate = Rate::per_day(10);
        let built = [
            FixedWindow::new(rate).build(),
            Gcra::new(rate).build(),
            TokenBucket::new(rate).build(),
            LeakyMeter::new(rate).build(),
            IntervalBucket::new(10)
                .refill(10, std::time::Duration::from_secs(86_400))
                .build(),
            SlidingWindow::new(rate).build(),
            CalendarQuota::daily(10).build(),
        ];
        built
            .into_iter()
            .map(|built| built.expect("valid"))
            .collect()
    }

    /// What is left of ten units, of which `used` were charged, after a receipt without a decision.
    fn left_after(algorithm: Algorithm, used: u64, (taken, actual): (u64, u64)) -> u64 {
        use crate::{Limiter, ManualClock, MemoryBackend, PolicySet};

        let clock = ManualClock::default();
        let memory = MemoryBackend::builder().clock(clock).build();
        let policy = Policy::new("p", algorithm).expect("a policy");
        let set = PolicySet::new(policy.clone()).expect("a set");
        let limiter = Limiter::new(memory, set).expect("a limiter");
        assert!(used == 0 || limiter.check("ada", used).is_admitted());
        let call = Call::from(Key::from("ada")).costing(taken);
        let now = crate::Clock::now(limiter.backend().clock());
        let receipt = Receipt::taken_at(now, 0, &policy, &call).expect("a key");
        drop(limiter.settle(receipt.actual(actual)));
        limiter.peek("ada").remaining()
    }

    #[test]
    fn receipt_without_a_decision_gives_back_at_most_what_was_used() {
        for algorithm in algorithms() {
            let left = |used, back| left_after(algorithm, used, (back, 0));
            let name = algorithm.name();
            assert_eq!([left(7, 3), left(7, 7)], [6, 10], "{name}");
            assert_eq!([left(7, 10), left(0, 10)], [10, 10], "{name}");
        }
    }

    #[test]
    fn receipt_of_no_units_debits_as_far_as_units_remain() {
        for algorithm in algorithms() {
            let left = |used, debit| left_after(algorithm, used, (0, debit));
            let name = algorithm.name();
            assert_eq!([left(7, 2), left(7, 9)], [1, 0], "{name}");
            let unused = if name == "sliding_window" { 10 } else { 6 };
            assert_eq!(left(0, 4), unused, "{name}");
        }
    }

    #[test]
    fn call_without_a_key_has_no_receipt() {
        use crate::{Gcra, Rate, Timestamp};

        let policy = Policy::new("p", Gcra::new(Rate::per_day(1))).expect("a policy");
        assert_eq!(
            Receipt::taken_at(Timestamp::EPOCH, 0, &policy, &Call::SKIP),
            None
        );
    }

    #[test]
    fn a_receipt_takes_over_one_charge_of_each_policy() {
        let (mut own, mut other) = (receipt(0, 1), receipt(0, 2));
        other.take_over(&mut receipt(1, 3));
        own.take_over(&mut other);
        assert_eq!((own.taken(0), own.taken(1), own.items().len()), (1, 3, 2));
        assert_eq!(
            (other.taken(0), other.items().len()),
            (2, 1),
            "settled in a step of its own"
        );
    }

    #[test]
    fn a_share_notes_what_a_request_owes_beyond_its_charge() {
        let noted = |actual: u64| {
            let noted = receipt(0, 10).actual(actual).noted(|_| Some(3));
            (noted.taken(0), noted.items()[0].actual)
        };
        assert_eq!(noted(12), (3, 5), "two more than it was charged");
        assert_eq!(noted(7), (3, 3), "it used more than was noted");
        assert_eq!(noted(2), (3, 2));
    }

    #[test]
    fn the_items_of_a_receipt_are_one_for_each_charge_in_their_order() {
        let mut whole = receipt(2, 5);
        whole.take_over(&mut receipt(0, 7));
        let whole = whole.actual_of(0, 3);
        let item = |item: &ReceiptItem| (item.policy(), item.taken(), item.actual());
        assert_eq!(
            whole.items().iter().map(item).collect::<Vec<_>>(),
            [(2, 5, 5), (0, 7, 3)]
        );
        let alone: Vec<Receipt> = whole.into_items().map(Receipt::from).collect();
        assert_eq!(
            alone
                .iter()
                .map(|one| one.items().iter().map(item).collect())
                .collect::<Vec<Vec<_>>>(),
            [[(2, 5, 5)], [(0, 7, 3)]]
        );
    }

    #[test]
    fn an_item_that_gives_units_back_keeps_the_others_as_taken_and_as_used() {
        for (units, kept) in [(0, 10), (4, 6), (10, 0), (11, 0), (u64::MAX, 0)] {
            let mut item = receipt(2, 10)
                .actual(7)
                .into_items()
                .next()
                .expect("of one policy");
            let back = item.give_back(units);
            assert_eq!(
                (item.taken(), item.actual()),
                (kept, kept),
                "{units} of 10 are given back"
            );
            let [back] = back.items() else {
                panic!("of one policy")
            };
            assert_eq!(
                (back.taken(), back.actual(), back.policy()),
                (10, kept, 2),
                "{units} of 10 are given back"
            );
            assert_eq!(back.key(), item.key());
        }
    }
}

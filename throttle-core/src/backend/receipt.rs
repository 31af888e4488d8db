use smallvec::{SmallVec, smallvec};

use super::call::Call;
use crate::algorithm::{Algorithm, State, Taken};
use crate::decided_by::DecidedBy;
use crate::decision::Decision;
use crate::key::Key;
use crate::policy::Policy;
use crate::time::Timestamp;

/// What an admitted request took and of whom, for a backend to settle once.
///
/// Not `Clone`: settling consumes it. A [`Charge`](crate::Charge) is a receipt with the limiter it belongs to.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "dropping a receipt keeps what was taken"]
pub struct Receipt {
    pub(crate) items: SmallVec<[ReceiptItem; 3]>,
}

/// What one policy took, and what it shall have been.
#[derive(Debug, PartialEq, Eq)]
pub struct ReceiptItem {
    pub(crate) policy: usize,
    pub(crate) key: Key,
    pub(crate) overflow: bool,
    pub(crate) decided_by: DecidedBy,
    pub(crate) tier: u8,
    pub(crate) taken: Taken,
    pub(crate) actual: u64,
}

impl ReceiptItem {
    /// The policy's place in the set.
    #[must_use]
    pub const fn policy(&self) -> usize {
        self.policy
    }

    /// Whose budget was charged.
    #[must_use]
    pub const fn key(&self) -> &Key {
        &self.key
    }

    /// Units taken.
    #[must_use]
    pub const fn taken(&self) -> u64 {
        self.taken.cost
    }

    /// Units that shall have been taken.
    #[must_use]
    pub const fn actual(&self) -> u64 {
        self.actual
    }

    /// Where the charge stands in its algorithm's time, as two numbers that mean something to it alone: for backends
    /// that settle in another process.
    #[must_use]
    pub const fn mark(&self) -> (i64, u64) {
        (self.taken.mark.at, self.taken.mark.frac)
    }

    /// The tier of the policy that was charged; 0 for a policy without tiers.
    #[must_use]
    pub const fn tier(&self) -> u8 {
        self.tier
    }

    /// Who charged it. Only what the [store](DecidedBy::Store) took can be settled there.
    #[must_use]
    pub const fn decided_by(&self) -> DecidedBy {
        self.decided_by
    }

    /// Settles this item on the key's state, for backends that keep [`State`]s. An item that was not charged at the store
    /// changes nothing.
    pub fn apply(&self, algorithm: &Algorithm, state: &mut State, now: Timestamp) {
        if self.decided_by == DecidedBy::Store {
            algorithm.settle(&mut state.repr, now, self.taken, self.actual);
        }
    }

    /// Settles like [`apply`](Self::apply) on a state of a policy that may have tiers. The state may have been carried
    /// over to another tier since the charge.
    pub fn apply_to(&self, policy: &Policy, state: &mut State, now: Timestamp) {
        if self.decided_by == DecidedBy::Store {
            let writer = state.under.clone();
            let mut cell = policy.cell(self.tier, state, writer.as_deref(), now);
            cell.settle(self.taken, self.actual);
            policy.put_back(cell, state);
        }
    }
}

impl Receipt {
    /// The receipt of a decision about `calls`; `None` if nothing was charged.
    ///
    /// Ask once for each decision: two receipts of one decision would give back twice.
    #[must_use]
    pub fn of(decision: &Decision, calls: &[Call]) -> Option<Self> {
        let statuses = decision.statuses().iter().enumerate();
        let items: SmallVec<[ReceiptItem; 3]> = statuses
            .filter_map(|(policy, status)| {
                let taken = status.taken;
                let key = calls.get(policy).filter(|_| taken.cost > 0)?.key.clone()?;
                let (overflow, decided_by, tier) = (status.overflow, status.decided_by, status.tier);
                Some(ReceiptItem { policy, key, overflow, decided_by, tier, taken, actual: taken.cost })
            })
            .collect();
        if items.is_empty() { None } else { Some(Self { items }) }
    }

    /// What was charged, one item per policy.
    #[must_use]
    pub fn items(&self) -> &[ReceiptItem] {
        &self.items
    }

    /// The items, taken apart: whoever keeps many receipts for long keeps them so. [`From`] puts one together again.
    pub fn into_items(self) -> impl Iterator<Item = ReceiptItem> {
        self.items.into_iter()
    }

    /// Units taken from the policy at a place in the set.
    #[must_use]
    pub fn taken(&self, policy: usize) -> u64 {
        self.items.iter().filter(|item| item.policy == policy).map(|item| item.taken.cost).sum()
    }

    /// Sets what the request really used, of every policy that was charged. 0 gives everything back.
    pub fn actual(mut self, units: u64) -> Self {
        self.items.iter_mut().for_each(|item| item.actual = units);
        self
    }

    /// Sets what the request really used of the policy at one place in the set; the others keep what they took unless
    /// told otherwise.
    pub fn actual_of(mut self, policy: usize, units: u64) -> Self {
        self.items.iter_mut().filter(|item| item.policy == policy).for_each(|item| item.actual = units);
        self
    }

    /// Takes out what the policy at one place in the set was charged, as a receipt of its own, to be settled at another
    /// time. `None` if nothing of it is here.
    ///
    /// ```
    /// use throttle_core::{Gcra, Key, PolicySet, Limiter, MemoryBackend, Policy, Rate, PolicyTree};
    /// use throttle_core::backend::{Call, Receipt};
    ///
    /// let policy = |name| Policy::new(name, Gcra::new(Rate::per_day(10)));
    /// let set = PolicySet::new(PolicyTree::All(vec![policy("minute")?.into(), policy("month")?.into()]))?;
    /// let (memory, calls) = (MemoryBackend::new(), [Call::from(Key::from("ada")), Call::from(Key::from("ada"))]);
    /// let limiter = Limiter::new(memory.clone(), set.clone())?;
    ///
    /// let decision = memory.decide_now(&throttle_core::Backend::prepare(&memory, set)?, &calls);
    /// let mut receipt = Receipt::of(&decision, &calls).expect("both were charged");
    /// let mut month = receipt.take(1).expect("it is there");
    /// assert!(receipt.take(1).is_none(), "and only once");
    /// assert_eq!((receipt.taken(0), receipt.taken(1), month.taken(1)), (1, 0, 1));
    /// receipt.take_over(&mut month); // after all
    /// assert_eq!((receipt.items().len(), month.items().len()), (2, 0));
    /// drop(limiter.settle(receipt.actual(0)));
    /// assert_eq!(limiter.peek("ada").remaining(), 10);
    /// # Ok::<(), throttle_core::ConfigError>(())
    /// ```
    pub fn take(&mut self, policy: usize) -> Option<Self> {
        let at = self.items.iter().position(|item| item.policy == policy)?;
        Some(Self { items: smallvec![self.items.remove(at)] })
    }

    /// Takes over what another receipt of the same limits holds, to be settled in one step, but for policies that are here
    /// already: one step settles one charge of each. Those stay where they are.
    pub fn take_over(&mut self, other: &mut Self) {
        let items = std::mem::take(&mut other.items).into_iter();
        let (staying, coming): (SmallVec<[ReceiptItem; 3]>, SmallVec<[ReceiptItem; 3]>) =
            items.partition(|item| self.items.iter().any(|own| own.policy == item.policy));
        self.items.extend(coming);
        other.items = staying;
    }

    /// Takes out what a local share charged, as a receipt for the memory that the share is kept in.
    pub(crate) fn take_local(&mut self) -> Self {
        let items = std::mem::take(&mut self.items).into_iter();
        let (mut local, store): (SmallVec<[ReceiptItem; 3]>, SmallVec<[ReceiptItem; 3]>) =
            items.partition(|item| matches!(item.decided_by, DecidedBy::Local(_)));
        local.iter_mut().for_each(|item| item.decided_by = DecidedBy::Store);
        self.items = store;
        Self { items: local }
    }

    /// The same for what a share has noted of this receipt, of which it can hold so much of each policy.
    pub(crate) fn noted(&self, capacity: impl Fn(&ReceiptItem) -> Option<u64>) -> Self {
        let noted = self.items.iter().filter(|item| item.decided_by == DecidedBy::Store).filter_map(|item| {
            let most = capacity(item)?;
            let taken = Taken { cost: item.taken.cost.min(most), ..item.taken };
            // What was more than the share was never noted, and what is owed beyond the charge is owed here too.
            let owed = item.actual.saturating_sub(item.taken.cost);
            let actual = item.actual.min(taken.cost).saturating_add(owed);
            Some(ReceiptItem { key: item.key.clone(), overflow: false, taken, actual, ..*item })
        });
        Self { items: noted.collect() }
    }
}

impl From<ReceiptItem> for Receipt {
    /// A receipt of what one policy took.
    fn from(item: ReceiptItem) -> Self {
        Self { items: SmallVec::from_iter([item]) }
    }
}

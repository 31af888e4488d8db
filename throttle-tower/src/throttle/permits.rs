//! Permits of requests in flight: how many are taken, and which of them a request gets.
//!
//! `request_guard` keeps what a request got, and `body` drops that guard at the end of the
//! response's body.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard};

use smallvec::SmallVec;
use throttle_core::backend::Call;
use throttle_core::{AnyCharge, Key, PolicyName};

use crate::event::{Activity, Observers};
use crate::limit::{PermitLimit, PermitSet, PermitTree};
use crate::lock::lock;
use crate::throttle::PermitSteps;

/// All of a layer's limits on requests in flight, and how many permits of each are taken.
#[derive(Default)]
pub(crate) struct Permits {
    set: PermitSet,
    /// The index of each limit's count.
    counts: Vec<usize>,
    taken: Arc<Mutex<PermitCounts>>,
}

/// The permits that are taken, by limit and key. One lock for all, so that a request takes all its
/// permits in one step.
#[derive(Default)]
struct PermitCounts(Vec<(PolicyName, HashMap<Key, u64>)>);

impl PermitCounts {
    /// The index of a limit's count. Limits of one name, which replace each other, count together.
    fn index(&mut self, name: &PolicyName) -> usize {
        let known = self.0.iter().position(|(own, _)| own == name);
        known.unwrap_or_else(|| {
            self.0.push((name.clone(), HashMap::new()));
            self.0.len() - 1
        })
    }
}

/// What a request needs: a call for each limit on requests in flight, whose cost is in permits.
pub(crate) type Needs = SmallVec<[Call; 1]>;

/// Limits on requests in flight, by their indices among them.
pub(crate) type Indices = SmallVec<[usize; 2]>;

type TakenPermits = SmallVec<[(usize, Key, u64); 2]>;

impl Permits {
    pub(crate) fn new(set: PermitSet) -> Self {
        Self::default().replaced_by(set)
    }

    /// Limits that replace these while requests are in flight. One of the same name counts on.
    pub(crate) fn replaced_by(&self, set: PermitSet) -> Self {
        let mut taken = self.lock();
        let counts = set.limits.iter().map(|limit| taken.index(&limit.name));
        Self {
            counts: counts.collect(),
            set,
            taken: Arc::clone(&self.taken),
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.set.limits.is_empty()
    }

    /// What its limits need, if there are some.
    #[inline]
    pub(super) fn steps(&self) -> Option<&'static PermitSteps> {
        self.set.limits.first().map(|limit| limit.steps)
    }

    pub(crate) fn limits(&self) -> &[PermitLimit] {
        &self.set.limits
    }

    /// How many permits of a limit are taken, of all keys together.
    pub(crate) fn taken(&self, name: &str) -> Option<u64> {
        let mut limits = self.limits().iter();
        let index = limits.position(|own| own.name.as_str() == name)?;
        Some(self.lock().0[self.counts[index]].1.values().sum())
    }

    /// How many permits are free for the key and the class of a call.
    pub(crate) fn free(&self, index: usize, call: &Call) -> u64 {
        self.free_of(&self.lock(), index, call)
    }

    fn free_of(&self, taken: &PermitCounts, index: usize, call: &Call) -> u64 {
        let counts = &taken.0[self.counts[index]].1;
        let taken = call.key().and_then(|key| counts.get(key)).copied();
        let most = self.set.limits[index].most.saturating_sub(call.reserve());
        most.saturating_sub(taken.unwrap_or(0))
    }

    /// Looks whether there are enough permits, and takes none.
    ///
    /// # Errors
    ///
    /// The limits that have too few left.
    pub(crate) fn look(&self, calls: &[Call]) -> Result<(), Indices> {
        self.steps()
            .map_or(Ok(()), |steps| (steps.look)(self, calls))
    }

    pub(super) fn look_at_all(&self, calls: &[Call]) -> Result<(), Indices> {
        self.choose(&self.lock(), calls).map(drop)
    }

    /// Takes all permits that a request needs in one step, or none.
    ///
    /// # Errors
    ///
    /// The limits that have too few left.
    #[inline(always)]
    pub(crate) fn enter(
        self: &Arc<Self>,
        calls: &[Call],
        observers: &Observers,
    ) -> Result<Option<Arc<HeldPermits>>, Indices> {
        match self.steps() {
            None => Ok(None),
            Some(steps) => (steps.take)(self, calls, observers),
        }
    }

    pub(super) fn take(
        self: &Arc<Self>,
        calls: &[Call],
        observers: &Observers,
    ) -> Result<Option<Arc<HeldPermits>>, Indices> {
        let mut taken = self.lock();
        let mut own = TakenPermits::new();
        for index in self.choose(&taken, calls)? {
            let call = &calls[index];
            if let Some(key) = call.key() {
                let count = &mut taken.0[self.counts[index]].1;
                *count.entry(key.clone()).or_default() += call.cost();
                own.push((index, key.clone(), call.cost()));
            }
        }
        drop(taken);
        if own.is_empty() {
            return Ok(None);
        }
        let permits = HeldPermits {
            permits: AssertUnwindSafe(Arc::clone(self)),
            own,
            observers: AssertUnwindSafe(observers.clone()),
        };
        permits.report(|limit, permits| Activity::TookPermits { limit, permits });
        Ok(Some(Arc::new(permits)))
    }

    /// The limits of which the request needs permits.
    fn choose(&self, taken: &PermitCounts, calls: &[Call]) -> Result<Indices, Indices> {
        let mut choice = Choice {
            permits: self,
            taken,
            calls,
            chosen: Indices::new(),
            full: Indices::new(),
        };
        match self.set.tree.as_ref().and_then(|tree| choice.admits(tree)) {
            Some(false) => Err(choice.full),
            Some(true) | None => Ok(choice.chosen),
        }
    }

    pub(crate) fn names_of(&self, full: &Indices) -> Vec<PolicyName> {
        full.iter()
            .map(|index| self.set.limits[*index].name.clone())
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, PermitCounts> {
        lock(&self.taken)
    }
}

/// Chooses the permits of one request. Each limit stands once in the composition, so choosing
/// changes no count that a later choice depends on.
struct Choice<'a> {
    permits: &'a Permits,
    taken: &'a PermitCounts,
    calls: &'a [Call],
    chosen: Indices,
    full: Indices,
}

impl Choice<'_> {
    /// Whether a composition admits the request; `None` where none of it applies.
    fn admits(&mut self, tree: &PermitTree) -> Option<bool> {
        match tree {
            PermitTree::Limit(index) => self.one_admits(*index),
            PermitTree::All(members) => {
                let mut admits = None;
                for member in members {
                    match self.admits(member) {
                        Some(false) => return Some(false),
                        Some(true) => admits = Some(true),
                        None => {}
                    }
                }
                admits
            }
            PermitTree::Any(members, charge) => {
                let (mut admits, blamed) = (None, self.full.len());
                for member in members {
                    let before = self.chosen.len();
                    match self.admits(member) {
                        Some(true) => {
                            admits = Some(true);
                            if *charge == AnyCharge::First {
                                break;
                            }
                        }
                        Some(false) => {
                            self.chosen.truncate(before);
                            admits = admits.or(Some(false));
                        }
                        None => {}
                    }
                }
                if admits == Some(true) {
                    // Another member admits the request, so those without a permit are not to
                    // blame.
                    self.full.truncate(blamed);
                }
                admits
            }
        }
    }

    fn one_admits(&mut self, index: usize) -> Option<bool> {
        let call = self.calls.get(index).filter(|call| call.cost() > 0)?;
        let admits = call.cost() <= self.permits.free_of(self.taken, index, call);
        let indices = if admits {
            &mut self.chosen
        } else {
            &mut self.full
        };
        indices.push(index);
        Some(admits)
    }
}

/// Returns permits. A key without any taken is forgotten.
fn leave(taken: &mut HashMap<Key, u64>, key: &Key, cost: u64) {
    if let Some(count) = taken.get_mut(key) {
        *count = count.saturating_sub(cost);
        if *count == 0 {
            taken.remove(key);
        }
    }
}

/// The permits that a layer holds for one request.
pub(crate) struct HeldPermits {
    /// The user's closures in it may be of any kind, but none runs when permits are returned.
    permits: AssertUnwindSafe<Arc<Permits>>,
    own: TakenPermits,
    observers: AssertUnwindSafe<Observers>,
}

impl HeldPermits {
    /// The permits by the name of their limit.
    pub(super) fn by_name(&self) -> impl Iterator<Item = (&str, u64)> {
        let limits = self.permits.limits();
        self.own
            .iter()
            .map(|(index, _, permits)| (limits[*index].name.as_str(), *permits))
    }

    fn report(&self, activity: impl Fn(usize, u64) -> Activity) {
        for (index, _, permits) in &self.own {
            let limit = self.permits.limits()[*index].applied.limit_index;
            self.observers.happened(activity(limit, *permits));
        }
    }
}

impl Drop for HeldPermits {
    fn drop(&mut self) {
        let mut taken = self.permits.lock();
        for (index, key, permits) in &self.own {
            leave(&mut taken.0[self.permits.counts[*index]].1, key, *permits);
        }
        drop(taken);
        self.report(|limit, permits| Activity::ReturnedPermits { limit, permits });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Constant, InFlight, all, limit};

    #[test]
    fn key_without_permits_taken_is_forgotten() {
        let key = Key::from("ada");
        let mut taken = HashMap::from([(key.clone(), 3)]);
        leave(&mut taken, &key, 2);
        assert_eq!(taken.get(&key), Some(&1));
        leave(&mut taken, &key, 1);
        assert!(taken.is_empty());
    }

    /// The first of these limits that are full, for requests that need as many permits of each, one
    /// after another.
    fn full(
        tree: &PermitTree,
        most: &[u64],
        needs: &[&[u64]],
    ) -> Vec<Result<Vec<usize>, Vec<usize>>> {
        let limit = |(index, most): (usize, &u64)| {
            limit(index.to_string(), InFlight::new(*most)).by(Constant)
        };
        let limits: Vec<_> = most.iter().enumerate().map(limit).collect();
        let set = all(limits).compile().unwrap().permits;
        let tree = Some(tree.clone());
        let permits = Permits::new(PermitSet { tree, ..set });
        let mut taken = permits.lock();
        let mut ask = |needs: &&[u64]| {
            let calls = needs
                .iter()
                .map(|permits| Call::from(Key::CONSTANT).costing(*permits));
            let calls: Vec<Call> = calls.collect();
            let chosen = permits
                .choose(&taken, &calls)
                .map_err(|full| full.to_vec())?;
            for index in &chosen {
                let count = &mut taken.0[*index].1;
                *count.entry(Key::CONSTANT).or_default() += calls[*index].cost();
            }
            Ok(chosen.to_vec())
        };
        needs.iter().map(&mut ask).collect()
    }

    #[test]
    fn limit_is_full_when_less_is_left_than_is_needed() {
        let one = PermitTree::Limit(0);
        assert_eq!(
            full(&one, &[3], &[&[2], &[2], &[1], &[1]]),
            [Ok(vec![0]), Err(vec![0]), Ok(vec![0]), Err(vec![0])]
        );
        assert_eq!(
            full(&one, &[3], &[&[3], &[0], &[u64::MAX]]),
            [Ok(vec![0]), Ok(vec![]), Err(vec![0])]
        );
    }

    #[test]
    fn all_take_of_each_that_applies_or_of_none() {
        let all = PermitTree::All(vec![PermitTree::Limit(0), PermitTree::Limit(1)]);
        let needs: [&[u64]; 4] = [&[1, 1], &[0, 1], &[1, 0], &[1, 1]];
        assert_eq!(
            full(&all, &[3, 1], &needs),
            [Ok(vec![0, 1]), Err(vec![1]), Ok(vec![0]), Err(vec![1])]
        );
        assert_eq!(full(&all, &[1, 1], &[&[0, 0]]), [Ok(vec![])]);
    }

    #[test]
    fn any_takes_of_the_first_or_of_each_that_has_some() {
        let any =
            |charge| PermitTree::Any(vec![PermitTree::Limit(0), PermitTree::Limit(1)], charge);
        let needs: [&[u64]; 4] = [&[1, 1]; 4];
        let expected = [Ok(vec![0]), Ok(vec![1]), Ok(vec![1]), Err(vec![0, 1])];
        assert_eq!(full(&any(AnyCharge::First), &[1, 2], &needs), expected);
        let expected = [
            Ok(vec![0, 1]),
            Ok(vec![1]),
            Err(vec![0, 1]),
            Err(vec![0, 1]),
        ];
        assert_eq!(
            full(&any(AnyCharge::EveryAdmitting), &[1, 2], &needs),
            expected
        );
        // One that is full stops none, wherever it stands.
        let expected = [Ok(vec![0, 1]), Ok(vec![0]), Err(vec![0, 1])];
        assert_eq!(
            full(&any(AnyCharge::EveryAdmitting), &[2, 1], &needs[..3]),
            expected
        );
        // A member that does not apply neither admits nor refuses.
        assert_eq!(
            full(
                &any(AnyCharge::First),
                &[1, 1],
                &[&[0, 1], &[0, 1], &[0, 0]]
            ),
            [Ok(vec![1]), Err(vec![1]), Ok(vec![])]
        );
    }

    /// What a member had chosen before it refused is not taken, and only those are to blame that no
    /// other stands in for.
    #[test]
    fn member_of_an_any_that_refuses_takes_nothing() {
        let both = PermitTree::All(vec![PermitTree::Limit(0), PermitTree::Limit(1)]);
        let any = PermitTree::Any(vec![both, PermitTree::Limit(2)], AnyCharge::EveryAdmitting);
        let beside = PermitTree::All(vec![any, PermitTree::Limit(3)]);
        let needs: [&[u64]; 3] = [&[1, 1, 1, 1]; 3];
        let expected = [Ok(vec![0, 1, 2, 3]), Ok(vec![2, 3]), Err(vec![3])];
        assert_eq!(full(&beside, &[9, 1, 9, 2], &needs), expected);
        assert_eq!(
            full(&beside, &[9, 1, 1, 9], &needs[..2]),
            [Ok(vec![0, 1, 2, 3]), Err(vec![1, 2])]
        );
    }
}

//! Sets of policies that requests have together, each prepared once.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use throttle_core::backend::BoxPrepared;
use throttle_core::{AnyCharge, Backend, BoxBackend, ConfigError, Policy, PolicySet, PolicyTree};

use super::hit::Hit;

/// More combinations than this are for clients that invent them.
const MOST_SETS: usize = 4_096;
const MOST_POLICIES: usize = 1 << 14;

/// By the indices of the policies.
#[derive(Default)]
pub struct Sets(RwLock<BTreeMap<Vec<usize>, Arc<BoxPrepared>>>);

impl Sets {
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.0.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// The set whose members are of the policies of these hits, those of quotas at the end.
    pub fn find(
        &self,
        backend: &BoxBackend,
        policies: &[Policy],
        hits: &[&Hit],
    ) -> Result<Arc<BoxPrepared>, ConfigError> {
        let members: Vec<usize> = hits.iter().map(|hit| hit.policy).collect();
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known.get(&members) {
            return Ok(Arc::clone(known));
        }
        drop(known);
        let set = PolicySet::repeating(tree(policies, hits))?;
        let set = Arc::new(backend.prepare(set)?);
        let mut sets = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if sets.len() >= MOST_SETS || sets.len() * members.len() >= MOST_POLICIES {
            sets.clear();
        }
        sets.insert(members, Arc::clone(&set));
        Ok(set)
    }
}

fn tree(policies: &[Policy], hits: &[&Hit]) -> PolicyTree {
    let (quotas, others): (Vec<_>, Vec<_>) = hits.iter().partition(|hit| hit.is_quota());
    let policy = |hit: &&&Hit| policies[hit.policy].clone();
    let mut all: Vec<PolicyTree> = others.iter().map(|hit| policy(hit).into()).collect();
    if quotas.iter().any(|hit| hit.is_shadow()) {
        // One that only watches always passes, and one that passes is enough.
        all.extend(quotas.iter().map(|hit| policy(hit).audit().into()));
    } else if !quotas.is_empty() {
        let quotas = quotas.iter().map(|hit| policy(hit).into());
        all.push(PolicyTree::Any(quotas.collect(), AnyCharge::EveryAdmitting));
    }
    PolicyTree::All(all)
}

//! Sets of policies that requests have together, each prepared once.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use throttle_core::backend::BoxPrepared;
use throttle_core::{AnyCharge, Backend, BoxBackend, ConfigError, Policy, PolicySet, PolicyTree};

/// More combinations than this are for clients that invent them.
const MOST_SETS: usize = 4_096;
const MOST_POLICIES: usize = 1 << 14;

#[derive(Default)]
pub struct Sets(RwLock<HashMap<Members, Arc<BoxPrepared>>>);

/// Policies in their order in the set, those of quotas at the end.
#[derive(Clone, Hash, PartialEq, Eq)]
pub struct Members {
    pub policies: Vec<usize>,
    pub quotas: usize,
    /// Whether a quota passes anyway; one of them has to admit otherwise.
    pub passes: bool,
}

impl Sets {
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.0.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    pub fn find(
        &self,
        backend: &BoxBackend,
        policies: &[Policy],
        members: &Members,
    ) -> Result<Arc<BoxPrepared>, ConfigError> {
        let known = self
            .0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(members)
            .cloned();
        if let Some(known) = known {
            return Ok(known);
        }
        let set = Arc::new(backend.prepare(PolicySet::repeating(members.tree(policies))?)?);
        let mut sets = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if sets.len() >= MOST_SETS || sets.len() * members.policies.len() >= MOST_POLICIES {
            sets.clear();
        }
        sets.insert(members.clone(), Arc::clone(&set));
        Ok(set)
    }
}

impl Members {
    fn tree(&self, policies: &[Policy]) -> PolicyTree {
        let tree = |index: &usize| PolicyTree::from(policies[*index].clone());
        let (others, quotas) = self.policies.split_at(self.policies.len() - self.quotas);
        let mut all: Vec<_> = others.iter().map(tree).collect();
        if self.passes {
            let audited = quotas.iter().map(|index| policies[*index].clone().audit());
            all.extend(audited.map(PolicyTree::from));
        } else if !quotas.is_empty() {
            all.push(PolicyTree::Any(
                quotas.iter().map(tree).collect(),
                AnyCharge::EveryAdmitting,
            ));
        }
        PolicyTree::All(all)
    }
}

//! A key that one policy sees for the first time, or again after it was forgotten: in a store of
//! idle clients most requests are such.

use super::fast_path::Asked;
use super::shard::{LockedShard, Shared};
use super::slot::{Content, Label};
use super::store::Store;
use crate::algorithm::{Stored, Transition, Visitor};
use crate::decision::Decision;

impl Store {
    /// Decides one policy on a key without a slot, whose state is fresh then. `None` where that is
    /// not all: for a key that has a slot, one that may share a bucket, one that may have been
    /// forgotten for a clock that steps back, and for large states.
    pub(super) fn decide_new(&self, asked: &Asked<'_>) -> Option<Decision> {
        let (shard, label, _) = self.place(asked);
        if !asked.parameters.algorithm.is_small() || self.shared.is_nearly_full() {
            return None;
        }
        let mut shard = shard.lock();
        if !shard.absent.is_unused(asked.now) || shard.find(label).is_some() {
            return None;
        }
        asked.parameters.algorithm.accept(NewKey {
            shard: &mut shard,
            shared: &self.shared,
            label,
            asked,
        })
    }
}

struct NewKey<'a, 'b> {
    shard: &'a mut LockedShard<'b>,
    shared: &'a Shared,
    label: Label,
    asked: &'a Asked<'a>,
}

impl Visitor for NewKey<'_, '_> {
    type Output = Option<Decision>;

    fn visit<A: Transition<State: Stored>>(self, algorithm: &A) -> Option<Decision> {
        let Self {
            shard,
            shared,
            label,
            asked,
        } = self;
        let Asked {
            parameters,
            cost,
            now,
            ..
        } = *asked;
        let mut state = algorithm.fresh();
        let (outcome, standing) = algorithm.decide(&mut state, now, cost);
        if outcome.taken.cost > 0 {
            let words = state.words()?;
            if !shard.make_room(now, &[], shared) {
                return None;
            }
            shard
                .table
                .insert(Content::new(label, parameters.writer, words));
        }
        Some(Decision::of_one(outcome, standing, parameters.tier, false))
    }
}

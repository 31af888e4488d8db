//! Charging what was decided elsewhere: as much of it as there is, whatever the answer would have been here.

use parking_lot::MutexGuard;

use super::member::{Member, Role};
use super::registry::{InForce, Registered};
use super::shard::Shard;
use super::store::Store;
use super::table::Label;
use crate::algorithm::{Stored, Transition, Visitor};
use crate::key::Key;
use crate::time::Timestamp;

impl Store {
    #[inline]
    pub(super) fn charge_what_is_left(&self, registered: Registered, key: &Key, cost: u64, tier: u8, now: Timestamp) {
        // The parameters in force, which are those of the set unless another one has been prepared since.
        let Some(in_force) = self.in_force(registered, tier) else { return };
        let InForce { registered, algorithm, .. } = in_force;
        let sealed = self.seal.seal(key);
        let label = Label::new(sealed, registered.policy);
        let mut shard = self.shard(sealed).lock();
        let known = algorithm.accept(Left { shard: &mut shard, registered, label, cost, now });
        if known.is_none() {
            self.charge_unknown(shard, Member::new(Role::of(&in_force), label, cost, now));
        }
    }

    /// A key that is new or was written by other parameters.
    #[cold]
    fn charge_unknown(&self, mut shard: MutexGuard<'_, Shard>, mut member: Member<'_>) {
        // Asked for its side effect: it finds the key its place.
        member.ask(&mut shard, &[member.label()], self.shared());
        member.take_what_is_left(&mut shard, self.shared());
        member.finish(self.shared());
        drop(shard);
        if member.is_overflow() {
            self.sweep_elsewhere(member.now());
        }
    }
}

/// Charges a known key; `None` if it is not known.
struct Left<'a> {
    shard: &'a mut Shard,
    registered: Registered,
    label: Label,
    cost: u64,
    now: Timestamp,
}

impl Visitor for Left<'_> {
    type Output = Option<()>;

    #[inline]
    fn visit<A: Transition<State: Stored>>(self, algorithm: &A) -> Option<()> {
        let Self { shard, registered, label, cost, now } = self;
        shard.change_known(label, registered.generation, |state: &mut A::State| {
            // Usually there is enough, and that is quicker to find out.
            let enough = cost <= algorithm.capacity() && algorithm.wait(state, now, cost) == 0;
            let cost = if enough { cost } else { cost.min(algorithm.standing(state, now).remaining) };
            if cost > 0 {
                algorithm.take(state, now, cost);
            }
        })
    }
}

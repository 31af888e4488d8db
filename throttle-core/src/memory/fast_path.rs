//! Several limits in one `all`, and every key known: what most requests with several limits meet.

use parking_lot::MutexGuard;

use super::registry::Registered;
use super::seal::Sealed;
use super::shard::Shard;
use super::store::Store;
use super::table::Label;
use crate::algorithm::{NEVER, Stored, Taken, Transition, Visitor};
use crate::backend::Call;
use crate::decision::{Decision, Status};
use crate::set::PolicySet;
use crate::time::Timestamp;

impl Store {
    /// What `decide_all` does, for a plain `all`: quickly, if it has not too many policies and all keys are known.
    pub(super) fn decide_plain(
        &self,
        set: &PolicySet,
        registered: &[Registered],
        calls: &[Call],
        now: Timestamp,
    ) -> Decision {
        match registered.len() {
            // Where the number is known when this is compiled, nothing is counted.
            2 => self.decide_few::<2>(2, set, registered, calls, now),
            3 => self.decide_few::<3>(3, set, registered, calls, now),
            count @ ..=16 => self.decide_few::<16>(count, set, registered, calls, now),
            _ => self.decide_all(set, registered, calls, now),
        }
    }

    /// For at most N policies. Everything has its place from the start, and nothing is moved.
    #[inline(always)]
    fn decide_few<const N: usize>(
        &self,
        count: usize,
        set: &PolicySet,
        registered: &[Registered],
        calls: &[Call],
        now: Timestamp,
    ) -> Decision {
        let policies = set.policies();
        let mut sealed = [Sealed { number: 0, digested: false, lane: 0 }; N];
        if policies.len() != count || registered.len() != count || !self.seal_each(calls, &mut sealed[..count]) {
            return self.decide_all(set, registered, calls, now);
        }
        let mut locked = Locked::new(self, sealed.map(|sealed| self.index(sealed)), count);
        let (mut slots, mut waits) = ([0; N], [0; N]);
        for n in 0..count {
            let (shard, label) = (locked.shard(n), Label::new(sealed[n], registered[n].policy));
            let Some(slot) = shard.find_known(label, registered[n].generation) else {
                drop(locked);
                return self.decide_all(set, registered, calls, now);
            };
            slots[n] = slot;
            if calls[n].cost > 0 {
                waits[n] = policies[n].algorithm().accept(Ask { shard, slot, cost: calls[n].cost, now });
            }
        }
        // The first of equals binds, here and below.
        let (mut wait, mut longest, mut least) = (0, 0, 0);
        for (n, asked) in waits.iter().enumerate() {
            if *asked > wait {
                (wait, longest) = (*asked, n);
            }
        }
        let mut decision = Decision::blank(count);
        let (summary, statuses) = decision.parts();
        for (n, status) in statuses.iter_mut().enumerate().take(count) {
            (status.wait, status.applies, status.violated) = (waits[n], true, waits[n] > 0);
            let cost = if wait == 0 { calls[n].cost } else { 0 };
            let take = Take { shard: locked.shard(n), slot: slots[n], cost, now, status };
            let delay = policies[n].algorithm().accept(take);
            if status.standing.remaining < summary.remaining {
                (summary.remaining, least) = (status.standing.remaining, n);
            }
            (summary.reset, summary.delay) = (summary.reset.max(status.standing.reset), summary.delay.max(delay));
        }
        (summary.wait, summary.binding) = (wait, Some(if wait == 0 { least } else { longest }));
        decision
    }

    /// Seals every key; one that is the same as the one before only once. False if a policy has no key.
    #[inline(always)]
    fn seal_each(&self, calls: &[Call], sealed: &mut [Sealed]) -> bool {
        let mut last = None;
        for n in 0..sealed.len() {
            let Some(key) = calls.get(n).and_then(|call| call.key.as_ref()) else { return false };
            let number = key.as_number();
            sealed[n] = if n > 0 && number.is_some() && number == last { sealed[n - 1] } else { self.seal.seal(key) };
            last = number;
        }
        true
    }
}

/// The shards of at most N keys, each locked once, in ascending order, so that two requests cannot wait for each other.
enum Locked<'a, const N: usize> {
    /// All keys are in one shard.
    One(MutexGuard<'a, Shard>),
    /// The guards, and which of them holds the shard of each key.
    Some([Option<MutexGuard<'a, Shard>>; N], [usize; N]),
}

impl<'a, const N: usize> Locked<'a, N> {
    #[inline]
    fn new(store: &'a Store, lanes: [usize; N], count: usize) -> Self {
        let used = &lanes[..count];
        if used.iter().all(|lane| *lane == lanes[0]) {
            return Self::One(store.shards[lanes[0]].0.lock());
        }
        let (mut order, mut guards, mut at) = (lanes, [const { None }; N], [0; N]);
        let order = &mut order[..count];
        order.sort_unstable();
        for n in 0..count {
            if n == 0 || order[n] != order[n - 1] {
                guards[n] = Some(store.shards[order[n]].0.lock());
            }
            at[n] = order.iter().position(|lane| *lane == used[n]).unwrap_or(0);
        }
        Self::Some(guards, at)
    }

    #[inline]
    fn shard(&mut self, n: usize) -> &mut Shard {
        match self {
            Self::One(guard) => guard,
            Self::Some(guards, at) => guards[at[n]].as_mut().expect("the first key of each shard has locked it"),
        }
    }
}

/// Asks without charging.
struct Ask<'a> {
    shard: &'a Shard,
    slot: usize,
    cost: u64,
    now: Timestamp,
}

impl Visitor for Ask<'_> {
    type Output = u64;

    #[inline]
    fn visit<A: Transition<State: Stored>>(self, algorithm: &A) -> u64 {
        if self.cost > algorithm.capacity() {
            return NEVER;
        }
        let wait = |state: &A::State| algorithm.wait(state, self.now, self.cost);
        self.shard.read_at(self.slot, wait).unwrap_or(0)
    }
}

/// Charges what was admitted, or nothing, and writes down where the key then stands. Its result is the delay.
struct Take<'a> {
    shard: &'a mut Shard,
    slot: usize,
    cost: u64,
    now: Timestamp,
    status: &'a mut Status,
}

impl Visitor for Take<'_> {
    type Output = u64;

    #[inline]
    fn visit<A: Transition<State: Stored>>(self, algorithm: &A) -> u64 {
        let Self { shard, slot, cost, now, status } = self;
        let take = |state: &mut A::State| {
            let mut delay = 0;
            if cost > 0 {
                delay = algorithm.delay(state, now);
                status.taken = Taken { cost, mark: algorithm.take(state, now, cost) };
            }
            status.standing = algorithm.standing(state, now);
            delay
        };
        shard.change_at(slot, take).unwrap_or(0)
    }
}

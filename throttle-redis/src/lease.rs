//! Units of a hot key, taken many at once and spent here.
//!
//! A lease is a charge: the server has counted its units as used. Spending them asks nobody. It never admits too much,
//! because no unit is held longer than it counts: of a debt that drains, one unit fewer each emission interval; of a
//! window, until it ends. What is not spent is given back when the key falls idle.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::Weak;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use smallvec::{SmallVec, smallvec};
use throttle_core::algorithm::Advance;
use throttle_core::{Algorithm, Call, ConfigError, Cost, Decision, LimitSet, Receipt, State, Timestamp};
use tokio::time::timeout_at;

use crate::ask::Ask;
use crate::decide::{answer, ask_in_one_slot, decide_in_one_slot, only_state};
use crate::line::Trouble;
use crate::set::RedisSet;
use crate::shared::Shared;

/// What a process may take in advance, policy by policy. `Display` tells what that can cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    pub(crate) units: HashMap<String, u64>,
    pub(crate) idle: Duration,
}

impl Default for Terms {
    fn default() -> Self {
        Self { units: HashMap::new(), idle: Duration::from_millis(100) }
    }
}

impl Terms {
    /// Checks that a set's policies can be leased as agreed.
    pub(crate) fn check(&self, set: &LimitSet) -> Result<(), ConfigError> {
        for policy in set.policies().iter().filter(|policy| self.units.contains_key(policy.name())) {
            let refused = |rule: &'static str| {
                Err(ConfigError::new("lease", policy.algorithm().name(), rule).in_policy(policy.name()))
            };
            if policy.is_tiered() {
                return refused(
                    "units cannot be taken in advance of a policy with tiers: it may be another one when they are used",
                );
            }
            if policy.algorithm().advance() == Advance::Never {
                return refused(
                    "units can be taken in advance of gcra, token_bucket, leaky_meter, fixed_window and calendar_quota; \
                     of others the instant of each use counts",
                );
            }
            if set.policies().len() > 1 {
                return refused(
                    "units can be taken in advance of a policy that is decided alone; give it a layer of its own",
                );
            }
        }
        Ok(())
    }
}

impl fmt::Display for Terms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut policies: Vec<_> = self.units.iter().collect();
        policies.sort();
        for (place, (policy, units)) in policies.into_iter().enumerate() {
            let comma = if place > 0 { "; " } else { "" };
            write!(
                f,
                "{comma}policy {policy:?}: each process may hold up to {units} units of a key that nobody else can use, \
                 for up to {} ms after it last used one; never more is admitted than the limit",
                self.idle.as_millis()
            )?;
        }
        Ok(())
    }
}

/// The leases of a backend, by the names of their keys.
#[derive(Default)]
pub(crate) struct Leases {
    held: Mutex<HashMap<Vec<u8>, Arc<Place>>>,
    keeper: Mutex<Option<tokio::task::JoinHandle<()>>>,
}

/// Where one key's lease is, and the queue of those who would fetch the next.
#[derive(Default)]
struct Place {
    lease: Mutex<Option<Lease>>,
    fetching: tokio::sync::Mutex<()>,
}

/// Somebody at a place, who clears it away when no lease came of it.
struct Visit<'a> {
    leases: &'a Leases,
    name: Vec<u8>,
    /// Until it is left.
    place: Option<Arc<Place>>,
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        if let Some(place) = self.place.take() {
            self.leases.leave(&self.name, place);
        }
    }
}

pub(crate) struct Lease {
    set: Arc<RedisSet>,
    left: u64,
    units: u64,
    /// What the server knew before, with what was spent since.
    state: State,
    receipt: Receipt,
    /// The server's time when it was granted, which was after `asked`.
    now: Timestamp,
    asked: Instant,
    used: Instant,
    /// µs from the grant until the window ends.
    ends: Option<u64>,
    /// Of the parameters it was taken under.
    epoch: u64,
}

impl Lease {
    fn elapsed(&self) -> u64 {
        u64::try_from(self.asked.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// Units that may still be used: no more than the server still counts.
    fn usable(&self, algorithm: &Algorithm) -> u64 {
        let elapsed = self.elapsed();
        let counted = match self.ends {
            Some(ends) => {
                if elapsed < ends {
                    self.units
                } else {
                    0
                }
            }
            None => {
                let drained = u128::from(elapsed) * u128::from(algorithm.rate().count());
                let drained = drained.div_ceil(u128::from(algorithm.rate().period_micros()));
                self.units.saturating_sub(u64::try_from(drained).unwrap_or(u64::MAX))
            }
        };
        self.left.min(counted)
    }

    fn spend(&mut self, ask: &Ask) -> Option<Decision> {
        let [call] = ask.calls.as_slice() else { return None };
        let policy = ask.linked.set.policies().first()?;
        self.left = self.usable(policy.algorithm());
        if call.cost() > self.left || call.cost() == 0 {
            return None;
        }
        let now = self.now.after_micros(self.elapsed());
        let mut states: SmallVec<[State; 1]> = smallvec![self.state.clone()];
        let decision = ask.linked.set.decide(&mut states, now, &ask.calls);
        if !decision.is_allowed() {
            return None;
        }
        self.state = states.pop()?;
        self.left -= call.cost();
        self.used = Instant::now();
        Some(decision)
    }
}

impl Leases {
    fn visit(&self, name: &[u8]) -> Visit<'_> {
        let mut held = self.held.lock();
        let place = match held.get(name) {
            Some(place) => Arc::clone(place),
            None => Arc::clone(held.entry(name.to_vec()).or_default()),
        };
        Visit { leases: self, name: name.to_vec(), place: Some(place) }
    }

    /// Leaves a place, and clears it away when it has no lease and nobody else is at it: one is held by who leaves, and
    /// one by the map. Under the lock, so that of two who leave at once the second sees that the first has gone.
    fn leave(&self, name: &[u8], place: Arc<Place>) {
        let mut held = self.held.lock();
        let last = held.get(name).is_some_and(|kept| Arc::ptr_eq(kept, &place) && Arc::strong_count(kept) == 2);
        if last && place.lease.lock().is_none() {
            held.remove(name);
        }
        drop(place);
    }

    /// Spends units that are held here, if there are enough.
    pub(crate) fn spend(&self, ask: &Ask) -> Option<Decision> {
        let place = Arc::clone(self.held.lock().get(ask.names.first()?)?);
        let mut lease = place.lease.lock();
        let held = lease.as_mut()?;
        if held.epoch != ask.linked.epoch {
            // Limits have changed: what was taken under the old ones stays taken.
            *lease = None;
            return None;
        }
        held.spend(ask)
    }

    /// Forgets the lease of a key without giving it back: the key was reset.
    pub(crate) fn forget(&self, name: &[u8]) {
        self.held.lock().remove(name);
    }

    /// Lets go of the units that are held of a key: they stay taken.
    pub(crate) fn drop_lease(&self, name: &[u8]) {
        let place = self.held.lock().get(name).map(Arc::clone);
        if let Some(place) = place {
            *place.lease.lock() = None;
        }
    }

    pub(crate) fn forget_all(&self) {
        self.held.lock().clear();
    }
}

/// Fetches a lease and spends of it. Of those who find a key without one, the first fetches for all.
pub(crate) async fn fetch(
    shared: &Arc<Shared>,
    set: &Arc<RedisSet>,
    ask: Ask,
    units: u64,
) -> Result<Decision, Trouble> {
    let until = tokio::time::Instant::now() + shared.line.deadline;
    let [call] = ask.calls.as_slice() else { return decide_in_one_slot(shared, set, ask, until).await };
    let (Some(name), Some(key)) = (ask.names.first(), call.key()) else {
        return decide_in_one_slot(shared, set, ask, until).await;
    };
    if call.cost() == 0 {
        // Who only looks takes nothing.
        return decide_in_one_slot(shared, set, ask, until).await;
    }
    let visit = shared.leases.visit(name);
    let Some(place) = &visit.place else { return Err(Trouble::Nonsense("a place was left before it was visited")) };
    let _turn = timeout_at(until, place.fetching.lock()).await.map_err(|_| Trouble::TooLate)?;
    if let Some(decision) = shared.leases.spend(&ask).or_else(|| shared.denied(&ask)) {
        return Ok(decision);
    }
    timeout_at(until, return_lease(shared, place)).await.map_err(|_| Trouble::TooLate)?;
    let capacity = ask.linked.set.policies().first().map_or(0, |policy| policy.algorithm().capacity());
    let mut wanted = units.min(capacity);
    while wanted > call.cost() {
        let asked = Instant::now();
        let grant = set.ask(shared, &[Call::new(key.clone(), Cost::at_least_one(wanted))]);
        let (part, grant) = ask_in_one_slot(shared, set, grant, until).await?;
        let decision = answer(&grant, &part)?;
        if !decision.is_allowed() {
            // There is less: take what there is.
            let there = decision.remaining();
            if there >= wanted || there < call.cost() {
                break;
            }
            wanted = there;
            continue;
        }
        let state = only_state(&grant, &part)?;
        let Some(receipt) = Receipt::of(&decision, &grant.calls) else { break };
        let policy = &grant.linked.set.policies()[0];
        let ends = (policy.algorithm().advance() == Advance::UntilWindowEnds).then(|| {
            let window = decision.statuses()[0].effective_window(policy);
            u64::try_from(window.as_micros()).unwrap_or(u64::MAX)
        });
        let now = part.now;
        let (set, epoch) = (Arc::clone(set), grant.linked.epoch);
        let lease = Lease { set, epoch, left: wanted, units: wanted, state, receipt, now, asked, used: asked, ends };
        *place.lease.lock() = Some(lease);
        keep(shared);
        match shared.leases.spend(&ask) {
            Some(decision) => return Ok(decision),
            // It was over before it came.
            None => break,
        }
    }
    decide_in_one_slot(shared, set, ask, until).await
}

/// Gives a place's lease back, as far as the server still counts it.
async fn return_lease(shared: &Arc<Shared>, place: &Place) -> u64 {
    let Some(lease) = place.lease.lock().take() else { return 0 };
    let linked = lease.set.linked(shared);
    if lease.epoch != linked.epoch {
        // Limits have changed: what was taken under the old ones stays taken.
        return 0;
    }
    let Some(policy) = linked.set.policies().first() else { return 0 };
    let left = lease.usable(policy.algorithm());
    if left == 0 {
        return 0;
    }
    let receipt = lease.receipt.actual(lease.units - left);
    // What cannot be given back stays taken.
    match crate::settle::settle(shared, &lease.set, &receipt).await {
        Ok(()) => left,
        Err(_) => 0,
    }
}

/// Sees to it that somebody gives back what falls idle.
fn keep(shared: &Arc<Shared>) {
    let mut keeper = shared.leases.keeper.lock();
    if keeper.as_ref().is_none_or(tokio::task::JoinHandle::is_finished) {
        *keeper = Some(tokio::spawn(give_back_idle(Arc::downgrade(shared))));
    }
}

async fn give_back_idle(shared: Weak<Shared>) {
    loop {
        let Some(idle) = shared.upgrade().map(|shared| shared.terms.idle) else { return };
        tokio::time::sleep(idle / 2).await;
        let Some(shared) = shared.upgrade() else { return };
        return_leases(&shared, |lease| lease.used.elapsed() >= idle).await;
        if shared.leases.held.lock().is_empty() {
            return;
        }
    }
}

/// Gives back the leases that `over` picks; returns how many units.
pub(crate) async fn return_leases(shared: &Arc<Shared>, over: impl Fn(&Lease) -> bool) -> u64 {
    let places: Vec<(Vec<u8>, Arc<Place>)> =
        shared.leases.held.lock().iter().map(|(name, place)| (name.clone(), Arc::clone(place))).collect();
    let mut returned = 0;
    for (name, place) in places {
        if place.lease.lock().as_ref().is_none_or(&over) {
            returned += return_lease(shared, &place).await;
            shared.leases.leave(&name, place);
        }
    }
    returned
}

#[cfg(test)]
mod tests {
    use throttle_core::{Backend, Gcra, Key, Policy, Rate};
    use throttle_test_servers::Shared;

    use crate::{RedisBackend, Single};

    use super::*;

    async fn places_after_a_hundred_keys(url: &str, prefix: &str) -> usize {
        let builder = RedisBackend::builder(Single::new(url).unwrap()).prefix(prefix).lease("hot", 10);
        let backend = builder.deadline(Duration::from_secs(5)).build().unwrap();
        let policy = Policy::new("hot", Gcra::new(Rate::per_minute(1)).burst(1)).unwrap();
        let prepared = Arc::new(backend.prepare(LimitSet::new(policy).unwrap()).unwrap());
        for key in 0..100 {
            let _ = backend.decide(&prepared, &[Call::from(Key::from(key.to_string()))]).await;
        }
        backend.shared.leases.held.lock().len()
    }

    #[tokio::test]
    async fn keys_without_a_lease_leave_nothing_behind() {
        let shared = Shared::new();
        assert_eq!(places_after_a_hundred_keys(&shared.url(), shared.prefix()).await, 0, "nothing to lease");
        assert_eq!(places_after_a_hundred_keys("redis://127.0.0.1:1", "p").await, 0, "no store");
    }
}

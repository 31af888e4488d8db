//! Refusals that are still true, told without asking again.
//!
//! What a refusal was decided on is kept: the states, and the server's time. Nobody else's request can make a refused key
//! admit earlier, so as long as the library refuses on those states, the server would too. Only a refund or a reset can
//! make it untrue: those made here are heard of; those made by other processes are not, until the wait is over.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use smallvec::SmallVec;
use throttle_core::{Decision, State, Timestamp};

use crate::ask::Ask;
use crate::linked::Linked;

/// How long a refusal is kept that no waiting ends.
const NEVER: Duration = Duration::from_secs(60);

pub(crate) struct DenyCache {
    most: usize,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    swept: Option<Instant>,
    refusals: HashMap<Arc<Names>, Refused>,
    /// Where a key's name stands in the names of a refusal. All refusals may have one in common.
    by_name: HashMap<Vec<u8>, HashSet<Arc<Names>>>,
}

type Names = SmallVec<[Vec<u8>; 3]>;

struct Refused {
    linked: Arc<Linked>,
    costs: SmallVec<[u64; 3]>,
    states: SmallVec<[State; 3]>,
    /// The server's time at the decision, which lay between these two.
    now: Timestamp,
    asked: Instant,
    told: Instant,
    /// When the wait is over, or for how long it is kept.
    until: Option<Instant>,
}

impl DenyCache {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, inner: Mutex::default() }
    }

    /// The refusal, if it is still one.
    pub(crate) fn look(&self, ask: &Ask) -> Option<Decision> {
        let mut inner = self.inner.lock();
        let refused = inner.refusals.get(&ask.names)?;
        if !Arc::ptr_eq(&refused.linked, &ask.linked) || refused.until.is_some_and(|until| Instant::now() >= until) {
            inner.forget(&ask.names.clone());
            return None;
        }
        if !refused.covers(ask) {
            return None;
        }
        // As late as it can be by the server's clock, it is refused still; told is the longest wait that can be true.
        let at = |since: Instant| {
            let elapsed = u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX);
            let mut states = refused.states.clone();
            ask.linked.set.decide(&mut states, refused.now.after_micros(elapsed), &ask.calls)
        };
        if at(refused.asked).is_allowed() { None } else { Some(at(refused.told)).filter(|told| !told.is_allowed()) }
    }

    /// Keeps a refusal, if there is room.
    pub(crate) fn keep(
        &self,
        ask: &Ask,
        decision: &Decision,
        states: SmallVec<[State; 3]>,
        now: Timestamp,
        asked: Instant,
    ) {
        let told = Instant::now();
        // A wait of less than a round trip is over before it is of use.
        let wait = decision.retry_after();
        if wait.is_some_and(|wait| wait < Duration::from_millis(1)) {
            return;
        }
        let mut inner = self.inner.lock();
        if inner.refusals.len() >= self.most && !inner.refusals.contains_key(&ask.names) {
            // A cache full of live refusals is not gone through for each new one.
            if inner.swept.is_none_or(|swept| told - swept > Duration::from_millis(100)) {
                inner.forget_past(told);
            }
            if inner.refusals.len() >= self.most {
                return;
            }
        }
        let names = Arc::new(ask.names.clone());
        for name in &ask.names {
            inner.by_name.entry(name.clone()).or_default().insert(Arc::clone(&names));
        }
        let costs = ask.calls.iter().map(throttle_core::Call::cost).collect();
        // One that would never be admitted must not keep its place for ever.
        let until = asked.checked_add(wait.unwrap_or(NEVER));
        let refused = Refused { linked: Arc::clone(&ask.linked), costs, states, now, asked, told, until };
        inner.refusals.insert(names, refused);
    }

    /// Forgets the refusals that a key had a part in.
    pub(crate) fn clear(&self, name: &[u8]) {
        let mut inner = self.inner.lock();
        for names in inner.by_name.remove(name).unwrap_or_default() {
            inner.forget(&names);
        }
    }

    pub(crate) fn clear_all(&self) {
        *self.inner.lock() = Inner::default();
    }
}

impl Inner {
    fn forget(&mut self, names: &Names) {
        self.refusals.remove(names);
        for name in names {
            if let Some(refusals) = self.by_name.get_mut(name) {
                refusals.remove(names);
                if refusals.is_empty() {
                    self.by_name.remove(name);
                }
            }
        }
    }

    fn forget_past(&mut self, now: Instant) {
        self.swept = Some(now);
        let past = self.refusals.iter().filter(|(_, refused)| refused.until.is_some_and(|until| now >= until));
        let past: Vec<Arc<Names>> = past.map(|(names, _)| Arc::clone(names)).collect();
        for names in past {
            self.forget(&names);
        }
    }
}

impl Refused {
    /// Whether what is kept can tell the answer to this request: it asks the same policies for as much or more. Of a log
    /// only what one cost needs is kept.
    fn covers(&self, ask: &Ask) -> bool {
        let policies = self.linked.set.policies();
        self.costs.iter().zip(&ask.calls).zip(policies).all(|((cost, call), policy)| {
            call.cost() == *cost || (call.cost() > *cost && *cost > 0 && policy.algorithm().name() != "sliding_log")
        })
    }
}

//! Refusals that are still true, so that the store need not be asked again.
//!
//! The cache keeps what a refusal was decided on: the states, and the server's time. No other
//! request under the same parameters can make a refused key admit earlier. Therefore, as long as
//! the library refuses on those states, the server would too. Only a refund, a reset, an exception
//! or a charge under other parameters can make a refusal untrue. Those of this process clear it;
//! those of other processes are seen within a second, when the store is asked again.
//!
//! Limits of the request that do not refuse are reported as they were then. To keep them up to
//! date, each charge of a key that many requests share would have to forget all refusals in which
//! it takes part.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use smallvec::SmallVec;
use throttle_core::algorithm::State;
use throttle_core::backend::Call;
use throttle_core::{Decision, Timestamp};

use crate::script::kind::Kind;
use crate::script::prepared_set::PreparedSet;
use crate::script::request::Ask;

/// How long a refusal is kept at most.
const LONGEST: Duration = Duration::from_secs(1);

pub(crate) struct DenyCache {
    most: usize,
    /// How often the keys of each [counter](counter_of) were cleared.
    clears: Box<[AtomicU64]>,
    inner: Mutex<Inner>,
}

/// When a question was sent. If one of its keys is cleared later, a refusal may be older than the
/// step that cleared the key.
#[derive(Clone, Copy)]
pub(crate) struct QuestionTime {
    at: Instant,
    clears: u64,
}

/// Counters that keys share: a key that is cleared costs the other keys of its counter a question to
/// the store.
const COUNTERS: usize = 4_096;

fn counter_of(name: &[u8]) -> usize {
    name.iter().fold(0, |sum: usize, byte| {
        sum.wrapping_mul(31).wrapping_add(usize::from(*byte))
    }) % COUNTERS
}

#[derive(Default)]
struct Inner {
    swept: Option<Instant>,
    refusals: HashMap<Names, CachedRefusal>,
}

type Names = SmallVec<[Vec<u8>; 3]>;

/// The cost and the reserve of a call; `None` if it has no key. A set may hold a policy several
/// times, so the names of its keys do not show which calls have them.
type AskedFor = Option<(u64, u64)>;

fn asked_for(call: &Call) -> AskedFor {
    call.key().map(|_| (call.cost(), call.reserve()))
}

struct CachedRefusal {
    prepared: Arc<PreparedSet>,
    asked_for: SmallVec<[AskedFor; 3]>,
    states: SmallVec<[State; 3]>,
    /// The server's time at the decision, which was made between these two instants.
    now: Timestamp,
    asked: QuestionTime,
    told: Instant,
    /// When another refusal may replace it.
    until: Option<Instant>,
}

impl DenyCache {
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most,
            clears: (0..COUNTERS).map(|_| AtomicU64::new(0)).collect(),
            inner: Mutex::default(),
        }
    }

    /// Call this before asking the store.
    pub(crate) fn asking(&self, ask: &Ask) -> QuestionTime {
        QuestionTime {
            at: Instant::now(),
            clears: self.clears_of(&ask.names),
        }
    }

    fn clears_of(&self, names: &Names) -> u64 {
        names
            .iter()
            .map(|name| self.clears[counter_of(name)].load(Ordering::Acquire))
            .sum()
    }

    /// Returns the refusal if it is still true. `now` is the time that scripts are given, `None` if
    /// they read the server's clock.
    pub(crate) fn look(&self, ask: &Ask, now: Option<Timestamp>) -> Option<Decision> {
        let mut inner = self.inner.lock();
        let refused = inner.refusals.get(&ask.names)?;
        let at = |now: Timestamp| {
            ask.prepared
                .set
                .decide(&mut refused.states.clone(), now, &ask.calls)
        };
        let is_of_set = Arc::ptr_eq(&refused.prepared, &ask.prepared);
        if is_of_set && !refused.covers(ask) {
            return None;
        }
        // The server's clock is known to within a round trip. The request is refused only if it is
        // refused at the latest time that the clock can show. The reported wait is the one at the
        // earliest time, the longest that can be true.
        if !is_of_set
            || refused.asked.at.elapsed() >= LONGEST
            || refused.asked.clears != self.clears_of(&ask.names)
            || at(now.unwrap_or_else(|| refused.since(refused.asked.at))).is_admitted()
        {
            inner.refusals.remove(&ask.names);
            return None;
        }
        Some(at(now.unwrap_or_else(|| refused.since(refused.told))))
    }

    /// Keeps a refusal, if there is room.
    pub(crate) fn keep(
        &self,
        ask: &Ask,
        decision: &Decision,
        states: SmallVec<[State; 3]>,
        now: Timestamp,
        asked: QuestionTime,
    ) {
        let told = Instant::now();
        // A wait shorter than a round trip is over before the cache could use it.
        let wait = decision.retry_after();
        if wait.is_some_and(|wait| wait < Duration::from_millis(1)) {
            return;
        }
        let mut inner = self.inner.lock();
        if inner.refusals.len() >= self.most && !inner.refusals.contains_key(&ask.names) {
            // Do not scan a cache full of live refusals for each new one.
            if inner
                .swept
                .is_none_or(|swept| told - swept > Duration::from_millis(100))
            {
                self.forget_past(&mut inner, told);
            }
            if inner.refusals.len() >= self.most {
                return;
            }
        }
        let asked_for = ask.calls.iter().map(asked_for).collect();
        let until = asked
            .at
            .checked_add(wait.map_or(LONGEST, |wait| wait.min(LONGEST)));
        let refused = CachedRefusal {
            prepared: Arc::clone(&ask.prepared),
            asked_for,
            states,
            now,
            asked,
            told,
            until,
        };
        inner.refusals.insert(ask.names.clone(), refused);
    }

    fn forget_past(&self, inner: &mut Inner, now: Instant) {
        inner.swept = Some(now);
        inner.refusals.retain(|names, refused| {
            refused.until.is_none_or(|until| now < until)
                && refused.asked.clears == self.clears_of(names)
        });
    }

    /// Forgets the refusal of a request with exactly these keys.
    pub(crate) fn forget(&self, names: &Names) {
        self.inner.lock().refusals.remove(names);
    }

    /// Makes the refusals untrue in which a key took part.
    pub(crate) fn clear(&self, name: &[u8]) {
        self.clears[counter_of(name)].fetch_add(1, Ordering::Release);
    }

    pub(crate) fn clear_all(&self) {
        for clears in &self.clears {
            clears.fetch_add(1, Ordering::Release);
        }
        self.inner.lock().refusals.clear();
    }
}

impl CachedRefusal {
    /// The server's time if it was `now` at that instant.
    fn since(&self, then: Instant) -> Timestamp {
        self.now
            .after_micros(u64::try_from(then.elapsed().as_micros()).unwrap_or(u64::MAX))
    }

    /// Whether the kept states answer this request: it asks the same policies for as much or more,
    /// reserves included. So the refusal of a lower class says nothing about a higher one. Of a
    /// log, only what one cost needs is kept.
    fn covers(&self, ask: &Ask) -> bool {
        let policies = self.prepared.set.policies();
        self.asked_for
            .iter()
            .zip(&ask.calls)
            .zip(policies)
            .all(|((kept, call), policy)| {
                let asked_for = asked_for(call);
                let sum = |(cost, reserve): (u64, u64)| cost.saturating_add(reserve);
                let is_more = kept.zip(asked_for).is_some_and(|(kept, asked_for)| {
                    kept.0 > 0 && asked_for.0 > 0 && sum(asked_for) >= sum(kept)
                });
                asked_for == *kept || (is_more && !Kind::of(policy.algorithm()).is_shortened())
            })
    }
}

#[cfg(test)]
mod tests {
    use throttle_core::{FixedWindow, Key, Policy, PolicySet, PolicyTree, Rate};

    use super::*;

    /// A cache of one refusal, which holds a request of `cost` units of a limit of nine.
    fn holding(cost: u64) -> (DenyCache, Ask) {
        let policy = |name| {
            Policy::new(name, FixedWindow::new(Rate::per_day(9)))
                .expect("a policy")
                .into()
        };
        let set = PolicySet::new(PolicyTree::All(vec![policy("a"), policy("b")])).expect("a set");
        let prepared = Arc::new(PreparedSet::new(set));
        let cache = DenyCache::new(1);
        let ask = ask(&prepared, "ada", cost);
        keep(&cache, &ask);
        (cache, ask)
    }

    fn ask(prepared: &Arc<PreparedSet>, key: &str, cost: u64) -> Ask {
        let call = Call::new(
            Key::from(key),
            throttle_core::Cost::new(cost).expect("no peek"),
        );
        let names = ["a", "b"].map(|policy| format!("{policy}:{key}").into_bytes());
        let (calls, names) = (
            [call.clone(), call].into_iter().collect(),
            names.into_iter().collect(),
        );
        Ask {
            prepared: Arc::clone(prepared),
            calls,
            names,
            slot: 0,
            as_of: None,
        }
    }

    /// Decides on a key of which nine of nine units are used, and keeps the refusal.
    fn keep(cache: &DenyCache, ask: &Ask) {
        keep_asked(cache, ask, cache.asking(ask));
    }

    fn keep_asked(cache: &DenyCache, ask: &Ask, asked: QuestionTime) {
        let (set, now) = (&ask.prepared.set, Timestamp::EPOCH);
        let mut states: SmallVec<[State; 3]> = set
            .policies()
            .iter()
            .map(|policy| policy.algorithm().fresh())
            .collect();
        let all = throttle_core::Cost::new(9).expect("no peek");
        let all = vec![Call::new(Key::from("ada"), all); 2];
        assert!(set.decide(&mut states, now, &all).is_admitted());
        let decision = set.decide(&mut states.clone(), now, &ask.calls);
        assert!(!decision.is_admitted());
        cache.keep(ask, &decision, states, now, asked);
    }

    #[test]
    fn a_full_cache_replaces_the_refusal_of_the_same_keys() {
        let (cache, ask_for_two) = holding(2);
        let ask_for_one = ask(&ask_for_two.prepared, "ada", 1);
        assert!(
            cache.look(&ask_for_one, None).is_none(),
            "fewer units are another question"
        );
        keep(&cache, &ask_for_one);
        assert!(cache.look(&ask_for_one, None).is_some());
        let other = ask(&ask_for_two.prepared, "bob", 1);
        keep(&cache, &other);
        assert!(
            cache.look(&other, None).is_none() && cache.look(&ask_for_one, None).is_some(),
            "there is no room"
        );
    }

    #[test]
    fn a_refusal_is_kept_and_believed_for_a_second_at_most() {
        let (cache, ask) = holding(1);
        let of = |ago: Duration| {
            let at = Instant::now().checked_sub(ago).expect("it runs");
            keep_asked(
                &cache,
                &ask,
                QuestionTime {
                    at,
                    clears: cache.clears_of(&ask.names),
                },
            );
            cache.look(&ask, None).is_some()
        };
        assert!(of(LONGEST / 2) && !of(LONGEST));
        keep(&cache, &ask);
        let mut inner = cache.inner.lock();
        let now = Instant::now();
        cache.forget_past(&mut inner, now);
        assert_eq!(inner.refusals.len(), 1);
        cache.forget_past(&mut inner, now + LONGEST);
        assert_eq!(inner.refusals.len(), 0);
    }

    #[test]
    fn what_is_forgotten_or_cleared_leaves_nothing_behind() {
        for name in [None, Some(b"b:ada")] {
            let (cache, ask) = holding(1);
            match name {
                None => cache.forget(&ask.names),
                Some(name) => cache.clear(name),
            }
            assert!(cache.look(&ask, None).is_none());
            assert!(cache.inner.lock().refusals.is_empty());
        }
    }

    /// Another policy's key may have been reset between the question and the answer.
    #[test]
    fn refusal_is_not_cached_if_a_key_was_cleared_meanwhile() {
        for name in [b"a:ada", b"b:ada", b"b:bob"] {
            let (cache, ask) = holding(1);
            cache.forget(&ask.names);
            let asked = cache.asking(&ask);
            cache.clear(name);
            keep_asked(&cache, &ask, asked);
            assert_eq!(
                cache.look(&ask, None).is_some(),
                name == b"b:bob",
                "{}",
                String::from_utf8_lossy(name)
            );
        }
    }

    /// The server's time at the decision is known to within the time from the question to the
    /// answer.
    #[test]
    fn a_kept_refusal_reports_the_longest_wait_that_can_be_true() {
        let (cache, ask) = holding(1);
        let day = Duration::from_secs(86_400);
        let asked = QuestionTime {
            at: Instant::now().checked_sub(LONGEST / 2).expect("it runs"),
            clears: cache.clears_of(&ask.names),
        };
        cache.forget(&ask.names);
        keep_asked(&cache, &ask, asked);
        let wait = cache
            .look(&ask, None)
            .expect("kept")
            .retry_after()
            .expect("a day at most");
        assert!(wait <= day && wait > day - LONGEST / 4, "{wait:?}");
    }

    #[test]
    fn refusal_is_not_cached_if_everything_was_cleared_meanwhile() {
        let (cache, ask) = holding(1);
        let asked = cache.asking(&ask);
        cache.clear_all();
        assert!(cache.look(&ask, None).is_none() && cache.inner.lock().refusals.is_empty());
        keep_asked(&cache, &ask, asked);
        assert!(cache.look(&ask, None).is_none());
        keep(&cache, &ask);
        assert!(cache.look(&ask, None).is_some(), "it was asked about later");
    }

    /// A shorter wait is over before the cache could use it.
    #[test]
    fn a_refusal_is_kept_if_its_wait_is_a_millisecond() {
        for (now, is_kept) in [(0, true), (1, false)] {
            let policy = Policy::new(
                "p",
                FixedWindow::new(Rate::new(1, Duration::from_millis(1))),
            )
            .expect("a policy");
            let prepared = Arc::new(PreparedSet::new(PolicySet::new(policy).expect("a set")));
            let calls = vec![Call::from(Key::from("ada"))];
            let names: Names = [b"p:ada".to_vec()].into_iter().collect();
            let ask = Ask {
                prepared: Arc::clone(&prepared),
                calls: calls.iter().cloned().collect(),
                names,
                slot: 0,
                as_of: None,
            };
            let mut states: SmallVec<[State; 3]> = [prepared.set.policies()[0].algorithm().fresh()]
                .into_iter()
                .collect();
            assert!(
                prepared
                    .set
                    .decide(&mut states, Timestamp::EPOCH, &calls)
                    .is_admitted()
            );
            let now = Timestamp::from_micros(now);
            let decision = prepared.set.decide(&mut states.clone(), now, &calls);
            assert!(!decision.is_admitted());
            let cache = DenyCache::new(1);
            cache.keep(&ask, &decision, states, now, cache.asking(&ask));
            assert_eq!(
                cache.inner.lock().refusals.len(),
                usize::from(is_kept),
                "{:?}",
                decision.retry_after()
            );
        }
    }

    #[test]
    fn a_refusal_of_another_set_is_forgotten_when_it_is_looked_for() {
        let (cache, ask) = holding(1);
        let changed = Arc::new(PreparedSet::new(ask.prepared.set.clone()));
        let asks_anew = Ask {
            prepared: changed,
            ..ask.clone()
        };
        assert!(cache.look(&ask, None).is_some());
        assert!(cache.look(&asks_anew, None).is_none());
        assert!(cache.look(&ask, None).is_none(), "it was forgotten");
    }

    /// The time that scripts are given is exact: the refusal holds until the very end of its wait.
    #[test]
    fn at_a_given_time_a_refusal_holds_until_its_wait_is_over() {
        let (cache, ask) = holding(1);
        let day = 86_400_000_000;
        let last = cache
            .look(&ask, Some(Timestamp::from_micros(day - 1)))
            .expect("a microsecond is left");
        assert_eq!(last.retry_after(), Some(Duration::from_micros(1)));
        assert!(
            cache
                .look(&ask, Some(Timestamp::from_micros(day)))
                .is_none()
        );
        assert!(
            cache.look(&ask, Some(Timestamp::EPOCH)).is_none(),
            "it was forgotten"
        );
    }

    /// What a lower class may not spend is there for a higher one.
    #[test]
    fn a_refusal_answers_only_classes_that_ask_for_as_much_or_more() {
        let (_, whole) = holding(1);
        let asks = |(cost, reserve): (u64, u64)| {
            let call = || {
                Call::from(Key::from("ada"))
                    .costing(cost)
                    .reserving(reserve)
            };
            Ask {
                calls: [call(), call()].into_iter().collect(),
                ..whole.clone()
            }
        };
        for (kept, asked, is_answered) in [
            ((1, 3), (1, 3), true),
            ((1, 3), (1, 2), false),
            ((1, 3), (1, 0), false),
            ((1, 3), (2, 2), true),
            ((1, 3), (4, 0), true),
            ((1, 3), (1, 4), true),
            ((1, 3), (0, 9), false),
            ((1, 0), (1, 3), true),
            ((1, u64::MAX), (1, u64::MAX), true),
        ] {
            let cache = DenyCache::new(1);
            keep(&cache, &asks(kept));
            let answer = cache.look(&asks(asked), None);
            assert_eq!(answer.is_some(), is_answered, "{asked:?} after {kept:?}");
        }
    }

    /// Only policies that were asked about know whether they refuse more.
    #[test]
    fn a_refusal_of_which_a_part_was_a_peek_is_no_answer_to_a_charge() {
        let (_, whole) = holding(1);
        let cost = |units| Call::from(Key::from("ada")).costing(units);
        let asks = |costs: [u64; 2]| Ask {
            calls: costs.map(cost).into_iter().collect(),
            ..whole.clone()
        };
        for (kept, asked, is_answered) in [
            ([0, 2], [0, 2], true),
            ([0, 2], [0, 3], true),
            ([0, 2], [1, 2], false),
            ([0, 2], [0, 1], false),
            ([2, 0], [2, 1], false),
            ([2, 2], [2, 3], true),
            ([2, 2], [3, 1], false),
        ] {
            let cache = DenyCache::new(1);
            keep(&cache, &asks(kept));
            assert_eq!(
                cache.look(&asks(asked), None).is_some(),
                is_answered,
                "{asked:?} after {kept:?}"
            );
        }
    }

    /// The keys have the same names on the server, whichever calls of the policy they are in.
    #[test]
    fn law_13_a_refusal_is_kept_for_the_calls_that_have_the_keys() {
        let policy = Policy::new("p", FixedWindow::new(Rate::per_day(9))).expect("a policy");
        let set = PolicySet::repeating(PolicyTree::All(vec![policy.into(); 3])).expect("a set");
        let prepared = Arc::new(PreparedSet::new(set));
        let ada = || Call::from(Key::from("ada"));
        let bob = || Call::peek(Key::from("bob"));
        let ask = |calls: [Call; 3]| Ask {
            prepared: Arc::clone(&prepared),
            calls: calls.into_iter().collect(),
            names: ["p:ada", "p:bob"]
                .map(|name| name.as_bytes().to_vec())
                .into_iter()
                .collect(),
            slot: 0,
            as_of: None,
        };
        let (cache, asked) = (DenyCache::new(1), ask([ada(), Call::SKIP, bob()]));
        let (set, now) = (&prepared.set, Timestamp::EPOCH);
        let mut states: SmallVec<[State; 3]> = set
            .policies()
            .iter()
            .map(|policy| policy.algorithm().fresh())
            .collect();
        let five = Call::from(Key::from("bob")).costing(5);
        let charged = [ada().costing(9), Call::SKIP, five];
        assert!(set.decide(&mut states, now, &charged).is_admitted());
        let decision = set.decide(&mut states.clone(), now, &asked.calls);
        assert!(!decision.is_admitted());
        cache.keep(&asked, &decision, states, now, cache.asking(&asked));
        let left = |calls| Some(cache.look(&ask(calls), Some(now))?.statuses()[2].remaining());
        assert_eq!(left([ada(), Call::SKIP, bob()]), Some(4));
        assert_eq!(
            left([ada(), bob(), Call::SKIP]),
            None,
            "bob is in another call"
        );
    }
}

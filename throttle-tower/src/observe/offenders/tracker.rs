use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use throttle_core::backend::Call;
use throttle_core::{Key, Policy};
use tokio::time::Instant;

use super::offender::Offender;
use super::recent::{Recent, Refused};
use super::repeats::Repeats;
#[cfg(feature = "rules")]
use crate::event::Observed;
use crate::event::Observer;
use crate::event::{Event, Outcome};
use crate::lock::{lock, try_lock};
use crate::observe::key_tags::KeyTags;
use crate::observe::per_thread::own_place::Own;
use crate::observe::per_thread::report::{Reports, begin_report, report_if_overdue};
use crate::observe::per_thread::schedule::{Schedule, next_second};
use crate::observe::per_thread::turns::{NONE, PATIENT, Turns};
use crate::time::micros;

/// Shows a key of a policy as text.
pub(in crate::observe) type Show = dyn Fn(&str, &Key) -> Option<String> + Send + Sync;

/// Bytes that are kept of a key's text.
const MAX_TEXT: usize = 64;

/// Counts the refusals of a layer by key. It holds digests of keys and what the user's function shows.
pub(in crate::observe) struct Tracker {
    show: Option<Arc<Show>>,
    secret: RandomState,
    tags: KeyTags,
    schedule: Schedule,
    repeats: Own<Repeats>,
    /// The turns of threads without a place of their own, which report nothing later.
    of_others: Turns,
    pub(super) recent: Mutex<Recent>,
    /// When the running minute ends, in µs.
    minute_ends: AtomicU64,
    uncounted: AtomicU64,
}

impl Observer for Arc<Tracker> {
    /// It knows limits by their places.
    #[cfg(feature = "rules")]
    fn renewed(&self, former: &Observed, of: &Observed) -> Option<Box<dyn Observer>> {
        if former.has_names_of(of) { None } else { Some(Box::new(Self::new(self.anew()))) }
    }

    #[inline]
    fn judged(&self, event: &Event<'_>, calls: &[Call]) {
        if let Some((place, key)) = refused_key(event, calls)
            && !self.is_counted_at_once(place, key)
        {
            self.judged_otherwise(event, calls);
        }
    }
}

/// The key of a request that a limit refused, and the place of the policy that did.
#[inline(always)]
fn refused_key<'a>(event: &Event<'_>, calls: &'a [Call]) -> Option<(usize, &'a Key)> {
    let Outcome::Refused = event.outcome else { return None };
    let place = event.decision?.binding()?;
    Some((place, calls.get(place)?.key()?))
}

impl Tracker {
    /// A tracker of other limits, which shows keys in the same way.
    #[cfg(feature = "rules")]
    pub(in crate::observe) fn anew(&self) -> Self {
        Self::new(self.show.clone())
    }

    pub(in crate::observe) fn new(show: Option<Arc<Show>>) -> Self {
        let schedule = Schedule::new(next_second);
        let now = schedule.started();
        // Of all that the sketch hashes, nothing is known to a client. So it needs no secret of its own.
        let recent = Recent::new(now, show.is_some());
        Self {
            show,
            secret: RandomState::new(),
            tags: KeyTags::new(),
            schedule,
            repeats: Own::new(Repeats::new),
            of_others: Turns::default(),
            minute_ends: AtomicU64::new(micros(recent.ends() - now)),
            recent: Mutex::new(recent),
            uncounted: AtomicU64::new(0),
        }
    }

    /// What digests of keys are under.
    #[cfg(feature = "dashboard")]
    pub(in crate::observe) fn secret(&self) -> RandomState {
        self.secret.clone()
    }

    /// Counts one refusal of a key, or leaves it out, if it has no turn to read the clock and this thread has refused the
    /// key before.
    #[inline(always)]
    fn is_counted_at_once(&self, place: usize, key: &Key) -> bool {
        self.repeats.get().is_some_and(|own| {
            own.turns.due() != NONE
                && (own.sample.leaves_out()
                    || !own.turns.is_turn() && self.tags.of_short(place, key).is_some_and(|tag| own.count(tag)))
        })
    }

    #[inline(never)]
    fn judged_otherwise(self: &Arc<Self>, event: &Event<'_>, calls: &[Call]) {
        if let Some((place, key)) = refused_key(event, calls)
            && let Some(policy) = event.policies.get(place)
        {
            self.count_otherwise(place, policy, key);
        }
    }

    /// Counts one refusal of a key that was not counted at once.
    fn count_otherwise(self: &Arc<Self>, place: usize, policy: &Policy, key: &Key) {
        let tag = self.tags.of(place, key);
        match self.repeats.get() {
            Some(own) if own.turns.due() != NONE && !own.turns.has_come() => {
                // Its tag may be a long one.
                if !own.count(tag) {
                    self.count_new(place, policy, key, tag);
                }
            }
            _ => self.take_turn(place, policy, key, tag),
        }
    }

    #[cfg(test)]
    pub(super) fn count(self: &Arc<Self>, place: usize, policy: &Policy, key: &Key) {
        if !self.is_counted_at_once(place, key) {
            self.count_otherwise(place, policy, key);
        }
    }

    #[cold]
    fn take_turn(self: &Arc<Self>, place: usize, policy: &Policy, key: &Key, tag: u64) {
        let now = Instant::now();
        let at = self.micros(now);
        self.pass(at, now);
        if let Some(own) = self.repeats.take() {
            own.turns.taken(at, &PATIENT);
            if own.turns.due() == NONE {
                begin_report(self);
            } else {
                report_if_overdue(self, &own.turns, at);
            }
        }
        self.count_in_turn(place, policy, key, tag);
    }

    /// Counts one refusal of a key whose tag is known, and which is not left out, after [`pass`](Self::pass).
    fn count_in_turn(&self, place: usize, policy: &Policy, key: &Key, tag: u64) {
        let Some(own) = self.repeats.take().filter(|own| own.count(tag)) else {
            return self.count_new(place, policy, key, tag);
        };
        if own.has_many(tag)
            && let Some(mut recent) = try_lock(&self.recent)
        {
            own.hand_over(tag, &mut recent);
        }
    }

    /// Goes on to the present minute, if the last one is over. Keys that are refused in it are new ones. `at` is `now`
    /// in µs since the start.
    #[inline]
    fn pass(&self, at: u64, now: Instant) {
        if at >= self.minute_ends.load(Ordering::Relaxed)
            && let Some(mut recent) = try_lock(&self.recent)
        {
            self.turn(&mut recent, now);
        }
    }

    fn turn(&self, recent: &mut Recent, now: Instant) {
        if now < recent.ends() {
            return;
        }
        for own in self.repeats.iter() {
            own.hand_over_all(recent);
            own.begin_minute(recent);
        }
        recent.turn(now);
        self.minute_ends.store(self.micros(recent.ends()), Ordering::Relaxed);
    }

    /// Since the start.
    fn micros(&self, instant: Instant) -> u64 {
        micros(instant.saturating_duration_since(self.schedule.started()))
    }

    /// Counts a refusal that is not left out, of a key that this thread has not refused before.
    #[inline(never)]
    fn count_new(&self, place: usize, policy: &Policy, key: &Key, tag: u64) {
        let named = || Refused { policy: place, digest: self.secret.hash_one(key) };
        let own = self.repeats.get();
        let weight = own.map_or(1, |own| own.sample.weight());
        let slot = own.filter(|own| own.wish(tag)).map(|own| (own, named()));
        let Some(mut recent) = try_lock(&self.recent) else {
            self.uncounted.fetch_add(weight, Ordering::Relaxed);
            return;
        };
        let is_wanting = recent.add(tag, slot.map(|(_, key)| key), weight);
        if !is_wanting && let Some((own, key)) = slot {
            own.open(tag, key, &mut recent);
        }
        drop(recent);
        if is_wanting {
            // Not under the lock, because the function may read the list. If the lock is not free afterwards, the
            // key's next refusal asks again.
            let text = self.show.as_ref().and_then(|show| show(policy.name(), key)).map(cut);
            let named = named();
            if let Some(mut recent) = try_lock(&self.recent) {
                recent.name(tag, named, text);
            }
        }
    }

    pub(super) fn uncounted(&self) -> u64 {
        self.uncounted.load(Ordering::Relaxed)
    }

    /// The keys that were refused most.
    pub(in crate::observe) fn list(&self, n: usize, policies: &[Policy]) -> Vec<Offender> {
        let (missing, now) = (self.secret.hash_one(Key::missing()), Instant::now());
        let counted = {
            let mut recent = lock(&self.recent);
            self.turn(&mut recent, now);
            self.repeats.iter().for_each(|own| own.hand_over_all(&mut recent));
            recent.list(n)
        };
        let offenders = counted.into_iter().filter_map(|(Refused { policy, digest }, refused, shown)| {
            let policy = policies.get(policy)?.policy_name().clone();
            Some(Offender { policy, digest: (digest != missing).then_some(digest), refused, shown })
        });
        offenders.collect()
    }
}

impl Reports for Tracker {
    fn turns(&self, place: usize) -> &Turns {
        self.repeats.at(place).map_or(&self.of_others, |own| &own.turns)
    }

    fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    fn report(&self) {
        let now = Instant::now();
        self.pass(self.micros(now), now);
    }
}

/// The first bytes of a text, in whole characters.
fn cut(mut text: String) -> Box<str> {
    text.truncate(text.floor_char_boundary(MAX_TEXT));
    text.into()
}

#[cfg(all(test, feature = "dashboard"))]
impl Tracker {
    pub(in crate::observe) fn hold_lock(&self) -> impl Sized + use<'_> {
        lock(&self.recent)
    }
}

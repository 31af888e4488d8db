use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use metrics::Gauge;
use throttle_core::backend::Call;
use throttle_core::metrics::Registered;
use throttle_core::{Backend, BackendErrorKind, DecidedBy, Policy, Status};
use tokio::runtime::Handle;
use tokio::time::sleep;

use super::counts::{Counts, ROW, Rows};
use super::handles::{Handles, LookupHandles, place, place_of_kind};
use super::level::{Level, show};
use crate::ThrottleLayer;
use crate::limit::{Keying, LookupCounts, TierLookup};
use crate::lock::{lock, try_lock};
use crate::observe::{Correction, KeysHeld, Observer};
use crate::throttle::{Event, Outcome};

/// How long after a request its counts reach the recorder, at most.
const DELAY: Duration = Duration::from_millis(100);

impl<B: Backend> ThrottleLayer<B> {
    /// Reports what this layer does through the facade of the `metrics` crate, with `name` as the label `layer`: see
    /// [`metrics`](mod@crate::metrics) for all of them. Give each layer a name of its own: of two layers with one name,
    /// gauges and plan lookups would overwrite each other. Defaults to reporting nothing.
    ///
    /// Call it before the layer is cloned or applied: clones that were made before report nothing. The last name given
    /// stays. Counters reach the recorder within 200 ms, by a task of the tokio runtime, whose timers must be enabled. A
    /// request takes some 90 instructions more, or 11 ns.
    ///
    /// ```
    /// # use throttle_tower::{Constant, Gcra, Rate, ThrottleLayer, limit};
    /// # let limits = limit("p", Gcra::new(Rate::per_second(1))).by(Constant);
    /// let throttle = ThrottleLayer::new(limits)?.metrics("api");
    /// # Ok::<(), throttle_tower::ConfigError>(())
    /// ```
    pub fn metrics(self, name: impl Into<String>) -> Self {
        let metrics = Metrics::new(name.into(), &self);
        self.observed_by(Arc::new(Reporting(Arc::new(metrics))))
    }
}

/// Counts what one layer does.
struct Reporting(Arc<Metrics>);

struct Metrics {
    counts: Counts,
    /// Whether counts are on their way to the recorder.
    is_due: AtomicBool,
    /// What the recorder has of each counter.
    reported: Mutex<Vec<[u64; ROW]>>,
    handles: Registered<Handles>,
    policies: Box<[Watched]>,
    /// Permits taken, by the place of their limit.
    in_flight: Box<[Level]>,
    keys_held: Mutex<Option<KeysHeld>>,
}

/// A policy of the layer.
struct Watched {
    /// For each tier, the least that may remain without being near the limit.
    enough: Box<[u64]>,
    lookup: Option<Arc<dyn TierLookup>>,
    /// Requests in its queues.
    queued: Level,
}

impl Metrics {
    fn new<B: Backend>(layer: String, throttle: &ThrottleLayer<B>) -> Self {
        let (policies, applied) = (throttle.policies(), throttle.applied());
        let watched: Box<[Watched]> = policies
            .iter()
            .zip(applied)
            .map(|(policy, limit)| Watched {
                enough: match policy.is_tiered() {
                    true => policy.tiers().map(|(_, tier)| fifth(tier)).collect(),
                    false => Box::new([fifth(policy)]),
                },
                lookup: match &limit.keying {
                    Keying::Tiered(lookup) => Some(Arc::clone(lookup)),
                    Keying::Extracted(_) | Keying::Future(_) => None,
                },
                queued: Level::default(),
            })
            .collect();
        let named = policies.iter().zip(&watched);
        let names: Vec<_> =
            named.map(|(policy, watched)| (policy.name().to_owned(), watched.lookup.is_some())).collect();
        let permits: Vec<String> = throttle.permit_names().map(|name| name.as_str().to_owned()).collect();
        let rows = place::POLICIES + names.len();
        Self {
            counts: Counts::new(rows),
            is_due: AtomicBool::new(false),
            reported: Mutex::new(vec![[0; ROW]; rows]),
            in_flight: permits.iter().map(|_| Level::default()).collect(),
            handles: Registered::new(move || Handles::register(&layer, &names, &permits)),
            policies: watched,
            keys_held: Mutex::default(),
        }
    }
}

/// A fifth of a policy's capacity.
fn fifth(policy: &Policy) -> u64 {
    policy.algorithm().capacity() / 5
}

impl Observer for Reporting {
    fn built(&self, keys_held: KeysHeld) {
        *lock(&self.0.keys_held) = Some(keys_held);
    }

    #[inline]
    fn judged(&self, event: &Event<'_>, _: &[Call]) {
        match self.0.counts.own() {
            Some(rows) => self.0.count(rows, event),
            None => self.0.count_shared(event),
        }
        self.report_soon();
    }

    fn answered(&self, after: Duration, result: Result<(), BackendErrorKind>) {
        self.0.handles.with(|handles| {
            let histogram = result.map_or_else(|kind| &handles.failed[place_of_kind(kind)], |()| &handles.decided);
            histogram.record(after);
        });
    }

    fn queued(&self, policy: usize) {
        self.0.policies[policy].queued.rise(1, self.0.queue_gauge(policy));
    }

    fn left_queue(&self, policy: usize, after: Duration) {
        self.0.policies[policy].queued.fall(1, self.0.queue_gauge(policy));
        self.0.handles.with(|handles| handles.policies[policy].queue_time.record(after));
    }

    fn took_permits(&self, limit: usize, permits: u64) {
        self.0.in_flight[limit].rise(permits, self.0.permit_gauge(limit));
    }

    fn returned_permits(&self, limit: usize, permits: u64) {
        self.0.in_flight[limit].fall(permits, self.0.permit_gauge(limit));
    }

    fn corrected(&self, policy: usize, correction: Correction) {
        let (counter, units) = match correction {
            Correction::Refunded(units) => (place::REFUNDED, units),
            Correction::Charged(units) => (place::CHARGED, units),
            Correction::Short(units) => (place::SHORT, units),
        };
        let row = place::POLICIES + policy;
        match self.0.counts.own() {
            Some(rows) => rows.add(row, counter, units),
            None => self.0.counts.shared().add(row, counter, units),
        }
        self.report_soon();
    }
}

impl Metrics {
    /// Counts a request. That it was admitted follows from the decisions of a policy, if there is one.
    #[inline(always)]
    fn count<const OWN: bool>(&self, rows: Rows<'_, OWN>, event: &Event<'_>) {
        let decision = match (event.outcome, event.decision) {
            (Outcome::Admitted, Some(decision)) => decision,
            _ => return self.count_otherwise(rows, event),
        };
        let [status] = decision.statuses() else { return self.count_otherwise(rows, event) };
        if status.decided_by() == DecidedBy::Store && status.applies() && !status.is_overflow() {
            self.policies[0].count_admitted(rows, place::POLICIES, status);
        } else {
            self.count_otherwise(rows, event);
        }
    }

    #[cold]
    fn count_shared(&self, event: &Event<'_>) {
        self.count(self.counts.shared(), event);
    }

    /// Counts any request.
    #[inline(never)]
    fn count_otherwise<const OWN: bool>(&self, rows: Rows<'_, OWN>, event: &Event<'_>) {
        if !matches!(event.outcome, Outcome::Admitted) || self.policies.is_empty() {
            rows.add(place::REQUESTS, place::outcome(event.outcome), 1);
            // See `sums`.
            fence(Ordering::Release);
        }
        if let Some(decision) = event.decision {
            let is_admitted = decision.is_admitted();
            for (n, (status, watched)) in decision.statuses().iter().zip(&self.policies).enumerate() {
                watched.count(rows, place::POLICIES + n, status, is_admitted);
            }
            if !is_admitted && let Some(policy) = decision.binding() {
                rows.add(place::POLICIES + policy, place::BINDING, 1);
            }
        }
        if let Some(why) = event.degraded() {
            let decider = match event.decided_by() {
                Some(DecidedBy::Local(_)) => 0,
                Some(_) => 1,
                None => 2,
            };
            rows.add(place::DEGRADED, place::degraded(decider, why), 1);
        }
    }
}

impl Watched {
    fn count<const OWN: bool>(&self, rows: Rows<'_, OWN>, row: usize, status: &Status, is_admitted: bool) {
        if !status.applies() {
            rows.add(row, place::SKIPPED, 1);
        } else if status.is_violated() {
            rows.add(row, place::REFUSED, 1);
        } else if is_admitted {
            self.count_admitted(rows, row, status);
        } else {
            rows.add(row, self.place_of_rest(status), 1);
        }
        if status.is_overflow() {
            rows.add(row, place::OVERFLOW, 1);
        }
    }

    #[inline(always)]
    fn count_admitted<const OWN: bool>(&self, rows: Rows<'_, OWN>, row: usize, status: &Status) {
        rows.add(row, self.place_of_rest(status), 1);
        rows.add(row, place::CHARGED, status.charged());
    }

    #[inline(always)]
    fn place_of_rest(&self, status: &Status) -> usize {
        if status.remaining() < self.enough_in(status.tier()) { place::NEAR } else { place::ADMITTED }
    }

    /// Without tiers, a status is in tier 0.
    #[inline]
    fn enough_in(&self, tier: u8) -> u64 {
        self.enough.get(usize::from(tier)).copied().unwrap_or(0)
    }
}

impl Reporting {
    /// Sees to it that the counts reach the recorder.
    #[inline]
    fn report_soon(&self) {
        if !self.0.is_due.load(Ordering::Relaxed) {
            self.begin_report();
        }
    }

    #[cold]
    fn begin_report(&self) {
        if self.0.is_due.swap(true, Ordering::AcqRel) {
            return;
        }
        let report = Report(Arc::clone(&self.0));
        if let Ok(runtime) = Handle::try_current() {
            drop(runtime.spawn(async move {
                sleep(DELAY).await;
                let metrics = Arc::clone(&report.0);
                drop(report);
                // A request that was being counted may have been overlooked, and have found that a report is due.
                sleep(DELAY).await;
                metrics.report();
            }));
        }
    }
}

/// Reports what has been counted when it is dropped: in time, at once without a runtime, or when the runtime ends.
struct Report(Arc<Metrics>);

impl Drop for Report {
    fn drop(&mut self) {
        // What is counted from here on begins another report.
        self.0.is_due.store(false, Ordering::Release);
        self.0.report();
    }
}

impl Metrics {
    /// Brings the counts and what other rooms count to the recorder: the facade can only be written to.
    fn report(&self) {
        let Some(handles) = self.handles.get() else { return };
        // Another thread may be reporting, and reports again.
        let Some(mut reported) = try_lock(&self.reported) else { return };
        for ((row, counters), reported) in handles.counters.iter().enumerate().zip(&mut *reported) {
            let sums = self.sums(row);
            for ((counter, count), reported) in counters.iter().zip(sums).zip(&mut *reported) {
                // A request that is being counted is in some of the sums.
                let more = count.saturating_sub(*reported);
                if more > 0 {
                    counter.increment(more);
                    *reported = count;
                }
            }
        }
        let keys_held = lock(&self.keys_held).clone().filter(|keys_held| keys_held().is_some());
        if let Some(keys_held) = keys_held {
            show(&handles.keys, || keys_held().unwrap_or_default() as u64);
        }
        for (policy, watched) in handles.policies.iter().zip(&self.policies) {
            if let (Some(handles), Some(lookup)) = (&policy.lookups, &watched.lookup) {
                handles.report(lookup.counts());
            }
        }
    }

    fn sums(&self, row: usize) -> [u64; ROW] {
        if row != place::REQUESTS || self.policies.is_empty() {
            return self.counts.sums(row);
        }
        // Each policy has decided all requests for which there was a decision. Its row is read first: a refusal that is
        // found there is found among the requests too, and does not count as admitted.
        let decisions = self.counts.sums(place::POLICIES);
        fence(Ordering::Acquire);
        let mut sums = self.counts.sums(row);
        let [admitted, near, refused, skipped] =
            [place::ADMITTED, place::NEAR, place::REFUSED, place::SKIPPED].map(|place| decisions[place]);
        let others = sums[place::REFUSED_REQUESTS] + sums[place::FAILED_OPEN_REQUESTS];
        sums[place::ADMITTED_REQUESTS] = (admitted + near + refused + skipped).saturating_sub(others);
        sums
    }

    fn queue_gauge(&self, policy: usize) -> Option<&Gauge> {
        Some(&self.handles.get()?.policies[policy].queued)
    }

    fn permit_gauge(&self, limit: usize) -> Option<&Gauge> {
        Some(&self.handles.get()?.in_flight[limit])
    }
}

impl LookupHandles {
    fn report(&self, counts: LookupCounts) {
        self.remembered.absolute(counts.remembered);
        self.found.absolute(counts.found);
        self.unknown.absolute(counts.unknown);
        self.failed.absolute(counts.failed);
        self.turned_away.absolute(counts.turned_away);
    }
}

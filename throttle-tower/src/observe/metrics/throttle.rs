use std::sync::{Arc, Mutex};
use std::time::Duration;

use metrics::{Gauge, gauge};
use throttle_core::backend::Call;
use throttle_core::metrics::Registered;
use throttle_core::{Backend, BackendErrorKind, Policy, PolicyName};

use super::handles::{Handles, Named, StoreHandles, place};
use super::level::Level;
use super::per_thread::counts::{Counts, ROW};
use super::schedule::Schedule;
use crate::ThrottleLayer;
use crate::candidate::Candidates;
use crate::event::Backends;
use crate::event::{BuiltOn, Correction, Observer};
use crate::event::{Event, Observed};
use crate::limit::{Applied, Class, Keying, LookupCounts, OnMissing, TierLookup, WarnAt};

impl<B: Backend> ThrottleLayer<B> {
    /// Reports what this layer does through the facade of the `metrics` crate, with `name` as the
    /// label `layer`: see [`metrics`](mod@crate::metrics) for all of them. Give each layer a name
    /// of its own: of two layers with one name, gauges and plan lookups would overwrite each other.
    /// Defaults to reporting nothing.
    ///
    /// Call it before the layer is cloned or applied: clones that were made before report nothing.
    /// The last name given stays. Counters reach the recorder within 200 ms, by a task of the tokio
    /// runtime. Enable its timers: without them, each request reports, and tokio prints one panic
    /// that says so.
    ///
    /// ```
    /// # use throttle_tower::{Constant, Gcra, Rate, ThrottleLayer, limit};
    /// # let limits = limit("p", Gcra::new(Rate::per_second(1))).by(Constant);
    /// let throttle = ThrottleLayer::new(limits)?.metrics("api");
    /// # Ok::<(), throttle_tower::ConfigError>(())
    /// ```
    pub fn metrics(self, name: impl Into<String>) -> Self {
        let layer = self.with_lookups_of_its_own();
        let candidates = layer
            .current
            .with(|shared| shared.options.observers.find().cloned());
        layer.observed_as(|of| {
            Reporting(Arc::new(Metrics::new(
                name.into(),
                of,
                candidates.unwrap_or_default(),
            )))
        })
    }
}

/// Counts what one layer does, and reports it.
pub(super) struct Reporting(pub(super) Arc<Metrics>);

pub(super) struct Metrics {
    #[cfg_attr(
        not(feature = "rules"),
        expect(dead_code, reason = "it is read where limits are replaced")
    )]
    layer: String,
    pub(super) counts: Counts,
    pub(super) schedule: Schedule,
    /// What the recorder has of each counter.
    pub(super) reported: Mutex<Vec<[u64; ROW]>>,
    pub(super) handles: Registered<Handles>,
    pub(super) store: Registered<StoreHandles>,
    /// Registered once a backend of the layer holds keys in this process.
    pub(super) keys: Registered<Gauge>,
    pub(super) policies: Box<[Watched]>,
    /// Permits taken, by the place of their limit.
    in_flight: Box<[(PolicyName, Arc<Level>)]>,
    pub(super) candidates: Candidates,
    pub(super) backends: Backends,
}

/// A policy of the layer.
pub(super) struct Watched {
    name: PolicyName,
    /// What an unused key has in each tier.
    pub(super) capacities: Box<[u64]>,
    /// The reserves of all classes but the highest, with the rows of their decisions.
    pub(super) lower_classes: Box<[(u64, usize)]>,
    pub(super) warn_at: WarnAt,
    pub(super) lookup: Option<Arc<dyn TierLookup>>,
    /// What the recorder has of its lookups.
    pub(super) lookups_reported: Mutex<LookupCounts>,
    /// Requests in its queues.
    queued: Arc<Level>,
}

impl Metrics {
    fn new(layer: String, of: &Observed, candidates: Candidates) -> Self {
        let named = of.policies.iter().zip(&*of.applied);
        let mut rows = place::POLICIES + of.policies.len();
        let policies: Box<[Watched]> = named
            .map(|(policy, limit)| Watched::new(policy, limit, &mut rows))
            .collect();
        let has_permits = !of.permits.is_empty();
        // Requests that have to wait for a key are decided in two steps.
        let waits_for_keys = |limit: &Applied| !matches!(limit.keying, Keying::Extracted(_));
        let gives_back = has_permits || of.applied.iter().any(waits_for_keys);
        let requires_key = |limit: &Applied| matches!(limit.on_missing, OnMissing::Reject(_));
        let requires_keys = has_permits || of.applied.iter().any(requires_key);
        let name = |(watched, (policy, limit)): (&Watched, (&Policy, &Applied))| Named {
            name: watched.name.as_str().to_owned(),
            looks_up: watched.lookup.is_some(),
            is_audited: policy.is_audited(),
            bans: limit.charge_rules.ban.is_some(),
            queues: limit.wait_up_to.is_some(),
            refunds: gives_back || limit.charge_rules.may_change(),
            is_settled_later: limit.charge_rules.settled_later,
            classes: classes(limit)
                .iter()
                .map(|(class, _)| class.clone())
                .collect(),
        };
        let names: Vec<_> = policies
            .iter()
            .zip(of.policies.iter().zip(&*of.applied))
            .map(name)
            .collect();
        let permits: Vec<String> = of
            .permits
            .iter()
            .map(|name| name.as_str().to_owned())
            .collect();
        Self {
            counts: Counts::new(rows),
            schedule: Schedule::new(),
            reported: Mutex::new(vec![[0; ROW]; rows]),
            in_flight: of
                .permits
                .iter()
                .map(|name| (name.clone(), Arc::default()))
                .collect(),
            handles: Registered::new({
                let (layer, candidates) = (layer.clone(), candidates.clone());
                move || {
                    let permits = (&*permits, requires_keys);
                    Handles::register(&layer, &names, permits, &candidates)
                }
            }),
            store: Registered::new({
                let layer = layer.clone();
                move || StoreHandles::register(&layer)
            }),
            keys: Registered::new({
                let layer = layer.clone();
                move || gauge!("throttle_keys", "layer" => layer.clone())
            }),
            candidates,
            layer,
            policies,
            backends: Backends::default(),
        }
    }

    /// The metrics of the limits that replace those of these metrics. What waits or is in flight
    /// counts on.
    #[cfg(feature = "rules")]
    fn renewed(&self, of: &Observed, candidates: Candidates) -> Self {
        let mut renewed = Self::new(self.layer.clone(), of, candidates);
        for policy in &mut renewed.policies {
            if let Some(former) = self
                .policies
                .iter()
                .find(|former| former.name == policy.name)
            {
                policy.queued = Arc::clone(&former.queued);
            }
        }
        for (name, level) in &mut renewed.in_flight {
            if let Some((_, former)) = self.in_flight.iter().find(|(former, _)| former == name) {
                *level = Arc::clone(former);
            }
        }
        renewed
    }
}

impl Watched {
    /// The rows of its classes begin with the first free one.
    fn new(policy: &Policy, limit: &Applied, free_row: &mut usize) -> Self {
        let lower = classes(limit).iter().skip(1).map(|(_, reserve)| {
            *free_row += 1;
            (*reserve, *free_row - 1)
        });
        Self {
            name: policy.policy_name().clone(),
            lower_classes: lower.collect(),
            capacities: match policy.is_tiered() {
                true => policy.tiers().map(|(_, tier)| capacity(tier)).collect(),
                false => Box::new([capacity(policy)]),
            },
            warn_at: limit.warn_at.unwrap_or_default(),
            lookup: match &limit.keying {
                Keying::Tiered(lookup) => Some(Arc::clone(lookup)),
                Keying::Extracted(_) | Keying::Future(_) => None,
            },
            lookups_reported: Mutex::default(),
            queued: Arc::default(),
        }
    }
}

fn classes(limit: &Applied) -> &[Class] {
    limit
        .priority
        .as_ref()
        .map_or(&[], |priority| priority.classes())
}

pub(super) fn capacity(policy: &Policy) -> u64 {
    policy.algorithm().capacity()
}

impl Observer for Reporting {
    #[cfg(feature = "rules")]
    fn renewed(
        &self,
        _: &Observed,
        of: &Observed,
        beside: &crate::event::Observers,
    ) -> Option<Box<dyn Observer>> {
        Some(Box::new(Self(Arc::new(
            self.0
                .renewed(of, beside.find().cloned().unwrap_or_default()),
        ))))
    }

    fn built(&self, on: &Arc<BuiltOn>) {
        self.0.backends.add(on);
    }

    #[inline]
    fn passed_or_refused(&self, event: &Event<'_>, calls: &[Call]) {
        let rows = self.0.counts.rows();
        self.0.count(rows, event, calls);
        self.report_soon(rows);
    }

    fn answered(&self, after: Duration, result: Result<(), BackendErrorKind>) {
        self.0.store.with(|store| {
            let histogram =
                result.map_or_else(|kind| &store.failed[kind as usize], |()| &store.decided);
            histogram.record(after);
        });
    }

    fn queued(&self, policy: usize) {
        self.0.policies[policy]
            .queued
            .rise(1, self.0.queue_gauge(policy));
    }

    fn left_queue(&self, policy: usize, after: Duration) {
        self.0.policies[policy]
            .queued
            .fall(1, self.0.queue_gauge(policy));
        self.0
            .handles
            .with(|handles| handles.policies[policy].queue_time.record(after));
    }

    fn took_permits(&self, limit: usize, permits: u64) {
        self.0.in_flight[limit]
            .1
            .rise(permits, self.0.permit_gauge(limit));
    }

    fn returned_permits(&self, limit: usize, permits: u64) {
        self.0.in_flight[limit]
            .1
            .fall(permits, self.0.permit_gauge(limit));
    }

    fn corrected(&self, policy: usize, correction: Correction) {
        let (counter, units) = match correction {
            Correction::Refunded(units) => (place::REFUNDED, units),
            Correction::Charged(units) => (place::CHARGED, units),
            Correction::Short(units) => (place::SHORT, units),
        };
        let rows = self.0.counts.rows();
        rows.add(place::POLICIES + policy, counter, units);
        self.report_soon(rows);
    }

    fn banned(&self, policy: usize) {
        let rows = self.0.counts.rows();
        rows.add(place::POLICIES + policy, place::BANS, 1);
        self.report_soon(rows);
    }
}

impl Metrics {
    fn queue_gauge(&self, policy: usize) -> Option<&Gauge> {
        Some(&self.handles.get()?.policies[policy].queued)
    }

    fn permit_gauge(&self, limit: usize) -> Option<&Gauge> {
        Some(&self.handles.get()?.in_flight[limit])
    }
}

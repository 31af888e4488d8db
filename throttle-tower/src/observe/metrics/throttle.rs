use std::sync::Arc;

use metrics::{Gauge, gauge};
use throttle_core::metrics::Registered;
use throttle_core::{Backend, Policy, PolicyName};

use super::handles::{Handles, Named, PolicyHandles, StoreHandles, candidate_counters};
use super::level::Level;
use crate::ThrottleLayer;
use crate::candidate::Candidates;
use crate::event::Backends;
use crate::event::{Activity, BuiltInObserver, BuiltOn};
use crate::event::{Event, Observed};
use crate::limit::{Applied, Class, Keying, LookupResult, OnMissing, WarnAt};

impl<B: Backend> ThrottleLayer<B> {
    /// Reports what this layer does through the facade of the `metrics` crate, with `name` as the
    /// label `layer`: see [`metrics`](mod@crate::metrics) for all of them. Give each layer a name
    /// of its own: of two layers with one name, gauges and plan lookups would overwrite each other.
    /// Defaults to reporting nothing.
    ///
    /// Call it before the layer is cloned or applied: clones that were made before report nothing.
    /// The last name given stays. Counters count from the recorder on: install it before the first
    /// request.
    ///
    /// ```
    /// # use throttle_tower::{Constant, Gcra, Rate, ThrottleLayer, limit};
    /// # let limits = limit("p", Gcra::new(Rate::per_second(1))).by(Constant);
    /// let throttle = ThrottleLayer::new(limits)?.metrics("api");
    /// # Ok::<(), throttle_tower::ConfigError>(())
    /// ```
    pub fn metrics(self, name: impl Into<String>) -> Self {
        let candidates = self
            .current
            .with(|shared| shared.options.observers.find().cloned());
        self.observed_as(|of| Metrics::new(name.into(), of, &candidates.unwrap_or_default()))
    }
}

/// Counts what one layer does, in the handles of the recorder.
pub(super) struct Metrics {
    layer: String,
    handles: Registered<Handles>,
    store: Registered<StoreHandles>,
    /// Registered once a backend of the layer holds keys in this process.
    keys: Registered<Gauge>,
    pub(super) policies: Box<[PolicyMeter]>,
    /// Permits taken, by the index of their limit.
    in_flight: Box<[(PolicyName, Arc<Level>)]>,
    backends: Backends,
}

/// A policy of the layer.
pub(super) struct PolicyMeter {
    name: PolicyName,
    /// What an unused key has in each tier.
    pub(super) capacities: Box<[u64]>,
    /// Of all classes but the highest.
    pub(super) reserves: Box<[u64]>,
    pub(super) warn_at: WarnAt,
    /// Requests in its queues.
    queued: Arc<Level>,
}

impl Metrics {
    fn new(layer: String, of: &Observed, candidates: &Candidates) -> Self {
        for candidate in &candidates.0 {
            let (layer, name) = (layer.clone(), Arc::clone(&candidate.name));
            let counters = Registered::new(move || candidate_counters(&layer, &name));
            candidate
                .counts
                .report_to(move |result| counters.with(|all| all[result].increment(1)));
        }
        let named = || of.policies.iter().zip(&*of.applied);
        let has_permits = !of.permits.is_empty();
        // Requests that have to wait for a key are decided in two steps.
        let waits_for_keys = |limit: &Applied| !matches!(limit.keying, Keying::Extracted(_));
        let gives_back = has_permits || of.applied.iter().any(waits_for_keys);
        let requires_key = |limit: &Applied| matches!(limit.on_missing, OnMissing::Reject(_));
        let requires_keys = has_permits || of.applied.iter().any(requires_key);
        let name = |(policy, limit): (&Policy, &Applied)| Named {
            name: policy.name().to_owned(),
            looks_up: matches!(limit.keying, Keying::Tiered(_)),
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
        let names: Vec<_> = named().map(name).collect();
        let permits: Vec<String> = of
            .permits
            .iter()
            .map(|name| name.as_str().to_owned())
            .collect();
        Self {
            in_flight: of
                .permits
                .iter()
                .map(|name| (name.clone(), Arc::default()))
                .collect(),
            handles: Registered::new({
                let layer = layer.clone();
                move || Handles::register(&layer, &names, (&*permits, requires_keys))
            }),
            store: Registered::new({
                let layer = layer.clone();
                move || StoreHandles::register(&layer)
            }),
            keys: Registered::new({
                let layer = layer.clone();
                move || gauge!("throttle_keys", "layer" => layer.clone())
            }),
            layer,
            policies: named().map(PolicyMeter::new).collect(),
            backends: Backends::default(),
        }
    }

    /// The metrics of the limits that replace those of these metrics. What waits or is in flight
    /// counts on.
    fn renewed(&self, of: &Observed, candidates: &Candidates) -> Self {
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

    pub(super) fn store(&self) -> Option<&StoreHandles> {
        match self.backends.can_fail() {
            true => self.store.get(),
            false => None,
        }
    }

    fn of_policy(&self, policy: usize, record: impl FnOnce(&PolicyHandles)) {
        self.handles
            .with(|handles| record(&handles.policies[policy]));
    }
}

impl PolicyMeter {
    fn new((policy, limit): (&Policy, &Applied)) -> Self {
        let lower_classes = classes(limit).iter().skip(1);
        Self {
            name: policy.policy_name().clone(),
            reserves: lower_classes.map(|(_, reserve)| *reserve).collect(),
            capacities: match policy.is_tiered() {
                true => policy.tiers().map(|(_, tier)| capacity(tier)).collect(),
                false => Box::new([capacity(policy)]),
            },
            warn_at: limit.warn_at.unwrap_or_default(),
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

impl BuiltInObserver for Metrics {
    fn renewed(
        &self,
        _: &Observed,
        of: &Observed,
        beside: &crate::event::Observers,
    ) -> Option<Box<dyn BuiltInObserver>> {
        let candidates = beside.find().cloned().unwrap_or_default();
        Some(Box::new(self.renewed(of, &candidates)))
    }

    fn built(&self, on: &Arc<BuiltOn>) {
        self.backends.add(on);
    }

    fn decided(&self, event: &Event<'_>) {
        self.handles.with(|handles| {
            self.count(handles, event);
            self.backends.show_keys(event.version.keys_held(), |keys| {
                self.keys.with(|gauge| gauge.set(keys as f64));
            });
        });
    }

    fn happened(&self, activity: &Activity) {
        match *activity {
            Activity::Answered { after, failed } => self.store.with(|store| {
                let histogram = failed.map_or(&store.decided, |kind| &store.failed[kind as usize]);
                histogram.record(after);
            }),
            Activity::Queued { limit } => {
                self.policies[limit].queued.rise(1, self.queue_gauge(limit));
            }
            Activity::LeftQueue { limit, after } => {
                self.policies[limit].queued.fall(1, self.queue_gauge(limit));
                self.of_policy(limit, |handles| handles.queue_time.record(after));
            }
            Activity::TookPermits { limit, permits } => {
                let limit = self.permit_limit(limit);
                limit.0.rise(permits, limit.1);
            }
            Activity::ReturnedPermits { limit, permits } => {
                let limit = self.permit_limit(limit);
                limit.0.fall(permits, limit.1);
            }
            Activity::LookedUp { limit, result } => self.of_policy(limit, |handles| {
                let index = LookupResult::LABELS.iter().position(|own| *own == result);
                if let (Some(lookups), Some(index)) = (&handles.lookups, index) {
                    lookups[index].increment(1);
                }
            }),
            Activity::Refunded { limit, units } => {
                self.of_policy(limit, |handles| handles.refunded.increment(units));
            }
            Activity::Charged { limit, units } => {
                self.of_policy(limit, |handles| handles.charged.increment(units));
            }
            Activity::SettledShort { limit, units } => {
                self.of_policy(limit, |handles| handles.settled_short.increment(units));
            }
            Activity::Banned { limit } => {
                self.of_policy(limit, |handles| handles.bans.increment(1));
            }
        }
    }
}

impl Metrics {
    fn queue_gauge(&self, policy: usize) -> Option<&Gauge> {
        Some(&self.handles.get()?.policies[policy].queued)
    }

    /// The permits of a limit by its index, which counts those on a rate first.
    fn permit_limit(&self, index: usize) -> (&Level, Option<&Gauge>) {
        let own = index - self.policies.len();
        let gauge = self.handles.get().map(|handles| &handles.in_flight[own]);
        (&self.in_flight[own].1, gauge)
    }
}

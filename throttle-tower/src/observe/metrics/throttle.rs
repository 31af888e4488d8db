use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use metrics::Gauge;
use throttle_core::PolicyName;
use throttle_core::metrics::Registered;

use super::handles::{Handles, LimitHandles, keys_gauge};
use super::level::{Level, show};
use crate::event::{Activity, Event, LayerInfo, Observer};
use crate::limit::LookupResult;
use crate::lock::{lock, try_lock};

/// Reports what a layer does through the facade of the `metrics` crate, with a name as the label
/// `layer`. The module [`metrics`](mod@crate::metrics) lists all metrics. Hand it over with
/// [`observe`](crate::ThrottleBuilder::observe).
///
/// Layers that have clones of one `Metrics` count together. Two that are not clones need different
/// names, because the gauges of one would overwrite those of the other. Counters count from the
/// recorder on: install it before the first request.
///
/// ```
/// use http::{Request, Response};
/// use metrics_exporter_prometheus::PrometheusBuilder;
/// use throttle_tower::metrics::Metrics;
/// use throttle_tower::{Constant, Gcra, Rate, ThrottleLayer, limit};
/// use tower::{Layer, ServiceExt, service_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let prometheus = PrometheusBuilder::new().install_recorder()?;
/// let limits = limit("all", Gcra::new(Rate::per_second(10))).by(Constant);
/// let throttle = ThrottleLayer::builder(limits).observe(Metrics::new("api")).build()?;
/// let service = throttle.layer(service_fn(async |_: Request<()>| {
///     Ok::<_, std::convert::Infallible>(Response::new(()))
/// }));
/// service.oneshot(Request::new(())).await?;
/// let admitted = r#"throttle_requests_total{layer="api",outcome="admitted"} 1"#;
/// assert!(prometheus.render().contains(admitted));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Metrics(Arc<LayerMetrics>);

impl Metrics {
    /// Makes an observer that reports with `layer` as the label `layer`.
    #[must_use]
    pub fn new(layer: impl Into<String>) -> Self {
        let name = layer.into();
        Self(Arc::new(LayerMetrics {
            keys: KeyGauge::new(name.clone()),
            name,
            levels: Mutex::default(),
        }))
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Metrics").field(&self.0.name).finish()
    }
}

/// What goes on when limits are replaced.
struct LayerMetrics {
    name: String,
    keys: KeyGauge,
    levels: Mutex<HashMap<PolicyName, Arc<Levels>>>,
}

/// What rises and falls of a limit. Limits of one name count together.
#[derive(Default)]
struct Levels {
    queued: Level,
    in_flight: Level,
}

impl Observer for Metrics {
    fn built(&self, layer: &LayerInfo, _: Option<&LayerInfo>) -> Option<Arc<dyn Observer>> {
        self.0.keys.add(layer);
        let mut levels = lock(&self.0.levels);
        // A name that no version in use has is forgotten, and nothing of it is queued or taken.
        levels.retain(|_, level| Arc::strong_count(level) > 1);
        let level = |name: &PolicyName| Arc::clone(levels.entry(name.clone()).or_default());
        let names = layer.limits().iter().map(|limit| &limit.name);
        Some(Arc::new(LimitMetrics {
            levels: names.map(level).collect(),
            handles: Registered::new({
                let (own, info) = (Arc::clone(&self.0), layer.clone());
                move || Handles::register(&own.name, &info)
            }),
            layer: Arc::clone(&self.0),
            info: layer.clone(),
        }))
    }
}

/// Counts by the indices of one version of the limits.
struct LimitMetrics {
    layer: Arc<LayerMetrics>,
    info: LayerInfo,
    handles: Registered<Handles>,
    levels: Box<[Arc<Levels>]>,
}

impl LimitMetrics {
    fn of_limit(&self, limit: usize, record: impl FnOnce(&LimitHandles)) {
        self.handles.with(|handles| record(&handles.limits[limit]));
    }

    fn change_queue(&self, limit: usize, by: i64) {
        let handles = self.handles.get();
        let gauge = handles.map(|handles| &handles.limits[limit].queued);
        self.levels[limit].queued.change(by, gauge);
    }

    fn change_permits(&self, limit: usize, by: i64) {
        let handles = self.handles.get();
        let gauge = handles.map(|handles| &handles.limits[limit].in_flight);
        self.levels[limit].in_flight.change(by, gauge);
    }
}

impl Observer for LimitMetrics {
    fn decided(&self, event: &Event<'_>) {
        self.handles.with(|handles| {
            handles.count(event);
            self.layer.keys.show(&self.info);
        });
    }

    fn happened(&self, activity: &Activity) {
        match *activity {
            Activity::Answered { after, failed } => self.handles.with(|handles| {
                if let Some(store) = &handles.store {
                    let failed = failed.map(|kind| &store.failed[kind as usize]);
                    failed.unwrap_or(&store.decided).record(after);
                }
            }),
            Activity::Queued { limit } => self.change_queue(limit, 1),
            Activity::LeftQueue { limit, after } => {
                self.change_queue(limit, -1);
                self.of_limit(limit, |handles| handles.queue_time.record(after));
            }
            Activity::TookPermits { limit, permits } => {
                self.change_permits(limit, permits.cast_signed());
            }
            Activity::ReturnedPermits { limit, permits } => {
                self.change_permits(limit, -permits.cast_signed());
            }
            Activity::LookedUp { limit, result } => self.of_limit(limit, |handles| {
                let index = LookupResult::LABELS.iter().position(|own| *own == result);
                if let Some(counter) = index.and_then(|index| handles.lookups.get(index)) {
                    counter.increment(1);
                }
            }),
            Activity::Refunded { limit, units } => {
                self.of_limit(limit, |handles| handles.refunded.increment(units));
            }
            Activity::Charged { limit, units } => {
                self.of_limit(limit, |handles| handles.charged.increment(units));
            }
            Activity::SettledShort { limit, units } => {
                self.of_limit(limit, |handles| handles.settled_short.increment(units));
            }
            Activity::Banned { limit } => {
                self.of_limit(limit, |handles| handles.bans.increment(1));
            }
        }
    }
}

/// Shows how many keys the stores of all observed layers hold in this process.
pub(super) struct KeyGauge {
    /// Registered once a store holds keys in this process.
    gauge: Registered<Gauge>,
    layers: Mutex<Vec<LayerInfo>>,
    /// What the layer of the last request held, and one more: no key is a number, too.
    last_held: AtomicUsize,
}

impl KeyGauge {
    pub(super) fn new(name: String) -> Self {
        Self {
            gauge: Registered::new(move || keys_gauge(&name)),
            layers: Mutex::default(),
            last_held: AtomicUsize::new(0),
        }
    }

    pub(super) fn add(&self, layer: &LayerInfo) {
        let mut layers = lock(&self.layers);
        layers.retain(LayerInfo::is_in_use);
        layers.push(layer.clone());
    }

    /// Shows the keys, unless this layer holds as many as that of the last request. Returns while
    /// another thread shows them.
    pub(super) fn show(&self, layer: &LayerInfo) {
        let Some(held) = layer.keys_held().map(|held| held + 1) else {
            return;
        };
        if self.last_held.load(Ordering::Relaxed) == held {
            return;
        }
        let Some(layers) = try_lock(&self.layers) else {
            return;
        };
        self.last_held.store(held, Ordering::Relaxed);
        let sum = || {
            layers
                .iter()
                .filter_map(LayerInfo::keys_held)
                .sum::<usize>()
        };
        self.gauge.with(|gauge| show(gauge, || sum() as u64));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Constant, Gcra, Rate, ThrottleLayer, limit};

    #[test]
    fn levels_of_names_that_were_replaced_are_forgotten() {
        let named = |version: usize| {
            let gcra = Gcra::new(Rate::per_second(1));
            limit(format!("v{version}"), gcra).by(Constant)
        };
        let metrics = Metrics::new("api");
        let builder = ThrottleLayer::builder(named(0)).observe(metrics.clone());
        let layer = builder.build().unwrap();
        for version in 1..100 {
            layer.replace(named(version)).unwrap();
        }
        let names = lock(&metrics.0.levels).len();
        assert!(names <= 2, "{names} names");
    }
}

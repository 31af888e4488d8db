//! The gauge of keys in memory.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use metrics::Gauge;
use throttle_core::metrics::Registered;

use super::handles::keys_gauge;
use super::level::show;
use crate::event::LayerInfo;
use crate::lock::{lock, try_lock};

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

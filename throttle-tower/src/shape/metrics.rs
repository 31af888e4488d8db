use throttle_core::Backend;

use super::layer::ShapeLayer;
use crate::observe::metrics::ShapeMetrics;

impl<Req, B: Backend, H> ShapeLayer<Req, B, H> {
    /// Reports what the shaper does through the facade of the `metrics` crate, with `name` as the
    /// label `layer`: see [`metrics`](mod@crate::metrics). All layers and clones of one shaper
    /// report together. The first name stays, and each shaper needs a name of its own. Defaults to
    /// reporting nothing.
    ///
    /// ```
    /// # use throttle_tower::{LeakyBucket, Rate, ShapeLayer};
    /// let pace = LeakyBucket::new(Rate::per_second(50));
    /// let layer: ShapeLayer<http::Request<()>> = ShapeLayer::new(pace)?.metrics("billing-api");
    /// # Ok::<(), throttle_tower::ConfigError>(())
    /// ```
    pub fn metrics(self, name: impl Into<String>) -> Self {
        self.shaper
            .schedule
            .counters
            .report_metrics(ShapeMetrics::registered(name.into()));
        self
    }
}

use super::layer::ShapeLayer;
use crate::observe::metrics::ShapeMetrics;

impl<Req, Res> ShapeLayer<Req, Res> {
    /// Reports what the shaper does through the facade of the `metrics` crate, with `name` as the
    /// label `layer`: see [`metrics`](mod@crate::metrics). All layers and clones of one shaper
    /// report together. The first name stays, and each shaper needs a name of its own. Defaults to
    /// reporting nothing.
    ///
    /// ```
    /// # use throttle_tower::{Pace, Rate, ShapeLayer};
    /// let pace = Pace::new(Rate::per_second(50));
    /// let layer: ShapeLayer<http::Request<()>, http::Response<()>> = ShapeLayer::new(pace)?.metrics("billing-api");
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

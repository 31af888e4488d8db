use std::sync::Arc;

use http::request::Parts;
use throttle_core::Cost;

/// A cost: a number of units, a [`Cost`], or a function of the request's head.
///
/// A closure must spell its parameter's type out, because it is not the only thing that can be a cost:
///
/// ```compile_fail
/// # use throttle_tower::{Constant, Gcra, Rate, limit};
/// let exports = limit("exports", Gcra::new(Rate::per_minute(60))).by(Constant).cost(|parts| 5);
/// ```
///
/// ```
/// # use http::request::Parts;
/// # use throttle_tower::{Constant, Gcra, Rate, limit};
/// let exports = limit("exports", Gcra::new(Rate::per_minute(60))).by(Constant).cost(|parts: &Parts| 5);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a cost",
    label = "expected a number of units or a function of the request's head",
    note = "write `.cost(5)`, or `.cost(|parts: &Parts| 5)` with the parameter's type spelled out; the result is a `u64`",
    note = "turn a number of another type into a `u64` first, as in `.cost(u64::from(n))`"
)]
pub trait IntoCost {
    /// As a function of the request's head.
    fn into_cost(self) -> Arc<dyn Fn(&Parts) -> u64 + Send + Sync>;
}

impl IntoCost for u64 {
    fn into_cost(self) -> Arc<dyn Fn(&Parts) -> u64 + Send + Sync> {
        Arc::new(move |_| self)
    }
}

impl IntoCost for Cost {
    fn into_cost(self) -> Arc<dyn Fn(&Parts) -> u64 + Send + Sync> {
        Arc::new(move |_| self.get())
    }
}

impl<F: Fn(&Parts) -> u64 + Send + Sync + 'static> IntoCost for F {
    fn into_cost(self) -> Arc<dyn Fn(&Parts) -> u64 + Send + Sync> {
        Arc::new(self)
    }
}

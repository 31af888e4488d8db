use std::sync::Arc;

use http::request::Parts;
use throttle_core::Cost;

/// A cost: a number of units, a [`Cost`], or a function of the request's head.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a cost",
    label = "expected a number of units or a function of the request's head",
    note = "write `.cost(5)` or `.cost(|parts: &Parts| 5)`; the parameter's type must be spelled out, and the result is a `u64`"
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

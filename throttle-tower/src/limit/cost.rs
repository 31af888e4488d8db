use std::sync::Arc;

use http::request::Parts;
use throttle_core::Cost;

/// A cost: a number of units, a [`Cost`], or a function of the request's head.
///
/// A closure must state the type of its parameter, because types other than closures implement
/// `IntoCost`, too:
///
/// ```compile_fail
/// # use throttle_tower::{Constant, Gcra, Rate, limit};
/// let exports = limit("exports", Gcra::new(Rate::per_minute(60))).by(Constant).cost(|parts| 5);
/// ```
///
/// ```
/// # use http::request::Parts;
/// # use throttle_tower::{Constant, Gcra, Rate, ThrottleLayer, limit};
/// let exports = limit("exports", Gcra::new(Rate::per_minute(60)))
///     .by(Constant)
///     .cost(|parts: &Parts| 5);
/// assert!(ThrottleLayer::new(exports).is_ok());
/// ```
///
/// # Contract
///
/// The function is called once for each request that the limit applies to, before anything is
/// decided. It must not block. A cost of 0 peeks: the limit admits the request and charges nothing,
/// unless it is [settled later](crate::Limit::settled_later).
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a cost",
    label = "expected a number of units or a function of the request's head",
    note = "write `.cost(5)`, or `.cost(|parts: &Parts| 5)` with the parameter's type spelled \
        out; the result is a \
            `u64`",
    note = "turn a number of another type into a `u64` first, as in `.cost(u64::from(n))`"
)]
pub trait IntoCost {
    /// Converts it into a function of the request's head.
    fn into_cost(self) -> Arc<dyn Fn(&Parts) -> u64 + Send + Sync>;

    /// The cost of every request, where it does not depend on the request. Defaults to `None`.
    fn constant(&self) -> Option<u64> {
        None
    }
}

impl IntoCost for u64 {
    fn into_cost(self) -> Arc<dyn Fn(&Parts) -> u64 + Send + Sync> {
        Arc::new(move |_| self)
    }

    fn constant(&self) -> Option<u64> {
        Some(*self)
    }
}

impl IntoCost for Cost {
    fn into_cost(self) -> Arc<dyn Fn(&Parts) -> u64 + Send + Sync> {
        Arc::new(move |_| self.get())
    }

    fn constant(&self) -> Option<u64> {
        Some(self.get())
    }
}

impl<F: Fn(&Parts) -> u64 + Send + Sync + 'static> IntoCost for F {
    fn into_cost(self) -> Arc<dyn Fn(&Parts) -> u64 + Send + Sync> {
        Arc::new(self)
    }
}

#[cfg(test)]
mod tests {
    use throttle_core::{ConfigError, Cost, Gcra, Rate};

    use crate::limit::IntoLimitTree;
    use crate::{Constant, Limit, ThrottleLayer, limit, plans};

    fn of_ten() -> Limit {
        limit("p", Gcra::new(Rate::per_minute(10))).by(Constant)
    }

    fn tiers() -> Limit {
        plans(
            "p",
            [
                ("free", Gcra::new(Rate::per_minute(5))),
                ("pro", Gcra::new(Rate::per_minute(10))),
            ],
        )
        .by(Constant)
        .lookup(|_| async { None::<&str> })
        .unknown("free")
    }

    fn refused(limits: impl IntoLimitTree) -> ConfigError {
        ThrottleLayer::new(limits).unwrap_err()
    }

    #[test]
    fn constant_cost_above_capacity_is_an_error() {
        for error in [refused(of_ten().cost(11)), refused(tiers().cost(11))] {
            assert_eq!(
                (error.policy(), error.field(), error.value()),
                (Some("p"), "cost", "11")
            );
            assert!(error.to_string().contains("at most 10 units"), "{error}");
        }
        assert_eq!(
            refused(of_ten().cost(Cost::new(11).unwrap())).field(),
            "cost"
        );
    }

    #[test]
    fn cost_that_some_state_admits_is_accepted() {
        assert!(ThrottleLayer::new(of_ten().cost(10)).is_ok());
        assert!(ThrottleLayer::new(of_ten().cost(0)).is_ok(), "a peek");
        assert!(
            ThrottleLayer::new(tiers().cost(10)).is_ok(),
            "the larger tier admits it"
        );
        assert!(
            ThrottleLayer::new(of_ten().cost(11).cost(|_: &http::request::Parts| 11)).is_ok(),
            "the last one counts"
        );
    }
}
